"""MBCAL with planning: what is chosen and whether that was right, and where the rest of the regret comes from.

    python benchmarks/planning.py choice STORE [--device cuda] [--seeds 0 1 2] [--output docs/results/planning-choice.csv]
        [--simulators build/lstm build/transformer]
    python benchmarks/planning.py evidence STORE [--device cuda] [--seeds 0 1 2]
        [--output docs/results/planning-evidence.csv]
    python benchmarks/planning.py error STORE [--device cuda] [--seeds 0 1 2] [--output docs/results/planning-error.csv]

choice   fits gru4rec, mbcal, and mbcal-plan with every advantage it can choose, and makes its choice: mbcal-plan earns what
         the chosen advantage earns, which is fitted as if it had been given. All serve the same test sessions under
         the same noise: in the truth of a generated newsfeed, else in an LSTM and a transformer simulator, which are
         fitted first unless folders of `mbcal simulator` are given. Gains are over gru4rec; regret is that to the best
         advantage.
evidence makes the choice alone, and writes what it was made on: what every candidate earned, its gain over the best one
         before it, and the interval that decides. Test users take no part.
error    generated newsfeeds: rewards that planning imagines in its own environment model, true ones, and those of the same
         planner in the true world (behaviours of the truth, instant rewards of the model): what model error costs, and what
         is left to the oracle.

A seed whose rows are in the output is not run again; rows of other data and seeds stay.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from measurements import Measurements
from numpy.typing import NDArray

import mbcal
from mbcal.agents import MBCALPlan, agent_class
from mbcal.agents.advantage_choice import CANDIDATES, choose_advantage
from mbcal.agents.fit_context import FitContext
from mbcal.environments.base import Environment
from mbcal.environments.branches import PredictingEnvironment
from mbcal.environments.candidates import session_candidates
from mbcal.environments.newsfeed.oracle import OraclePolicy
from mbcal.environments.rollout import rollout
from mbcal.evaluation.judges import TRUTH, true_environment
from mbcal.metrics import mean_interval
from mbcal.training.device import resolve_device
from mbcal.types import SessionTensors

NOISE_SEED = 5
ADVANTAGES: dict[str, dict[str, Any]] = {f"mbcal-plan, {kind}": {"advantage": kind} for kind in reversed(CANDIDATES)}
"""Policies with every advantage that can be chosen, the slowest first."""


class TrueWorldPlan(MBCALPlan):
    """Plans in the true world, with the instant rewards of its model."""

    world: Any = None

    def environment(self, name: str = "environment") -> PredictingEnvironment:  # noqa: ARG002 - there is one truth
        world: PredictingEnvironment = self.world
        return world


class Chooser(MBCALPlan):
    """Chooses its advantage and learns nothing else."""

    def learn(self, context: FitContext) -> None:
        choice = choose_advantage(context, self.config, self._fit_policies)
        self.config, self.choices["advantage"] = replace(self.config, advantage=choice.kind), choice.record()


def test_sessions(store: mbcal.Store, count: int, device: str) -> SessionTensors:
    """A sample of test sessions, the same for all."""
    sessions = store.sessions("test")
    rows = np.random.default_rng(0).choice(len(sessions), min(len(sessions), count), replace=False)
    return sessions[np.sort(rows)].tensors(device)


def judges_of(store: mbcal.Store, device: str, folders: Sequence[str]) -> dict[str, Environment]:
    """The truth, or a simulator of each family: from folders, or fitted."""
    if store.manifest["source"] == "newsfeed":
        return {TRUTH: true_environment(store, device)}
    simulators = [mbcal.Simulator.load(folder, device) for folder in folders]
    if not simulators:
        simulators = [mbcal.Simulator(family=family, device=device).fit(store) for family in ("lstm", "transformer")]
    return {simulator.config.family: simulator for simulator in simulators}


def serve(policy: Any, environment: Environment, sessions: SessionTensors) -> NDArray[np.float32]:
    """Rewards of the sessions, under common noise."""
    served = rollout(policy, environment, sessions, candidates=session_candidates(sessions, 0), seed=NOISE_SEED)
    return served.rewards.sum(1).cpu().numpy()


def fitted(method: str, store: mbcal.Store, options: argparse.Namespace, seed: int, **settings: Any) -> Any:
    begin = time.monotonic()
    agent = agent_class(method)(seed=seed, device=options.device, **settings).fit(store)
    return agent, time.monotonic() - begin


def measurements(
    options: argparse.Namespace, store: mbcal.Store, keys: tuple[str, ...], columns: tuple[str, ...]
) -> Measurements:
    """The table to fill, with a record of how."""
    table = Measurements(options.output, ("data", "seed", *keys), columns)
    settings = {name: value for name, value in vars(options).items() if name not in ("function", "output")}
    table.record(options.store.name, options.device, store.manifest["content_hash"], settings)
    return table


def compare(options: argparse.Namespace) -> None:
    """Rewards of the chosen advantage and of all others, and the regret of the choice."""
    store = mbcal.Store.open(options.store)
    sessions = test_sessions(store, options.sessions, options.device)
    users, judges = sessions.user.cpu().numpy(), judges_of(store, options.device, options.simulators)
    methods: Mapping[str, tuple[str, dict[str, Any]]] = {
        **{name: (name, {}) for name in ("gru4rec", "mbcal")},
        **{title: ("mbcal-plan", settings) for title, settings in ADVANTAGES.items()},
    }
    columns = ("reward", "gain over gru4rec", "low", "high", "regret", "regret low", "regret high", "seconds", "chosen")
    table, data = measurements(options, store, ("policy", "judge"), columns), options.store.name
    for seed in options.seeds:
        if all(table.has(data=data, seed=seed, policy="mbcal-plan", judge=judge) for judge in judges):
            continue
        earned: dict[tuple[str, str], NDArray[np.float32]] = {}
        rows: dict[tuple[str, str], dict[str, Any]] = {}
        for title, (method, settings) in methods.items():
            agent, seconds = fitted(method, store, options, seed, **settings)
            for judge, environment in judges.items():
                rewards = earned[title, judge] = serve(agent, environment, sessions)
                gain = mean_interval(rewards - earned["gru4rec", judge], users)
                row: dict[str, Any] = {"data": data, "seed": seed, "policy": title, "judge": judge, "seconds": seconds}
                row |= {"reward": float(rewards.mean()), "gain over gru4rec": gain.mean, "low": gain.low, "high": gain.high}
                table.add(**row)
                rows[title, judge] = row
        choice, seconds = choose(store, options.device, seed)
        for judge in judges:
            own = rows[f"mbcal-plan, {choice['kind']}", judge]
            best = max((earned[title, judge] for title in ADVANTAGES), key=lambda found: found.mean())
            regret = mean_interval(best - earned[own["policy"], judge], users)
            own = {**own, "policy": "mbcal-plan", "seconds": seconds + own["seconds"], "chosen": choice["kind"]}
            table.add(**own, **{"regret": regret.mean, "regret low": regret.low, "regret high": regret.high})


def choose(store: mbcal.Store, device: str, seed: int) -> tuple[dict[str, Any], float]:
    """The choice of mbcal-plan as its record, and the seconds it took."""
    begin = time.monotonic()
    choice: dict[str, Any] = Chooser(seed=seed, device=device).fit(store).choices["advantage"]
    return choice, time.monotonic() - begin


def show_evidence(options: argparse.Namespace) -> None:
    """What the choice is made on, by seed."""
    store, data = mbcal.Store.open(options.store), options.store.name
    columns = ("reward", "gain", "low", "high", "sessions", "seconds", "chosen")
    table = measurements(options, store, ("advantage",), columns)
    for seed in options.seeds:
        if all(table.has(data=data, seed=seed, advantage=kind) for kind in CANDIDATES):
            continue
        choice, seconds = choose(store, options.device, seed)
        shared = {"data": data, "seed": seed, "sessions": choice["sessions"], "seconds": seconds}
        for trial in choice["trials"]:
            evidence = {name: trial[name] for name in ("reward", "gain", "low", "high")}
            table.add(**shared, **evidence, advantage=trial["kind"], chosen=trial["kind"] == choice["kind"])


def measure_error(options: argparse.Namespace) -> None:
    """Imagined and true rewards, and those of planning in the true world."""
    store = mbcal.Store.open(options.store)
    world, sessions = true_environment(store, options.device), test_sessions(store, options.sessions, options.device)
    TrueWorldPlan.world = world
    columns = ("imagined", "true", "planned in the true world", "oracle", "seconds")
    table, data = measurements(options, store, ("models",), columns), options.store.name
    best = float(serve(OraclePolicy(world, sessions.horizon), world, sessions).mean())
    for seed in options.seeds:
        for models in options.models:
            if table.has(data=data, seed=seed, models=models):
                continue
            settings: dict[str, Any] = {"advantage": "planned", "models": models}
            agent, seconds = fitted("mbcal-plan", store, options, seed, **settings)
            imagined, true = (float(serve(agent, place, sessions).mean()) for place in (agent.environment(), world))
            agent = TrueWorldPlan(seed=seed, device=options.device, **settings).fit(store)
            row = {
                "imagined": imagined,
                "true": true,
                "planned in the true world": float(serve(agent, world, sessions).mean()),
            }
            table.add(data=data, seed=seed, models=models, **row, oracle=best, seconds=seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, function in (("choice", compare), ("evidence", show_evidence), ("error", measure_error)):
        command = commands.add_parser(name)
        command.add_argument("store", type=Path)
        command.add_argument("--device", default="auto")
        command.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
        command.add_argument("--output", type=Path, help="CSV file to write; a JSON file beside it says how it was made")
        command.set_defaults(function=function)
    commands.choices["choice"].add_argument(
        "--simulators", nargs="+", default=[], metavar="FOLDER", help="simulators that judge; by default they are fitted"
    )
    for name in ("choice", "error"):
        commands.choices[name].add_argument("--sessions", type=int, default=20_000, help="test sessions")
    commands.choices["error"].add_argument(
        "--models", type=int, nargs="+", default=[1, 2, 4], help="numbers of environment models"
    )
    options = parser.parse_args()
    options.device = resolve_device(options.device).type
    options.function(options)


if __name__ == "__main__":
    main()
