"""Fields of users and of steps from logs to sessions: kinds, vocabularies, statistics, missing values, order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mbcal
from mbcal import SessionConfig, Sessions, Store, UserTable
from mbcal.data.describe import describe
from mbcal.data.store_writer import write_sessions
from mbcal.distributed.engines.local import LocalEngine
from mbcal.errors import InputError, OptionError
from tests.support.command_line import mbcal_here
from tests.support.fields import with_fields

CONFIG = SessionConfig(horizon=3, history=2, split=(0.3, 0.4, 0.3), max_rejected=0.9)
COLUMNS: dict[str, Any] = {"user": "user", "item": "item", "time": "time", "behaviour": "label"}
REWARDS = {"skip": 0.0, "click": 1.0}


def log(n_users: int = 60, seed: int = 0) -> pa.Table:
    """A log with context of every kind; every user has four steps, some at the same time."""
    random = np.random.default_rng(seed)
    count = 4 * n_users
    hours = random.integers(0, 24, count)
    return pa.table(
        {
            "user": [f"u{number}" for number in np.repeat(np.arange(n_users), 4)],
            "item": [f"i{number}" for number in random.integers(0, 7, count)],
            "time": np.arange(count) // 2 + 1_600_000_000,
            "label": random.choice(["skip", "click"], count),
            "device": pa.array(random.choice(["tv", "phone", "web"], count)).filter(pa.array([True] * count)),
            "hour": hours,
            "scroll": pa.array(random.normal(100, 20, count), mask=random.random(count) < 0.1),
            "text": pa.array(random.normal(size=(count, 3)).tolist(), pa.list_(pa.float32())),
        }
    )


def users(n_users: int = 60) -> pa.Table:
    """Every third user has no row."""
    numbers = [number for number in range(n_users) if number % 3]
    countries = [None if number % 5 == 0 else ("at", "de")[number % 2] for number in numbers]
    return pa.table({"id": [f"u{number}" for number in numbers], "country": countries, "age": [20.5 + n for n in numbers]})


def prepared(folder: Path, table: pa.Table | None = None, **options: Any) -> Store:
    context = options.pop("context", ["device", "hour:number", "scroll", "text"])
    table = log() if table is None else table
    return mbcal.prepare(table, folder, CONFIG, **COLUMNS, rewards=REWARDS, context=context, **options)


def all_sessions(store: Store) -> Sessions:
    return Sessions.concat([store.sessions(part) for part in ("simulator", "train", "test")])


def test_sessions_hold_what_the_log_says(tmp_path: Path) -> None:
    table = log()
    store = prepared(tmp_path / "store", table, users=UserTable(users(), ["country", "age:number"], key="id"))
    fields = store.fields
    assert fields.context.describe() == "device (category), hour (number), scroll (number), text (vector of 3)"
    assert fields.user.describe() == "country (category), age (number)"
    assert fields.context.fields[0].vocabulary == ("tv", "web", "phone")
    rows: dict[tuple[str, int, str, str], list[dict[str, Any]]] = {}
    for row in table.to_pylist():
        rows.setdefault((row["user"], row["time"], row["item"], row["label"]), []).append(row)
    raw_users = {row["id"]: row for row in users().to_pylist()}
    sessions = all_sessions(store)
    assert sessions.fields == fields
    checked = 0
    for n, step in np.argwhere(sessions.mask):
        user, label = store.users[sessions.user[n]], store.behaviours.names[sessions.behaviours[n, step]]
        key = (user, int(sessions.timestamps[n, step]) // 1_000_000, store.catalog.name_of(sessions.items[n, step]), label)
        row, *others = rows[key]
        if others:  # which of them comes first depends on the context
            continue
        values = {name: row[name] for name in ("device", "hour", "scroll", "text")}
        np.testing.assert_allclose(sessions.context[n, step], fields.context.encode(values, "context"), rtol=1e-6, atol=1e-6)
        known = raw_users.get(user, {})
        expected = fields.user.encode({name: known.get(name) for name in ("country", "age")}, "user_features")
        np.testing.assert_allclose(sessions.user_features[n], expected, rtol=1e-6)
        checked += 1
    assert checked > 0.9 * len(table)


def test_statistics_are_those_of_the_train_part(tmp_path: Path) -> None:
    store = prepared(tmp_path / "store")
    parts = dict(zip(store.users, store.table("users.parquet")["part"].to_pylist(), strict=True))
    table = log().to_pylist()
    train = [row["hour"] for row in table if parts[row["user"]] == "train"]
    hour = next(one for one in store.fields.context if one.name == "hour")
    assert hour.mean == pytest.approx(np.mean(train), rel=1e-5)
    assert hour.deviation == pytest.approx(np.std(train), rel=1e-5)
    column = store.fields.context.columns["hour"].start
    sessions = store.sessions("train")
    assert sessions.context[sessions.mask][:, column].mean() == pytest.approx(0, abs=1e-4)


def test_values_that_only_test_users_have_are_unknown(tmp_path: Path) -> None:
    store = prepared(tmp_path / "first")
    parts = dict(zip(store.users, store.table("users.parquet")["part"].to_pylist(), strict=True))
    table = log()
    devices = ["fridge" if parts[row["user"]] == "test" else row["device"] for row in table.to_pylist()]
    table = table.set_column(table.column_names.index("device"), "device", pa.array(devices))
    again = prepared(tmp_path / "second", table)
    assert again.fields.context.fields[0].vocabulary == ("tv", "web", "phone")
    test = again.sessions("test")
    assert not test.context[test.mask][:, 0].any()
    # nor does anything else of the parts before change
    for name in store.manifest["files"]:
        if "train" in name or "simulator" in name:
            assert store.manifest["files"][name] == again.manifest["files"][name]


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 1000))
def test_the_order_of_rows_and_fields_does_not_matter(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    folder, random = tmp_path_factory.mktemp("order"), np.random.default_rng(seed)
    table = log(20)
    doubled = pa.concat_tables([table, table.set_column(4, "device", pa.array(["web"] * len(table)))])
    first = prepared(folder / "first", doubled, users=UserTable(users(), ["country", "age:number"], key="id"))
    context = list(random.permutation(["device", "hour:number", "scroll", "text"]))
    second = prepared(
        folder / "second",
        doubled.take(random.permutation(len(doubled))),
        context=context,
        users=UserTable(users().take(random.permutation(len(users()))), ["age:number", "country"], key="id"),
    )
    assert first.manifest["files"] == second.manifest["files"]
    assert first.manifest["fields"] == second.manifest["fields"]


def test_the_workers_of_an_engine_write_the_same_store(tmp_path: Path) -> None:
    tables = {"users": UserTable(users(), ["country", "age:number"], key="id")}
    alone = prepared(tmp_path / "alone", **tables)
    spread = prepared(tmp_path / "spread", **tables, engine=LocalEngine())
    assert spread.manifest == alone.manifest


def test_a_log_without_fields_has_no_trace_of_them(tmp_path: Path) -> None:
    store = prepared(tmp_path / "store", context=None)
    assert "fields" not in store.manifest
    assert store.table("users.parquet").column_names == ["user", "part"]
    assert store.sessions("train").context is None


def test_rows_that_differ_in_context_alone_are_no_duplicates(tmp_path: Path) -> None:
    table = log(20)
    other = table.set_column(4, "device", pa.array(["web"] * len(table)))
    store = prepared(tmp_path / "store", pa.concat_tables([table, table, other]))
    same = sum(row["device"] == "web" for row in table.to_pylist())
    assert store.manifest["rejected"] == {"exact duplicate": len(table) + same}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"context": ["hour:text"]}, "text"),
        ({"context": ["device:number"]}, "'phone' is not a number"),
        ({"context": ["colour"]}, "colour"),
        ({"users": ["country", "height"]}, "height"),
    ],
)
def test_wrong_declarations_are_one_sentence(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    if "users" in change:
        change = {"users": UserTable(users(), change["users"], key="id")}
    with pytest.raises((InputError, OptionError), match=message) as error:
        prepared(tmp_path / "store", **change)
    assert "\n" not in str(error.value)


def test_vectors_of_two_lengths_and_users_of_another_log_are_refused(tmp_path: Path) -> None:
    vectors = pa.array([[1.0, 2.0], *[[1.0, 2.0, 3.0]] * 239], pa.list_(pa.float64()))
    table = log().set_column(7, "text", vectors)
    with pytest.raises(InputError, match="vectors of 'text' have 3 and 2 numbers; give all one length"):
        prepared(tmp_path / "store", table, context=["text:vector"])
    strangers = pa.table({"id": ["x", "y"], "country": ["at", "de"]})
    with pytest.raises(InputError, match="no user of the log is in the user table"):
        prepared(tmp_path / "store", users=UserTable(strangers, ["country"], key="id"))


def test_sessions_written_for_workers_come_back_the_same(tmp_path: Path) -> None:
    sessions = with_fields(count=30)
    again = Store.open(write_sessions(tmp_path / "sessions", sessions)).sessions("train")
    assert again.fields == sessions.fields
    assert np.array_equal(again.context, sessions.context)
    assert np.array_equal(again.user_features, sessions.user_features)


def test_the_command_declares_shows_and_uses_fields(tmp_path: Path) -> None:
    import pyarrow.csv

    pyarrow.csv.write_csv(log().drop_columns(["text"]), tmp_path / "log.csv")
    pyarrow.csv.write_csv(users(), tmp_path / "users.csv")
    columns = ["--user", "user", "--item", "item", "--time", "time", "--behaviour", "label", "--rewards", "skip=0,click=1"]
    fields = ["--context", "device, hour:number", "--users", str(tmp_path / "users.csv"), "--users-key", "id"]
    out = tmp_path / "store"
    fields += ["--user-features", "country,age:number"]
    shown = mbcal_here("prepare", "table", "log.csv", *columns, *fields, "--out", "store", cwd=tmp_path)
    assert "Fields: users by country (category), age (number); steps by device (category), hour (number)" in shown
    described = mbcal_here("describe", "store", cwd=tmp_path)
    assert "Context of steps" in described
    assert "3 values: tv, web, phone" in described
    statistics = json.loads(mbcal_here("describe", "store", "--json", cwd=tmp_path))
    assert [entry["kind"] for entry in statistics["fields"]["user"]] == ["category", "number"]
    assert describe(Store.open(out))["fields"]["context"][1]["name"] == "hour"
    fitted = mbcal_here(
        "fit", "store", *["--agent", "gru4rec", "--epochs", "1", "--context", "hour", "--out", "model"], cwd=tmp_path
    )
    assert "fields: users by country (category), age (number); steps by hour (number)" in fitted
