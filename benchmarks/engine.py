"""How much the engine's ideas bring, as ratios within one run: tables for candidates, in C too; shared prefixes for CFA.

python benchmarks/engine.py [--threads 2] [--device cpu]
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path

import torch

from mbcal import Behaviours, Catalog
from mbcal.kernels import native
from mbcal.nn.base import expected_reward
from mbcal.nn.config import NetConfig
from mbcal.nn.recurrent import RecurrentNet
from mbcal.training.targets import counterfactual_future_advantage, simulated_future_reward
from mbcal.types import MASK_ROW, SessionTensors

ITEMS, CANDIDATES, HORIZON, GAMMA = 20_000, 40, 20, 0.95
LABELS = Behaviours(tuple(map(str, range(6))), tuple(map(float, range(6))))


def best_of(repeats: int, ways: dict[str, Callable[[], object]], device: str) -> dict[str, float]:
    """Seconds of every way, in turns, so that a busy minute of the machine is nobody's alone."""
    seconds = dict.fromkeys(ways, float("inf"))
    for _ in range(repeats):
        for way, work in ways.items():
            start = time.perf_counter()
            work()
            if device != "cpu":
                torch.cuda.synchronize()
            seconds[way] = min(seconds[way], time.perf_counter() - start)
    return seconds


def random_batch(size: int, device: str) -> SessionTensors:
    draw = torch.Generator().manual_seed(0)

    def items(*shape: int) -> torch.Tensor:
        return torch.randint(2, ITEMS + 2, shape, generator=draw, dtype=torch.int32).to(device)

    def behaviours(*shape: int) -> torch.Tensor:
        return torch.randint(6, shape, generator=draw, dtype=torch.int32).to(torch.uint8).to(device)

    full = torch.full((size,), HORIZON, dtype=torch.int32, device=device)
    return SessionTensors(
        catalog=Catalog(tuple(map(str, range(ITEMS)))),
        behaviour_set=LABELS,
        items=items(size, HORIZON),
        behaviours=behaviours(size, HORIZON),
        length=full,
        user=torch.zeros_like(full),
        history_items=items(size, HORIZON),
        history_behaviours=behaviours(size, HORIZON),
        history_length=full,
        candidates=items(size, CANDIDATES),
    )


@torch.no_grad()
def score_by_network(nets: list[RecurrentNet], batch: SessionTensors) -> None:
    """One pass of the cell per (session, candidate)."""
    assert batch.candidates is not None
    candidates, size = batch.candidates, len(batch.items)
    states = [net.begin(batch.user, batch.history_items, batch.history_behaviours, batch.history_length) for net in nets]
    for step in range(HORIZON):
        for number, net in enumerate(nets):
            previous = net.previous(batch.behaviours)[:, step]
            inputs = net.inputs(candidates, previous[:, None].expand(-1, CANDIDATES)).view(size * CANDIDATES, 1, -1)
            hidden = states[number][0].repeat_interleave(CANDIDATES, 0)
            net.head(net.cell(inputs, hidden.unsqueeze(0))[0])
            states[number] = net.step(net.gates(batch.items[:, step], previous), states[number])


@torch.no_grad()
def score_by_tables(nets: list[RecurrentNet], batch: SessionTensors, block: int) -> None:
    tables = [net.scoring_tables() for net in nets]
    assert batch.candidates is not None
    for begin in range(0, len(batch.items), block):
        rows = slice(begin, begin + block)
        known = (batch.user[rows], batch.history_items[rows], batch.history_behaviours[rows], batch.history_length[rows])
        # whichever reads histories faster: torch's fused layer, or tables in C
        states = zip(nets, tables, strict=True)
        hidden = [table.begin(*known) if native.available() else net.begin(*known)[0] for net, table in states]
        previous = nets[0].previous(batch.behaviours[rows]).long()
        for step in range(HORIZON):
            for number, table in enumerate(tables):
                table.score(hidden[number], previous[:, step], batch.candidates[rows])
                hidden[number] = table.cell.observe(hidden[number], batch.items[rows, step], previous[:, step])


def in_c(work: Callable[[], None], threads: int, torch_threads: int) -> Callable[[], None]:
    def run() -> None:
        before = torch.get_num_threads()
        os.environ["MBCAL_NATIVE"] = "1"
        native.set_threads(threads)
        torch.set_num_threads(torch_threads)
        work()
        torch.set_num_threads(before)
        os.environ["MBCAL_NATIVE"] = "0"

    return run


