"""The newest part of decision logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from mbcal.decision_log import Decision
from mbcal.release.log_records import newest_part
from tests.support.decision_records import decision, write_log


@pytest.mark.parametrize("most", [1, 7, 10, 19, 20])
def test_the_newest_decisions_of_all_servers_are_found_from_the_end(tmp_path: Path, most: int) -> None:
    """Two servers take turns; their segments hold two decisions each."""
    for server in range(2):
        own = [decision(n, id=f"d{n}", time=1_000_000 * (n + 1), version="v1") for n in range(20) if n % 2 == server]
        write_log(tmp_path / f"worker-{server}", own, segment_bytes=260)
    part = newest_part(tmp_path, {"v1"}, most)
    assert part.since == (None if most == 20 else 1_000_000 * (21 - most))
    found = [record.id for record in part.records({"v1"}) if isinstance(record, Decision)]
    assert sorted(found) == sorted(f"d{n}" for n in range(20 - most, 20))
    assert newest_part(tmp_path, {"v2"}, most).since is None
