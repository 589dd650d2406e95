"""Trials of canaries whose truth is known: how often equal ones are promoted, how long worse and better ones take.

    python benchmarks/canary.py                      the table, 400 trials each (about four minutes on one core)
    python benchmarks/canary.py --replications 100   a quicker one
    python benchmarks/canary.py --drift              a share that is raised while rewards rise

Sessions of users with different tastes arrive one after the other; a share of users gets the canary. After every 1% more
sessions the canary is looked at, with the default limits of the reward and no least time: promoted, withdrawn, or neither.
"lost" is what worse canaries cost until they were withdrawn, and what better ones would have earned in the sessions that the
live version served until they were promoted; both in sessions' worth of the live reward.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbcal.evaluation.sequential import SequentialDifference, UserSums, compare_means
from mbcal.release.comparison import compare_versions
from mbcal.release.judge import CanaryConfig, judge_canary
from mbcal.release.outcomes import Outcomes

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, ...]], Floats]

REWARDS: dict[str, Draw] = {
    "plain": lambda rng, shape: rng.normal(10.0, 3.0, shape),
    "skewed": lambda rng, shape: rng.lognormal(0.0, 1.0, shape),
    "rare": lambda rng, shape: (rng.random(shape) < 0.02).astype(np.float64),
    "zeros, heavy tail": lambda rng, shape: (rng.random(shape) < 0.2) * (rng.pareto(2.2, shape) + 1),
}
"""Rewards of sessions: normal, lognormal, 2% purchases, and 80% zeros with a tail that has no third moment."""
MOST = {"plain": 50.0, "skewed": 50.0, "rare": 3.0, "zeros, heavy tail": 200.0}
"""Largest possible reward of a session, which the comparison is given."""


@dataclass(frozen=True)
class Trials:
    """A number of trials of the same kind."""

    rewards: str = "plain"
    effect: float = 0.0
    """True difference of the canary, as a share of the reward."""
    share: float = 0.1
    """Share of users that the canary gets."""
    users: int = 1000
    sessions: int = 20_000
    """Sessions of both versions at which a trial ends."""
    spread: float = 0.3
    """Standard deviation of the users' mean rewards, of their logarithm."""
    disagreement: float = 0.0
    """Standard deviation over users of the difference between the versions, as a share of the reward."""
    activity: float = 0.5
    """How unequal users' numbers of sessions are: that of the n-th user is proportional to n to the power of -activity."""
    purchases: tuple[float, float] = (0.0, 0.0)
    """Share of sessions with a purchase, and what it earns, as a multiple of the reward. The canary has none."""


@dataclass(frozen=True)
class Ends:
    """How trials ended, arrays of R trials."""

    promoted: NDArray[np.bool_]
    withdrawn: NDArray[np.bool_]
    sessions: NDArray[np.int64]
    """Sessions of both versions until the end."""
    wrong: NDArray[np.bool_]
    """Whether the true difference was ever outside the two-sided 95% interval that holds at all looks."""


def replicate(trials: Trials, replications: int, config: CanaryConfig, seed: int = 0, growth: float = 1.01) -> Ends:
    """Run trials at the same time.

    Args:
        trials: What they are like.
        replications: How many, R.
        config: The limits.
        seed: Seed of all noise.
        growth: Factor of sessions from one look to the next.
    """
    rng, shape = np.random.default_rng(seed), (replications, trials.users)
    activity = np.arange(1, trials.users + 1) ** -trials.activity
    activity /= activity.sum()
    taste = np.exp(rng.normal(0, trials.spread, shape) - trials.spread**2 / 2)
    assigned = rng.random(shape) < trials.share
    gain = trials.effect + trials.disagreement * rng.normal(size=shape)
    base = float(REWARDS[trials.rewards](rng, (2_000_000,)).mean())
    rate, worth = trials.purchases[0], trials.purchases[1] * base
    truth, most = trials.effect * base - rate * worth, MOST[trials.rewards] + worth
    sums = np.zeros((2, 3, *shape))
    promoted, withdrawn, wrong = (np.zeros(replications, np.bool_) for _ in range(3))
    ended, rows, before = np.full(replications, trials.sessions), np.arange(replications)[:, None], 0
    for count in looks(trials.sessions, growth):
        size = (replications, count - before)
        before = count
        user = rng.choice(trials.users, size, p=activity)
        is_canary = assigned[rows, user]
        reward = REWARDS[trials.rewards](rng, size) * taste[rows, user] * (1 + is_canary * gain[rows, user])
        reward = reward + worth * (~is_canary & (rng.random(size) < rate))
        _add(sums, (rows * trials.users + user).ravel(), is_canary, reward)
        live, canary = (entry[1].sum(-1) / np.maximum(entry[0].sum(-1), 1) for entry in sums)
        difference = compare_means(UserSums(*sums[1]), UserSums(*sums[0]), canary, most - live)
        wrong |= (difference.lower(0.025) > truth) | (difference.upper(0.025) < truth)
        running = ~(promoted | withdrawn)
        up, down = _decisions(difference, np.abs(live), sums[1, 0].sum(-1), config)
        withdrawn |= running & down
        promoted |= running & up & ~down
        ended[running & (promoted | withdrawn)] = count
    return Ends(promoted, withdrawn, ended, wrong)


def looks(sessions: int, growth: float) -> list[int]:
    """Numbers of sessions at which a trial is looked at."""
    counts = [100]
    while counts[-1] < sessions:
        counts.append(min(max(counts[-1] + 10, int(counts[-1] * growth)), sessions))
    return counts


