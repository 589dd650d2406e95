"""How right are estimates of an item's future advantage? Compared with the truth of the generated newsfeed.

    python benchmarks/advantages.py log STORE [--shares 16 4 1] [--device cuda] [--output CSV]
    python benchmarks/advantages.py growing STORE [--rounds 10] [--device cuda] [--output CSV]

In a state of a logged test session, several items are shown in turn, and the world is continued many times under common
noise by a policy: the logging policy (a softmax of utilities, without its share of random choices), the method's own, or the
oracle. The true advantage A of an item is the expected reward that follows, less the mean over the compared items. `log`
fits the methods on one n-th of the train sessions, `growing` in rounds that the methods collect. Columns:

advantage      root mean square of A under the logging policy, in rewards; the next four are shares of it
label bias     root mean square error of the mean label of an item: what more sessions do not mend
label noise    standard deviation of one label of an item: what more sessions average out
model error    of the expected rewards after the item, as the environment model predicts them along the continuation
dependence     of the masked branch, which is what a counterfactual advantage subtracts: how much it changes with the item
rank, POLICY   of the network that ranks: mean rank correlation within a state with A under the logging policy, the method's
               own and the oracle
scale, own     slope of what the network says on A under the method's own policy: below 1 it thinks the future too small

Labels, model error and dependence are centred within a state, as A is: only differences between items matter. So for the
counterfactual advantage, label bias <= model error + dependence, by the triangle inequality (docs/methods/mbcal.md).
docs/results/newsfeed-advantages.csv and newsfeed-rounds.csv are outputs. Rows that the output has are not made again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measurements import Measurements
from numpy.typing import NDArray
from torch import Tensor

import mbcal
from mbcal.agents import DQN, MBCAL, MCPE, Agent, MBCALPlan, MBCALWithoutVarianceReduction
from mbcal.environments.newsfeed.oracle import OraclePolicy
from mbcal.environments.newsfeed.world import Newsfeed, UserState
from mbcal.environments.rollout import rollout
from mbcal.evaluation.experiment.config import ExperimentConfig
from mbcal.evaluation.experiment.context import ExperimentContext
from mbcal.evaluation.experiment.growing_batch import run_round
from mbcal.evaluation.judges import TRUTH, true_environment
from mbcal.nn.base import expected_reward
from mbcal.training.device import resolve_device
from mbcal.training.labels import simulated_future_reward
from mbcal.training.random import random_integers, uniform
from mbcal.types import MASK_ROW, SessionTensors


class CorrectedMBCAL(MBCAL):
    """Labels corrected by logged rewards: what was earned after the item, less what the model expected, is added."""

    @torch.no_grad()
    def advantage(self, batch: SessionTensors) -> Tensor:
        expected = expected_reward(self.nets["environment"].forward_batch(batch), self._rewards())
        surprise = simulated_future_reward(batch.rewards - expected, batch.mask, self.config.gamma)
        return super().advantage(batch) + surprise


METHODS: dict[str, tuple[type[Agent], dict[str, Any]]] = {
    "counterfactual advantage": (MBCAL, {"counterfactual": "behaviours"}),
    "noise-abducted advantage": (MBCAL, {"counterfactual": "noise"}),
    "corrected by logged rewards": (CorrectedMBCAL, {}),
    "simulated future reward": (MBCALWithoutVarianceReduction, {}),
    "planned advantage": (MBCALPlan, {"advantage": "planned"}),
    "DQN": (DQN, {"gamma": 1.0}),
    "MCPE": (MCPE, {"gamma": 1.0}),
}
"""By estimate: the method and its settings."""
COLUMNS = (
    "advantage",
    "label bias",
    "label noise",
    "model error",
    "dependence",
    "rank, logging",
    "rank, own",
    "rank, oracle",
    "scale, own",
)
DRAWS, ORACLE_DRAWS = 16, 4
"""Continuations of every item; the oracle plans for seconds."""
Floats = NDArray[np.float64]


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

    world: Newsfeed
    sessions: SessionTensors
    step: Tensor
    """(S,)."""
    items: Tensor
    """(S, M)."""

    @cached_property
    def is_later(self) -> Tensor:
        """(S, T) bool: the step follows the state."""
        return torch.arange(self.sessions.horizon, device=self.step.device) > self.step.unsqueeze(1)

    def continued(self, policy: Any, draws: int, **exploration: float) -> list[list[SessionTensors]]:
        """Sessions continued by a policy, by draw of the noise and item."""
        return [
            [self._continued(policy, draw, items, exploration) for items in self.items.unbind(1)] for draw in range(draws)
        ]

    def _continued(self, policy: Any, draw: int, item: Tensor, exploration: Mapping[str, float]) -> SessionTensors:
        items = self.sessions.items.scatter(1, self.step.unsqueeze(1), item.unsqueeze(1))
        begun, until = replace(self.sessions, items=items), self.step.cpu().numpy()
        return rollout(policy, self.world, begun, keep_until=until, seed=draw, **exploration)

    def futures(self, continued: list[list[SessionTensors]]) -> Floats:
        """Sum of the rewards that the world expects after every item, (D, S, M)."""
        return self.each(continued, lambda batch: (self._true_rewards(batch) * self.is_later).sum(1))

    def instant(self) -> Floats:
        """The rewards that the world expects of the items themselves, (S, M)."""
        user, rewards = self.world.begin(*self.sessions.history), torch.zeros(self.items.shape, device=self.step.device)
        for step in range(self.sessions.horizon):
            here = (self.step == step).unsqueeze(1)
            rewards = torch.where(here, self.world.expected_reward(user, self.items), rewards)
            user = self.world.observe(user, self.sessions.items[:, step], self.sessions.behaviours[:, step])
        return rewards.double().cpu().numpy()

    def _true_rewards(self, batch: SessionTensors) -> Tensor:
        """Expected rewards of the steps, (S, T)."""
        user, rewards = self.world.begin(*batch.history), []
        for step in range(batch.horizon):
            rewards.append(self.world.expected_reward(user, batch.items[:, step : step + 1]))
            user = self.world.observe(user, batch.items[:, step], batch.behaviours[:, step])
        return torch.cat(rewards, 1)

    def each(self, continued: list[list[SessionTensors]], value: Any) -> Floats:
        """A value (S,) of every continued session, (D, S, M)."""
        rows = [[value(batch).double().cpu().numpy() for batch in batches] for batches in continued]
        return np.asarray(rows).transpose(0, 2, 1)


def choose_states(world: Newsfeed, sessions: SessionTensors, count: int, width: int) -> States:
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
    return States(world, sessions, step, torch.cat([sessions.items.gather(1, step.unsqueeze(1)), others], 1))


@dataclass(frozen=True)
class Truth:
    """What the world says of the states, and what methods are compared with."""

    states: States
    logged: list[list[SessionTensors]]
    """Continuations by the logging policy."""
    futures: Floats
    """(D, S, M) expected rewards after the items in these continuations."""
    oracle: Floats
    """(S, M) the same by the oracle, mean over draws."""

    @classmethod
    def of(cls, states: States) -> Truth:
        world = states.world
        logged = states.continued(Utility(world), DRAWS, temperature=world.constants.logging_temperature)
        oracle = states.continued(OraclePolicy(world, states.sessions.horizon), ORACLE_DRAWS)
        return cls(states, logged, states.futures(logged), states.futures(oracle).mean(0))

    def measure(self, agent: Any) -> dict[str, float]:
        """All columns of one method."""
        said, own = predictions(agent, self.states), self.states.futures(self.states.continued(agent, DRAWS // 4)).mean(0)
        advantage = root_mean_square(centred(self.futures.mean(0)))
        return {
            "advantage": advantage,
            "rank, logging": rank_correlation(self.futures.mean(0), said),
            "rank, own": rank_correlation(own, said),
            "rank, oracle": rank_correlation(self.oracle, said),
            "scale, own": float((centred(own) * said).sum() / np.square(centred(own)).sum()),
            **{name: value / advantage for name, value in self.label_errors(agent)},
        }

    def label_errors(self, agent: Any) -> Iterator[tuple[str, float]]:
        """Errors of labels, in rewards; none for methods whose labels need more than the session."""
        labels = self.labels(agent)
        if labels is None:
            return
        yield "label bias", systematic(centred(labels - self.futures))
        yield "label noise", float(np.sqrt(centred(labels).var(0, ddof=1).mean()))
        if type(agent) is MBCAL and "noise_draws" not in agent.choices:  # labels that keep the behaviours
            unmasked = self.predicted_futures(agent)
            yield "model error", systematic(centred(unmasked - self.futures))
            yield "dependence", systematic(centred(unmasked - labels))

    @torch.no_grad()
    def labels(self, agent: Any) -> Floats | None:
        """Label of every item in every continuation, (D, S, M), less the true instant reward where it has it."""
        if agent.value_regression(self.logged[0][0]) is None:
            return None
        step = self.states.step.unsqueeze(1)
        labels = self.states.each(self.logged, lambda batch: agent.value_regression(batch)[0].gather(1, step).squeeze(1))
        return labels if "advantage" in agent.nets else labels - self.states.instant()

    @torch.no_grad()
    def predicted_futures(self, agent: Any) -> Floats:
        """What the environment model expects after the items along the continuations, (D, S, M)."""
        net, rewards = agent.nets["environment"], agent.domain.behaviours.reward_table(self.states.step.device)
        later = self.states.is_later
        return self.states.each(
            self.logged, lambda batch: (expected_reward(net.forward_batch(batch), rewards) * later).sum(1)
        )


@torch.no_grad()
def predictions(agent: Any, states: States) -> Floats:
    """What the network says about the future after each item, (S, M): values less the true instant reward where needed."""
    net = agent.nets.get("advantage") or getattr(agent.nets["value"], "online", agent.nets["value"])
    outputs = net.outputs_at(states.sessions, states.step, states.items).squeeze(-1) * net.label_scaler.scale
    values = outputs.double().cpu().numpy()
    return values if "advantage" in agent.nets else values - states.instant()


def centred(values: Floats) -> Floats:
    """Less the mean over the last axis, the items of a state."""
    return values - values.mean(-1, keepdims=True)


def root_mean_square(values: Floats) -> float:
    return float(np.sqrt(np.square(values).mean()))


def systematic(errors: Floats) -> float:
    """Root mean square over (S, M) of the mean over draws of errors (D, S, M), less the chance that is left in it."""
    square = np.square(errors.mean(0)) - errors.var(0, ddof=1) / len(errors)
    return float(np.sqrt(max(0.0, square.mean())))


def rank_correlation(first: Floats, second: Floats) -> float:
    """Mean over states of Spearman's correlation between the items of a state."""
    ranks = [centred(values.argsort(1).argsort(1).astype(float)) for values in (first, second)]
    return float(((ranks[0] * ranks[1]).sum(1) / np.square(ranks[0]).sum(1)).mean())


