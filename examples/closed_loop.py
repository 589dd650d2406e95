"""Growing Batch-RL in operation: a server ranks for simulated users over HTTP, learns from its log, and is updated.

Run:  python examples/closed_loop.py --folder build/loop      (or: make loop-demo; a few minutes on two cores)

Users of the generated newsfeed are served by `mbcal serve`. After every round a candidate learns from the decision log
(`mbcal.release.update`). Where the gate finds it no worse it goes live. Where the log cannot tell it becomes the canary,
which is promoted here without waiting for its users, since a simulator has found it no worse. At the end the gate must not
publish a candidate that was fitted on shuffled behaviours.
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
from functools import partial
from pathlib import Path

import numpy as np
import torch

import mbcal
from mbcal.client import AsyncClient, Client
from mbcal.environments.candidates import session_candidates
from mbcal.registry.registry import Registry
from mbcal.release.gate import GateConfig
from mbcal.release.update import UpdateConfig, update

EPSILON = 0.2
"""Exploration of the server."""
FIRST_SESSIONS = 40
"""Logged sessions that the first version learns from."""
CONCURRENT_USERS = 16


def start_server(registry: Path, log: Path) -> tuple[subprocess.Popen[str], str]:
    """Start `mbcal serve` on a free port; return the process and its address."""
    command = [sys.executable, "-m", "mbcal", "serve", "--registry", str(registry), "--log", str(log), "--port", "0"]
    server = subprocess.Popen([*command, "--epsilon", str(EPSILON)], stderr=subprocess.PIPE, text=True)  # noqa: S603 - ourselves
    assert server.stderr is not None
    address = next(json.loads(line)["address"] for line in server.stderr if "listening" in line)
    return server, address


async def serve_users(address: str, world: mbcal.Newsfeed, sessions: mbcal.Sessions, name: str) -> float:
    """Serve one session to every user of `sessions`, whose candidates are given; return the mean reward per session.

    Users and sessions are named `name`-0, `name`-1, and so on.
    """
    limit, totals = asyncio.Semaphore(CONCURRENT_USERS), np.zeros(len(sessions))
    noise = torch.rand(len(sessions), sessions.horizon, generator=torch.Generator().manual_seed(0))
    catalog, behaviours = sessions.catalog, world.behaviours

    async def serve_user(client: AsyncClient, row: int) -> None:
        async with limit:
            one = sessions[row : row + 1]
            state = world.begin(*one.tensors().history)
            steps = zip(one.history_items[0], one.history_behaviours[0], strict=True)
            history = [(catalog.name_of(int(item)), behaviours.names[int(label)]) for item, label in steps]
            history = history[: int(one.history_length[0])]
            candidates = [catalog.name_of(int(item)) for item in one.tensors().require_candidates()[0] if item]
            user = f"{name}-{row}"
            for step in range(int(one.length[0])):
                answer = await client.rank(history, candidates, k=1, session=user, user=user)
                item = torch.from_numpy(catalog.rows_of([answer.items[0].item]))
                behaviour, state = world.respond(state, item, noise[row : row + 1, step])
                await client.feedback(answer.decision, behaviours.names[int(behaviour)])
                totals[row] += behaviours.rewards[int(behaviour)]

    async with AsyncClient(address) as client:
        await asyncio.gather(*(serve_user(client, row) for row in range(len(sessions))))
    return float(totals.mean())


def wait_for(address: str, version: str) -> float:
    """Wait until the server ranks by this version; return the seconds it took."""
    began = time.monotonic()
    with Client(address) as client:
        while client.model().version != version:
            time.sleep(0.02)
    return time.monotonic() - began


def fit_on_shuffled(config: mbcal.MBCALConfig, sessions: mbcal.Sessions) -> mbcal.MBCAL:
    """Return an agent fitted on sessions whose behaviours are shuffled, so that it learns nothing of use."""
    shuffled = np.random.default_rng(0).permutation(sessions.behaviours.ravel()).reshape(sessions.behaviours.shape)
    return mbcal.MBCAL(config, "cpu").fit(
        replace(sessions, behaviours=np.where(sessions.mask, shuffled, 0).astype(np.uint8))
    )


def run_rounds(options: argparse.Namespace) -> None:
    """Serve, learn and publish in rounds, then present the bad candidate; fails if the gate or the learning does."""
    folder = options.folder
    store = mbcal.prepare_newsfeed(
        folder / "feed", mbcal.NewsfeedConfig(sessions=8_000, items=200), mbcal.SessionConfig(horizon=8, history=8)
    )
    world, train = mbcal.Newsfeed.from_options(store.manifest["options"]), store.sessions("train")
    training = mbcal.TrainingConfig(epochs=4, batch=64, learning_rate=3e-3)
    print(f"fitting a simulator for the gate, and a first version on {FIRST_SESSIONS} logged sessions", flush=True)
    mbcal.Simulator(training=training, device="cpu").fit(store).save(folder / "simulator")
    config = mbcal.MBCALConfig(
        net=mbcal.NetConfig(features=store.agent_features),
        training=replace(training, epochs=1, batch=32, validation=0.0),
        gamma=0.95,
        mix=1.0,
    )
    registry, log = Registry(folder / "registry"), folder / "log"
    registry.publish(mbcal.MBCAL(config, "cpu").fit(train[:FIRST_SESSIONS]))
    settings = UpdateConfig(replay=100, epochs=10, gate=GateConfig(sessions=100, tolerance=0.02))
    judge = partial(update, registry, log, settings, simulator=folder / "simulator", device="cpu")
    server, address = start_server(registry.path, log)
    try:
        rewards = []
        for number in range(options.rounds):
            begin = FIRST_SESSIONS + number * options.sessions
            sessions = train[begin : begin + options.sessions]
            sessions = replace(sessions, candidates=session_candidates(sessions, number))
            version = registry.current()
            rewards.append(asyncio.run(serve_users(address, world, sessions, f"round-{number}")))
            print(f"round {number + 1}: {version} earned {rewards[-1]:.2f} per session", flush=True)
            if number + 1 < options.rounds:
                verdict = judge()
                print(f"  {verdict.action}: {verdict.reason}", flush=True)
                if verdict.action == "canary":  # a real service waits for its users: see 'mbcal serve --canary'
                    registry.promote_canary(verdict.version)
                if verdict.version is not None:
                    seconds = wait_for(address, verdict.version)
                    print(f"  the server ranks by {verdict.version} after {seconds:.2f} s", flush=True)
        verdict = judge(candidate=fit_on_shuffled(config, train[:400]))
        print(f"candidate fitted on shuffled behaviours: {verdict.action}: {verdict.reason}", flush=True)
        if verdict.action == "published":
            sys.exit("the gate published a candidate that was fitted on shuffled behaviours")
        if rewards[-1] <= rewards[0]:
            sys.exit("the last round earned no more than the first")
    finally:
        server.terminate()
        server.wait()


def main() -> None:
    """Read the options, empty the folder, and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--folder", type=Path, default=Path("build/loop"), help="Where everything is written; emptied first."
    )
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--sessions", type=int, default=500, help="Users served per round.")
    options = parser.parse_args()
    shutil.rmtree(options.folder, ignore_errors=True)
    run_rounds(options)


if __name__ == "__main__":
    main()
