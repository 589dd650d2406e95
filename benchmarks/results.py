"""The experiments behind docs/results.md: make their data, run them, keep what they found, write the page.

python benchmarks/results.py prepare [DATA…]   build/data/DATA from ../shared/data; the newsfeed is generated
python benchmarks/results.py run NAME          build/results/NAME, begun or resumed; --small: a miniature in build/small
python benchmarks/results.py collect [NAME…]   build/results/NAME -> docs/results/NAME.json, NAME-TABLE.csv, NAME-FIGURE.svg
python benchmarks/results.py page              the tables and figures of docs/results.md, from docs/results alone

To be run in the repository's root. What the experiments are is told in experiments.toml beside this file.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import functools
import hashlib
import json
import os
import re
import shutil
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mbcal import KuaiRand, MovieLens, Netflix, NewsfeedConfig, SessionConfig, Store, prepare_newsfeed
from mbcal.cli.console import progress
from mbcal.cli.experiment import run_experiment
from mbcal.config import Device, to_dict
from mbcal.data import prepare as prepare_log
from mbcal.data.ingest import LogReader
from mbcal.environments.newsfeed import oracle
from mbcal.errors import InputError, MbcalError, nearest
from mbcal.evaluation.experiment.config import ExperimentConfig, experiment_config, parse_override, split_list
from mbcal.evaluation.experiment.context import agent_config, split_name
from mbcal.evaluation.experiment.run import Run
from mbcal.evaluation.significance import holm, paired_difference
from mbcal.report.figures import draw_figures, image_files, line_figure
from mbcal.report.tables import RunSummary, Table, shown
from mbcal.storage.artifacts import SIMULATOR_KIND, Artifact
from mbcal.storage.atomic import write_atomic

TOLD: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("experiments.toml").read_text("utf-8"))
EXPERIMENTS: dict[str, dict[str, Any]] = {
    f"{data}-{kind}": {**TOLD["all"], **TOLD["data"][data], **TOLD["kinds"][kind], **TOLD["experiments"][f"{data}-{kind}"]}
    for data, _, kind in (name.partition("-") for name in TOLD["experiments"])
}
"""What differs from the preset `paper`, by name."""

SHARES = (16, 8, 4, 2, 1)
"""Sample efficiency is told from runs on one n-th of the log each."""
SIZES = {name for name in EXPERIMENTS if name.endswith("-size")}

SOURCES: dict[str, tuple[tuple[str, ...], Callable[..., LogReader], SessionConfig]] = {
    "netflix": (("netflix-40k/ratings.parquet",), lambda log: Netflix([log]), SessionConfig(min_length=20)),
    "ml1m": (
        ("ml-1m/ml-1m.zip", "ml-1m/tags-from-ml-20m.zip"),
        lambda log, tags: MovieLens([log], [tags]),
        SessionConfig(min_length=20),
    ),
    "kuairand": (("kuairand-pure/KuaiRand-Pure-part.zip",), lambda log: KuaiRand([log]), SessionConfig(horizon=10)),
}
"""Files of each real log, who reads them, and how sessions are cut."""
NEWSFEED, SMALL_NEWSFEED = NewsfeedConfig(200_000, 2_000), NewsfeedConfig(400, 200)

RIVALS = ("gru4rec", "mbcal-no-vr", "dqn", "ddqn", "ddpg", "mcpe", "dyna-q")
_BOTH = (*(("mbcal", rival) for rival in RIVALS), ("gru4rec", "dqn"), ("gru4rec", "mcpe"), ("dqn", "ddpg"))
CLAIMS = {"batch": _BOTH, "growing": (*_BOTH, ("gru4rec-eps", "gru4rec"))}
"""Who is said to earn more than whom; the other way round for data whose column of the paper's Table 2 has it so."""
SURE = 0.05
"""Below this p a claim is decided."""
PAPER = Path(__file__).resolve().parent.parent / "docs" / "results" / "paper.csv"

BLOCK = re.compile(r"<!-- (?P<kind>table|figure): (?P<told>.*?) -->\n.*?<!-- end (?P=kind) -->", re.DOTALL)


