"""A log read and cut by several workers: the same store, byte for byte, whatever is lost, repeated or out of order."""

from __future__ import annotations

import pickle  # as engines send tasks to their workers
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mbcal import ItemTable, KuaiRand, Levels, Mind, MovieLens, Netflix, SessionConfig, prepare
from mbcal.data.ingest import LogReader
from mbcal.data.shards import ShardPlan
from mbcal.distributed.engines import ONE_CORE, WorkerResources
from mbcal.distributed.engines.local import LocalEngine
from mbcal.errors import InputError
from tests.support.logs import content, unpacked, write_csv, zipped
from tests.support.text_logs import BAD, HEADER, START, damaged, rows, table, text_log


class Restless(LocalEngine):
    """Tasks travel, come back in any order, and some are done twice, as if the first worker had been taken for lost."""

    workers = 3

    def __init__(self) -> None:
        self.tasks: dict[str, int] = {}

    def map_unordered(
        self, job: Callable[[Any], Any], tasks: Sequence[Any], resources: WorkerResources = ONE_CORE, hear: Any = None
    ) -> Iterator[tuple[int, Any]]:
        self.tasks[job.__name__] = len(tasks)
        draw = random.Random(0)
        for number in draw.sample(range(len(tasks)), len(tasks)):
            if draw.random() < 0.4:
                job(travelled(tasks[number]))
            yield number, travelled(job(travelled(tasks[number])))


def travelled(what: Any) -> Any:
    return pickle.loads(pickle.dumps(what))  # noqa: S301  # as an engine sends tasks to its workers


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mbcal.data.shards.SHARD_STEPS", 40)


def same_store(source: LogReader, folder: Path, how: SessionConfig | None = None, *, several: bool = True) -> Restless:
    """Prepare both ways and compare every byte."""
    engine = Restless()
    prepare(source, folder / "here", how)
    prepare(source, folder / "spread", how, engine=engine)
    assert content(folder / "here") == content(folder / "spread")
    assert {path.name for path in folder.iterdir() if path.name.startswith(".")} == set()
    assert engine.tasks["cut_shards"] > 1
    assert engine.tasks["scan_chunk"] > 1 or not several
    return engine


def test_a_log_that_continues_a_store(tmp_path: Path) -> None:
    log = text_log(tmp_path)
    earlier = [("u", item, START + k, "skip", "s", 1.0) for k, item in enumerate(("old item", "another"))]
    first = write_csv(tmp_path / "first.csv", earlier, HEADER)
    how = SessionConfig(horizon=5, seed=3)
    old = prepare(table(first), tmp_path / "old", how)
    here, spread = (
        prepare(table(log), tmp_path / name, how, like=old, engine=engine)
        for name, engine in (("here", None), ("spread", Restless()))
    )
    assert content(here.path) == content(spread.path)
    assert here.catalog.items[:2] == old.catalog.items == ("another", "old item")
    assert len(here.catalog) > 2


def test_text_with_bad_rows_and_repeats(tmp_path: Path) -> None:
    same_store(table(text_log(tmp_path)), tmp_path, SessionConfig(horizon=5, gap=30.0, seed=3))


def test_a_split_by_time(tmp_path: Path) -> None:
    source = table(text_log(tmp_path), session="session")
    same_store(source, tmp_path, SessionConfig(horizon=4, split_by_time=True, alive=0.01, max_per_user=20))


def test_named_sessions_propensities_and_features(tmp_path: Path) -> None:
    features = write_csv(
        tmp_path / "items.tsv", [(f"i{k}", f"c{k % 3}", "x|y") for k in range(40)], ("item", "kind", "tags")
    )
    with features.open("a") as file:
        file.write("i1,\n")
    items = ItemTable(features, ["kind", "tags"])
    source = table(text_log(tmp_path), session="session", propensity="shown", items=items)
    same_store(source, tmp_path, SessionConfig(horizon=4, history=50, min_length=2))


def test_row_groups_of_one_parquet(tmp_path: Path) -> None:
    columns = list(zip(*rows(2_000), strict=True))
    names = [None if user == "u3" else int(str(user)[1:]) for user in columns[0]]  # a null makes them floats
    plain = {"user": pa.array(names, pa.float64()), **dict(zip(HEADER[1:], columns[1:], strict=True))}
    pq.write_table(pa.table(plain), tmp_path / "log.parquet", row_group_size=150)
    engine = same_store(table(tmp_path / "log.parquet"), tmp_path)
    assert engine.tasks["scan_chunk"] >= 7


def test_parquet_and_text_together_with_levels(tmp_path: Path) -> None:
    made = [(user, item, time, share) for user, item, time, _, _, share in rows(500)]
    columns = dict(zip(("user", "item", "time", "behaviour"), zip(*made, strict=True), strict=True))
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=100)
    write_csv(tmp_path / "b.csv", [*made[:80], ("u1", "i1", START, "nan")], tuple(columns))
    paths = [tmp_path / "a.parquet", tmp_path / "b.csv"]
    same_store(table(paths, rule=Levels((0.3, 0.7))), tmp_path)


