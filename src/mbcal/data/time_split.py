"""A split by time as well as by user: simulator, train and test in this order of time.

::

    simulator users   ████████░░░░░░░░░░░░░░░░░   steps before the first cut
    train users       ████████████████░░░░░░░░░   steps before the second cut
    test users        ────────────────█████████   sessions from the second cut on; earlier steps are history only
                              │       │
                       first cut     second cut   where the shares of all rows of the log lie before

Nothing from after its cut enters a part. Items and users are numbered so that what comes later changes no number of what
came earlier: items by part of the log in which they were first seen, users without a step before the cut not at all.
docs/decisions/0022-split-by-time.md says why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mbcal.data.rejection import LATEST_TIME
from mbcal.data.store_format import PARTS
from mbcal.errors import InputError

if TYPE_CHECKING:
    import duckdb

HOUR, MINUTE = 3_600_000_000, 60_000_000
"""Microseconds. Cuts lie on whole minutes. Rows are counted by hour, and by minute within the hours of the cuts, which takes
little time and memory."""


def create_time_counts(connection: duckdb.DuckDBPyConnection) -> None:
    """Create the table `time_counts` (hour, n) of the rows of `accepted`."""
    counts = f"SELECT time_us // {HOUR} AS hour, count(*) AS n FROM accepted GROUP BY hour"
    connection.execute(f"CREATE TEMP TABLE time_counts AS {counts}")


def find_time_cuts(connection: duckdb.DuckDBPyConnection, split: tuple[float, float, float]) -> tuple[int, int]:
    """Return where the parts are cut, in microseconds: the first whole minutes with at least the shares of rows before.

    A cut depends on the rows before it and on the number of all rows alone.

    Args:
        connection: Has the tables `accepted` and `time_counts`.
        split: Shares of rows in the times of simulator, train and test.

    Raises:
        InputError: If a part with a share would have no rows.
    """
    hours, counts = _counted(connection, "SELECT hour, n FROM time_counts ORDER BY hour")
    total, cuts = int(counts.sum()), []
    for share in (split[0], split[0] + split[1]):
        hour, before = first_reaching(counts, share * total)
        begin = int(hours[hour]) * HOUR
        in_hour = f"FROM accepted WHERE time_us >= {begin} AND time_us < {begin + HOUR}"
        minutes, rows = _counted(connection, f"SELECT time_us // {MINUTE} AS m, count(*) {in_hour} GROUP BY m ORDER BY m")
        minute, within = first_reaching(rows, share * total - before)
        cuts.append((int(minutes[minute] + 1) * MINUTE, before + within + int(rows[minute])) if share > 0 else (begin, 0))
    edges = [0, *(rows_before for _, rows_before in cuts), total]
    for part, share, first, last in zip(PARTS, split, edges, edges[1:], strict=False):
        if share > 0 and first >= last:
            problem = f"split: no rows are left for part {part}, since too many have the same time"
            raise InputError(f"{problem}; split by user alone (--split A,B,C), or give it another share")
    return cuts[0][0], cuts[1][0]


def first_reaching(counts: NDArray[np.int64], target: float) -> tuple[int, int]:
    """Return the first position up to which counts (M,) add up to a target, the last if none does; and the sum before it."""
    sums = np.cumsum(counts)
    position = min(int(np.searchsorted(sums, target - 1e-6)), len(sums) - 1)
    return position, int(sums[position] - counts[position])


def _counted(connection: duckdb.DuckDBPyConnection, query: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the two columns of a query as arrays."""
    columns = connection.sql(query).to_arrow_table().columns
    return columns[0].to_numpy(), columns[1].to_numpy()


def until_sql(cuts: tuple[int, int]) -> str:
    """Return an expression for the time before which steps count, by the number of the user's part in column `part`."""
    return f"(CASE part WHEN 0 THEN {cuts[0]} WHEN 1 THEN {cuts[1]} ELSE {LATEST_TIME} END)::BIGINT"


def era_sql(cuts: tuple[int, int]) -> str:
    """Return an expression for the number of cuts at or before an item's first step, in column `first_us`."""
    return f"((first_us >= {cuts[0]})::UTINYINT + (first_us >= {cuts[1]})::UTINYINT)"
