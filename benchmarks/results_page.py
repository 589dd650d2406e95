"""Fill the blocks of a Markdown page from the files in docs/results.

A block `<!-- KIND: CONTENT -->` … `<!-- end KIND -->` is replaced; text between blocks is left alone.

::

    table: NAME…; OPTIONS   the rows of NAME.csv, see `page_table`
    figure: NAME; TEXT      NAME.svg, with TEXT for those who do not see it
    answer: all             what was found, in a few lines
    claims: paper           the claims of the paper (or ours), with verdicts
    data: all               the data sets, with links to their pages
    awaited: all            experiments that were not run yet, or in part
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from results_claims import ANSWERS, CLAIMS, evidence, overall_verdict
from results_comparisons import paired_gap
from results_evidence import FAILS, HOLDS, UNKNOWN, Evidence
from results_experiments import DEFINITIONS, EXPERIMENTS, PAGES, SHARES, SIZES, ResultFiles, rewards_table
from results_figures import TITLES

from mbcal.agents import AGENTS
from mbcal.config import to_dict
from mbcal.errors import InputError, nearest
from mbcal.evaluation.experiment.config import experiment_config
from mbcal.evaluation.experiment.overrides import split_list
from mbcal.report.columns import is_p
from mbcal.report.formats import format_value
from mbcal.report.tables import Table

BLOCK = re.compile(
    r"<!-- (?P<kind>table|figure|answer|claims|data|awaited): (?P<content>.*?) -->\n.*?<!-- end (?P=kind) -->", re.DOTALL
)
NBSP = "\N{NO-BREAK SPACE}"
MARKS = {HOLDS: "✓", FAILS: "✗", UNKNOWN: "?"}
PLACEHOLDER = re.compile(r"\{(?P<mark>\S+) (?P<claim>[a-z-]+)\.(?P<data>\w+)\}")
STALE = "The results do not say what stood here: see the tables."


def page_text(files: ResultFiles, page: Path) -> str:
    """The page with every block filled anew."""

    def fill(block: re.Match[str]) -> str:
        kind, content = block["kind"], block["content"]
        body = BLOCKS[kind](files, page, content)
        return f"<!-- {kind}: {content} -->\n\n{body}\n\n<!-- end {kind} -->"

    return BLOCK.sub(fill, page.read_text("utf-8"))


# ---- tables and figures


def table_block(files: ResultFiles, page: Path, content: str) -> str:  # noqa: ARG001 - blocks are called alike
    """Tables, one below the other; or the command that would make them."""
    names, *options = (part.strip() for part in content.split(";"))
    existing = [name for name in names.split() if files.rows(name)]
    if not existing:
        return not_run(names.split()[0].rpartition("-")[0])
    table = page_table(files, existing, options)
    return table.grid() if table.rows else "Not in the results yet."


def not_run(experiment: str) -> str:
    """How to make the results of an experiment that has none."""
    return f"Not run yet: `python benchmarks/results.py run {experiment} --device cuda`, then `collect` and `page`."


def figure_block(files: ResultFiles, page: Path, content: str) -> str:
    """A figure, or a line that says it is not there."""
    name, _, text = (part.strip() for part in content.partition(";"))
    path = files.folder / f"{name}.svg"
    return (
        f"![{text or name}]({os.path.relpath(path, page.parent)})" if path.is_file() else f"Not drawn yet: {text or name}."
    )


def page_table(files: ResultFiles, names: Sequence[str], options: Sequence[str]) -> Table:
    """The rows of these files, one below the other.

    Options: `columns: A, B as C` selects and renames columns (`A?` need not be there; empty ones are left out), `where: A=x`
    selects rows, `paper` adds the paper's numbers. Without `columns`, all columns that hold a value are shown, and `data`
    if there are several files.
    """
    values = {name.strip(): value.strip() for name, _, value in (option.partition(":") for option in options)}
    rows = [row for name in names for row in _with_paper(files, name, "paper" in values)]
    columns = split_list(values["columns"]) if "columns" in values else _used_columns(rows, with_data=len(names) > 1)
    return table_of(rows, columns, f"{names[0]}.csv", values.get("where", ""))


def table_of(rows: list[dict[str, Any]], columns: Sequence[str], source: str, where: str = "") -> Table:
    """Some rows and columns as a table; the arguments are those of `page_table`."""
    known, selected = {column for row in rows for column in row}, []
    for column, _, title in (column.partition(" as ") for column in columns):
        if column.removesuffix("?") in known:
            selected.append((column.removesuffix("?"), title or column.removesuffix("?")))
        elif not column.endswith("?"):
            raise InputError(f"{source}: there is no column {column!r}.{nearest(column, known)}")
    rows = _matching_rows(rows, where)
    selected = [entry for entry in selected if any(row.get(entry[0]) is not None for row in rows)]
    titles = tuple(title for _, title in selected)
    return Table("", "", titles, [[row.get(column) for column, _ in selected] for row in rows])


def _matching_rows(rows: list[dict[str, Any]], conditions: str) -> list[dict[str, Any]]:
    """The rows that satisfy all conditions, `A=x, B=y`."""
    for column, _, value in (condition.partition("=") for condition in split_list(conditions) if condition):
        rows = [row for row in rows if str(row[column.strip()]) == value.strip()]
    return rows


def _used_columns(rows: list[dict[str, Any]], with_data: bool) -> list[str]:
    """The columns that hold a value in some row; `data` only on request."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    return [
        column for column in columns if any(row.get(column) is not None for row in rows) and (with_data or column != "data")
    ]


