"""What `describe` tells about time, heavy users, new items and outcomes; and the latest steps of each user."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mbcal import ItemTable, Labels, SessionConfig, Store, TableLog, prepare
from mbcal.data.describe import describe
from mbcal.errors import InputError, OptionError
from tests.support.logs import REWARDS, Row, content, expected, read_back, table, write_csv, write_rows

DAY = 86_400
NOON = 1_700_049_600  # 2023-11-15T12:00:00Z
TRAIN = SessionConfig(horizon=4, history=2, split=(0, 1, 0))


def _store(folder: Path, rows: list[Row], config: SessionConfig = TRAIN, name: str = "store") -> Store:
    return prepare(table(write_rows(folder / f"{name}.csv", rows)), folder / name, config)


def test_days_new_items_and_outcomes_by_hand(tmp_path: Path) -> None:
    rows = [
        Row("a", "x", NOON, "click"),
        Row("a", "y", NOON + 60, "skip"),
        Row("b", "x", NOON + DAY, "like"),
        Row("b", "z", NOON + DAY + 1, "like"),
        Row("c", "z", NOON + DAY + 2, "like"),
        Row("c", "y", NOON + 3 * DAY, "skip"),
    ]
    found = describe(_store(tmp_path, rows))
    assert json.loads(json.dumps(found)) == found
    assert found["times"] == {"first": "2023-11-15T12:00:00Z", "last": "2023-11-18T12:00:00Z"}
    days = [(day["day"], day["steps"], day["new_items"], day["share"]) for day in found["new_items"]]
    assert days == [("2023-11-15", 2, 2, 1.0), ("2023-11-16", 3, 1, pytest.approx(2 / 3)), ("2023-11-18", 1, 0, 0.0)]
    outcomes = {entry["behaviour"]: (entry["sessions"], entry["mean_length"]) for entry in found["length_by_outcome"]}
    assert outcomes == {"skip": (2, 2.0), "like": (1, 2.0)}
    assert found["warnings"] == []


def test_new_items_do_not_depend_on_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [Row(f"u{k % 13}", f"i{k * k % 37 + k // 50}", NOON + k * 1700, "click") for k in range(400)]
    whole = describe(_store(tmp_path, rows))
    monkeypatch.setattr("mbcal.data.shards.SHARD_STEPS", 40)
    parts = _store(tmp_path, rows, name="parts")
    assert len([name for name in parts.manifest["files"] if name.startswith("steps-train")]) > 3
    for fact in ("times", "new_items", "length_by_outcome", "heaviest_users"):
        assert describe(parts)[fact] == whole[fact]
    by_item: dict[str, int] = {}
    for row in sorted(rows, key=lambda row: row.time):
        by_item.setdefault(row.item, row.time // DAY)
    new = sum(by_item[row.item] == row.time // DAY for row in rows)
    assert sum(day["steps"] * day["share"] for day in whole["new_items"]) == pytest.approx(new)


def test_times_in_the_wrong_unit_and_heavy_users_are_warned_of(tmp_path: Path) -> None:
    rows = [Row(f"u{k}", f"i{k}", 28_000_000 + k, "click") for k in range(60)]  # minutes, read as seconds: 1970
    rows += [Row("robot", f"i{k % 50}", 28_000_000 + k, "like") for k in range(600)]
    found = describe(_store(tmp_path, rows))
    heaviest = found["heaviest_users"]["train"][0]
    assert (heaviest["user"], heaviest["sessions"], heaviest["steps"]) == ("robot", 150, 600)
    assert heaviest["share"] == pytest.approx(150 / 210)
    wrong_unit, heavy = found["warnings"]
    assert "1970-11-21, before 1995" in wrong_unit
    assert "User 'robot' has 71% of the sessions of part train" in heavy
    few = [Row(f"u{k}", "x", NOON + k, ("skip", "click", "like")[k]) for k in range(3)]
    assert describe(_store(tmp_path, few, name="few"))["warnings"] == []  # a third each is all there can be


def test_items_that_were_met_with_several_behaviours_are_warned_of(tmp_path: Path) -> None:
    """An impression, then a click on it, as two rows; the same click twice in a row is one behaviour."""
    shown = [Row(f"u{k}", "x", NOON + k, "skip") for k in range(10)]
    again = [Row(f"u{k}", "x", NOON + 100 + k, "skip") for k in range(10)]
    assert describe(_store(tmp_path, shown + again, name="alike"))["warnings"] == []
    (warning,) = describe(_store(tmp_path, [*shown, Row("u3", "x", NOON + 200, "click")], name="clicked"))["warnings"]
    assert warning.startswith("10 items of sessions have 1 further behaviours there, each a step of its own.")
    other = [*shown, Row("u3", "y", NOON + 200, "click")]
    assert describe(_store(tmp_path, other, name="other"))["warnings"] == []


def test_a_label_without_a_reward_is_the_remedy_that_is_named(tmp_path: Path) -> None:
    rows = [Row(f"u{k}", "x", NOON + k, "impression") for k in range(9)] + [Row("u", "x", NOON, "click")]
    with pytest.raises(InputError, match=r"for instance 'impression'\. Give every label a reward, as in --rewards"):
        _store(tmp_path, rows)


def test_the_latest_steps_of_each_user_are_kept(tmp_path: Path) -> None:
    rows = [Row(f"u{k % 5}", f"i{k * 7 % 31}", NOON + k // 2, ("skip", "click", "like")[k % 3]) for k in range(300)]
    rows += [Row("robot", f"i{k % 31}", NOON + k, "like") for k in range(200)]
    limited = _store(tmp_path, rows, SessionConfig(horizon=4, history=2, split=(0, 1, 0), max_per_user=17))
    by_user = {row.user: [] for row in rows}
    for session in expected(rows, SessionConfig(horizon=10_000, history=0, split=(0, 1, 0))):
        by_user[session.user] = [Row(session.user, item, time, behaviour) for item, behaviour, time in session.steps[-17:]]
    latest = [row for kept in by_user.values() for row in kept]
    assert read_back(limited) == expected(latest, TRAIN)
    assert limited.manifest["options"]["max_per_user"] == 17
    assert limited.manifest["counts"]["older_steps"] == len(rows) - len(latest)
    assert describe(limited)["heaviest_users"]["train"][0]["steps"] == 17
    whole = _store(tmp_path, rows, name="whole")
    assert whole.manifest["source_hashes"]["log"] == limited.manifest["source_hashes"]["log"]
    assert not {"max_per_user", "older_steps"} & {*whole.manifest["options"], *whole.manifest["counts"]}
    shuffled = _store(tmp_path, rows[::-1], SessionConfig(4, 2, split=(0, 1, 0), max_per_user=17), "shuffled")
    assert content(shuffled.path) == content(limited.path)
    with pytest.raises(OptionError, match="max-per-user: must be at least 1"):
        SessionConfig(max_per_user=0)


def test_item_rows_that_contradict_each_other_are_counted(tmp_path: Path) -> None:
    write_rows(tmp_path / "log.csv", [Row("u", name, NOON + k, "click") for k, name in enumerate("abcd")])
    items = [
        ("a", "x", "1|2"),
        ("a", "y", "1|2"),
        ("b", "x", "1"),
        ("b", "x", "2"),
        ("c", "x", ""),
        ("z", "x", ""),
        ("z", "y", ""),
    ]
    write_csv(tmp_path / "items.csv", items, ("item", "kind", "tags"))
    log = TableLog(
        tmp_path / "log.csv",
        user="user",
        item="item",
        time="time",
        behaviour="behaviour",
        rule=Labels(REWARDS),
        items=ItemTable(tmp_path / "items.csv", ["kind", "tags"]),
    )
    found = describe(prepare(log, tmp_path / "store", TRAIN))
    assert found["item_conflicts"] == 1  # not b, whose tags are a union, and not z, which is not in the log
    assert found["features"]["kind"]["kind"] == "category"
    assert "1 items have several rows" in found["warnings"][0]