def prepare(names: Sequence[str], sources: Path, build: Path) -> None:
    """Make the stores that are not there yet."""
    for name in names or [*SOURCES, "newsfeed"]:
        out = build / "data" / name
        paths = [sources / path for path in SOURCES[name][0]] if name in SOURCES else []
        absent = [str(path) for path in paths if not path.exists()]
        if (out / "manifest.json").is_file():
            print(f"{out}: already there")
        elif absent:
            print(f"{name}: skipped, there is no {' and no '.join(absent)}")
        else:
            with progress() as listener:
                if name == "newsfeed":
                    prepare_newsfeed(out, NEWSFEED, progress=listener)
                else:
                    _, reader, how = SOURCES[name]
                    prepare_log(reader(*paths), out, how, progress=listener)
            print(f"{out}: {Store.open(out).manifest['counts']['sessions']:,} sessions")


def run(name: str, build: Path, device: Device, workers: int | None, small: bool) -> None:
    """Begin or resume an experiment; it knows by its folder what is done."""
    if small:
        build = build / "small"
        if not (build / "data" / "newsfeed" / "manifest.json").is_file():
            prepare_newsfeed(build / "data" / "newsfeed", SMALL_NEWSFEED)
    command = f"python benchmarks/results.py run {name} --device {device}" + " --small" * small
    for share, folder in folders(name, build).items():
        if not (folder / "run.json").is_file():
            Run.create(folder, settings_of(name, build, share, small), device)
            write_atomic(folder / "command.txt", command.encode())
        share_simulators(Run.open(folder, device), build / "simulators")
        run_experiment(resume=folder, workers=workers, device=device)


def folders(name: str, build: Path) -> dict[int, Path]:
    """Run folders by the share of the log they learn from (one n-th)."""
    folder = build / "results" / name
    return {share: folder / f"1-{share}" for share in SHARES} if name in SIZES else {1: folder}


def settings_of(name: str, build: Path, share: int = 1, small: bool = False) -> ExperimentConfig:
    """Everything the run is told."""
    path = build / "data" / ("newsfeed" if small else name.partition("-")[0])
    told = {**EXPERIMENTS[name], **(TOLD["small"] if small else {}), "data": str(path)}
    if name in SIZES:
        told["log_sessions"] = Store.open(path).manifest["counts"]["parts"]["train"]["sessions"] // share
    return experiment_config(told, "paper")


def share_simulators(opened: Run, kept: Path) -> None:
    """Fit the simulators, or take those an earlier experiment fitted on the same data: all are judged by the same users."""
    said = [opened.store().manifest["content_hash"], to_dict(opened.settings.simulator), opened.settings.test_sessions]
    kept = kept / hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]
    used = opened.folder / "simulators"
    judges = [judge for judge in opened.judge_names if judge != "truth"]
    for judge in judges:
        if (kept / judge).is_dir() and not (used / judge).is_dir():
            copy_whole(kept / judge, used / judge)
    with progress() as listener:
        opened.prepare(listener)
    for judge in judges:
        if not (kept / judge).is_dir():
            copy_whole(used / judge, kept / judge)


def copy_whole(source: Path, target: Path) -> None:
    """A copy that is not there until it is whole."""
    partial = target.with_name(f".{target.name}.partial-copy")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(source, partial)
    partial.rename(target)


def collect(names: Sequence[str], build: Path, out: Path) -> None:
    """Small files of what runs have found so far: equal runs, equal bytes."""
    for name in names or EXPERIMENTS:
        begun = {share: folder for share, folder in folders(name, build).items() if (folder / "run.json").is_file()}
        opened = {share: Run.open(folder, "cpu") for share, folder in begun.items()}
        found = {share: RunSummary(run) for share, run in opened.items() if len(run.missing) < len(run.cells)}
        if not found:
            print(f"{name}: nothing is done yet")
            continue
        if name in SIZES:
            tables = [size_table(list(found.values())), size_variance_table(list(found.values()))]
            figures = size_figures(tables[0]) if tables[0].rows else {}
        else:
            tables, figures = tables_of(name, found[1]), draw_figures(found[1])
        for table in (table for table in tables if table.rows):
            rows = [[rounded(value) for value in row] for row in table.rows]
            write_atomic(out / f"{name}-{table.name}.csv", Table(table.name, "", table.columns, rows).csv().encode())
        for file, content in figures.items():
            if file.endswith(".svg"):
                write_atomic(out / f"{name}-{file}", content)
        said = {folder.name: about(found[share]) for share, folder in begun.items() if share in found}
        write_atomic(out / f"{name}.json", (json.dumps(said, indent=1, sort_keys=True) + "\n").encode())
        done, cells = (sum(one["cells"][what] for one in said.values()) for what in ("done", "all"))
        print(f"{name}: {done} of {cells} results")


