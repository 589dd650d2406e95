"""Value methods on sessions of 100 steps without discount, where errors that are bootstrapped can grow a hundred times."""

from __future__ import annotations

from functools import cache
from typing import Any

from mbcal import Sessions
from mbcal.environments.rollout import rollout
from tests.support.toys import Boredom, long_log, long_starts


@cache
def log() -> Sessions:
    return long_log(300)


def clicks(agent: Any) -> float:
    return float(rollout(agent, Boredom(), long_starts(200), seed=1).rewards.sum(1).mean())
