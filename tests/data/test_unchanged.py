"""Without the options that came later, a store holds what it always held."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from mbcal import SessionConfig, prepare
from tests.support.logs import Row, table, write_rows

ROWS = [Row(f"u{k % 23}", f"i{k * k % 31}", 1_600_000_000 + k // 3, ("skip", "click", "like")[k % 3]) for k in range(600)]
NAMED = [Row(row.user, row.item, row.time, row.behaviour, f"s{k // 9}") for k, row in enumerate(ROWS)]


@pytest.mark.parametrize(
    ("rows", "config", "digest"),
    [
        (ROWS, SessionConfig(horizon=5, history=3), "dce39edd4f24e20d"),
        (NAMED, SessionConfig(horizon=5, history=3, gap=1.0), "40fbdbf5faedff48"),
    ],
)
def test_a_store_has_the_entries_and_tables_it_always_had(
    tmp_path: Path, rows: list[Row], config: SessionConfig, digest: str
) -> None:
    """Bytes of Parquet depend on the version of the library; schemas and values do not."""
    log = table(write_rows(tmp_path / "log.csv", rows), session=rows is NAMED)
    store = prepare(log, tmp_path / "store", config)
    entries = {key: store.manifest[key] for key in ("schema", "source", "options", "counts", "behaviours", "rejected")}
    tables = {
        name: [str(store.table(name).schema), store.table(name).to_pydict()] for name in sorted(store.manifest["files"])
    }
    text = json.dumps([entries, store.manifest["source_hashes"]["log"], tables], sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == digest
