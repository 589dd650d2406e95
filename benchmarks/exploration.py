"""How an agent that grows should explore: by chance (epsilon), by an ensemble (Thompson sampling), or not at all.

    python benchmarks/exploration.py STORE [--method mbcal] [--seeds 0 1 2] [--rounds 6] [--round-sessions 800]
        [--output docs/results/exploration.csv]

STORE is a generated newsfeed, whose truth answers and judges. Every agent is an ensemble of K members, each fitted on users
drawn with replacement and from initial weights of its own, and is tested as their mean. Only the collection differs:

greedy     the mean of all members
epsilon    the mean, with a random item in a tenth of the steps
thompson   each session by one member, drawn at random: where members disagree, sessions differ

All other settings are those of Growing Batch-RL. A seed whose rows are in the output is not run again.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measurements import Measurements
from torch import Tensor

import mbcal
from mbcal.agents import Agent
from mbcal.agents.cross_fitting import resample_users
from mbcal.evaluation.experiment.config import experiment_config
from mbcal.evaluation.experiment.context import ExperimentContext
from mbcal.evaluation.experiment.judging import collect_round, judge_reward
from mbcal.evaluation.judges import TRUTH, true_environment
from mbcal.scoring.scorers import RandomScorer
from mbcal.training.random import derive_seed
from mbcal.training.replay import round_passes, round_shrink
from mbcal.types import SessionTensors

STRATEGIES = {"greedy": 0.0, "epsilon": 0.1, "thompson": 0.0}
"""The ways to collect, with the probability of a random item."""


class Ensemble:
    """Ranks by the mean score of its members, or each session by the score of one of them.

    Args:
        members: K fitted agents.
        seed: Seed of the draw of members. None: their mean ranks.
    """

    def __init__(self, members: list[Agent], seed: int | None = None) -> None:
        self.members, self.device = members, members[0].device
        self._generator = None if seed is None else torch.Generator().manual_seed(seed)

    def begin(self, user: Tensor, *history: Tensor) -> tuple[Tensor | None, list[Any]]:
        count, drawn = len(user), None
        if self._generator is not None:
            drawn = torch.randint(len(self.members), (count,), generator=self._generator).to(self.device)
        return drawn, [member.begin(user, *history) for member in self.members]

    def score(self, state: tuple[Tensor | None, list[Any]], candidates: Tensor) -> Tensor:
        drawn, states = state
        parts = zip(self.members, states, strict=True)
        scores = torch.stack([member.score(own, candidates) for member, own in parts])
        return scores.mean(0) if drawn is None else scores[drawn, torch.arange(len(drawn), device=self.device)]

    def observe(self, state: tuple[Tensor | None, list[Any]], item: Tensor, behaviour: Tensor) -> Any:
        drawn, states = state
        parts = zip(self.members, states, strict=True)
        return drawn, [member.observe(own, item, behaviour) for member, own in parts]


def fit_members(context: ExperimentContext, members: list[Agent], memory: list[SessionTensors], number: int) -> None:
    """Update every member on all sessions so far, of users drawn with replacement."""
    settings, sessions = context.settings, SessionTensors.concat(memory)
    users = sessions.user.cpu().numpy()
    passes = round_passes(int(sessions.mask.sum()), settings.training.epochs, settings.round_epochs)
    shrink = round_shrink(len(memory), number, settings.shrink)
    for member in members:
        rows = torch.from_numpy(resample_users(users, derive_seed(member.config.seed, "members")))
        training = replace(settings.training, epochs=passes, shrink=shrink)
        member.fit(sessions[rows.to(sessions.device)], training=training)


def grow(context: ExperimentContext, method: str, strategy: str, count: int, seed: int) -> list[dict[str, float]]:
    """Reward of every round: collected, and in the test."""
    members = [context.agent(method, derive_seed(seed, "member", number)) for number in range(count)]
    memory: list[SessionTensors] = []
    rows = []
    for number in range(1, context.settings.rounds + 1):
        policy: Any = RandomScorer(seed)
        epsilon = 1.0
        if number > 1:
            draws = derive_seed(seed, "drawn members", number) if strategy == "thompson" else None
            policy, epsilon = Ensemble(members, draws), STRATEGIES[strategy]
        memory.append(collect_round(context, policy, epsilon, seed, number).without("propensities"))
        fit_members(context, members, memory, number)
        reward = judge_reward(context, Ensemble(members), title=f"round {number}: test")
        collected = float(memory[-1].rewards.sum(1).mean())
        rows.append({"round": number, "collected": collected, "reward": reward.mean, "stderr": reward.stderr})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--method", default="mbcal")
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=list(STRATEGIES))
    parser.add_argument("--members", type=int, default=4, help="K")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--round-sessions", type=int, default=800)
    parser.add_argument("--test-sessions", type=int, default=4_000)
    parser.add_argument("--hidden", type=int, help="units of every network; by default as the log's length asks for")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--output", type=Path, help="CSV file to write; a JSON file beside it says how it was made")
    options = parser.parse_args()
    store = mbcal.Store.open(options.store)
    settings = {"rounds": options.rounds, "round_sessions": options.round_sessions, "net": {"hidden": options.hidden}}
    test = store.sessions("test")
    rows = np.random.default_rng(0).choice(len(test), min(len(test), options.test_sessions), replace=False)
    context = ExperimentContext(
        experiment_config(settings),
        store.sessions("train"),
        test[np.sort(rows)],
        {TRUTH: true_environment(store, options.device)},
        store.agent_features,
        options.device,
    )
    table = Measurements(options.output, ("data", "method", "strategy", "seed", "round"), ("collected", "reward", "stderr"))
    recorded = {name: value for name, value in vars(options).items() if name not in ("output", "seeds", "strategies")}
    table.record(options.store.name, options.device, store.manifest["content_hash"], recorded)
    for seed in options.seeds:
        for strategy in options.strategies:
            key = {"data": options.store.name, "method": options.method, "strategy": strategy, "seed": seed}
            if not table.has(**key, round=options.rounds):
                for row in grow(context, options.method, strategy, options.members, seed):
                    table.add(**key, **row)


if __name__ == "__main__":
    main()
