"""Sessions per second that every method fits and serves, and transitions per CPU second beside the DQN of other libraries.

    python benchmarks/experiment.py [--peers PYTHON]

PYTHON is an interpreter that has d3rlpy and tianshou. They need other versions of some packages than mbcal, so they live in
a virtual environment of their own: python -m venv peers; peers/bin/pip install torch==2.13.0; peers/bin/pip install d3rlpy;
peers/bin/pip install tianshou. Without it only mbcal is measured. Everything runs on one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch

from mbcal import NetConfig, Newsfeed, NewsfeedConfig, Sessions, Store, TrainingConfig, prepare_newsfeed
from mbcal.agents import AGENTS
from mbcal.evaluation.evaluator import evaluate

EPOCHS = 2


def transitions(sessions: Sessions, width: int = 64) -> dict[str, np.ndarray]:
    """Return the S logged steps of full sessions as the flat transitions that other libraries take.

    Returns:
        `sequence` (S, 2L): the items and behaviours of the L latest steps, oldest first, padded in front; `flat` (S, width):
        random numbers, in place of a hand-made state; `actions`, `rewards` and `ends` (S,): index of the chosen candidate,
        reward, and whether the session ends; `items` and `behaviours`: how many there are.
    """
    count, horizon = sessions.items.shape
    span, padding = sessions.history_items.shape[1] + horizon, sessions.behaviour_set.start
    items = np.zeros((count, horizon, span), np.float32)
    behaviours = np.full((count, horizon, span), padding, np.float32)
    for row in range(count):
        length = int(sessions.history_length[row])
        all_items = np.concatenate([sessions.history_items[row, :length], sessions.items[row]])
        all_behaviours = np.concatenate([sessions.history_behaviours[row, :length], sessions.behaviours[row]])
        for step in range(horizon):
            end = length + step
            if end:
                items[row, step, -end:], behaviours[row, step, -end:] = all_items[:end], all_behaviours[:end]
    assert sessions.candidates is not None
    ends = np.zeros((count, horizon), np.float32)
    ends[:, -1] = 1
    return {
        "sequence": np.concatenate([items, behaviours], 2).reshape(count * horizon, -1),
        "flat": np.random.default_rng(0).normal(size=(count * horizon, width)).astype(np.float32),
        "actions": (sessions.candidates[:, None] == sessions.items[:, :, None]).argmax(2).reshape(-1).astype(np.int64),
        "rewards": sessions.rewards.reshape(-1),
        "ends": ends.reshape(-1),
        "items": np.asarray(sessions.catalog.n_rows),
        "behaviours": np.asarray(padding + 1),
    }


def measure_agents(store: Store) -> dict[str, float]:
    """Print one row per method; return transitions trained per CPU second, by method."""
    world = Newsfeed.from_options(store.manifest["options"])
    train, test = store.sessions("train"), store.sessions("test")[:1000]
    print("| method | fit sessions/s | serve sessions/s | transitions trained a CPU second |", flush=True)
    print("|---|---|---|---|", flush=True)
    rates = {}
    for name, kind in AGENTS.items():
        training = TrainingConfig(epochs=EPOCHS, batch=256, validation=0.0)
        agent = kind(kind.Config(net=NetConfig(), training=training), "cpu")
        begin, cpu = time.perf_counter(), time.process_time()
        agent.fit(train)
        fit, cpu = time.perf_counter() - begin, time.process_time() - cpu
        begin = time.perf_counter()
        evaluate(agent, world, test)
        serve = time.perf_counter() - begin
        if agent.optimisers:
            rates[name] = EPOCHS * int(train.length.sum()) / cpu
        trained = f"{rates[name]:,.0f}" if name in rates else "–"
        print(f"| {name} | {EPOCHS * len(train) / fit:,.0f} | {len(test) / serve:,.0f} | {trained} |", flush=True)
    return rates


def measure_peers(python: str, sessions: Sessions, updates: int, own_rate: float, folder: Path) -> None:
    """Print one row per library and state, beside the rate of mbcal's DQN."""
    np.savez(folder / "log.npz", **transitions(sessions))
    script = str(Path(__file__).with_name("peers.py"))
    command = [python, "-W", "ignore", script, str(folder / "log.npz"), str(updates)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        print(f"\nThe other libraries did not run: {process.stderr[-400:]}")
        return
    print("\n| DQN of | transitions trained a CPU second | ours against it |\n|---|---|---|")
    print(f"| mbcal | {own_rate:,.0f} | |")
    for name, entry in json.loads(process.stdout.splitlines()[-1]).items():
        if "error" in entry:
            print(f"| {name} | did not run ({entry['error']}) | |")
        else:
            rate = entry["transitions"] / entry["cpu"]
            title = name.replace(",", f" {entry['version']},")
            print(f"| {title} | {rate:,.0f} | {own_rate / rate:.1f} x |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", metavar="PYTHON", help="An interpreter that has d3rlpy and tianshou.")
    parser.add_argument("--sessions", type=int, default=10_000, help="Sessions of the generated newsfeed.")
    parser.add_argument("--updates", type=int, default=2_000, help="Updates of the other libraries.")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = prepare_newsfeed(folder / "feed", NewsfeedConfig(options.sessions, 2_000))
        rates = measure_agents(store)
        if options.peers:
            measure_peers(options.peers, store.sessions("train"), options.updates, rates["dqn"], folder)
    versions = f"torch {torch.__version__}, Python {sys.version.split()[0]}, one thread"
    print(f"\n{versions}; a batch is 256 sessions in mbcal, 256 transitions in the other libraries")


if __name__ == "__main__":
    main()
