"""The experiments behind docs/results.md: prepare their data, run them, collect their results, write the pages.

python benchmarks/results.py prepare [DATA…]   build/data/DATA from ../shared/data; newsfeeds are generated
python benchmarks/results.py run NAME          build/results/NAME, begun or resumed; --agents, --seeds and --shares: a part
                                               of it; --small: a miniature in build/small
python benchmarks/results.py collect [NAME…]   build/results/NAME, done or not -> docs/results/NAME.json, NAME-TABLE.csv
python benchmarks/results.py page              docs/results.md, docs/results/DATA.md, the tables of other pages and all
                                               figures, from the files in docs/results alone

Run it in the repository's root. The experiments are defined in experiments.toml beside this file, the claims in claims.toml.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from results_experiments import DEFINITIONS, EXPERIMENTS, SHARES, SIZES
from results_pages import write_pages
from results_tables import experiment_tables, round_value, run_record, size_tables

from mbcal import KuaiRand, MovieLens, Netflix, NewsfeedConfig, SessionConfig, Store, prepare_newsfeed, run_experiment
from mbcal.config import Device, to_dict
from mbcal.data import prepare as prepare_log
from mbcal.data.ingest import LogReader
from mbcal.errors import MbcalError, OptionError, nearest
from mbcal.evaluation.experiment.config import ExperimentConfig, experiment_config
from mbcal.evaluation.experiment.run import Cell, Run
from mbcal.report.runs import report
from mbcal.report.summary import RunSummary
from mbcal.report.tables import Table
from mbcal.report.terminal import print_summary
from mbcal.storage.atomic import write_atomic

SOURCES: dict[str, tuple[tuple[str, ...], Callable[..., LogReader], SessionConfig]] = {
    "netflix": (("netflix-40k/ratings.parquet",), lambda log: Netflix([log]), SessionConfig(min_length=20)),
    "ml1m": (
        ("ml-1m/ml-1m.zip", "ml-1m/tags-from-ml-20m.zip"),
        lambda log, tags: MovieLens([log], [tags]),
        SessionConfig(min_length=20),
    ),
    "kuairand": (("kuairand-pure/KuaiRand-Pure-part.zip",), lambda log: KuaiRand([log]), SessionConfig(horizon=10)),
}
"""Of each real log: its files, its reader, and how sessions are cut."""
NEWSFEEDS = {"newsfeed": NewsfeedConfig(200_000, 2_000), "leaving": NewsfeedConfig(200_000, 2_000, leaving=True)}
"""The generated newsfeed, and the one whose users can leave."""
STORES = [*SOURCES, *NEWSFEEDS]
SMALL_NEWSFEED = NewsfeedConfig(400, 200)


class PhaseLines:
    """Progress as one line per phase."""

    def phase(self, title: str, total: int | None = None) -> None:  # noqa: ARG002 - a title is enough
        print(title, file=sys.stderr, flush=True)

    def advance(self, amount: int) -> None: ...


class CellLines:
    """Progress of cells as one line per cell."""

    def begin(self, cells: Sequence[Cell]) -> None:
        self.total, self.count = len(cells), 0

    def phase(self, cell: Cell, title: str, total: int | None) -> None: ...

    def advance(self, cell: Cell, amount: int) -> None: ...

    def done(self, cell: Cell) -> None:
        self.count += 1
        print(f"{self.count} of {self.total} done: {cell}", file=sys.stderr, flush=True)


def prepare(names: Sequence[str], sources: Path, build: Path) -> None:
    """Make the stores that do not exist yet."""
    for name in names or STORES:
        out = build / "data" / name
        paths = [sources / path for path in SOURCES[name][0]] if name in SOURCES else []
        absent = [str(path) for path in paths if not path.exists()]
        if (out / "manifest.json").is_file():
            print(f"{out}: already there")
        elif absent:
            print(f"{name}: skipped, there is no {' and no '.join(absent)}")
        else:
            if name in NEWSFEEDS:
                prepare_newsfeed(out, NEWSFEEDS[name], progress=PhaseLines())
            else:
                _, reader, config = SOURCES[name]
                prepare_log(reader(*paths), out, config, progress=PhaseLines())
            print(f"{out}: {Store.open(out).manifest['counts']['sessions']:,} sessions")


class Part(NamedTuple):
    """The part of an experiment that is run; empty: all."""

    agents: Sequence[str] = ()
    seeds: Sequence[int] = ()
    shares: Sequence[int] = ()
    """Of the log, as one n-th, where an experiment measures sample efficiency."""

    def has(self, cell: Cell) -> bool:
        return (not self.agents or cell.agent in self.agents) and (not self.seeds or cell.seed in self.seeds)


def run(name: str, build: Path, device: Device, workers: int | None, small: bool, part: Part) -> None:
    """Begin or resume an experiment, or a part of it, and write the report of each of its runs."""
    if part.shares and name not in SIZES:
        raise OptionError(f"--shares: {name} learns from the whole log; only {', '.join(sorted(SIZES))} have shares.")
    if small:
        build = build / "small"
        if not (build / "data" / "newsfeed" / "manifest.json").is_file():
            prepare_newsfeed(build / "data" / "newsfeed", SMALL_NEWSFEED)
    command = f"python benchmarks/results.py run {name} --device {device}" + " --small" * small
    for share, folder in folders(name, build).items():
        if part.shares and share not in part.shares:
            continue
        if not (folder / "run.json").is_file():
            Run.create(folder, settings_of(name, build, share, small), device)
            write_atomic(folder / "command.txt", command.encode())
        share_simulators(Run.open(folder, device), build / "simulators")
        require_agents(Run.open(folder, device), part.agents)
        executed = run_experiment(
            None, folder, resume=True, only=part.has, workers=workers, device=device, observer=CellLines()
        )
        if len(executed.missing) < len(executed.cells):
            print_summary(report(executed).summary)


def require_agents(run: Run, agents: Sequence[str]) -> None:
    """Raise OptionError if the run has no such agent."""
    known = list(dict.fromkeys(cell.agent for cell in run.cells))
    for name in agents:
        if name not in known:
            raise OptionError(f"agents: {name!r} is not in the experiment; it has {', '.join(known)}.{nearest(name, known)}")


def folders(name: str, build: Path) -> dict[int, Path]:
    """Run folders by the share of the log they learn from (one n-th)."""
    folder = build / "results" / name
    return {share: folder / f"1-{share}" for share in SHARES} if name in SIZES else {1: folder}


def settings_of(name: str, build: Path, share: int = 1, small: bool = False) -> ExperimentConfig:
    """All settings of a run."""
    path = build / "data" / ("newsfeed" if small else name.partition("-")[0])
    settings = {"data": str(path), **EXPERIMENTS[name]}
    if small:
        settings |= {**DEFINITIONS["small"], "data": str(path)}
    if name in SIZES:
        settings["log_sessions"] = Store.open(path).manifest["counts"]["parts"]["train"]["sessions"] // share
    return experiment_config(settings)


def share_simulators(prepared: Run, shared: Path) -> None:
    """Prepare a run, with the simulators that an earlier run fitted on the same data: all have the same judges."""
    settings = prepared.settings
    key = [prepared.store().manifest["content_hash"], to_dict(settings.simulator), settings.test_sessions]
    shared = shared / hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
    own = prepared.folder / "simulators"
    judges = [judge for judge in prepared.judge_names if judge not in ("truth", "world")]
    for judge in judges:
        if (shared / judge).is_dir() and not (own / judge).is_dir():
            copy_folder(shared / judge, own / judge)
    prepared.prepare(PhaseLines())
    for judge in judges:
        if not (shared / judge).is_dir():
            copy_folder(own / judge, shared / judge)


def copy_folder(source: Path, target: Path) -> None:
    """Copy a folder atomically."""
    partial = target.with_name(f".{target.name}.partial-copy")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(source, partial)
    partial.rename(target)


def collect(names: Sequence[str], build: Path, out: Path) -> None:
    """Write the results of runs, finished or not, as small files; equal runs give equal bytes."""
    for name in names or EXPERIMENTS:
        begun = {share: folder for share, folder in folders(name, build).items() if (folder / "run.json").is_file()}
        runs = {share: Run.open(folder, "cpu") for share, folder in begun.items()}
        summaries = {share: RunSummary(run) for share, run in runs.items() if len(run.missing) < len(run.cells)}
        if not summaries:
            print(f"{name}: nothing is done yet")
            continue
        write_tables(name, summaries, out)
        records = {begun[share].name: run_record(summary) for share, summary in summaries.items()}
        write_atomic(out / f"{name}.json", (json.dumps(records, indent=1, sort_keys=True) + "\n").encode())
        done, total = (sum(record["cells"][kind] for record in records.values()) for kind in ("done", "all"))
        print(f"{name}: {done} of {total} results")


def write_tables(name: str, summaries: Mapping[int, RunSummary], out: Path) -> None:
    """Write the tables of an experiment (CSV, six digits), given its summaries by share of the log."""
    tables = size_tables(list(summaries.values())) if name in SIZES else experiment_tables(name, summaries[1])
    for table in (table for table in tables if table.rows):
        rows = [[round_value(value) for value in row] for row in table.rows]
        write_atomic(out / f"{name}-{table.name}.csv", Table(table.name, "", table.columns, rows).csv().encode())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    build = argparse.ArgumentParser(add_help=False)
    build.add_argument("--build", type=Path, default=Path("build"), help="where stores and runs are")
    preparing = commands.add_parser("prepare", parents=[build], help="make the stores")
    preparing.add_argument("data", nargs="*", metavar="DATA", help=", ".join(STORES))
    preparing.add_argument("--sources", type=Path, default=Path("../shared/data"))
    running = commands.add_parser("run", parents=[build], help="begin or resume an experiment")
    running.add_argument("name", choices=EXPERIMENTS, metavar="NAME", help=", ".join(EXPERIMENTS))
    running.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    running.add_argument("--workers", type=int)
    running.add_argument("--agents", nargs="+", default=[], metavar="AGENT", help="these alone; the others stay missing")
    running.add_argument("--seeds", nargs="+", type=int, default=[], metavar="SEED", help="these alone")
    running.add_argument(
        "--shares", nargs="+", type=int, default=[], choices=SHARES, help="of NAME-size: one n-th of the log"
    )
    running.add_argument("--small", action="store_true", help="a miniature on generated data, in BUILD/small")
    collecting = commands.add_parser("collect", parents=[build], help="write the results of runs as small files")
    collecting.add_argument("names", nargs="*", metavar="NAME")
    collecting.add_argument("--out", type=Path, default=Path("docs/results"))
    paging = commands.add_parser("page", help="write the pages and their figures")
    paging.add_argument("--docs", type=Path, default=Path("docs"), help="the folder with results/ and methods/")
    options = parser.parse_args(arguments)
    for name in [*getattr(options, "names", []), *getattr(options, "data", [])]:
        known = STORES if options.command == "prepare" else EXPERIMENTS
        if name not in known:
            parser.error(f"{name!r} is unknown; known are {', '.join(known)}.{nearest(name, known)}")
    try:
        if options.command == "prepare":
            prepare(options.data, options.sources, options.build)
        elif options.command == "run":
            part = Part(options.agents, options.seeds, options.shares)
            run(options.name, options.build, options.device, options.workers, options.small, part)
        elif options.command == "collect":
            collect(options.names, options.build, options.out)
        else:
            write_pages(options.docs)
    except MbcalError as error:
        sys.exit(f"results: {error}")


if __name__ == "__main__":
    main()