def scoring_ways(
    nets: list[RecurrentNet], batch: SessionTensors, threads: int, device: str
) -> dict[str, Callable[[], object]]:
    def by_tables(block: int) -> Callable[[], None]:
        return lambda: score_by_tables(nets, batch, block)

    blocks, size = (64, 128, 256, len(batch.items)), len(batch.items)
    ways: dict[str, Callable[[], object]] = {"one pass each": lambda: score_by_network(nets, batch)}
    ways |= {f"tables, blocks of {block}": by_tables(block) for block in blocks}
    if device == "cpu" and native.available():
        for count, of_torch in ((1, threads), (2, threads), (1, 1), (2, 1)):
            name = f"C, {count} thread{'s' * (count > 1)} (torch {of_torch})"
            ways |= {f"{name}, blocks of {block}": in_c(by_tables(block), count, of_torch) for block in (256, size)}
    os.environ["MBCAL_NATIVE"] = "0"  # until a way turns it on
    return ways


@torch.no_grad()
def cfa_by_copies(net: RecurrentNet, rewards: torch.Tensor, batch: SessionTensors, twice: bool) -> None:
    """A masked copy a step, run from the start; `twice` runs the logged copy beside each, as the authors do."""
    mask = torch.ones_like(batch.items, dtype=torch.bool)
    logged = simulated_future_reward(expected_reward(net.forward_batch(batch), rewards), mask, GAMMA)
    for step in range(HORIZON):
        items = batch.items.clone()
        items[:, step] = MASK_ROW
        if twice:
            logged = simulated_future_reward(expected_reward(net.forward_batch(batch), rewards), mask, GAMMA)
        masked = simulated_future_reward(
            expected_reward(net.forward_batch(dataclasses.replace(batch, items=items)), rewards), mask, GAMMA
        )
        logged[:, step] - masked[:, step]


def peak_memory(work: Callable[[], object], device: str) -> float:
    """MiB beyond what was there, in a process of its own on a CPU (Linux) or as CUDA counts it."""
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    reader, writer = os.pipe()
    if os.fork() == 0:
        torch.set_num_threads(1)  # a forked process has none of its parent's threads
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
        before = _resident("VmRSS")
        work()
        os.write(writer, f"{_resident('VmHWM') - before}".encode())
        os._exit(0)
    os.wait()
    os.close(writer)
    return float(os.read(reader, 64) or "nan")


def _resident(field: str) -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 2**10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sessions", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    device, catalog = options.device, Catalog(tuple(map(str, range(ITEMS))))
    nets = [RecurrentNet(catalog, LABELS, NetConfig(), outputs).to(device) for outputs in (6, 1)]
    rewards, batch = torch.tensor(LABELS.rewards, device=device), random_batch(options.sessions, device)
    memory: dict[str, float] = {}
    print("| work | way | s | against the first |\n|---|---|---|---|", flush=True)

    def report(work: str, ways: dict[str, Callable[[], object]]) -> None:
        seconds = best_of(options.repeats, ways, device)
        for way, taken in seconds.items():
            print(f"| {work} | {way} | {taken:.3f} | {next(iter(seconds.values())) / taken:.2f} x |", flush=True)

    report("score 40 candidates, two nets", scoring_ways(nets, batch, options.threads, device))
    labels: dict[str, Callable[[], object]] = {
        "2T copies": lambda: cfa_by_copies(nets[0], rewards, batch, twice=True),
        "T + 1 copies": lambda: cfa_by_copies(nets[0], rewards, batch, twice=False),
        "shared prefixes": lambda: counterfactual_future_advantage(nets[0], rewards, batch, GAMMA),
    }
    for way, work in labels.items():
        memory[way] = peak_memory(work, device)
    report("CFA labels", labels)
    print("\nPeak memory of CFA labels: " + ", ".join(f"{way} {size:.0f} MiB" for way, size in memory.items()))
    print(f"\n{options.sessions:,} sessions, {options.threads} threads, {device}, torch {torch.__version__}; ", end="")
    print(f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10:.0f} MiB")


if __name__ == "__main__":
    main()
