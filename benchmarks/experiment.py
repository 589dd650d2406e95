"""Sessions a second of every method and phase, and transitions trained a CPU second beside other people's DQN.

python benchmarks/experiment.py [--peers PYTHON]

PYTHON is an interpreter that has d3rlpy and tianshou. They want other versions than ours, so they live in an environment of
their own: python -m venv peers; peers/bin/pip install torch==2.13.0; peers/bin/pip install d3rlpy; peers/bin/pip install
tianshou. Without it only ours is measured. Everybody gets one thread.
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
    """Logged steps as flat transitions: what happened so far, the place of the item chosen, the reward, the end.

    `sequence` is (steps, 2L): the L latest items and their behaviours, oldest first, padded in front. `flat` is a vector of
    `width` numbers, no matter which.
    """
    count, horizon = sessions.items.shape
    span, nothing = sessions.history_items.shape[1] + horizon, sessions.behaviour_set.start
    items, labels = np.zeros((count, horizon, span), np.float32), np.full((count, horizon, span), nothing, np.float32)
    for row in range(count):
        known = int(sessions.history_length[row])
        past = np.concatenate([sessions.history_items[row, :known], sessions.items[row]])
        done = np.concatenate([sessions.history_behaviours[row, :known], sessions.behaviours[row]])
        for step in range(horizon):
            end = known + step
            if end:
                items[row, step, -end:], labels[row, step, -end:] = past[:end], done[:end]
    assert sessions.candidates is not None
    ends = np.zeros((count, horizon), np.float32)
    ends[:, -1] = 1
    return {
        "sequence": np.concatenate([items, labels], 2).reshape(count * horizon, -1),
        "flat": np.random.default_rng(0).normal(size=(count * horizon, width)).astype(np.float32),
        "actions": (sessions.candidates[:, None] == sessions.items[:, :, None]).argmax(2).reshape(-1).astype(np.int64),
        "rewards": sessions.rewards.reshape(-1),
        "ends": ends.reshape(-1),
        "items": np.asarray(sessions.catalog.n_rows),
        "behaviours": np.asarray(nothing + 1),
    }


def measure_ours(store: Store) -> dict[str, float]:
    """Print a row a method; transitions trained a CPU second by name."""
    world = Newsfeed.from_options(dict(store.manifest["options"]))
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


def measure_peers(python: str, sessions: Sessions, updates: int, ours: float, folder: Path) -> None:
    np.savez(folder / "log.npz", **transitions(sessions))
    script = str(Path(__file__).with_name("peers.py"))
    command = [python, "-W", "ignore", script, str(folder / "log.npz"), str(updates)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"\nThe peers did not run: {done.stderr[-400:]}")
        return
    print("\n| DQN of | transitions trained a CPU second | ours against it |\n|---|---|---|")
    print(f"| mbcal | {ours:,.0f} | |")
    for name, entry in json.loads(done.stdout.splitlines()[-1]).items():
        if "missing" in entry:
            print(f"| {name} | did not run ({entry['missing']}) | |")
        else:
            rate = entry["transitions"] / entry["cpu"]
            title = name.replace(",", f" {entry['version']},")
            print(f"| {title} | {rate:,.0f} | {ours / rate:.1f} x |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", help="an interpreter that has d3rlpy and tianshou")
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--updates", type=int, default=2_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = prepare_newsfeed(folder / "feed", NewsfeedConfig(options.sessions, 2_000))
        rates = measure_ours(store)
        if options.peers:
            measure_peers(options.peers, store.sessions("train"), options.updates, rates["dqn"], folder)
    print(
        f"\ntorch {torch.__version__}, Python {sys.version.split()[0]}, one thread; a batch is 256 sessions here, ", end=""
    )
    print("here, 256 transitions there")


if __name__ == "__main__":
    main()
