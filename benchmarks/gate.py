"""How often does the gate find candidates no worse that are worse, and those that are not? On the newsfeed, truth known.

    python benchmarks/gate.py                      200 replications of every candidate (minutes)
    python benchmarks/gate.py --replications 20
    python benchmarks/gate.py --power              how many sessions it takes to see a difference

The live policy serves users of the newsfeed, sessions of four steps. Each candidate is then judged by its log, as `mbcal
update` does, with other users in every replication. Answers are counted, whatever `GateConfig.no_worse` makes of them.

Two logs: one as a careful service writes it (epsilon 0.1, 40 candidates, 1,600 judging sessions), one that explores (epsilon
0.5, 8 candidates, 6,000 judging sessions). Prints, per candidate, its true difference, the answers, and the coverage and
width of the interval the gate uses; and for comparison the coverage of a bootstrap of the doubly robust estimate with
clipped weights.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from mbcal.data.cutting import SessionConfig
from mbcal.environments.newsfeed.log import generate_sessions, sample_candidate_sets
from mbcal.environments.newsfeed.world import Newsfeed, UserState
from mbcal.environments.rollout import rollout
from mbcal.evaluation.ope.difference import LogDifference, bound_difference
from mbcal.evaluation.ope.estimate import estimate_value
from mbcal.evaluation.ope.propensity import policy_choices
from mbcal.release.gate import Answer, interval_answer
from mbcal.types import Sessions

HORIZON = 4


class LogSetting(NamedTuple):
    """How a log was made."""

    name: str
    epsilon: float
    candidates: int
    sessions: int
    """Judging sessions of one replication, one per user."""


SETTINGS = (LogSetting("careful", 0.1, 40, 1_600), LogSetting("exploring", 0.5, 8, 6_000))
Alter = Callable[[Tensor, Tensor, Tensor, int], Tensor]
"""(users (B,), candidates (B, C), scores (B, C), step) -> scores (B, C)."""


class TasteState(NamedTuple):
    """State of `Taste` in B sessions."""

    user: UserState
    name: Tensor
    step: int


@dataclass(frozen=True)
class Taste:
    """A policy that ranks by the true expected reward plus a fixed error per user and item."""

    world: Newsfeed
    error: float
    seed: int = 0
    alter: Alter | None = None

    def begin(self, user: Tensor, *history: Tensor) -> TasteState:
        return TasteState(self.world.begin(user, *history), user, 0)

    def score(self, state: TasteState, candidates: Tensor) -> Tensor:
        noise = hash_noise(state.name[:, None], candidates, self.seed)
        scores = self.world.expected_reward(state.user, candidates) + self.error * noise
        return scores if self.alter is None else self.alter(state.name, candidates, scores, state.step)

    def observe(self, state: TasteState, item: Tensor, behaviour: Tensor) -> TasteState:
        return TasteState(self.world.observe(state.user, item, behaviour), state.name, state.step + 1)


def hash_noise(user: Tensor, item: Tensor, seed: int) -> Tensor:
    """Uniform numbers in [-1, 1) by user and item."""
    mixed = (user.long() * 2_654_435_761 + item.long() * 40_503 + seed * 97_003 + 12_345) & 0xFFFFFFFF
    for _ in range(2):
        mixed = ((mixed ^ (mixed >> 16)) * 73_244_475) & 0xFFFFFFFF
    return (mixed ^ (mixed >> 16)).float() / 2**31 - 1


def worst_for_users(share: float) -> Alter:
    """The worst item for a share of users."""

    def alter(user: Tensor, _candidates: Tensor, scores: Tensor, _step: int) -> Tensor:
        chosen = hash_noise(user, torch.zeros_like(user), 7) < 2 * share - 1
        return torch.where(chosen[:, None], -scores, scores)

    return alter


def poor_items_first(world: Newsfeed, share: float) -> Alter:
    """A share of the items, the least liked ones, before all others."""
    poor = world.instant < world.instant[2:].quantile(share)

    def alter(_user: Tensor, candidates: Tensor, scores: Tensor, _step: int) -> Tensor:
        return scores + 100 * poor[candidates]

    return alter


def worst_late(share: float) -> Alter:
    """The worst item at the last step, for a share of users."""

    def alter(user: Tensor, _candidates: Tensor, scores: Tensor, step: int) -> Tensor:
        chosen = (hash_noise(user, torch.zeros_like(user), 8) < 2 * share - 1) & (step == HORIZON - 1)
        return torch.where(chosen[:, None], -scores, scores)

    return alter


CLIP = 20.0
"""Largest weight of the estimate that is compared."""
TRUTH_SEEDS = (1_000_001, 1_000_002, 1_000_003)
"""Noise of the roll-outs that give true differences."""
ERROR = 2.0
"""Error of the live policy, in reward."""


SHARES = (0.01, 0.05, 0.1)
"""Differences in the table of sessions needed."""
USERS = 20_000
"""Users of the world, each with one session."""


def candidates_of(world: Newsfeed) -> dict[str, Taste]:
    """All candidates: bad ones, equal ones and good ones."""
    live = Taste(world, ERROR)
    return {
        "the live policy itself": live,
        "other errors of the same size": replace(live, seed=1),
        "worst item for 2% of users": replace(live, alter=worst_for_users(0.02)),
        "worst item for 4% of users": replace(live, alter=worst_for_users(0.04)),
        "worst item for 10% of users": replace(live, alter=worst_for_users(0.1)),
        "worst item for 20% of users": replace(live, alter=worst_for_users(0.2)),
        "1% of items, poor ones, first": replace(live, alter=poor_items_first(world, 0.01)),
        "worst item at the last step, half of users": replace(live, alter=worst_late(0.5)),
        "worse everywhere": replace(live, error=2 * ERROR),
        "worst item for all": replace(live, alter=worst_for_users(1.0)),
        "better everywhere": replace(live, error=ERROR / 2),
        "without errors": replace(live, error=0.0),
    }


@dataclass
class Tally:
    """Results of one candidate over replications."""

    truth: float
    answers: dict[str, int]
    covered: int = 0
    width: float = 0.0
    bootstrap_covered: int = 0


def judge(
    world: Newsfeed, sessions: Sessions, setting: LogSetting, replications: int, tolerance: float
) -> Iterator[dict[str, Any]]:
    """Yield one row of results per candidate."""
    live, candidates, epsilon = Taste(world, ERROR), candidates_of(world), setting.epsilon
    earned = [rollout(live, world, sessions, epsilon=epsilon, seed=seed).rewards.sum(1) for seed in TRUTH_SEEDS]
    reward = float(np.mean(earned))
    truths = {
        name: true_value(policy, world, sessions, epsilon) - reward if policy != live else 0.0
        for name, policy in candidates.items()
    }
    tallies = {name: Tally(truth, dict.fromkeys(get_args(Answer), 0)) for name, truth in truths.items()}
    for replication in range(replications):
        chosen = np.sort(np.random.default_rng(replication).permutation(len(sessions))[: setting.sessions])
        log = rollout(live, world, sessions[chosen], epsilon=epsilon, seed=replication + 1)
        live_choices = policy_choices(live, log)
        for name, policy in candidates.items():
            tally, choices = tallies[name], policy_choices(policy, log)
            difference = bound_difference(log, choices, live_choices, epsilon=epsilon)
            least = -tolerance * abs(difference.reward) * difference.greedy_share
            answer = interval_answer(difference.low, difference.high, least)
            tally.answers[answer] += 1
            tally.covered += difference.low <= tally.truth <= difference.high
            tally.width += (difference.high - difference.low) / reward / replications
            estimates = estimate_value(
                policy,
                log,
                baseline=live,
                epsilon=epsilon,
                clip=CLIP,
                values="means",
                resamples=200,
                choices=(choices, live_choices),
            )
            bootstrap = next(one for one in estimates if (one.of, one.name, one.method) == ("difference", "dr", "bca"))
            tally.bootstrap_covered += bootstrap.low <= tally.truth <= bootstrap.high
        print(f"{setting.name}: {replication + 1} of {replications}", file=sys.stderr, flush=True)
    for name, tally in tallies.items():
        yield {
            "log": setting.name,
            "candidate": name,
            "true difference": float(tally.truth / reward),
            **{f"answered {answer}": count / replications for answer, count in tally.answers.items()},
            "coverage": tally.covered / replications,
            "width": float(tally.width),
            "coverage of the clipped bootstrap": tally.bootstrap_covered / replications,
        }


def true_value(policy: Taste, world: Newsfeed, sessions: Sessions, epsilon: float) -> float:
    """The reward per session of a policy, over all users of the world and several responses of each."""
    earned = [rollout(policy, world, sessions, epsilon=epsilon, seed=seed).rewards.sum(1) for seed in TRUTH_SEEDS]
    return float(np.mean(earned))


def first_sessions(world: Newsfeed, candidates: int) -> Sessions:
    """One session of every user, with this many candidates."""
    sessions = generate_sessions(world, SessionConfig(horizon=HORIZON, history=8))
    _, rows = np.unique(sessions.user, return_index=True)
    sets = sample_candidate_sets(world.popularity, len(rows), candidates, torch.Generator().manual_seed(0))
    return replace(sessions[rows], candidates=sets.numpy().astype(np.int32))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replications", type=int, default=200)
    parser.add_argument("--tolerance", type=float, default=0.01)
    parser.add_argument("--logs", nargs="+", default=[setting.name for setting in SETTINGS])
    parser.add_argument("--out", type=Path, help="JSON lines to append the rows to")
    parser.add_argument("--power", action="store_true")
    arguments = parser.parse_args()
    if arguments.power:
        print_table(list(power_rows()))
        return
    world, rows = Newsfeed(USERS), []
    for setting in SETTINGS:
        if setting.name in arguments.logs:
            sessions = first_sessions(world, setting.candidates)
            rows += judge(world, sessions, setting, arguments.replications, arguments.tolerance)
    print_table(rows)
    if arguments.out:
        with arguments.out.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


def power_rows(differing: float = 0.1, spread: float = 0.3, most: float = 2.0) -> Iterator[dict[str, Any]]:
    """Yield sessions needed to see differences of 1, 5 and 10% of the reward, by exploration.

    Args:
        differing: Share of sessions in which the candidate chooses another item, at one step.
        spread: Standard deviation of the reward per session, as a share of its mean.
        most: Largest possible reward per session, likewise.
    """
    for candidates in (10, 40, 200):
        for epsilon in (0.05, 0.1, 0.3, 0.9):
            other = epsilon / candidates
            best = other + 1 - epsilon
            square = best**2 / other + other**2 / best + (candidates - 2) * other
            second_moment = max(1 + spread**2, (most - 1) ** 2 + spread**2)
            found = LogDifference(
                value=0.0,
                low=0.0,
                high=0.0,
                level=0.95,
                reward=1.0,
                sessions=0,
                users=0,
                differing=0,
                n_observed=0,
                steps=0,
                weight_variance=differing * (square - 1) * second_moment,
                counted=second_moment**0.5,
                width=most,
                affected=differing,
                reward_variance=spread**2,
                range=most,
                least_weight=1.0,
                greedy_share=1 - epsilon,
                hidden=0.0,
            )
            yield {
                "candidates": str(candidates),
                "epsilon": str(epsilon),
                **{f"{share:.0%} in the log": rounded(found.log_sessions_needed(share)) for share in SHARES},
                **{f"{share:.0%} by a canary": rounded(found.canary_sessions_needed(share)) for share in SHARES},
            }


def rounded(sessions: float) -> str:
    """Two significant digits."""
    return f"{float(f'{sessions:.2g}'):,.0f}"


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    """Print the rows as a Markdown table, shares in per cent."""
    columns = list(rows[0])
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for row in rows:
        print(f"| {' | '.join(value if isinstance(value, str) else f'{value:.1%}' for value in row.values())} |")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
