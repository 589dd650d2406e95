"""Simulators of KuaiRand with and without the features of videos and of users: likelihood on users they never saw.

    python benchmarks/fields.py                        the part in ../shared/data, or --data PATH
    python benchmarks/fields.py --sessions 4000 --epochs 6
    python benchmarks/fields.py --store STORE --device cuda --sessions 0 --hidden 64 --epochs 60 --seeds 3

Every simulator is an LSTM with the same seeds, budget and sessions; only what it reads differs. Features of videos are read
beside their ids. The table says by how much the negative log likelihood per step differs from that of ids alone, with the
standard error over users.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

import mbcal
from mbcal.environments.simulator import Simulator
from mbcal.types import Sessions

DATA = Path(__file__).resolve().parents[2] / "shared/data/kuairand-pure/KuaiRand-Pure-part.zip"


@torch.no_grad()
def losses(simulator: Simulator, sessions: Sessions) -> NDArray[np.float64]:
    """(users,) mean negative log likelihood per step of each user, in the order of their numbers."""
    total: dict[int, list[float]] = {}
    for begin in range(0, len(sessions), 2048):
        block = sessions[begin : begin + 2048]
        batch = block.tensors(simulator.device, without=("candidates", "propensities", "timestamps"))
        logits = simulator.environment.net.forward_batch(batch)
        chosen = torch.log_softmax(logits, -1).gather(2, batch.behaviours.long().unsqueeze(2)).squeeze(2)
        sums = (-chosen * batch.mask).sum(1).double().cpu().numpy()
        for user, loss, length in zip(block.user.tolist(), sums.tolist(), block.length.tolist(), strict=True):
            entry = total.setdefault(user, [0.0, 0.0])
            entry[0] += loss
            entry[1] += length
    return np.asarray([loss / steps for _, (loss, steps) in sorted(total.items())])


def main() -> None:
    """Fit four simulators and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--store", type=Path, help="a store of KuaiRand with its user table, instead of --data")
    parser.add_argument("--sessions", type=int, default=6_000, help="sessions to fit on, and to test on, at most; 0: all")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options = parser.parse_args()
    if options.store is None and not options.data.exists():
        print(f"{options.data}: not there; nothing to measure")
        return
    with tempfile.TemporaryDirectory() as folder:
        config = mbcal.SessionConfig(horizon=10, history=20)
        store = (
            mbcal.Store.open(options.store)
            if options.store
            else mbcal.prepare(mbcal.KuaiRand(options.data), Path(folder) / "kuairand", config)
        )
        fitted, test = (store.sessions(part)[: options.sessions or None] for part in ("simulator", "test"))
    print(f"{len(fitted):,} sessions to fit on, {len(test):,} of {len(np.unique(test.user)):,} other users to test on")
    features, users = tuple(store.catalog.features), store.fields.user.names
    print(f"{len(features)} features of videos, {len(users)} of users: {', '.join((*features, *users))}")
    base: NDArray[np.float64] | None = None
    for title, video, user in (
        ("ids alone", (), ()),
        ("videos' features", features, ()),
        ("users' features", (), users),
        ("both (the default)", features, users),
    ):
        began = time.monotonic()
        settings = {"hidden": options.hidden, "epochs": options.epochs, "features": video, "user_features": user}
        simulators = [Simulator(device=options.device, seed=seed, **settings).fit(fitted) for seed in range(options.seeds)]
        seconds = time.monotonic() - began
        loss = np.mean([losses(simulator, test) for simulator in simulators], 0)
        base = loss if base is None else base
        gain = loss - base
        error = gain.std() / len(gain) ** 0.5
        nll = [simulator.evaluate(test).nll for simulator in simulators]
        spread = f" (spread {np.std(nll, ddof=1):.4f})" if options.seeds > 1 else ""
        found = f"NLL {np.mean(nll):.4f} per step{spread}, {gain.mean():+.4f} ± {error:.4f} per user"
        print(f"{title:>20}: {found}, {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