def _with_paper(files: ResultFiles, name: str, with_paper: bool) -> list[dict[str, Any]]:
    """The rows of a file for readers; on request with the paper's numbers beside them.

    Low and high are one interval. Gaps have intervals over users and trainings, as claims do; the p-values of the files,
    which are over users alone, are left out.
    """
    experiment, _, table = name.rpartition("-")
    data = experiment.partition("-")[0]
    paper = files.paper(table, data) if with_paper else {}
    rows: list[dict[str, Any]] = []
    falls = _largest_falls(files, experiment) if table == "growing" else {}
    for line in files.rows(name):
        row: dict[str, Any] = {"data": data}
        if falls:
            row["largest fall"] = falls.get((line["judge"], line["agent"]))
        for column, value in line.items():
            if column == "low":
                row["interval over users"] = f"[{format_value(value)}, {format_value(line['high'])}]"
            elif column.startswith("gap to "):
                gap = paired_gap(files, experiment, line["judge"], line["agent"], column.removeprefix("gap to "))
                row[column] = gap_text(gap) if gap else value
            elif column != "high" and not is_p(column):
                row[column] = f"{value:g}" if column == "value" and isinstance(value, float) else value
            if any(column in numbers for numbers in paper.values()):
                row[f"{column} (paper)"] = paper.get(line.get("agent") or line["family"], {}).get(column)
        rows.append(row)
    return rows


def _largest_falls(files: ResultFiles, experiment: str) -> dict[tuple[str, str], float]:
    """How far a round of any training fell below the best before it, by judge (the first, who judges rounds) and method."""
    judge = next((row["judge"] for row in files.rows(f"{experiment}-growing")), "")
    falls: dict[tuple[str, str], float] = {}
    for row in files.rows(f"{experiment}-curves"):
        falls[judge, row["agent"]] = max(row["fall"], falls.get((judge, row["agent"]), 0.0))
    return falls


def gap_text(gap: Evidence) -> str:
    """A gap with its interval over users and trainings, none if there is one training, and ° if it cannot be trusted."""
    return (f"{gap.value:+.3g} (one training)" if gap.trainings == 1 else str(gap)) + "°" * gap.is_small


# ---- claims


def answer_block(files: ResultFiles, page: Path, content: str) -> str:  # noqa: ARG001 - blocks are called alike
    """What was found: the lines of claims.toml with their numbers, each as long as its claims stand as it says."""
    return "\n".join(f"- {answer_line(line, files)}" for line in ANSWERS)


