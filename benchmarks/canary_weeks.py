"""Weeks of users who come back: how trials of canaries end by all default limits, those of users included.

    python benchmarks/canary_weeks.py                     40 trials each (three minutes on one core)
    python benchmarks/canary_weeks.py --replications 10

Users with different tastes visit at lunch or in the evening for a week, seven times on average; an evening visit earns more.
A canary changes what a visit earns within its hour, how many more visits come after the first, or when these come. Every six
hours it is looked at with the default limits. The true differences are those of a session, and of a user with all visits.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from mbcal.release.comparison import compare_versions
from mbcal.release.judge import DAY, CanaryConfig, judge_canary
from mbcal.release.outcomes import Outcomes

HOUR, IDLE = 3600.0, 1800.0
LOOK = 6 * HOUR
STEPS = 10
"""Steps of a visit; each pays 1 or nothing."""
LUNCH, EVENING = 0.1, 0.25
"""Probability that a step of a visit pays."""


@dataclass(frozen=True)
class Week:
    """A kind of canary. The live version has 60% of its visits in the evening."""

    name: str
    gain: float = 0.0
    """What a visit earns more within its hour, as a share."""
    visits: float = 1.0
    """How many visits come as a share of those of the live version, the first one of a user apart."""
    evenings: float = 0.6
    """Share of later visits in the evening."""
    share: float = 0.5
    """Share of users that the canary gets."""
    users: int = 3000
    config: CanaryConfig = field(default_factory=CanaryConfig)


@dataclass(frozen=True)
class Visits:
    """Visits of a week in the order in which they began; arrays are (N,)."""

    time: NDArray[np.float64]
    user: NDArray[np.int32]
    is_canary: NDArray[np.bool_]
    reward: NDArray[np.float64]


def draw_visits(week: Week, rng: np.random.Generator) -> Visits:
    """Draw the visits of a week, seven of a user on average."""
    has_canary = rng.random(week.users) < week.share
    live = 1 + rng.poisson(6 * rng.gamma(2.0, 0.5, week.users))
    count = np.where(has_canary, 1 + rng.poisson((live - 1) * week.visits), live)
    user = np.repeat(np.arange(week.users, dtype=np.int32), count)
    is_canary, day = has_canary[user], rng.uniform(0, 7, len(user))
    order = np.lexsort((day, user))
    user, is_canary, day = user[order], is_canary[order], day[order]
    is_first = np.append(True, user[1:] != user[:-1])
    in_evening = rng.random(len(user)) < np.where(is_canary & ~is_first, week.evenings, 0.6)
    hour = np.where(in_evening, rng.uniform(18, 23, len(user)), rng.uniform(11, 15, len(user)))
    taste = np.exp(rng.normal(0, 0.3, week.users) - 0.045)[user]
    chance = np.where(in_evening, EVENING, LUNCH) * taste * np.where(is_canary, 1 + week.gain, 1.0)
    time, reward = np.floor(day) * DAY + hour * HOUR, rng.binomial(STEPS, np.minimum(chance, 1)).astype(np.float64)
    order = np.argsort(time, kind="stable")
    return Visits(time[order], user[order], is_canary[order], reward[order])


def run_trial(week: Week, visits: Visits) -> str:
    """Return how the trial of a week ended: `promote`, `withdraw` or `wait`, also where the limit of time ended it."""
    names = tuple(map(str, range(week.users)))
    for now in np.arange(LOOK, week.config.max_seconds, LOOK):
        count = int(np.searchsorted(visits.time, now - IDLE))
        is_canary = visits.is_canary[:count]
        if is_canary.all() or not is_canary.any():
            continue
        reward = visits.reward[:count]
        outcomes = Outcomes(
            ("canary", "live"),
            names,
            (~is_canary).astype(np.int32),
            visits.user[:count],
            (visits.time[:count] * 1e6).astype(np.int64),
            reward,
            np.full(count, STEPS, np.int32),
            np.full(count, 0.05),
            reward,
            min_reward=0.0,
            max_reward=float(STEPS),
        )
        comparison = compare_versions(outcomes, "canary", "live")
        action, _ = judge_canary(comparison, week.config, now, served=now - comparison.assignment_fixed_since / 1e6)
        if action != "wait":
            return action
    return "wait"


def true_differences(week: Week) -> tuple[float, float]:
    """Return by how much a session and a user of the canary earn more, as shares."""
    visits = draw_visits(replace(week, share=0.5, users=200_000), np.random.default_rng(1))
    sides = (visits.is_canary, ~visits.is_canary)
    by_session = [visits.reward[side].mean() for side in sides]
    by_user = [visits.reward[side].sum() / len(np.unique(visits.user[side])) for side in sides]
    return by_session[0] / by_session[1] - 1, by_user[0] / by_user[1] - 1


WEEKS = (
    Week("equal"),
    Week("equal", share=0.1),
    Week("better", gain=0.1),
    Week("better", gain=0.1, share=0.1),
    Week("better", gain=0.1, share=0.1, users=10_000),
    Week("better", gain=0.2, share=0.1),
    Week("worse", gain=-0.1),
    Week("worse", gain=-0.1, share=0.1),
    Week("loses visits", gain=0.1, visits=0.75),
    Week("loses visits", gain=0.06, visits=0.85, users=10_000),
    Week("moves visits to lunch", gain=0.15, evenings=0.3),
    Week("moves visits to lunch", gain=0.1, evenings=0.4),
    Week("moves visits to lunch, six days at least", gain=0.15, evenings=0.3, config=CanaryConfig(min_seconds=6 * DAY)),
    Week("moves visits to the evening", gain=-0.08, evenings=0.8),
    Week("brings users back", gain=-0.1, visits=1.25),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replications", type=int, default=40)
    options = parser.parse_args()
    print("| canary | a session | a user | users | share | promoted | withdrawn |\n|---|---|---|---|---|---|---|")
    for week in WEEKS:
        ends = [run_trial(week, draw_visits(week, np.random.default_rng(seed))) for seed in range(options.replications)]
        by_session, by_user = true_differences(week)
        ended = (f"{ends.count(action)} of {len(ends)}" for action in ("promote", "withdraw"))
        cells = (week.name, f"{by_session:+.1%}", f"{by_user:+.1%}", f"{week.users:,}", f"{week.share:.0%}", *ended)
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