def tables_of(name: str, found: RunSummary) -> list[Table]:
    """The report's tables and, where they apply, the claims, the curves and the options."""
    tables, (data, _, kind) = found.tables(), name.partition("-")
    if kind in ("batch", "growing"):
        tables.append(
            claims_table(found, kind, {agent: said["reward per session"] for agent, said in paper("batch", data).items()})
        )
    if kind == "growing":
        tables.append(curves_table(found))
    if kind == "ablation":
        tables.append(options_table(found, next(table for table in tables if table.name == "batch")))
    return tables


def claims_table(found: RunSummary, protocol: str, said: dict[str, float]) -> Table:
    """Paired gaps of who should earn more to who should earn less; Holm's correction over the claims of a judge."""
    rows: list[list[Any]] = []
    for judge in found.judges:
        rewards = found.rewards(protocol, judge)
        claims = [pair for pair in CLAIMS[protocol] if set(pair) <= set(rewards)]
        claims = [(less, more) if (said_gap(more, less, said) or 0) < 0 else (more, less) for more, less in claims]
        tests = [paired_difference(rewards[more], rewards[less], found.users) for more, less in claims]
        for (more, less), (gap, _), p in zip(claims, tests, holm([p for _, p in tests]), strict=True):
            holds = "undecided" if p >= SURE else "yes" if gap.mean > 0 else "no"
            there = said_gap(more, less, said) if protocol == "batch" else None
            rows.append([f"{more} > {less}", judge, there, gap.mean, gap.low, gap.high, p, holds])
    return Table("claims", "", ("claim", "judge", "paper's gap", "gap", "low", "high", "p", "holds"), rows)


def said_gap(more: str, less: str, said: dict[str, float]) -> float | None:
    """By how much the one is ahead in the paper, which does not have everybody."""
    return said[more] - said[less] if more in said and less in said else None


def curves_table(found: RunSummary) -> Table:
    rows: list[list[Any]] = [
        [agent, place + 1, *points]
        for agent, curve in found.curves().items()
        for place, points in enumerate(zip(curve["mean"], curve["low"], curve["high"], strict=True))
    ]
    return Table("curves", "", ("agent", "round", "reward per session", "lowest seed", "highest seed"), rows)


def options_table(found: RunSummary, rewards: Table) -> Table:
    """Each option of MBCAL by its values; MBCAL without options stands for the value it has anyhow."""
    kind, config = agent_config("mbcal", found.run.settings, (), 0, found.run.settings.training(1))
    variants: set[tuple[str, Any, str]] = set()
    for agent in found.of("batch"):
        for option in split_name(agent)[1]:
            path, value = parse_override(option, kind.Config)
            usual = functools.reduce(getattr, path, config)
            variants |= {(".".join(path), value, agent), (".".join(path), usual, "mbcal")}
    columns = ("reward per session", "spread over seeds", "low", "high", "gap to mbcal", "p to mbcal")
    numbers = {(row[0], row[1]): [row[rewards.columns.index(column)] for column in columns] for row in rewards.rows}
    rows: list[list[Any]] = [
        [judge, option, value, *numbers[judge, agent]]
        for judge in found.judges
        for option, value, agent in sorted(variants, key=lambda entry: (entry[0], isinstance(entry[1], str), entry[1]))
        if (judge, agent) in numbers
    ]
    return Table("options", "", ("judge", "option", "value", *columns), rows)