def answer_line(line: str, files: ResultFiles) -> str:
    """A line whose placeholders `{MARK CLAIM.DATA}` are filled with numbers; `STALE` if a mark is not that of the evidence.

    A mark `?+` is that of evidence which would hold if all were measured, `?°` that of a gap which its judge's error could
    explain, and `–` that of a claim that was not measured.
    """
    claims, is_stale = {claim.name: claim for claim in CLAIMS}, False

    def fill(place: re.Match[str]) -> str:
        nonlocal is_stale
        found = evidence(claims[place["claim"]], place["data"], files)
        if found is None:
            is_stale |= place["mark"] != "–"
            return "not measured yet"
        if place["mark"] == "?+":
            is_stale |= found.verdict == HOLDS or replace(found, partial=False).verdict != HOLDS
            return f"{found.number} (in part)"
        is_stale |= place["mark"] != MARKS[found.verdict] + "°" * found.is_small
        return f"{found.number} ({MARKS[found.verdict]})"

    text = PLACEHOLDER.sub(fill, line)
    return STALE if is_stale else text


def claims_block(files: ResultFiles, page: Path, content: str) -> str:  # noqa: ARG001 - blocks are called alike
    """The claims with a verdict each and the evidence on every data set; data that nothing was measured on in a line."""
    claims = [claim for claim in CLAIMS if claim.by == content]
    found = {claim: {data: evidence(claim, data, files) for data in claim.data} for claim in claims}
    columns = [data for data in TITLES if any(by_data.get(data) for by_data in found.values())]
    rows: list[list[Any]] = []
    unmeasured: list[str] = []
    for claim, by_data in found.items():
        overall = overall_verdict(list(by_data.values()))
        if overall is None and not set(claim.data) & set(columns):
            unmeasured.append(claim.says)
            continue
        cells = [cell_text(by_data[data]) if data in by_data else "" for data in columns]
        rows.append([claim.says, verdict_text(overall, list(by_data.values())), *cells])
    parts = [Table("", "", ("claim", "verdict", *(TITLES[data] for data in columns)), rows).grid()] if rows else []
    parts += [f"Not measured yet: {'; '.join(unmeasured)}."] if unmeasured else []
    return "\n\n".join(parts)


def verdict_text(overall: str | None, found: Sequence[Evidence | None]) -> str:
    """The verdict; on how much of the data it was measured, if not on all; on how much of that it holds, if on some."""
    if overall is None:
        return "not measured"
    measured = [entry.verdict for entry in found if entry is not None]
    held, count = measured.count(HOLDS), len(measured)
    lines = [f"**{overall}**"]
    lines += [f"({count} of {len(found)} measured)"] if count < len(found) else []
    lines += [f"✓{NBSP}{held} of {count}"] if 0 < held < count else []
    return "<br>".join(lines)


def cell_text(entry: Evidence | None) -> str:
    """A mark, the number with its interval, against what, what may be lost, and the paper's number: a line each."""
    if entry is None:
        return "–"
    notes = [entry.against] if entry.against else []
    notes += [entry.note] if entry.note else []
    notes += ["one training"] if entry.trainings == 1 else []
    notes += ["in part"] if entry.partial else []
    notes += ["judges disagree"] if entry.disputed else []
    mark = MARKS[entry.verdict] + "°" * entry.is_small
    lines = [f"{mark}{NBSP}{entry.number}", entry.interval.replace(" ", NBSP), f"({', '.join(notes)})" if notes else ""]
    lines += [f"limit:{NBSP}{entry.limit_text}"] if entry.limit_text else []
    lines += [f"paper:{NBSP}{entry.paper_text}"] if entry.paper_text else []
    return "<br>".join(line for line in lines if line)


# ---- data and what is awaited


