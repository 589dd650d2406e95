"""Fill the blocks of a Markdown page from the files in docs/results.

A block `<!-- KIND: CONTENT -->` … `<!-- end KIND -->` is replaced; text between blocks is left alone.

::

    table: NAME…; OPTIONS   the rows of NAME.csv, see `page_table`
    figure: NAME; TEXT      NAME.svg, with TEXT for those who do not see it
    claims: paper           the claims of the paper (or ours), with verdicts
    data: all               the data sets, with links to their pages
    awaited: all            experiments that were not run yet, or in part
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from results_claims import CLAIMS, evidence, overall_verdict
from results_comparisons import paired_gap
from results_evidence import FAILS, HOLDS, UNKNOWN, Evidence
from results_experiments import DEFINITIONS, EXPERIMENTS, PAGES, ResultFiles
from results_figures import TITLES

from mbcal.agents import AGENTS
from mbcal.errors import InputError, nearest
from mbcal.evaluation.experiment.overrides import split_list
from mbcal.report.columns import is_p
from mbcal.report.formats import format_value
from mbcal.report.tables import Table

BLOCK = re.compile(
    r"<!-- (?P<kind>table|figure|claims|data|awaited): (?P<content>.*?) -->\n.*?<!-- end (?P=kind) -->", re.DOTALL
)
NBSP = "\N{NO-BREAK SPACE}"
MARKS = {HOLDS: "✓", FAILS: "✗", UNKNOWN: "?"}


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
    for line in files.rows(name):
        row: dict[str, Any] = {"data": data}
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


def gap_text(gap: Evidence) -> str:
    """A gap with its interval over users and trainings, none if there is one training, and ° if it cannot be trusted."""
    return (f"{gap.value:+.3g} (one training)" if gap.trainings == 1 else str(gap)) + "°" * gap.is_small


# ---- claims


def claims_block(files: ResultFiles, page: Path, content: str) -> str:  # noqa: ARG001 - blocks are called alike
    """The claims with a verdict each and the evidence on every data set; those that were not measured in a line."""
    claims = [claim for claim in CLAIMS if claim.by == content]
    found = {claim: {data: evidence(claim, data, files) for data in claim.data} for claim in claims}
    columns = [data for data in TITLES if any(by_data.get(data) for by_data in found.values())]
    rows: list[list[Any]] = []
    unmeasured: list[str] = []
    for claim, by_data in found.items():
        overall = overall_verdict(list(by_data.values()))
        if overall is None:
            unmeasured.append(claim.says)
            continue
        cells = [cell_text(by_data[data]) if data in by_data else "" for data in columns]
        rows.append([claim.says, _verdict_text(overall, list(by_data.values())), *cells])
    parts = [Table("", "", ("claim", "verdict", *(TITLES[data] for data in columns)), rows).grid()] if rows else []
    parts += [f"Not measured yet: {'; '.join(unmeasured)}."] if unmeasured else []
    return "\n\n".join(parts)


def _verdict_text(overall: str, found: Sequence[Evidence | None]) -> str:
    """The verdict and, where it is not that of every data set, on how many the claim holds."""
    measured = [entry.verdict for entry in found if entry is not None]
    held = measured.count(HOLDS)
    return f"**{overall}**" + (f"<br>✓ {held} of {len(measured)}" if 0 < held < len(measured) else "")


def cell_text(entry: Evidence | None) -> str:
    """A mark, the number with its interval, against what, what may be lost, and the paper's number: a line each."""
    if entry is None:
        return "–"
    notes = [entry.against] if entry.against else []
    notes += ["one training"] if entry.trainings == 1 else []
    notes += ["in part"] if entry.partial else []
    notes += ["judges disagree"] if entry.disputed else []
    number, _, interval = str(entry).partition(" ")
    mark = MARKS[entry.verdict] + "°" * entry.is_small
    lines = [f"{mark}{NBSP}{number}", interval.replace(" ", NBSP), f"({', '.join(notes)})" if notes else ""]
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
    lines = [f"Not run yet: {', '.join(absent)}."] if absent else []
    partial = [f"`{name}` ({'; '.join(notes)})" for name in EXPERIMENTS if (notes := shortcomings(files, name))]
    lines += [f"Run in part: {', '.join(partial)}."] if partial else []
    return "\n\n".join(lines) or "Nothing: every experiment is done."


def shortcomings(files: ResultFiles, name: str) -> list[str]:
    """How the results of an experiment fall short of its definition."""
    records = files.record(name)
    if not records:
        return []
    done, total = (sum(record["cells"][kind] for record in records.values()) for kind in ("done", "all"))
    notes = [f"{done} of {total} results"] if done < total else []
    settings, defined = files.settings(name), EXPERIMENTS[name]
    changed = [
        option
        for option in ("rounds", "round_sessions", "seeds")
        if settings[option] != defined.get(option, settings[option])
    ]
    notes += [f"{option} {settings[option]:,} in place of {defined[option]:,}" for option in changed]
    table = "growing" if name.endswith("-growing") else "size" if name.endswith("-size") else "batch"
    agents = {row["agent"] for row in files.rows(f"{name}-{table}")}
    lacking = [agent for agent in _defined_agents(name) if agent not in agents]
    unfinished = {
        cell.partition(" ")[2].rpartition(" seed ")[0] for record in records.values() for cell in record["cells"]["missing"]
    }
    lacking = [agent for agent in lacking if agent not in unfinished]
    return notes + ([f"no {', '.join(lacking)}"] if lacking else [])


def _defined_agents(name: str) -> list[str]:
    return [agent for given in EXPERIMENTS[name]["agents"] for agent in (AGENTS if given == "all" else [given])]


BLOCKS: dict[str, Callable[[ResultFiles, Path, str], str]] = {
    "table": table_block,
    "figure": figure_block,
    "claims": claims_block,
    "data": data_block,
    "awaited": awaited_block,
}
