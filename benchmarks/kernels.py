"""The C kernel that scores candidates against plain PyTorch and torch.compile, on one thread of the CPU.

python benchmarks/kernels.py [--repeats 300]

Times are CPU times, the best of many, in turns: of a block of a roll-out (256 sessions) and of a request to the service (1
session). The time to compile is printed by itself and is not in the other times.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

import torch

from mbcal import Behaviours, Catalog, NetConfig
from mbcal.kernels import native
from mbcal.nn.recurrent import RecurrentNet
from mbcal.scoring.scorers import ScoreTerm

ITEMS, HIDDEN = 20_000, 32
LABELS = Behaviours(tuple(map(str, range(6))), tuple(map(float, range(6))))
Work = Callable[[], object]


def scoring_ways(sessions: int, candidates: int) -> dict[str, Work]:
    """Ways to score candidates by one network of behaviours, from the same tables."""
    net = RecurrentNet(Catalog(tuple(map(str, range(ITEMS)))), LABELS, NetConfig(hidden=HIDDEN), len(LABELS))
    term = ScoreTerm(net.scoring_tables(), torch.tensor(LABELS.rewards))
    hidden, previous = torch.rand(sessions, HIDDEN), torch.zeros(sessions, dtype=torch.long)
    rows = torch.randint(2, ITEMS, (sessions, candidates))

    def reference() -> object:
        os.environ["MBCAL_NATIVE"] = "0"
        return term.score(hidden, previous, rows)

    def in_c() -> object:
        os.environ["MBCAL_NATIVE"] = "1"
        return term.score(hidden, previous, rows)

    def plain() -> torch.Tensor:
        """The reference without its calls of kernels, which cannot be compiled."""
        cell = term.tables.cell
        gates = cell.items[rows] + cell.behaviours[previous][:, None]
        scores: torch.Tensor = term.value(
            term.tables.outputs(cell.step(gates, cell.hidden_gates(hidden)[:, None], hidden[:, None]))
        )
        return scores

    compiled = torch.compile(plain, fullgraph=True)
    start = time.perf_counter()
    compiled()
    print(f"torch.compile took {time.perf_counter() - start:.1f} s")
    return {"PyTorch": reference, "torch.compile": compiled, "C": in_c}


def best_times(ways: dict[str, Work], repeats: int) -> dict[str, float]:
    """CPU seconds of every way, the best of several, in turns."""
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(repeats):
        for way, work in ways.items():
            start = time.process_time()
            work()
            best[way] = min(best[way], time.process_time() - start)
    return best


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=300)
    repeats = parser.parse_args().repeats
    if not native.available():
        raise SystemExit("the C library was not compiled, or MBCAL_NATIVE=0")
    torch.set_num_threads(1)
    lines = ["| work | way | µs | against PyTorch |", "|---|---|---|---|"]
    for sessions, candidates in ((256, 40), (1, 200)):
        best = best_times(scoring_ways(sessions, candidates), repeats)
        for way, seconds in best.items():
            times = best["PyTorch"] / seconds
            lines.append(f"| {sessions:,} x {candidates} candidates | {way} | {1e6 * seconds:,.0f} | {times:.2f} x |")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
