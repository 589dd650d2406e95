"""How right are estimates of an item's future advantage? Compared with the truth of the generated newsfeed.

    python benchmarks/advantages.py STORE [--shares 16 4 1] [--states 1000] [--device cuda] [--output CSV]

In a state of a logged test session, several items are shown in turn, and the world is continued many times under common
noise by a policy: the logging policy, the method's own, or the oracle. The true advantage of an item is the mean reward that
follows, less the mean over all compared items. Printed per method and share of the train sessions (one n-th):

label        correlation of the label of the logged item with its true advantage under the logging policy, the slope of that
             regression (1: unbiased, 0: the label says nothing), and the share of the label's variance that is error
network      what the network that ranks says about all compared items: mean rank correlation within a state with the true
             advantage under the logging policy, under the method's own policy and under the oracle; the slope on the first

docs/results/newsfeed-advantages.csv is the output that docs/results/newsfeed.md shows. Rows that it has are not made again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measurements import Measurements
from numpy.typing import NDArray
from torch import Tensor

import mbcal
from mbcal.agents import agent_class
from mbcal.environments.newsfeed.oracle import OraclePolicy
from mbcal.environments.newsfeed.world import Newsfeed, UserState
from mbcal.environments.rollout import rollout
from mbcal.evaluation.judges import true_environment
from mbcal.training.device import resolve_device
from mbcal.training.random import random_integers, uniform
from mbcal.types import MASK_ROW, SessionTensors

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "counterfactual advantage": ("mbcal", {"gamma": 1.0}),
    "noise-abducted advantage": ("mbcal", {"gamma": 1.0, "counterfactual": "noise"}),
    "simulated future reward": ("mbcal-no-vr", {"gamma": 1.0}),
    "planned advantage": ("mbcal-plan", {"advantage": "planned"}),
    "DQN": ("dqn", {"gamma": 1.0}),
    "MCPE": ("mcpe", {"gamma": 1.0}),
}
COLUMNS = ("label correlation", "label slope", "label error", "rank, logging", "rank, own", "rank, oracle", "slope")
DRAWS, ORACLE_DRAWS = 32, 4
"""Continuations of every item; the oracle plans for seconds."""


@dataclass(frozen=True)
class Utility:
    """The logging policy: scores are utilities, to be sampled by a softmax."""

    world: Newsfeed

    def begin(self, *history: Tensor) -> UserState:
        return self.world.begin(*history)

    def score(self, state: UserState, candidates: Tensor) -> Tensor:
        return self.world.utility(state, candidates)

    def observe(self, state: UserState, item: Tensor, behaviour: Tensor) -> UserState:
        return self.world.observe(state, item, behaviour)


@dataclass(frozen=True)
class States:
    """S states of logged sessions, and M items to compare in each: the logged one and random others."""

    sessions: SessionTensors
    step: Tensor
    """(S,)."""
    items: Tensor
    """(S, M)."""

    def futures(self, policy: Any, world: Newsfeed, draws: int, **exploration: float) -> NDArray[np.float64]:
        """Mean reward after every item, (S, M), under common noise."""
        total = np.zeros(self.items.shape)
        later = torch.arange(self.sessions.horizon, device=self.step.device) > self.step.unsqueeze(1)
        for column in range(self.items.shape[1]):
            items = self.sessions.items.scatter(1, self.step.unsqueeze(1), self.items[:, column : column + 1])
            branch = replace(self.sessions, items=items)
            for draw in range(draws):
                served = rollout(policy, world, branch, keep_until=self.step.cpu().numpy(), seed=draw, **exploration)
                total[:, column] += (served.rewards * later).sum(1).double().cpu().numpy() / draws
        return total


def choose_states(sessions: SessionTensors, count: int, width: int) -> States:
    """States of the first sessions, at random steps but the last."""
    sessions = sessions[torch.arange(min(count, len(sessions)), device=sessions.device)]
    index = torch.arange(len(sessions), device=sessions.device)
    step = random_integers(1, index, (sessions.length.long() - 1).clamp(min=1))
    candidates = sessions.require_candidates()
    order = uniform(2, tuple(candidates.shape), sessions.device)
    is_past = torch.arange(sessions.horizon, device=sessions.device) <= step.unsqueeze(1)
    shown = torch.where(is_past, sessions.items, MASK_ROW)
    gone = (candidates.unsqueeze(2) == shown.unsqueeze(1)).any(2) | (candidates == MASK_ROW)
    others = candidates.gather(1, order.masked_fill(gone, -1).topk(width - 1, 1).indices)
    return States(sessions, step, torch.cat([sessions.items.gather(1, step.unsqueeze(1)), others], 1))


@torch.no_grad()
def predictions(agent: Any, states: States, world: Newsfeed) -> NDArray[np.float64]:
    """What the network says about the future after each item, (S, M): values less the true instant reward where needed."""
    net = agent.nets.get("advantage") or getattr(agent.nets["value"], "online", agent.nets["value"])
    values = net.outputs_at(states.sessions, states.step, states.items).squeeze(-1) * net.label_scaler.scale
    if "advantage" not in agent.nets:
        values = values - _true_rewards(states, world)
    return values.double().cpu().numpy()


def _true_rewards(states: States, world: Newsfeed) -> Tensor:
    """Expected instant rewards of the items, (S, M)."""
    user = world.begin(*states.sessions.history)
    rewards = torch.zeros(states.items.shape, device=states.step.device)
    for step in range(states.sessions.horizon):
        here = (states.step == step).unsqueeze(1)
        rewards = torch.where(here, world.expected_reward(user, states.items), rewards)
        user = world.observe(user, states.sessions.items[:, step], states.sessions.behaviours[:, step])
    return rewards


@torch.no_grad()
def logged_labels(agent: Any, states: States) -> NDArray[np.float64] | None:
    """Labels of the logged items, (S,); None for methods whose labels need more than the session."""
    regression = agent.value_regression(states.sessions)
    if regression is None:
        return None
    return regression[0].gather(1, states.step.unsqueeze(1)).squeeze(1).double().cpu().numpy()


def centred(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values - values.mean(1, keepdims=True)


def rank_correlation(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Mean over states of Spearman's correlation between the items of a state."""
    ranks = [centred(values.argsort(1).argsort(1).astype(float)) for values in (first, second)]
    return float(((ranks[0] * ranks[1]).sum(1) / np.square(ranks[0]).sum(1)).mean())


