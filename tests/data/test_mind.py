"""MIND in its published layout."""

from __future__ import annotations

from pathlib import Path

import pytest

from mbcal import Labels, Mind, SessionConfig, prepare
from mbcal.errors import InputError
from tests.support.layouts import shuffled
from tests.support.logs import ONE_PART, read_back, unpacked, zipped

MORNING = 1573463158  # 11/11/2019 9:05:58 AM
BEHAVIORS = (
    "1\tU13740\t11/11/2019 9:05:58 AM\tN55189 N42782\tN55689-1 N35729-0\n"
    "2\tU91836\t11/12/2019 6:11:30 PM\t\tN20678-0 N39317-0 N35729-1\n"
    "3\tU13740\t11/11/2019 9:06:00 AM\tN55189 N42782\tN20678-1\n"
)
NEWS = (
    'N55689\tsports\tfootball_nfl\tCharles Rogers "dies"\tSome abstract\thttps://x\t[{"Label": "CR", "Type": "P", '
    '"WikidataId": "Q2960642", "Confidence": 1.0}, {"Label": "S", "WikidataId": "Q58"}]\t[]\n'
    "N35729\tnews\t\tPorsche\t\thttps://y\t[]\t[]\n"
    "N99999\tnews\tnewsus\tNever shown\t\thttps://z\t[]\t[]\n"
)
FILES = {"MINDsmall_train/behaviors.tsv": BEHAVIORS.encode(), "MINDsmall_train/news.tsv": NEWS.encode()}


@pytest.mark.parametrize("way", ["zip", "folder"])
def test_an_impression_is_a_session_of_its_news_in_order(tmp_path: Path, way: str) -> None:
    paths = zipped(tmp_path / "mind.zip", FILES) if way == "zip" else unpacked(tmp_path / "raw", FILES)
    store = prepare(Mind(paths), tmp_path / "store", ONE_PART)
    sessions = {(session.user, session.steps[0][2]): session for session in read_back(store)}
    first, second = sessions["U13740", MORNING], sessions["U13740", MORNING + 2]
    assert first.history == (("N55189", "click"), ("N42782", "click"))  # of its history column
    assert first.steps == (("N55689", "click", MORNING), ("N35729", "skip", MORNING))
    assert second.steps == (("N20678", "click", MORNING + 2),)
    assert second.history == (("N55189", "click"), ("N42782", "click"), ("N55689", "click"), ("N35729", "skip"))
    [other] = [session for (user, _), session in sessions.items() if user == "U91836"]
    assert other.history == ()
    assert [step[:2] for step in other.steps] == [("N20678", "skip"), ("N39317", "skip"), ("N35729", "click")]
    assert store.behaviours.rewards == (0, 1)
    counts = store.manifest["counts"]
    assert (counts["rows"], counts["sessions"], counts["short_windows"]) == (6 + 2, 3, 0)


def test_the_history_is_that_of_the_first_impression(tmp_path: Path) -> None:
    later = "7\tU13740\t11/12/2019 9:05:58 AM\tN55189 N42782 N55689 N1\tN35729-0\n"
    earlier = "8\tU2\t11/12/2019 9:05:58 AM\t\tN35729-0\n9\tU2\t11/13/2019 9:05:58 AM\tN1 N2\tN35729-1\n"
    (tmp_path / "behaviors.tsv").write_text(BEHAVIORS + later + earlier)
    sessions = read_back(prepare(Mind(tmp_path), tmp_path / "store", ONE_PART))
    histories = {(session.user, session.steps[0][2] // 86400): [item for item, _ in session.history] for session in sessions}
    day = MORNING // 86400
    assert histories["U13740", day + 1] == ["N55189", "N42782", "N55689", "N35729", "N20678"]
    assert (histories["U2", day + 1], histories["U2", day + 2]) == ([], ["N35729"])


def test_news_are_features_and_titles(tmp_path: Path) -> None:
    catalog = prepare(Mind(unpacked(tmp_path / "raw", FILES)), tmp_path / "store", ONE_PART).catalog
    row = {name: catalog.rows_of([name])[0] for name in catalog.items}
    assert catalog.title_of(row["N55689"]) == 'Charles Rogers "dies"'
    assert catalog.features["category"].values(row["N35729"]) == ("news",)
    assert catalog.features["subcategory"].values(row["N35729"]) == ()
    assert set(catalog.features["entities"].values(row["N55689"])) == {"Q2960642", "Q58"}
    assert catalog.features["entities"].values(row["N20678"]) == ()


def test_ids_of_impressions_begin_anew_in_every_part(tmp_path: Path) -> None:
    dev = "1\tU13740\t11/15/2019 12:00:00 AM\t\tN35729-1\n"
    files = {**FILES, "MINDsmall_dev/behaviors.tsv": dev.encode(), "MINDsmall_dev/news.tsv": NEWS.encode()}
    store = prepare(Mind(unpacked(tmp_path / "raw", files)), tmp_path / "store", ONE_PART)
    assert store.manifest["counts"]["sessions"] == 4
    assert sorted(len(session.steps) for session in read_back(store)) == [1, 1, 2, 3]


def test_malformed_lines_and_empty_fields_are_rejected_with_their_reason(tmp_path: Path) -> None:
    bad = (
        "4\t\t11/11/2019 9:05:58 AM\t\tN1-0\n"  # no user
        "5\tU1\t\t\tN1-0\n"  # no time
        "6\tU1\t2019-11-11 09:05\t\tN1-0\n"  # another form of time
        "7\tU1\t11/11/2019 9:05:58 AM\t\t\n"  # nothing shown
        "8\tU1\t11/11/2019 9:05:58 AM\t\tN1 N2-2\n"  # not marked, as in the test part
        "9\tU1\n"
    )
    files = {"behaviors.tsv": (BEHAVIORS + bad).encode(), "news.tsv": (NEWS + "N1\tnews\n").encode()}
    config = SessionConfig(split=(0, 1, 0), max_rejected=0.9)
    store = prepare(Mind(unpacked(tmp_path / "raw", files)), tmp_path / "store", config)
    assert store.manifest["rejected"] == {
        "behaviour is missing": 2,
        "item is missing": 1,
        "line has the wrong shape": 1,
        "line of an item table has the wrong shape": 1,
        "time cannot be read": 1,
        "time is missing": 1,
        "user is missing": 1,
    }


def test_other_rewards_and_impressions_alone(tmp_path: Path) -> None:
    (tmp_path / "behaviors.tsv").write_text(BEHAVIORS)
    store = prepare(Mind(tmp_path / "behaviors.tsv", Labels({"skip": -1, "click": 2})), tmp_path / "store", ONE_PART)
    assert (store.behaviours.rewards, store.catalog.features) == ((-1, 2), {})
    with pytest.raises(InputError, match=r"no behaviors file found; looked for behaviors\*.tsv"):
        prepare(Mind(unpacked(tmp_path / "raw", {"news.tsv": NEWS.encode()})), tmp_path / "none")


def test_the_order_of_lines_does_not_matter(tmp_path: Path) -> None:
    stores = [
        prepare(Mind(unpacked(tmp_path / f"raw-{seed}", shuffled(FILES, False, seed))), tmp_path / f"{seed}", ONE_PART)
        for seed in range(3)
    ]
    assert len({store.content_hash for store in stores}) == 1