def data_block(files: ResultFiles, page: Path, content: str) -> str:  # noqa: ARG001 - blocks are called alike
    """Every data set with its sizes and a link to its page."""
    rows: list[list[Any]] = []
    for data, about in PAGES["data"].items():
        experiments = [name for name in EXPERIMENTS if name.startswith(f"{data}-")]
        tables = (files.rows(f"{name}-data") for name in experiments)
        sizes = {row["what"]: row["value"] for row in next((table for table in tables if table), [])}
        link = os.path.relpath(files.folder / f"{data}.md", page.parent)
        counts = [sizes.get(name) for name in ("users", "items", "sessions", "test sessions", "horizon")]
        rows.append([f"[{about['title']}]({link})", DEFINITIONS["paper"].get(data), *counts])
    columns = ("data", "stands for the paper's", "users", "items", "sessions", "test sessions", "horizon")
    return Table("", "", columns, rows).grid()


def awaited_block(files: ResultFiles, page: Path, content: str) -> str:  # noqa: ARG001 - blocks are called alike
    """What is missing: experiments without results, unfinished ones, and those run before a setting or method was there."""
    absent = [f"`{name}`" for name in EXPERIMENTS if not files.record(name)]
    lines = [f"- Not run yet: {', '.join(absent)}."] if absent else []
    partial = [f"`{name}` ({'; '.join(notes)})" for name in EXPERIMENTS if (notes := shortcomings(files, name))]
    lines += [f"- Run in part: {', '.join(partial)}."] if partial else []
    begun = {name: sorted({row["agent"] for row in files.rows(f"{name}-curves")}) for name in EXPERIMENTS}
    methods = [f"`{name}`: {', '.join(found)}" for name, found in begun.items() if found and shortcomings(files, name)]
    lines += [f"- Methods that Growing Batch-RL was run with so far: {'; '.join(methods)}."] if methods else []
    return "\n".join(lines) or "Nothing: every experiment is done."


def shortcomings(files: ResultFiles, name: str) -> list[str]:
    """How the results of an experiment fall short of its definition."""
    records = files.record(name)
    if not records:
        return []
    cells = [record["cells"] for record in records.values()]
    done, total = (sum(entry[kind] for entry in cells) for kind in ("done", "all"))
    if name in SIZES:  # shares that were not begun, too
        total += (len(SHARES) - len(cells)) * _cells_of(name)
    notes = [f"{done} of {total} results"] if done < total else []
    notes += _changed_settings(files.settings(name), name)
    agents = {row["agent"] for row in files.rows(f"{name}-{rewards_table(name)}")}
    lacking = [agent for agent in _defined_agents(name) if agent not in agents]
    unfinished = {
        cell.partition(" ")[2].rpartition(" seed ")[0] for record in records.values() for cell in record["cells"]["missing"]
    }
    lacking = [agent for agent in lacking if agent not in unfinished]
    return notes + ([f"no {', '.join(lacking)}"] if lacking else [])


def _cells_of(name: str) -> int:
    """Results of one share of an experiment on sizes, with the oracle where the truth is known."""
    settings = EXPERIMENTS[name]
    return len(_defined_agents(name)) * int(settings["seeds"]) + ("truth" in settings["judges"])


def _changed_settings(settings: Mapping[str, Any], name: str) -> list[str]:
    """Settings that an experiment was run with and would not be today, but for its agents and where its data is."""
    defined = json.loads(json.dumps(to_dict(experiment_config({**EXPERIMENTS[name], "data": settings["data"]}))))
    free = {"agents", "data"} | ({"log_sessions"} if name in SIZES else set())
    return [
        f"other {option}" if isinstance(now, dict) else f"{option} {_plain(settings[option])} in place of {_plain(now)}"
        for option, now in defined.items()
        if option not in free and settings.get(option, now) != now
    ]


def _plain(value: Any) -> str:
    """A setting as text."""
    if isinstance(value, list):
        return " and ".join(map(str, value))
    return "the default" if value is None else f"{value:,}" if isinstance(value, int | float) else str(value)


def _defined_agents(name: str) -> list[str]:
    return [agent for given in EXPERIMENTS[name]["agents"] for agent in (AGENTS if given == "all" else [given])]


BLOCKS: dict[str, Callable[[ResultFiles, Path, str], str]] = {
    "table": table_block,
    "figure": figure_block,
    "answer": answer_block,
    "claims": claims_block,
    "data": data_block,
    "awaited": awaited_block,
}