def slope(truth: NDArray[np.float64], estimate: NDArray[np.float64]) -> float:
    """Regression of the estimate on the truth."""
    truth, estimate = truth - truth.mean(), estimate - estimate.mean()
    return float((truth * estimate).sum() / np.square(truth).sum())


def measure(agent: Any, states: States, world: Newsfeed, truths: Mapping[str, NDArray[np.float64]]) -> dict[str, float]:
    """All columns of one method."""
    said = predictions(agent, states, world)
    own = states.futures(agent, world, DRAWS // 4)
    row = {
        "rank, logging": rank_correlation(truths["logging"], said),
        "rank, own": rank_correlation(own, said),
        "rank, oracle": rank_correlation(truths["oracle"], said),
        "slope": slope(centred(truths["logging"]).ravel(), centred(said).ravel()),
    }
    labels = logged_labels(agent, states)
    if labels is not None:
        truth = centred(truths["logging"])[:, 0]
        row["label correlation"] = float(np.corrcoef(truth, labels)[0, 1])
        row["label slope"] = slope(truth, labels)
        row["label error"] = 1 - row["label correlation"] ** 2
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--shares", type=int, nargs="+", default=[16, 4, 1], help="fit on one n-th of the train sessions")
    parser.add_argument("--states", type=int, default=1000)
    parser.add_argument("--width", type=int, default=6, help="items compared in a state")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--output", type=Path, help="CSV file to write; a JSON file beside it says how it was made")
    options = parser.parse_args()
    device = resolve_device(options.device).type
    store = mbcal.Store.open(options.store)
    world, train = true_environment(store, device), store.sessions("train")
    states = choose_states(store.sessions("test").tensors(device), options.states, options.width)
    temperature = world.constants.logging_temperature
    truths = {"logging": states.futures(Utility(world), world, DRAWS, temperature=temperature)}
    truths["oracle"] = states.futures(OraclePolicy(world, states.sessions.horizon), world, ORACLE_DRAWS)
    print("the truth is known", file=sys.stderr, flush=True)
    table = Measurements(options.output, ("sessions", "estimate", "seed"), COLUMNS)
    table.record(options.store.name, device, store.manifest["content_hash"], {**vars(options), "output": None})
    for share in options.shares:
        sessions = train[np.arange(0, len(train), share)]
        for title, (method, settings) in METHODS.items():
            key = {"sessions": len(sessions), "estimate": title, "seed": options.seed}
            if not table.has(**key):
                features = store.agent_features
                agent = agent_class(method)(seed=options.seed, device=device, features=features, **settings).fit(sessions)
                table.add(**key, **measure(agent, states, world, truths))


if __name__ == "__main__":
    main()