def measure_log(options: argparse.Namespace, store: mbcal.Store, truth: Truth, table: Measurements) -> None:
    """Methods fitted on parts of the log."""
    train = store.sessions("train")
    for share in options.shares:
        sessions = train[np.arange(0, len(train), share)]
        for title in options.estimates:
            key = {"sessions": len(sessions), "estimate": title, "seed": options.seed}
            if not table.has(**key):
                table.add(**key, **truth.measure(created(title, options, store).fit(sessions)))


def measure_rounds(options: argparse.Namespace, store: mbcal.Store, truth: Truth, table: Measurements) -> None:
    """Methods after rounds that they collected."""
    settings, train = ExperimentConfig(round_sessions=options.round_sessions), store.sessions("train")
    context = ExperimentContext(
        settings, train, train[:0], {TRUTH: truth.states.world}, store.agent_features, options.device
    )
    for title in options.estimates:
        if table.has(round=options.rounds, estimate=title, seed=options.seed):
            continue
        agent, memory = created(title, options, store), []
        for number in range(1, options.rounds + 1):
            memory = run_round(context, agent, memory, options.seed, number)
            table.add(round=number, estimate=title, seed=options.seed, **truth.measure(agent))


def created(title: str, options: argparse.Namespace, store: mbcal.Store) -> Any:
    method, settings = METHODS[title]
    return method(seed=options.seed, device=options.device, features=store.agent_features, **settings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, function in (("log", measure_log), ("growing", measure_rounds)):
        command = commands.add_parser(name)
        command.add_argument("store", type=Path)
        command.add_argument("--states", type=int, default=1000)
        command.add_argument("--width", type=int, default=6, help="items compared in a state")
        command.add_argument("--estimates", nargs="+", default=list(METHODS), choices=list(METHODS), metavar="ESTIMATE")
        command.add_argument("--seed", type=int, default=0)
        command.add_argument("--device", default="auto")
        command.add_argument("--output", type=Path, help="CSV file to write; a JSON file beside it says how it was made")
        command.set_defaults(function=function, key="round" if name == "growing" else "sessions")
    commands.choices["log"].add_argument("--shares", type=int, nargs="+", default=[16, 4, 1], help="one n-th of the log")
    commands.choices["growing"].add_argument("--rounds", type=int, default=10)
    commands.choices["growing"].add_argument("--round-sessions", type=int, default=25_600)
    options = parser.parse_args()
    options.device = resolve_device(options.device).type
    store = mbcal.Store.open(options.store)
    states = choose_states(
        true_environment(store, options.device),
        store.sessions("test").tensors(options.device),
        options.states,
        options.width,
    )
    truth = Truth.of(states)
    print("the truth is known", file=sys.stderr, flush=True)
    table = Measurements(options.output, (options.key, "estimate", "seed"), COLUMNS)
    settings = {name: value for name, value in vars(options).items() if name not in ("function", "key", "output")}
    table.record(options.store.name, options.device, store.manifest["content_hash"], settings)
    options.function(options, store, truth, table)


if __name__ == "__main__":
    main()
