"""Names of users, items and sessions: whole numbers are called alike, however they are written."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mbcal import ItemTable, Labels, TableLog, prepare
from mbcal.data.sql import entity_name_sql
from tests.support.logs import ONE_PART, steps, write_csv

HEADER = ("who", "what", "when", "did")
COLUMNS = {"user": "who", "item": "what", "time": "when", "behaviour": "did"}
RULE = Labels({"no": 0, "yes": 1})


@pytest.fixture(scope="module")
def names() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute(f"CREATE MACRO text_name(c) AS {entity_name_sql('c', 'VARCHAR')}")
    connection.execute(f"CREATE MACRO float_name(c) AS {entity_name_sql('c', 'DOUBLE')}")
    return connection


def name(connection: duckdb.DuckDBPyConnection, macro: str, value: object) -> object:
    kind = "VARCHAR" if isinstance(value, str) else "DOUBLE"
    return connection.execute(f"SELECT {macro}(?::{kind})", [value]).fetchall()[0][0]


@given(whole=st.integers(-(2**53) + 1, 2**53 - 1))
def test_whole_numbers_have_one_name(names: duckdb.DuckDBPyConnection, whole: int) -> None:
    assert name(names, "text_name", str(whole)) == str(whole)
    assert name(names, "text_name", f"{whole}.0") == str(whole)
    assert name(names, "float_name", float(whole)) == str(whole)


@given(text=st.text(alphabet=st.sampled_from("0123456789.-+ev \n٧")) | st.text())
@example("7.05")
@example("7.00")
@example("07.0")
@example("v7.0")
@example("1e3")
@example("7.0.0")
@example("7.0\n")
@example("9007199254740992.0")
@example("-0.0")
def test_other_text_keeps_its_name(names: duckdb.DuckDBPyConnection, text: str) -> None:
    if "\0" in text:  # refused when the file is read
        return
    match = re.fullmatch(r"(-?(?:0|[1-9][0-9]*))\.0", text)
    is_whole = match is not None and abs(int(match[1])) < 2**53
    expected = str(int(match[1])) if match is not None and is_whole else text
    assert name(names, "text_name", text) == (expected or None)
    assert name(names, "text_name", expected) == (expected or None)  # a name is its own name


def test_csv_and_parquet_of_floats_give_the_same_store(tmp_path: Path) -> None:
    users, items = [3.0, 3.0, 4.0, 2.5], [7.0, 8.0, 7.0, 1e16]
    table = pa.table({"who": users, "what": items, "when": [1, 2, 3, 4], "did": ["yes", "no", "yes", "no"]})
    pq.write_table(table, tmp_path / "log.parquet")
    write_csv(tmp_path / "log.csv", zip(*table.to_pydict().values(), strict=True), HEADER)
    integers = [("3", "7", 1, "yes"), ("3", "8", 2, "no"), ("4", "7", 3, "yes"), ("2.5", "1e+16", 4, "no")]
    write_csv(tmp_path / "integers.csv", integers, HEADER)
    stores = [
        prepare(TableLog(tmp_path / file, **COLUMNS, rule=RULE), tmp_path / f"{file}.store", ONE_PART)
        for file in ("log.parquet", "log.csv", "integers.csv")
    ]
    assert set(steps(stores[0])) == {"3", "4", "2.5"}
    assert stores[0].catalog.items[:2] == ("7", "8")
    assert len({store.manifest["content_hash"] for store in stores}) == 1


def test_item_tables_name_items_like_the_log(tmp_path: Path) -> None:
    log = write_csv(tmp_path / "log.csv", [("a", "7", 1, "yes"), ("a", "8.0", 2, "no")], HEADER)
    items = write_csv(tmp_path / "items.csv", [("7.0", "1.0"), ("8", "2.0")], ("what", "version"))
    store = prepare(TableLog(log, **COLUMNS, rule=RULE, items=ItemTable(items, ["version"])), tmp_path / "store", ONE_PART)
    assert store.catalog.items == ("7", "8")
    versions = store.catalog.features["version"]
    assert [versions.values(row) for row in (2, 3)] == [("1.0",), ("2.0",)]  # values of features stay as they are


def test_sessions_are_known_by_the_same_names(tmp_path: Path) -> None:
    rows = [("a", "x", 1, "yes", "5.0"), ("a", "y", 2, "no", "5"), ("a", "z", 3, "no", "5.1")]
    log = write_csv(tmp_path / "log.csv", rows, (*HEADER, "visit"))
    store = prepare(TableLog(log, **COLUMNS, rule=RULE, session="visit"), tmp_path / "store", ONE_PART)
    assert store.sessions("train").length.tolist() == [2, 1]
