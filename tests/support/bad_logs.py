"""A small log of text, to be damaged."""

from __future__ import annotations

from pathlib import Path

from mbcal import Labels, Levels, TableLog

GOOD = [("a", f"item {k}", 1_600_000_000 + k, "yes") for k in range(40)]
HEADER = ("who", "what", "when", "did")


def log(path: Path | list[Path], rule: Labels | Levels | None = None, **changes: object) -> TableLog:
    known = {"user": "who", "item": "what", "time": "when", "behaviour": "did", **changes}
    return TableLog(path, rule=rule or Labels({"no": 0, "yes": 1}), **known)  # type: ignore[arg-type]
