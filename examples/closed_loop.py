"""Growing Batch-RL as an operation: simulated users talk to a real server over HTTP while it learns and is hot-swapped.

python examples/closed_loop.py --folder build/loop      (or: make loop-demo; a few minutes on two cores)

Users of the generated newsfeed, whose truth nobody but them knows, are served by `mbcal serve`. After every round the
decision log becomes a candidate (`mbcal.release.update`), which goes live only if the gate lets it through. At the end a candidate
that has learned nonsense is shown to the gate, and refused.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import mbcal
from mbcal.client import AsyncClient, Client
from mbcal.environments.candidates import session_candidates
from mbcal.registry.registry import Registry
from mbcal.release.gate import GateConfig
from mbcal.release.update import update

EPSILON = 0.2


def started(registry: Path, log: Path) -> tuple[subprocess.Popen[str], str]:
    """A server of our own on a free port, and its address."""
    command = [sys.executable, "-m", "mbcal", "serve", "--registry", str(registry), "--log", str(log), "--port", "0"]
    server = subprocess.Popen([*command, "--epsilon", str(EPSILON)], stderr=subprocess.PIPE, text=True)  # noqa: S603 - ourselves
    assert server.stderr is not None
    address = next(json.loads(line)["address"] for line in server.stderr if "listening" in line)
    return server, address


async def serve_users(address: str, world: mbcal.Newsfeed, begin: mbcal.Sessions, name: str) -> float:
    """Every user is served one session; what they earned on average."""
    at_once, earned = asyncio.Semaphore(16), np.zeros(len(begin))
    luck = torch.rand(len(begin), begin.horizon, generator=torch.Generator().manual_seed(len(name)))
    items, labels, rewards = begin.catalog, world.behaviours.names, world.behaviours.rewards
    assert begin.candidates is not None

    async def one(client: AsyncClient, row: int) -> None:
        async with at_once:
            alone = begin[row : row + 1]
            state = world.begin(*alone.tensors().history)
            past = [
                (items.name_of(int(item)), labels[int(label)])
                for item, label in zip(alone.history_items[0], alone.history_behaviours[0], strict=True)
            ][: int(alone.history_length[0])]
            offered = [items.name_of(int(item)) for item in alone.candidates[0] if item]  # type: ignore[index]  # drawn above
            for step in range(int(alone.length[0])):
                who = f"{name}-{row}"
                answer = await client.rank(past, offered, k=1, session=who, user=who)
                shown = torch.from_numpy(items.rows_of([answer.items[0].item]))
                behaviour, state = world.respond(state, shown, luck[row : row + 1, step])
                await client.feedback(answer.decision, labels[int(behaviour)])
                earned[row] += rewards[int(behaviour)]

    async with AsyncClient(address) as client:
        await asyncio.gather(*(one(client, row) for row in range(len(begin))))
    return float(earned.mean())


def wait_for(address: str, version: str) -> float:
    """Seconds until the server ranks by this version."""
    began = time.monotonic()
    with Client(address) as client:
        while client.model().version != version:
            time.sleep(0.02)
    return time.monotonic() - began


def main() -> None:
    """Serve, learn, publish, again; then the bad candidate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("build/loop"))
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--sessions", type=int, default=500, help="Users served a round.")
    options = parser.parse_args()
    shutil.rmtree(options.folder, ignore_errors=True)
    store = mbcal.prepare_newsfeed(
        options.folder / "feed", mbcal.NewsfeedConfig(8_000, 200), mbcal.SessionConfig(horizon=8, history=8)
    )
    world = mbcal.Newsfeed.from_options(dict(store.manifest["options"]), torch.device("cpu"))
    how = mbcal.TrainingConfig(epochs=4, batch=64, learning_rate=3e-3)
    print("fitting the simulator that has a say in the gate, and a first version from 40 logged sessions", flush=True)
    simulator = mbcal.Simulator(mbcal.SimulatorConfig(training=how), "cpu").fit(store)
    simulator.save(options.folder / "simulator")
    config = mbcal.MBCALConfig(
        net=mbcal.NetConfig(features=store.agent_features),
        training=replace(how, epochs=1, batch=32, validation=0.0),
        mix=1.0,
    )
    train = store.sessions("train")
    registry = Registry(options.folder / "registry")
    registry.publish(mbcal.MBCAL(config, "cpu").fit(train[:40]).save(options.folder / "first"))
    log = options.folder / "log"
    server, address = started(registry.path, log)
    gate = GateConfig(sessions=100, tolerance=0.02)
    told = {"simulator": options.folder / "simulator", "replay": 100, "epsilon": EPSILON, "gate": gate, "device": "cpu"}
    try:
        earned = []
        for number in range(options.rounds):
            begin = train[40 + number * options.sessions :][: options.sessions]
            begin = replace(begin, candidates=session_candidates(begin, number))
            version = registry.current()
            earned.append(asyncio.run(serve_users(address, world, begin, f"round-{number}")))
            print(f"round {number + 1}: {version} earned {earned[-1]:.2f} a session", flush=True)
            if number + 1 == options.rounds:
                break
            verdict = update(registry, log, epochs=10, **told)  # type: ignore[arg-type]  # a dictionary of several types
            if verdict.published:
                print(
                    f"  {verdict.published} published, at work {wait_for(address, verdict.published):.2f} s later",
                    flush=True,
                )
            else:
                print(f"  refused: {'; '.join(verdict.reasons)}", flush=True)
        nonsense = train[:400]
        shuffled = nonsense.behaviours.copy()
        np.random.default_rng(0).shuffle(shuffled.ravel())
        nonsense = replace(nonsense, behaviours=np.where(nonsense.mask, shuffled, 0).astype(np.uint8))
        bad = mbcal.MBCAL(config, "cpu").fit(nonsense)
        live = registry.current()
        verdict = update(registry, log, candidate=bad, **told)  # type: ignore[arg-type]  # a dictionary of several types
        print(f"a candidate that has learned nonsense: refused ({'; '.join(verdict.reasons)})", flush=True)
        assert verdict.published is None, "the gate let nonsense through"
        assert registry.current() == live
        assert earned[-1] > earned[0], "nothing was gained"
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
