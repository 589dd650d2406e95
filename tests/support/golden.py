"""Golden outputs: what the library computes for fixed inputs, as hashes, to show that a refactoring changed nothing.

Weights depend on the machine's vector instructions, so the hashes are not committed: record them before a change, compare
after it, on the same machine.

Run:
    python tests/support/golden.py record build/golden.json
    python tests/support/golden.py compare build/golden.json
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from mbcal.decision_log.join import join_sessions
from mbcal.decision_log.reader import read_log

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np

from mbcal import (
    ItemTable,
    Labels,
    MBCALConfig,
    NewsfeedConfig,
    SessionConfig,
    SimulatorConfig,
    TableLog,
    TrainingConfig,
    prepare,
    prepare_newsfeed,
)
from mbcal.agents import AGENTS, load
from mbcal.agents.config import AgentConfig
from mbcal.data.store import Store
from mbcal.decision_log import Decision, DecisionLog
from mbcal.environments.newsfeed.world import Newsfeed
from mbcal.environments.simulator import Simulator
from mbcal.evaluation.evaluator import evaluate
from mbcal.evaluation.experiment.config import experiment_config
from mbcal.evaluation.experiment.run import Run
from mbcal.evaluation.experiment.workers import execute_all
from mbcal.evaluation.ope.estimate import estimate_value
from mbcal.nn.config import NetConfig
from mbcal.registry.registry import Registry
from mbcal.report.page_writer import write_report
from mbcal.serving.endpoints import ROUTES
from mbcal.serving.memory_state import MemoryStore
from mbcal.serving.messages import FeedbackRequest, RankRequest
from mbcal.serving.openapi import document
from mbcal.serving.service import Service
from mbcal.version import __version__


def digest(*parts: bytes) -> str:
    """A short hash of bytes."""
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def of_folder(folder: Path) -> str:
    """Every name and every byte."""
    return digest(*(f"{p.relative_to(folder)}".encode() + p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()))


def of_arrays(arrays: dict[str, Any]) -> str:
    """The values of arrays, whatever they are called."""
    return digest(
        *sorted(digest(str(a.dtype).encode(), str(a.shape).encode(), a.tobytes()).encode() for a in arrays.values())
    )


def of_numbers(values: Any) -> str:
    return digest(json.dumps(values, sort_keys=True, default=float).encode())


def write_table(folder: Path) -> TableLog:
    """A small log of every kind of row, good and bad, with item features."""
    draw = np.random.default_rng(0)
    labels = ("skip", "click", "like", "like ", "unknown")
    lines = ["uid,doc,ts,action,visit,p"]
    for _ in range(6000):
        user, item, when = draw.integers(0, 120), draw.integers(0, 80), 1_600_000_000 + int(draw.integers(0, 4000)) * 60
        label = labels[draw.choice(5, p=(0.5, 0.3, 0.15, 0.04, 0.01))]
        lines.append(f"u{user},d{item},{when},{label},{when // 40000},{draw.uniform(0.1, 1):.3f}")
    lines += ["u1,,1600000000,click,1,0.5", "u1,d1,never,click,1,0.5", "u1,d1"]
    (folder / "log.csv").write_text("\n".join(lines) + "\n")
    items = [f"d{k},kind{k % 5},a|b{k % 7},Title {k}" for k in range(80)]
    (folder / "items.csv").write_text("\n".join(["doc,kind,tags,name", *items]) + "\n")
    rule = Labels({"skip": 0.0, "click": 1.0, "like": 5.0})
    items_table = ItemTable([folder / "items.csv"], ["kind", "tags"], title="name")
    return TableLog(
        [folder / "log.csv"],
        user="uid",
        item="doc",
        time="ts",
        behaviour="action",
        rule=rule,
        propensity="p",
        items=items_table,
    )


def stores(folder: Path) -> dict[str, str]:
    prepare(write_table(folder), folder / "table", SessionConfig(horizon=6, history=5, seed=3))
    prepare_newsfeed(folder / "feed", NewsfeedConfig(sessions=1200, items=120), SessionConfig(horizon=8, history=6))
    return {"store table": of_folder(folder / "table"), "store newsfeed": of_folder(folder / "feed")}


def fits(folder: Path, store: Store) -> dict[str, str]:
    found, train, test = {}, store.sessions("train"), store.sessions("test")
    world = Newsfeed.from_options(dict(store.manifest["options"]))
    net, how = NetConfig(hidden=16, embedding=8, features=("category",)), TrainingConfig(epochs=2, batch=64)
    configs: dict[str, Any] = {name: kind.Config(net=net, training=how) for name, kind in AGENTS.items()}
    kinds = dict.fromkeys(AGENTS)
    configs["mbcal auto"] = MBCALConfig(net=net, training=how, mix="auto")
    configs["gru4rec id"] = AgentConfig(net=NetConfig(hidden=16, embedding=8, user="id"), training=how)
    for name, config in configs.items():
        agent = AGENTS[name.split()[0]](config, "cpu").fit(train)
        agent.fit(train[:100], training=TrainingConfig(epochs=1, batch=32, validation=0.0))  # and a warm start
        path = agent.save(folder / name.replace(" ", "-"))
        weights = {f"{n}/{k}": v.numpy() for n, m in agent.nets.items() for k, v in m.state_dict().items()}
        steps = [("item-001", "dwell-03"), ("item-007", "dwell-09")]
        ranked = load(path, "cpu").rank(steps, [f"item-{k:03d}" for k in range(10, 40)])
        found[f"weights {name}"] = of_arrays(weights)
        found[f"ranking {name}"] = of_numbers([(r.item, r.score, dict(r.parts), r.known) for r in ranked])
        found[f"curves {name}"] = of_numbers({net: record.curve for net, record in agent.records.items()})
        found[f"earned {name}"] = of_numbers(evaluate(agent, world, test, seed=5).rewards.tolist())
    assert len(kinds) == len(AGENTS)
    for family in ("lstm", "transformer"):
        config = SimulatorConfig(family=family, hidden=16, embedding=8, training=how)
        simulator = Simulator(config, "cpu").fit(store)
        card = simulator.evaluate(test[:100])
        found[f"simulator {family}"] = of_arrays({k: v.numpy() for k, v in simulator.environment.net.state_dict().items()})
        found[f"card {family}"] = of_numbers([card.nll, card.ece, card.macro_f1, card.drift, card.rmse])
    agent, other = load(folder / "mbcal", "cpu"), load(folder / "gru4rec", "cpu")
    estimates = estimate_value(agent, test, baseline=other, epsilon=0.1, clip=20.0, values="means", resamples=200)
    found["off-policy"] = of_numbers([(e.of, e.name, e.value, e.low, e.high, e.ess) for e in estimates])
    return found


def experiment(folder: Path) -> dict[str, str]:
    tiny = {
        "log_sessions": 600,
        "items": 120,
        "test_sessions": 60,
        "rounds": 2,
        "round_sessions": 80,
        "seeds": 1,
    }
    tiny |= {"agents": ["mbcal", "gru4rec", "dqn", "random"], "futures": 4, "future_states": 4}
    tiny |= {"net": {"hidden": 8, "embedding": 8}, "training": {"epochs": 2}}
    tiny |= {"simulator": {"hidden": 8, "embedding": 8, "training": {"epochs": 1}}}
    run = Run.create(folder / "run", experiment_config(tiny), "cpu")
    run.prepare()
    execute_all(run, run.missing, 1, _Silent())
    write_report(run)
    return {f"experiment {p.name}": digest(p.read_bytes()) for p in sorted((folder / "run" / "tables").glob("*.csv"))}


class _Silent:
    def phase(self, *_: Any) -> None: ...
    def advance(self, *_: Any) -> None: ...
    def done(self, *_: Any) -> None: ...


def service(folder: Path, model: Path, store: Store) -> dict[str, str]:
    """The decision log of a scripted session, but for times and ids."""
    registry = Registry(folder / "registry")
    registry.publish(model)
    agent = load(model, "cpu")

    async def script() -> None:
        generator = np.random.default_rng(7)
        served = Service(registry, MemoryStore(), DecisionLog(folder / "log"), 0.3, generator=generator)
        await served.refresh_version()
        for step in range(5):
            asked = [f"item-{k:03d}" for k in range(40)] + ["never seen"]
            history: list[Any] = [("item-001", "dwell-02")]
            answer = await served.rank(RankRequest(history=history, candidates=asked, k=4, session="s1", user="u1"))
            await served.feedback(FeedbackRequest(answer.decision, f"dwell-{step + 2:02d}"))
            await served.feedback(FeedbackRequest(answer.decision, "dwell-05", answer.items[1].item))
        await served.close()

    asyncio.run(script())
    records = list(read_log(folder / "log"))
    kept = [
        (r.session, r.user, r.step, r.version, r.epsilon, r.history, r.shown, r.candidates, r.items, r.propensities)
        if isinstance(r, Decision)
        else (r.item, r.behaviour)
        for r in records
    ]
    joined = join_sessions(records, agent.domain.catalog, agent.domain.behaviours, horizon=8, history=6).sessions
    arrays = {name: array for name, array in joined.arrays() if name not in ("timestamps",)}
    return {
        "openapi": of_numbers(document(ROUTES, __version__)),
        "decision log": of_numbers(kept),
        "joined": of_arrays(arrays),
    }


def golden() -> dict[str, str]:
    """Everything, by name."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = stores(folder)
        store = Store.open(folder / "feed")
        found |= fits(folder / "models", store)
        found |= service(folder, folder / "models" / "mbcal", store)
        found |= experiment(folder)
    return found


def main() -> None:
    verb, file = sys.argv[1], Path(sys.argv[2])
    found = golden()
    if verb == "record":
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(found, indent=2) + "\n")
        print(f"{len(found)} outputs recorded in {file}")
        return
    kept = json.loads(file.read_text())
    changed = sorted(name for name in kept.keys() | found.keys() if kept.get(name) != found.get(name))
    print("\n".join(f"changed: {name}" for name in changed) or f"all {len(kept)} outputs are equal")
    sys.exit(bool(changed))


if __name__ == "__main__":
    main()