def size_table(found: Sequence[RunSummary]) -> Table:
    rows: list[list[Any]] = [
        [one.run.settings.log_sessions, judge, agent, mean.mean, spread, mean.low, mean.high]
        for one in found
        for judge in one.judges
        for agent, mean, spread in sorted(one.ranked("batch", judge), key=lambda entry: entry[0])
        if agent != oracle.NAME
    ]
    columns = ("log sessions", "judge", "agent", "reward per session", "spread over seeds", "low", "high")
    return Table("size", "", columns, rows)


def size_variance_table(found: Sequence[RunSummary]) -> Table:
    """How much labels vary, and how much of it is predicted, by the size of the log."""
    tables = {one.run.settings.log_sessions: table for one in found for table in one.tables() if table.name == "variance"}
    columns = next((table.columns for table in tables.values()), ())
    rows = [[sessions, *row] for sessions, table in tables.items() for row in sorted(table.rows, key=lambda row: row[0])]
    return Table("variance", "", ("log sessions", *columns), rows)


def size_figures(table: Table) -> dict[str, bytes]:
    """Reward against the size of the log, judged by the first judge."""
    judge = table.rows[0][1]
    lines: dict[str, dict[str, list[float]]] = {}
    for sessions, by, agent, mean, _, low, high in table.rows:
        if by == judge:
            line = lines.setdefault(agent, {"at": [], "mean": [], "low": [], "high": []})
            for part, value in zip(line, (sessions, mean, low, high), strict=True):
                line[part].append(value)
    figure, axes = line_figure(lines)
    sizes = sorted({row[0] for row in table.rows})
    axes.set(xscale="log", xlabel="sessions of the log learned from", ylabel="reward per session, 95% interval")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    axes.set_title(f"Batch-RL, judged by {judge}")
    return image_files("size", figure)


def about(found: RunSummary) -> dict[str, Any]:
    """What made a run, and by whom it was judged."""
    opened, said = found.run, json.loads((found.run.folder / "run.json").read_bytes())
    missing = [str(cell) for cell in opened.missing]
    cards = {
        judge: Artifact.open(opened.folder / "simulators" / judge, SIMULATOR_KIND).manifest["report_card"]
        for judge in opened.judge_names
        if judge != "truth"
    }
    return {
        "command": (opened.folder / "command.txt").read_text("utf-8"),
        "settings": to_dict(opened.settings),
        "run": said,
        "cells": {"all": len(opened.cells), "done": len(opened.cells) - len(missing), "missing": missing},
        "test sessions": len(found.users),
        "simulators": {
            judge: {name: rounded(value) for name, value in card.items() if isinstance(value, int | float)}
            for judge, card in cards.items()
        },
    }


def rounded(value: Any) -> Any:
    """Six significant digits of a number are enough to keep."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def paper(table: str, data: str) -> dict[str, dict[str, float]]:
    """The paper's numbers for the dataset this data stands for: by name of the row, then of the column."""
    found: dict[str, dict[str, float]] = {}
    with PAPER.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if (row["table"], row["dataset"]) == (table, TOLD["paper"][data]):
                found.setdefault(row["name"], {})[row["column"]] = float(row["value"])
    return found


def page_text(results: Path, page: Path) -> str:
    """The page with every block made anew; what stands between blocks is left alone."""
    return BLOCK.sub(lambda block: filled(block, results, page), page.read_text("utf-8"))


def filled(block: re.Match[str], results: Path, page: Path) -> str:
    """A block with its table (see `table_of`) or figure, or the command that would make it."""
    kind, told = block["kind"], block["told"]
    names, *options = (part.strip() for part in told.split(";"))
    files = [results / f"{name}.{'csv' if kind == 'table' else 'svg'}" for name in names.split()]
    known = [file for file in files if file.is_file()]
    if not known:
        body = f"Not run yet: `python benchmarks/results.py run {files[0].stem.rpartition('-')[0]}`."
    elif kind == "table":
        body = table_of(known, options).grid()
    else:
        body = "\n".join(f"![{file.stem}]({os.path.relpath(file, page.parent)})" for file in known)
    return f"<!-- {kind}: {told} -->\n\n{body}\n\n<!-- end {kind} -->"


