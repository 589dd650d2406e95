"""Small decisions and feedback, and a decision log that holds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mbcal.decision_log import Decision, DecisionLog, Feedback, Record


def decision(number: int, **changes: Any) -> Decision:
    values: dict[str, Any] = {
        "id": f"d{number}",
        "time": 1_000_000 * number,
        "session": f"s{number % 3}",
        "user": "ümläut",
        "step": number,
        "version": "v1",
        "epsilon": 0.1,
        "history": [("a", "click"), ("b", "skip")],
        "shown": [("c", "click")] * (number % 2),
        "candidates": ["a", "b", "c"],
        "items": ["c", "a"],
        "propensities": [0.9 + 1e-16, 0.1 / 3],
    }
    return Decision(**{**values, **changes})


def feedback(number: int) -> Feedback:
    return Feedback(f"d{number}", "c", "click", 1_000_000 * number + 5, f"f{number}")


def mixed_records(count: int) -> list[Record]:
    return [feedback(number // 2) if number % 2 else decision(number // 2) for number in range(count)]


def write_log(folder: Path, records: list[Record], **options: Any) -> None:
    with DecisionLog(folder, **options) as log:
        for record in records:
            log.append(record).result(10)
