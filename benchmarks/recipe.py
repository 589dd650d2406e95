"""Which training settings are best on users that were held out: the evidence behind docs/training.md.

    python benchmarks/recipe.py behaviours STORE... --seeds 3 --processes 6 --out recipe.jsonl
    python benchmarks/recipe.py advantage STORE... --seeds 3 --out advantage.jsonl
    python benchmarks/recipe.py table recipe.jsonl

`behaviours` fits GRU4Rec with every variant of the recipe and records the held-out loss, epochs and seconds. `advantage`
fits MBCAL with several gammas and mask rates. STORE is a store's folder, or `newsfeed:SESSIONS:ITEMS` for a generated one,
whose truth then judges the policies, too, on users of its simulator part. One JSON line per fit; a run that is stopped
resumes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import mbcal

FIRST_RECIPE = {"embedding_scale": 1.0, "hidden": 32, "batch": 256, "learning_rate": 1e-3, "warmup": 0, "reductions": 0}
FIRST_RECIPE |= {"patience": 2, "epochs": 20, "clip": None}
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "first recipe": FIRST_RECIPE,
    "embedding_scale 1": {"embedding_scale": 1.0},
    "embedding_scale 0.3": {"embedding_scale": 0.3},
    "embedding_scale 0.1": {"embedding_scale": 0.1},
    "embedding_scale 0.03": {"embedding_scale": 0.03},
    "batch 256 sessions": {"batch": 256},
    "rate 0.001": {"learning_rate": 1e-3},
    "rate 0.002": {"learning_rate": 2e-3},
    "rate 0.005": {"learning_rate": 5e-3},
    "no reductions, patience 2": {"reductions": 0, "patience": 2},
    "patience 2": {"patience": 2},
    "3 reductions": {"reductions": 3},
    "no warm-up": {"warmup": 0},
    "no clipping": {"clip": None},
    "hidden 32": {"hidden": 32},
    "embedding 64": {"embedding": 64},
}
ADVANTAGE_VARIANTS = {
    f"gamma {gamma}, mask {mask}": {"gamma": gamma, "mask_rate": mask}
    for gamma in (0.5, 0.8, 0.95, 1.0)
    for mask in (0.05, 0.2)
}
JUDGED_SESSIONS = 20_000
"""Most sessions that the newsfeed's truth judges."""

Job = tuple[str, str, str, int]
"""Method, store, variant, seed."""


@cache
def open_store(name: str) -> mbcal.Store:
    if not name.startswith("newsfeed:"):
        return mbcal.Store.open(name)
    _, sessions, items = name.split(":")
    folder = Path(tempfile.gettempdir()) / f"mbcal-recipe-{sessions}-{items}"
    if not folder.is_dir():
        mbcal.prepare_newsfeed(folder, mbcal.NewsfeedConfig(sessions=int(sessions), items=int(items)))
    return mbcal.Store.open(folder)


@cache
def train_sessions(name: str) -> mbcal.Sessions:
    return open_store(name).sessions("train")


def run_job(job: Job) -> dict[str, Any]:
    method, name, variant, seed = job
    store = open_store(name)
    agent_class, variants = (mbcal.GRU4Rec, VARIANTS) if method == "behaviours" else (mbcal.MBCAL, ADVANTAGE_VARIANTS)
    agent = agent_class(seed=seed, features=store.agent_features, **variants[variant])
    began = time.monotonic()
    agent.fit(train_sessions(name))
    row: dict[str, Any] = {"method": method, "store": name, "variant": variant, "seed": seed}
    row |= {"seconds": round(time.monotonic() - began, 1)}
    for net, record in agent.records.items():
        row[net] = {"held_out": record.held_out_loss, "epochs": len(record.curve), "updates": record.updates}
    if name.startswith("newsfeed:"):
        world = mbcal.Newsfeed.from_options(dict(store.manifest["options"]), agent.device)
        users = store.sessions("simulator")[:JUDGED_SESSIONS]
        row["reward"] = mbcal.evaluate(agent, world, users, seed=7).reward.mean
    return row


def run(options: argparse.Namespace) -> None:
    variants = VARIANTS if options.method == "behaviours" else ADVANTAGE_VARIANTS
    done = {key(row) for row in read(options.out)} if options.out.exists() else set()
    jobs = [
        (options.method, store, variant, seed)
        for seed in range(options.seeds)
        for variant in variants
        for store in options.stores
    ]
    jobs = [job for job in jobs if job not in done]
    for store in options.stores:
        open_store(store)
    with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool, options.out.open("a") as file:
        futures = [pool.submit(run_job, job) for job in jobs]
        for number, future in enumerate(as_completed(futures), 1):
            file.write(json.dumps(future.result()) + "\n")
            file.flush()
            print(f"{number} of {len(jobs)}", flush=True)


def key(row: dict[str, Any]) -> Job:
    return row["method"], row["store"], row["variant"], row["seed"]


def read(path: Path) -> Iterator[dict[str, Any]]:
    return (json.loads(line) for line in path.read_text().splitlines())


def print_table(path: Path) -> None:
    """Means over seeds as Markdown: held-out loss of the first network, or the true reward where there is one."""
    cells: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in read(path):
        net = "behaviour" if row["method"] == "behaviours" else "environment"
        value = row["reward"] if row["method"] == "advantage" and "reward" in row else row[net]["held_out"]
        cells[row["variant"], Path(row["store"]).name].append(value)
    stores = list(dict.fromkeys(store for _, store in cells))
    print(f"| variant | {' | '.join(stores)} |\n|---|{'---|' * len(stores)}")
    for variant in dict.fromkeys(variant for variant, _ in cells):
        means = [f"{statistics.mean(cells[variant, store]):.4f}" if cells[variant, store] else "" for store in stores]
        print(f"| {variant} | {' | '.join(means)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="method", required=True)
    for name in ("behaviours", "advantage"):
        command = commands.add_parser(name)
        command.add_argument("stores", nargs="+", metavar="STORE")
        command.add_argument("--seeds", type=int, default=3)
        command.add_argument("--processes", type=int, default=1)
        command.add_argument("--out", type=Path, required=True)
    commands.add_parser("table").add_argument("file", type=Path)
    options = parser.parse_args()
    if options.method == "table":
        print_table(options.file)
    else:
        run(options)


if __name__ == "__main__":
    main()