def test_movielens(tmp_path: Path) -> None:
    draw = random.Random(0)
    ratings = [f"{draw.randrange(20)}::{draw.randrange(30)}::{draw.randrange(6)}::{START + k % 50}" for k in range(400)]
    films = "\n".join(f"{k}::Film {k}::Drama|War" for k in range(30))
    files = {"ratings.dat": "\n".join([*ratings, "1::2"]).encode(), "movies.dat": films.encode()}
    same_store(MovieLens(zipped(tmp_path / "ml.zip", files)), tmp_path, several=False)


def test_netflix_text_and_tables_of_other_types(tmp_path: Path) -> None:
    draw = random.Random(0)
    lines = [
        f"{movie}:\n" + "".join(f"{draw.randrange(20)},{k % 6},2005-01-0{k % 9 + 1}\n" for k in range(20))
        for movie in range(20)
    ]
    folder = unpacked(
        tmp_path / "raw", {"combined_data_1.txt": "".join(lines).encode(), "movie_titles.csv": b"7,2003,Seven\n"}
    )
    for number, kind in enumerate((pa.int32(), pa.int64(), pa.uint64())):
        columns = {
            "customer_id": pa.array([draw.randrange(20) for _ in range(100)], kind),
            "movie_id": [draw.randrange(20) for _ in range(100)],
            "rating": pa.array([k % 6 for k in range(100)], pa.int8()),
            "date": pa.array([13_000 + k % 7 for k in range(100)], pa.int32()).cast(pa.date32()),
        }
        pq.write_table(pa.table(columns), folder / f"ratings{number}.parquet")
    same_store(Netflix(sorted(folder.glob("*.parquet"))), tmp_path / "tables")
    same_store(Netflix(folder), tmp_path / "both")


def test_quantiles_over_several_files(tmp_path: Path) -> None:
    draw = random.Random(0)
    columns = ("user_id", "video_id", "time_ms", "play_time_ms")
    for part in "ab":
        made = [(draw.randrange(30), draw.randrange(40), 1000 * START + k, draw.randrange(5000)) for k in range(500)]
        write_csv(tmp_path / f"log_standard_{part}.csv", [*made, (1, 2, 3, "long")], columns)
    source = KuaiRand([tmp_path / "log_standard_a.csv", tmp_path / "log_standard_b.csv"])
    same_store(source, tmp_path, SessionConfig(horizon=10))


def test_a_log_too_bad_is_refused_alike(tmp_path: Path) -> None:
    source = table(write_csv(tmp_path / "log.csv", [*rows(5), *BAD], HEADER), propensity="shown")
    said = []
    for engine in (None, Restless()):
        with pytest.raises(InputError, match="rows would be rejected") as error:
            prepare(source, tmp_path / "store", engine=engine)
        said.append(str(error.value))
    assert said[0] == said[1]
    assert [path.name for path in tmp_path.iterdir()] == ["log.csv"]


def test_an_empty_log_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({column: pa.array([], pa.string()) for column in HEADER}), tmp_path / "log.parquet")
    with pytest.raises(InputError, match="holds no rows"):
        prepare(table(tmp_path / "log.parquet"), tmp_path / "store", engine=Restless())


def test_a_damaged_file_is_named_and_nothing_left(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^the log cannot be read: .*b\.parquet"):
        prepare(damaged(tmp_path), tmp_path / "store", engine=Restless())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.parquet", "b.parquet"]


def test_a_plan_cut_in_two_is_the_same_plan() -> None:
    part = np.repeat([0, 1, 2], [10, 8, 6])
    plan = ShardPlan.from_users(part, np.full(24, 15))
    assert plan.locations == (
        *(("simulator", k) for k in range(4)),
        *(("train", k) for k in range(3)),
        *(("test", k) for k in range(2)),
    )
    assert plan.user_bounds[[0, 4, 7, -1]].tolist() == [0, 10, 18, 24]
    assert plan.rows.sum() == 24 * 15
    halves = plan[:5], plan[5:]
    assert halves[0].locations + halves[1].locations == plan.locations
    assert halves[0].user_bounds[-1] == halves[1].user_bounds[0] == plan.user_bounds[5]


def test_mind_whose_histories_are_read_from_all_files(tmp_path: Path) -> None:
    files = {}
    for part, day in (("train", 11), ("dev", 15)):
        lines = [
            f"{k}\tU{k % 9}\t11/{day}/2019 {1 + k % 12}:05:58 AM\tN{k % 5} N{k % 7}\tN{k % 11}-1 N{k % 13}-0"
            for k in range(60)
        ]
        files[f"{part}/behaviors.tsv"] = "\n".join([*lines, "61\tU1\tbroken\n"]).encode()
    config = SessionConfig(max_rejected=0.9)
    same_store(Mind(unpacked(tmp_path / "raw", files)), tmp_path, config)
    rejected = prepare(Mind(tmp_path / "raw"), tmp_path / "again", config).manifest["rejected"]
    assert rejected["line has the wrong shape"] == 2
