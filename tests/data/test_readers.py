"""The public layouts, from a folder, a zip and single files, on small logs written as their owners write them."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mbcal import KuaiRand, MovieLens, Netflix, SessionConfig, prepare
from mbcal.data.behaviour_rules import Quantiles
from mbcal.data.files import Paths
from mbcal.data.ingest import LogReader
from mbcal.errors import InputError
from tests.support.layouts import COMBINED, ML_20M, kuairand
from tests.support.logs import ONE_PART, ROOT, read_back, steps, unpacked, zipped

ML_1M = {
    "ml-1m/ratings.dat": b"1::1193::5::978300760\n1::661::3::978300700\n2::1193::1::978300761\n",
    "ml-1m/movies.dat": (
        "661::James and the Giant Peach (1996)::Animation|Children's|Musical\n"
        "1193::Amélie, la Nuit (1975)::Drama\n9999::Never Rated (2000)::Drama\n"
    ).encode("latin-1"),
    "ml-1m/users.dat": b"1::F::1::10::48067\n",
    "__MACOSX/ml-1m/._ratings.dat": b"\x00\x05\x16\x07",
}


@pytest.mark.parametrize("way", ["zip", "folder", "files"])
def test_movielens_dat(tmp_path: Path, way: str) -> None:
    folder = unpacked(tmp_path / "raw", ML_1M)
    paths: dict[str, Paths] = {
        "zip": zipped(tmp_path / "ml-1m.zip", ML_1M),
        "folder": folder,
        "files": [folder / "ml-1m/ratings.dat", folder / "ml-1m/movies.dat"],
    }
    store = prepare(MovieLens(paths[way]), tmp_path / "store", ONE_PART)
    assert steps(store) == {
        "1": [("661", "3", 978300700), ("1193", "5", 978300760)],
        "2": [("1193", "1", 978300761)],
    }
    assert store.catalog.items == ("661", "1193")
    assert store.catalog.titles == ("James and the Giant Peach (1996)", "Amélie, la Nuit (1975)")
    assert store.catalog.features["genres"].values(2) == ("Animation", "Children's", "Musical")
    assert store.behaviours.names == ("0", "1", "2", "3", "4", "5")
    assert store.behaviours.rewards == (0, 1, 2, 3, 4, 5)
    assert store.manifest["counts"]["rows"] == 3


def test_movielens_csv_floors_half_stars(tmp_path: Path) -> None:
    store = prepare(MovieLens(zipped(tmp_path / "ml-20m.zip", ML_20M)), tmp_path / "store", ONE_PART)
    assert steps(store) == {"1": [("31", "2", 1260759144), ("1029", "0", 1260759179)], "2": [("31", "5", 835355493)]}
    assert store.catalog.titles == ("Dangerous, Minds (1995)", "Dumbo")
    assert store.catalog.features["genres"].values(3) == ()
    assert store.catalog.features["tags"].values(2) == ("café", "slow")


def test_movielens_takes_tags_from_elsewhere_most_given_first(tmp_path: Path) -> None:
    tags = [f"661,tag {k},{k}" for k in range(1, 31)]
    other = zipped(tmp_path / "tags.zip", {"tags.csv": "\n".join(["movieId,tag,count", *tags]).encode()})
    store = prepare(MovieLens(zipped(tmp_path / "ml-1m.zip", ML_1M), tags=other), tmp_path / "store", ONE_PART)
    kept = store.catalog.features["tags"].values(2)
    assert set(kept) == {f"tag {k}" for k in range(11, 31)}
    assert store.manifest["options"]["features"] == ["genres", "tags"]


def test_movielens_ratings_alone_have_no_features(tmp_path: Path) -> None:
    log = tmp_path / "my ratings.csv"
    log.write_bytes(ML_20M["ml-20m/ratings.csv"])
    store = prepare(MovieLens(log), tmp_path / "store", ONE_PART)
    assert store.catalog.features == {}
    assert store.manifest["counts"]["rows"] == 3


@pytest.mark.parametrize("chunk", [8, 1 << 24])
def test_netflix_combined(tmp_path: Path, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mbcal.data.readers.netflix._CHUNK", chunk)
    files = {"combined_data_1.txt": COMBINED, "movie_titles.csv": "7,2003,Été, Part 2\n8,NULL,Plain\n".encode("latin-1")}
    store = prepare(Netflix(zipped(tmp_path / "nf.zip", files)), tmp_path / "store", ONE_PART)
    day = 86400
    assert steps(store) == {
        "11": [("8", "1", 12784 * day), ("7", "3", 12785 * day)],
        "12": [("7", "5", 12783 * day)],
    }
    assert store.catalog.titles == ("Été, Part 2", "Plain")


def test_netflix_original_files_and_parquet_agree(tmp_path: Path) -> None:
    folder = unpacked(
        tmp_path / "training_set",
        {"mv_0000007.txt": b"7:\r\n11,3,2005-01-02\r\n12,5,2004-12-31\r\n", "mv_0000008.txt": b"8:\n11,1,2005-01-01"},
    )
    days = pa.array(["2005-01-02", "2004-12-31", "2005-01-01"]).cast(pa.timestamp("s")).cast(pa.date32())
    columns = {"customer_id": [11, 12, 11], "movie_id": [7, 7, 8], "rating": pa.array([3, 5, 1], pa.int8()), "date": days}
    pq.write_table(pa.table(columns), tmp_path / "ratings.parquet")
    text = prepare(Netflix(folder), tmp_path / "text", ONE_PART)
    table = prepare(Netflix(tmp_path / "ratings.parquet"), tmp_path / "table", ONE_PART)
    assert read_back(text) == read_back(table)
    assert text.manifest["content_hash"] == table.manifest["content_hash"]


def test_netflix_original_has_a_file_a_movie(tmp_path: Path) -> None:
    """Thousands of files, as published; what is done per pair of files would be felt here."""
    for movie in range(1, 3001):
        (tmp_path / f"mv_{movie:07d}.txt").write_text(f"{movie}:\n{movie % 7},3,2004-01-02\n")
    store = prepare(Netflix(tmp_path), tmp_path / "store")
    assert (store.manifest["counts"]["rows"], store.manifest["counts"]["items"]) == (3000, 3000)


def test_netflix_refuses_ratings_without_a_movie(tmp_path: Path) -> None:
    (tmp_path / "combined_data_1.txt").write_bytes(b"11,3,2005-01-02\n")
    with pytest.raises(InputError, match=r"combined_data_1.txt: no 'movie:' line"):
        prepare(Netflix(tmp_path), tmp_path / "store")


def test_kuairand_levels_come_from_users_who_do_not_test(tmp_path: Path) -> None:
    how = SessionConfig(horizon=10)
    path = kuairand(tmp_path)
    store = prepare(KuaiRand(path), tmp_path / "store", how)
    with zipfile.ZipFile(path) as archive:
        lines = archive.read("KuaiRand-Pure/data/log_standard_4_22_to_5_08_pure.csv").decode().splitlines()[1:]
    rows = [line.split(",") for line in lines]
    part = dict(zip(store.users, store.table("users.parquet")["part"].to_pylist(), strict=True))
    played = np.sort([int(row[6]) for row in rows if part[row[0]] != "test"])
    assert len(store.behaviours) == 12
    assert store.behaviours.rewards == tuple(range(1, 13))
    # 20% are zeros: the first cut sits just above them, the later ones at the plain quantiles
    cuts = store.behaviours.cuts
    assert cuts[0] == played[played > 0][0]
    for k in range(3, 12):
        below = np.mean(played < cuts[k - 1])
        assert below == pytest.approx(k / 12, abs=0.01)
    everybody = np.sort([int(row[6]) for row in rows])
    assert cuts == Quantiles(12).cut(*np.unique(played.astype(float), return_counts=True)).cuts
    assert cuts != Quantiles(12).cut(*np.unique(everybody.astype(float), return_counts=True)).cuts
    levels = {int(row[6]): store.behaviours.names[int(store.behaviours.level(np.array(float(row[6]))))] for row in rows}
    stored = [(s.user, *step) for s in read_back(store) for step in s.steps]
    truth = [(row[0], row[1], levels[int(row[6])], int(row[4]) // 1000) for row in rows]
    assert sorted(stored) == sorted(truth)


def test_kuairand_features(tmp_path: Path) -> None:
    features = prepare(KuaiRand(kuairand(tmp_path)), tmp_path / "store").catalog.features
    assert set(features) == {"tag", "author_id", "video_type", "upload_type", "music_type", "duration"}
    assert set(features["tag"].values(2 + 8)) == {"1", "2"}  # video 8
    assert features["duration"].vocabulary == ("from 0 s", "from 7 s")


def test_quantiles_with_heavy_ties_move_on() -> None:
    levels = Quantiles(4).cut(np.array([0.0, 1.0, 2.0, 3.0]), np.array([97, 1, 1, 1]))
    assert levels.cuts == (1.0, 2.0, 3.0)
    assert Quantiles(4).cut(np.arange(100.0), np.array([1] * 99 + [900])).cuts == (97.0, 98.0, 99.0)
    with pytest.raises(InputError, match="2 distinct values are too few for 4 levels"):
        Quantiles(4).cut(np.array([0.0, 1.0]), np.array([5, 5]))


REAL = ROOT.parent / "shared" / "data"


@pytest.mark.skipif(not REAL.is_dir(), reason="the real logs are not beside this checkout")
@pytest.mark.parametrize(
    ("source", "horizon", "counts"),
    [
        (
            MovieLens(REAL / "ml-1m/ml-1m.zip", REAL / "ml-1m/tags-from-ml-20m.zip"),
            20,
            {"rows": 1_000_209, "users": 6_040, "items": 3_706},
        ),
        (Netflix(REAL / "netflix-40k/ratings.parquet"), 20, {"rows": 9_314_805, "users": 40_000, "full_sessions": 447_362}),
        (Netflix(REAL / "netflix-40k/kaggle-layout-excerpt.zip"), 20, {"rows": 149_213, "items": 300}),
        (
            KuaiRand(REAL / "kuairand-pure/KuaiRand-Pure-part.zip"),
            10,
            {"rows": 222_444, "users": 25_156, "full_sessions": 11_983},
        ),
        (MovieLens(REAL / "ml-latest-small/ml-latest-small.zip"), 20, {"rows": 100_004, "users": 671, "items": 9_066}),
    ],
    ids=["ml-1m", "netflix-40k", "netflix-excerpt", "kuairand-part", "ml-latest-small"],
)
def test_real_logs_have_the_counts_their_owners_say(
    tmp_path: Path, source: LogReader, horizon: int, counts: dict[str, int]
) -> None:
    found = prepare(source, tmp_path / "store", SessionConfig(horizon=horizon)).manifest
    assert {name: found["counts"][name] for name in counts} == counts
    assert found["rejected"] == {}
