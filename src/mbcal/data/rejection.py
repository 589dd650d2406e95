"""Why a row of a log is rejected: missing or unreadable values, unknown labels, absurd times.

Malformed lines of CSV files are collected in `scan.collect_malformed_lines`, exact duplicates in `ingest`.
"""

from __future__ import annotations

from collections.abc import Mapping

from mbcal.data.behaviour_rules import BehaviourRule, Labels

LATEST_TIME = 4_102_444_800_000_000
"""2100-01-01 in microseconds. Times before 1970 or from here on are rejected."""

UNKNOWN_LABEL = "behaviour is unknown"
"""Why a row is rejected whose label no reward names."""


def reject_conditions(rule: BehaviourRule, kinds: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return why rows are rejected.

    Args:
        rule: How behaviours are read.
        kinds: SQL type by column of the log.

    Returns:
        Pairs of an SQL condition and a reason. The first condition that a row meets gives its reason.
    """
    conditions = [
        ('"user" IS NULL', "user is missing"),
        ("item IS NULL", "item is missing"),
        ('"time" IS NULL', "time is missing"),
        ("time_us IS NULL", "time cannot be read"),
        (f"time_us < 0 OR time_us >= {LATEST_TIME}", "time is absurd (before 1970 or after 2099)"),
        ("behaviour IS NULL", "behaviour is missing"),
        ("value IS NULL", UNKNOWN_LABEL if isinstance(rule, Labels) else "behaviour is not a number"),
    ]
    if "session" in kinds:
        conditions.append(("session IS NULL", "session is missing"))
    if "propensity" in kinds:
        # isfinite is evaluated for every row; comparisons DuckDB may answer from Parquet statistics, which ignore NaN
        out_of_range = "propensity IS NULL OR NOT isfinite(propensity) OR NOT (propensity > 0 AND propensity <= 1)"
        conditions.append((out_of_range, "propensity is not in (0, 1]"))
    return conditions
