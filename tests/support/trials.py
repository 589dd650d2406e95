"""Decision logs of two versions whose sessions earn what a test says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from mbcal.decision_log import Decision, DecisionLog, Feedback, Record

SECOND = 1_000_000


def session_records(
    name: str, version: str, rewards: list[str], *, user: str = "", began: int = SECOND, step_seconds: float = 1.0
) -> Iterator[Record]:
    """A session with one decision and one feedback per step; `rewards` are behaviours."""
    for step, behaviour in enumerate(rewards):
        time = began + int(step * step_seconds * SECOND)
        yield Decision(
            id=f"{name}-{step}",
            time=time,
            session=name,
            user=user or f"user of {name}",
            step=step,
            version=version,
            epsilon=0.1,
            history=[],
            shown=[("x", "click")] * step,
            candidates=["a", "b"],
            items=["a"],
            propensities=[0.95],
        )
        yield Feedback(f"{name}-{step}", "a", behaviour, time + SECOND // 2, f"f-{name}-{step}")


def trial_records(
    sessions: int,
    *,
    canary: str,
    live: str,
    likes: tuple[float, float],
    share: float = 0.3,
    began: int = SECOND,
    seed: int = 0,
) -> Iterator[Record]:
    """Sessions of two steps of 120 users in turn, a second apart; a share of users has the canary.

    A step is liked with a probability by version: canary, then live.
    """
    rng = np.random.default_rng(seed)
    for number in range(sessions):
        user = number % 120
        is_canary = user % 10 >= 10 * (1 - share)
        liked = rng.random(2) < likes[0 if is_canary else 1]
        yield from session_records(
            f"{seed}-{number}",
            canary if is_canary else live,
            ["like" if like else "skip" for like in liked],
            user=f"u{seed}-{user}",
            began=began + number * SECOND,
        )


def write_quickly(folder: Path, records: Iterable[Record]) -> None:
    """Write a log, waiting for the disk once at the end, however many records wait for it."""
    with DecisionLog(folder, max_waiting=10_000_000) as log:
        for waiting in [log.append(record) for record in records]:
            waiting.result(10)
