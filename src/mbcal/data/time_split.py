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
from mbcal.errors import InputError

if TYPE_CHECKING:
    import duckdb

MINUTE = 60_000_000
"""Microseconds in a minute. Cuts lie on whole minutes: rows are counted by minute, which takes little memory."""


def create_time_counts(connection: duckdb.DuckDBPyConnection) -> None:
    """Create the table `time_counts` (minute, n) of the rows of `accepted`."""
    counts = f"SELECT time_us // {MINUTE} AS minute, count(*) AS n FROM accepted GROUP BY minute"
    connection.execute(f"CREATE TEMP TABLE time_counts AS {counts}")


def find_time_cuts(connection: duckdb.DuckDBPyConnection, split: tuple[float, float, float]) -> tuple[int, int]:
    """Return where the parts are cut, in microseconds.

    Args:
        connection: Has the table `time_counts`.
        split: Shares of rows in the times of simulator, train and test.

    Raises:
        InputError: If the log has too few different times.
    """
    counts = connection.sql("FROM time_counts ORDER BY minute").to_arrow_table()
    return cut_minutes(counts["minute"].to_numpy(), counts["n"].to_numpy(), split)


def cut_minutes(minutes: NDArray[np.int64], counts: NDArray[np.int64], split: tuple[float, float, float]) -> tuple[int, int]:
    """Return the first minutes with at least the shares of all rows before them, in microseconds.

    A cut depends on the rows before it and on the number of all rows alone.

    Args:
        minutes: (M,) distinct minutes, ascending.
        counts: (M,) rows of each.
        split: Shares of rows in the times of simulator, train and test.

    Raises:
        InputError: If a part with a share would have no rows.
    """
    before = np.cumsum(counts) - counts
    total = int(counts.sum())
    cuts = []
    for share, shares_before in ((split[0], 0.0), (split[1], split[0])):
        position = int(np.searchsorted(before, (shares_before + share) * total - 1e-6))
        cuts.append(int(minutes[position]) * MINUTE if position < len(minutes) else LATEST_TIME)
    edges = [int(minutes[0]) * MINUTE, *cuts, LATEST_TIME]
    for part, share, begin, end in zip(("simulator", "train", "test"), split, edges, edges[1:], strict=False):
        if share > 0 and begin >= end:
            problem = f"split: no time is left for part {part}; the log has {len(minutes):,} different minutes"
            raise InputError(f"{problem}: split it by user alone (--split A,B,C), or give it another share")
    return cuts[0], cuts[1]


def until_sql(cuts: tuple[int, int]) -> str:
    """Return an expression for the time before which steps count, by the number of the user's part in column `part`."""
    return f"(CASE part WHEN 0 THEN {cuts[0]} WHEN 1 THEN {cuts[1]} ELSE {LATEST_TIME} END)::BIGINT"


def era_sql(cuts: tuple[int, int]) -> str:
    """Return an expression for the number of cuts at or before an item's first step, in column `first_us`."""
    return f"((first_us >= {cuts[0]})::UTINYINT + (first_us >= {cuts[1]})::UTINYINT)"