def table_of(files: Sequence[Path], options: Sequence[str]) -> Table:
    """What a page shows of the tables in these files, one below the other.

    Options: `columns: A, B as C` takes some and renames them, `where: A=x` takes some rows, `paper` puts the paper's numbers
    beside ours. Without `columns` all that hold anything are taken, and `data` where there are several files.
    """
    asked = {name.strip(): value.strip() for name, _, value in (option.partition(":") for option in options)}
    rows = [row for file in files for row in rows_of(file, "paper" in asked)]
    known = {column for row in rows for column in row}
    for column, _, value in (condition.partition("=") for condition in split_list(asked.get("where", "")) if condition):
        rows = [row for row in rows if str(row[column.strip()]) == value.strip()]
    used = [column for column in rows[0] if any(row.get(column) is not None for row in rows)] if rows else []
    usual = [column for column in used if column != "data" or len(files) > 1]
    taken = [column.partition(" as ") for column in (split_list(asked["columns"]) if "columns" in asked else usual)]
    for column in [column for column, _, _ in taken if column not in known]:
        raise InputError(f"{files[0].name}: there is no column {column!r}.{nearest(column, known)}")
    titles = tuple(title or column for column, _, title in taken)
    return Table("", "", titles, [[row.get(column) for column, _, _ in taken] for row in rows])


def rows_of(file: Path, with_paper: bool) -> list[dict[str, Any]]:
    """The rows `collect` wrote, low and high as one interval, the paper's numbers after ours where asked for."""
    experiment, _, table = file.stem.rpartition("-")
    data = experiment.partition("-")[0]
    said = paper(table, data) if with_paper else {}
    rows: list[dict[str, Any]] = []
    for line in csv.DictReader(file.read_text("utf-8").splitlines()):
        row: dict[str, Any] = {"data": data}
        for column, text in line.items():
            if column == "low":
                row["95% interval"] = f"[{shown(number(text))}, {shown(number(line['high']))}]"
            elif column != "high":
                row[column] = number(text)
            if any(column in numbers for numbers in said.values()):
                row[f"{column} (paper)"] = said.get(line.get("agent") or line["family"], {}).get(column)
        rows.append(row)
    return rows


def number(text: str) -> Any:
    """What a cell of a CSV file holds: nothing, a number or text."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text or None


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    build = argparse.ArgumentParser(add_help=False)
    build.add_argument("--build", type=Path, default=Path("build"), help="where stores and runs are")
    preparing = commands.add_parser("prepare", parents=[build], help="make the stores")
    preparing.add_argument("data", nargs="*", metavar="DATA", help=", ".join(TOLD["data"]))
    preparing.add_argument("--sources", type=Path, default=Path("../shared/data"))
    running = commands.add_parser("run", parents=[build], help="begin or resume an experiment")
    running.add_argument("name", choices=EXPERIMENTS, metavar="NAME", help=", ".join(EXPERIMENTS))
    running.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    running.add_argument("--workers", type=int)
    running.add_argument("--small", action="store_true", help="a miniature on generated data, in BUILD/small")
    collecting = commands.add_parser("collect", parents=[build], help="keep what runs have found")
    collecting.add_argument("names", nargs="*", metavar="NAME")
    collecting.add_argument("--out", type=Path, default=Path("docs/results"))
    paging = commands.add_parser("page", help="write the tables into the page")
    paging.add_argument("--results", type=Path, default=Path("docs/results"))
    paging.add_argument("--page", type=Path, default=Path("docs/results.md"))
    told = parser.parse_args(arguments)
    for name in [*getattr(told, "names", []), *getattr(told, "data", [])]:
        known = TOLD["data"] if told.command == "prepare" else EXPERIMENTS
        if name not in known:
            parser.error(f"{name!r} is unknown; known are {', '.join(known)}.{nearest(name, known)}")
    try:
        if told.command == "prepare":
            prepare(told.data, told.sources, told.build)
        elif told.command == "run":
            run(told.name, told.build, told.device, told.workers, told.small)
        elif told.command == "collect":
            collect(told.names, told.build, told.out)
        else:
            write_atomic(told.page, page_text(told.results, told.page).encode())
    except MbcalError as error:
        sys.exit(f"results: {error}")


if __name__ == "__main__":
    main()