def _add(sums: Floats, cell: NDArray[Any], is_canary: NDArray[np.bool_], reward: Floats) -> None:
    shape = sums.shape[2:]
    for version, chosen in enumerate((~is_canary, is_canary)):
        for column, values in enumerate((chosen, chosen * reward, chosen * reward**2)):
            sums[version, column] += np.bincount(cell, values.ravel(), shape[0] * shape[1]).reshape(shape)


def _decisions(
    difference: SequentialDifference, live: Floats, sessions: Floats, config: CanaryConfig
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which trials end by promotion and which by withdrawal, as `release.judge.judge_canary` decides by the reward alone."""
    better = (difference.safe_lower(config.promote_alpha) > 0) & (sessions >= config.promote_after)
    return better, difference.upper(config.withdraw_alpha) < -config.withdraw_below * live


def _row(trials: Trials, replications: int) -> str:
    ends = replicate(trials, replications, CanaryConfig())
    decided = ends.promoted | ends.withdrawn
    median = f"{np.median(ends.sessions[decided]):,.0f}" if decided.any() else "–"
    purchases = trials.purchases[0] * trials.purchases[1]
    effect = (trials.effect - purchases) / (1 + purchases)
    served = trials.share if effect < 0 else 1 - trials.share
    lost = f"{abs(effect) * served * ends.sessions.mean():,.0f}" if effect else "–"
    kind = f"{trials.rewards}, {trials.users} users" + (", users disagree" if trials.disagreement else "")
    if trials.purchases[0]:
        kind += f", purchases in {trials.purchases[0]:.1%} worth {trials.purchases[1]:g}"
    cells = (f"{effect:+.0%}", f"{trials.share:.0%}", f"{ends.promoted.mean():.1%}", f"{ends.withdrawn.mean():.1%}")
    return "| " + " | ".join((kind, *cells, median, lost, f"{1 - ends.wrong.mean():.1%}")) + " |"


def judge_ramp(seed: int, shares: tuple[float, float], rise: float, effect: float, look: int = 50) -> str:
    """Run a trial of 6,000 sessions whose share and rewards rise after 2,000; returns how it ended.

    Args:
        seed: Seed of all noise.
        shares: Share of the canary before and after.
        rise: By how much rewards rise, as a share.
        effect: True difference of the canary, as a share of the reward.
        look: Sessions from one look to the next.
    """
    rng, sessions, users = np.random.default_rng(seed), 6000, 3000
    late = np.arange(sessions) >= 2000
    user = rng.integers(users, size=sessions).astype(np.int32)
    version = (rng.random(users)[user] >= np.where(late, shares[1], shares[0])).astype(np.int32)
    reward = (1 + rise * late) * (1 + effect * (version == 0)) + rng.normal(0, 0.45, sessions)
    length, epsilon = np.full(sessions, 5, np.int32), np.full(sessions, 0.1)
    columns = (version, user, np.arange(sessions), reward, length, epsilon, np.abs(reward))
    names = tuple(map(str, range(users)))
    for count in range(2 * look, sessions + 1, look):
        outcomes = Outcomes(
            ("canary", "live"), names, *(column[:count] for column in columns), min_reward=-1.0, max_reward=3.0
        )
        if len(np.unique(version[:count])) == 2:
            action, _ = judge_canary(compare_versions(outcomes, "canary", "live"), CanaryConfig(min_seconds=0), 0.0)
            if action != "wait":
                return action
    return "wait"


def _print_ramps(replications: int) -> None:
    print("| share | rewards | canary | promoted | withdrawn |\n|---|---|---|---|---|")
    for effect in (0.0, -0.03):
        for shares, rise in (((0.05, 0.5), 0.1), ((0.1, 0.5), 0.2)):
            ends = [judge_ramp(seed, shares, rise, effect) for seed in range(replications)]
            ended = (f"{ends.count(action) / replications:.0%}" for action in ("promote", "withdraw"))
            cells = (f"{shares[0]:.0%} to {shares[1]:.0%}", f"{rise:+.0%}", f"{effect:+.0%}", *ended)
            print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replications", type=int, default=400)
    parser.add_argument("--sessions", type=int, default=10_000, help="sessions at which a trial ends undecided")
    parser.add_argument("--drift", action="store_true", help="a share that is raised while rewards rise, instead")
    options = parser.parse_args()
    if options.drift:
        _print_ramps(options.replications)
        return
    print(
        "| rewards | true difference | share | promoted | withdrawn | sessions until decided | lost | covered at all looks |"
    )
    print("|---|---|---|---|---|---|---|---|")
    rewards = [{"rewards": name} for name in REWARDS]
    cases: list[dict[str, Any]] = [{**one, "share": share} for one in rewards for share in (0.1, 0.5)]
    cases += [{"users": 30}, {"disagreement": 0.3, "users": 200}, {"rewards": "skewed", "activity": 1.0, "users": 200}]
    effects = [(effect, share) for effect in (-0.2, -0.1, -0.05, 0.05, 0.1, 0.2) for share in (0.1, 0.5)]
    cases += [{"effect": effect, "share": share, "users": users} for users in (3000, 300) for effect, share in effects]
    cases += [
        {"effect": 0.2, "share": share, "purchases": lost, "users": 3000}
        for lost in ((0.005, 100.0), (0.001, 500.0))
        for share in (0.1, 0.5, 0.9)
    ]
    for case in cases:
        print(_row(Trials(**{"users": 300, "sessions": options.sessions, **case}), options.replications), flush=True)


if __name__ == "__main__":
    main()
