"""Gains of three ideas of the scoring engine, as ratios within one run: tables, the C kernel, shared prefixes.

    python benchmarks/engine.py [--threads 2] [--device cpu]

Candidates are scored by one pass of the network each, by tables, and by tables in C. CFA labels are computed by masked
copies of every session, and by branches that share the logged prefix.
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
from mbcal.training.labels import counterfactual_future_advantage, simulated_future_reward
from mbcal.types import FIRST_ITEM_ROW, MASK_ROW, SessionTensors

ITEMS, CANDIDATES, HORIZON, GAMMA = 20_000, 40, 20, 0.95
BEHAVIOURS = Behaviours(tuple(map(str, range(6))), tuple(map(float, range(6))))

Variants = dict[str, Callable[[], object]]
"""Functions that do the same work, by name."""


def best_seconds(repeats: int, variants: Variants, device: str) -> dict[str, float]:
    """Best of `repeats` runs of every variant. Variants alternate, so that other load on the machine affects all."""
    seconds = dict.fromkeys(variants, float("inf"))
    for _ in range(repeats):
        for name, work in variants.items():
            start = time.perf_counter()
            work()
            if device != "cpu":
                torch.cuda.synchronize()
            seconds[name] = min(seconds[name], time.perf_counter() - start)
    return seconds


def random_batch(size: int, device: str) -> SessionTensors:
    generator = torch.Generator().manual_seed(0)

    def items(*shape: int) -> torch.Tensor:
        rows = torch.randint(FIRST_ITEM_ROW, ITEMS + FIRST_ITEM_ROW, shape, generator=generator, dtype=torch.int32)
        return rows.to(device)

    def behaviours(*shape: int) -> torch.Tensor:
        return torch.randint(len(BEHAVIOURS), shape, generator=generator, dtype=torch.int32).to(torch.uint8).to(device)

    length = torch.full((size,), HORIZON, dtype=torch.int32, device=device)
    return SessionTensors(
        catalog=Catalog(tuple(map(str, range(ITEMS)))),
        behaviour_set=BEHAVIOURS,
        items=items(size, HORIZON),
        behaviours=behaviours(size, HORIZON),
        length=length,
        user=torch.zeros_like(length),
        history_items=items(size, HORIZON),
        history_behaviours=behaviours(size, HORIZON),
        history_length=length,
        candidates=items(size, CANDIDATES),
    )


# ---- scoring candidates


@torch.no_grad()
def score_by_network(nets: list[RecurrentNet], batch: SessionTensors) -> None:
    """One pass of the cell per session, step and candidate."""
    candidates, size = batch.require_candidates(), len(batch)
    states = [net.begin(*batch.history) for net in nets]
    for step in range(HORIZON):
        for number, net in enumerate(nets):
            previous = net.previous(batch.behaviours)[:, step]
            inputs = net.inputs(candidates, previous[:, None].expand(-1, CANDIDATES)).view(size * CANDIDATES, 1, -1)
            hidden = states[number][0].repeat_interleave(CANDIDATES, 0)
            net.head(net.cell(inputs, hidden.unsqueeze(0))[0])
            states[number] = net.cell_step(net.gates(batch.items[:, step], previous), states[number])


@torch.no_grad()
def score_by_tables(nets: list[RecurrentNet], batch: SessionTensors, block: int) -> None:
    """The same scores from tables, `block` sessions at a time."""
    tables = [net.scoring_tables() for net in nets]
    for begin in range(0, len(batch), block):
        part = batch[begin : begin + block]
        # histories are read by whatever is faster: torch's fused layer, or tables in C
        hidden = [
            table.begin(*part.history) if native.available() else net.begin(*part.history)[0]
            for net, table in zip(nets, tables, strict=True)
        ]
        previous = nets[0].previous(part.behaviours).long()
        for step in range(HORIZON):
            for number, table in enumerate(tables):
                table.score(hidden[number], previous[:, step], part.require_candidates())
                hidden[number] = table.cell.observe(hidden[number], part.items[:, step], previous[:, step])


def with_c_kernel(work: Callable[[], None], threads: int, torch_threads: int) -> Callable[[], None]:
    """Run with the C kernel turned on, and with so many threads."""

    def run() -> None:
        torch_threads_before = torch.get_num_threads()
        os.environ["MBCAL_NATIVE"] = "1"
        native.set_threads(threads)
        torch.set_num_threads(torch_threads)
        work()
        torch.set_num_threads(torch_threads_before)
        os.environ["MBCAL_NATIVE"] = "0"

    return run


def scoring_variants(nets: list[RecurrentNet], batch: SessionTensors, threads: int, device: str) -> Variants:
    def by_tables(block: int) -> Callable[[], None]:
        return lambda: score_by_tables(nets, batch, block)

    size = len(batch)
    variants: Variants = {"one pass each": lambda: score_by_network(nets, batch)}
    variants |= {f"tables, blocks of {block}": by_tables(block) for block in (64, 128, 256, size)}
    if device == "cpu" and native.available():
        for count, torch_threads in ((1, threads), (2, threads), (1, 1), (2, 1)):
            name = f"C, {count} thread{'s' * (count > 1)} (torch {torch_threads})"
            for block in (256, size):
                variants[f"{name}, blocks of {block}"] = with_c_kernel(by_tables(block), count, torch_threads)
    os.environ["MBCAL_NATIVE"] = "0"  # until a variant turns it on
    return variants


# ---- CFA labels


@torch.no_grad()
def cfa_by_copies(net: RecurrentNet, rewards: torch.Tensor, batch: SessionTensors, twice: bool) -> None:
    """One masked copy of the session per step, run from its start; `twice` also runs the logged session for each of them."""
    mask = torch.ones_like(batch.items, dtype=torch.bool)

    def future(sessions: SessionTensors) -> torch.Tensor:
        return simulated_future_reward(expected_reward(net.forward_batch(sessions), rewards), mask, GAMMA)

    logged = future(batch)
    for step in range(HORIZON):
        items = batch.items.clone()
        items[:, step] = MASK_ROW
        if twice:
            logged = future(batch)
        logged[:, step] - future(dataclasses.replace(batch, items=items))[:, step]


def peak_memory(work: Callable[[], object], device: str) -> float:
    """MiB that the work takes at its peak: in a forked process on a CPU (Linux), by CUDA's count on a GPU."""
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    reader, writer = os.pipe()
    if os.fork() == 0:
        torch.set_num_threads(1)  # a forked process has none of its parent's threads
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
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
    parser.add_argument("--threads", type=int, default=2, help="Threads of torch.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sessions", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=3, help="The best of so many runs counts.")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    device, catalog = options.device, Catalog(tuple(map(str, range(ITEMS))))
    nets = [RecurrentNet(catalog, BEHAVIOURS, NetConfig(), outputs).to(device) for outputs in (6, 1)]
    rewards, batch = torch.tensor(BEHAVIOURS.rewards, device=device), random_batch(options.sessions, device)
    print("| work | way | s | against the first |\n|---|---|---|---|", flush=True)

    def report(work: str, variants: Variants) -> None:
        seconds = best_seconds(options.repeats, variants, device)
        first = next(iter(seconds.values()))
        for name, taken in seconds.items():
            print(f"| {work} | {name} | {taken:.3f} | {first / taken:.2f} x |", flush=True)

    report("score 40 candidates, two nets", scoring_variants(nets, batch, options.threads, device))
    variants: Variants = {
        "2T copies": lambda: cfa_by_copies(nets[0], rewards, batch, twice=True),
        "T + 1 copies": lambda: cfa_by_copies(nets[0], rewards, batch, twice=False),
        "shared prefixes": lambda: counterfactual_future_advantage(nets[0], rewards, batch, GAMMA),
    }
    memory = {name: peak_memory(work, device) for name, work in variants.items()}
    report("CFA labels", variants)
    print("\nPeak memory of CFA labels: " + ", ".join(f"{name} {size:.0f} MiB" for name, size in memory.items()))
    print(f"\n{options.sessions:,} sessions, {options.threads} threads, {device}, torch {torch.__version__}; ", end="")
    print(f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10:.0f} MiB")


if __name__ == "__main__":
    main()
