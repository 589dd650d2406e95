"""Write the results pages: docs/results.md, docs/results/DATA.md, and the tables of other pages.

The page of a data set is written whole, as pages.toml says; a section without results says in one line which command makes
them. docs/results.md, the pages of methods and others have text of their own, and blocks that are filled (`results_page`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from results_claims import CLAIMS, evidence
from results_experiments import EXPERIMENTS, PAGES, ResultFiles, Row
from results_figures import write_figures
from results_page import BLOCK, cell_text, not_run, page_table, page_text, shortcomings, table_of

from mbcal.report.tables import Table
from mbcal.storage.atomic import write_atomic

HEADER = "<!-- Written by `python benchmarks/results.py page` from benchmarks/pages.toml and the files beside it. -->"


def write_pages(docs: Path) -> None:
    """Draw all figures and write all pages under `docs`."""
    files = ResultFiles(docs / "results")
    write_figures(files)
    for data in PAGES["data"]:
        write_atomic(files.folder / f"{data}.md", data_page(data, files).encode())
    for page in pages_with_blocks(docs):
        write_atomic(page, page_text(files, page).encode())


def pages_with_blocks(docs: Path) -> list[Path]:
    """The pages with text of their own that have blocks to fill."""
    pages = (*sorted(docs.glob("*.md")), *sorted((docs / "methods").glob("*.md")))
    return [page for page in pages if BLOCK.search(page.read_text("utf-8"))]


def data_page(data: str, files: ResultFiles) -> str:
    """The page of a data set."""
    page = PAGES["data"][data]
    intro = (
        f"The claims over all data: [results.md](../results.md). Files: `{data}-*.csv` and `{data}-*.json` in this folder."
    )
    parts = [HEADER, f"# {page['title']}", page["about"].strip(), intro, *_claims_parts(data, files)]
    described: set[str] = set()
    for section in PAGES["sections"]:
        experiment = f"{data}-{section['kind']}"
        if experiment in EXPERIMENTS:
            parts += [f"## {section['title']}", *_section_parts(section, data, files, describe=experiment not in described)]
            described.add(experiment)
    for script in PAGES["scripts"]:
        if data in script["data"]:
            parts += [f"## {script['title']}", *_script_parts(script, data, files)]
    return "\n\n".join(parts) + "\n"


def _claims_parts(data: str, files: ResultFiles) -> Iterator[str]:
    """The claims that this data was measured for."""
    rows: list[list[Any]] = []
    for claim in CLAIMS:
        found = evidence(claim, data, files) if data in claim.data else None
        if found is not None:
            rows.append([claim.says, claim.by, cell_text(found).replace("<br>", " "), found.judge or None])
    if rows:
        yield "## Claims"
        yield (
            "✓ holds, ✗ does not hold, ? inconclusive; the comparison that decides, with its 95% interval over users and "
            "trainings, not corrected for the number of comparisons. A factor (×) has the range between single trainings, "
            "which is no 95% interval. ° the simulator's own error, added to the interval, could explain it. More: "
            "[results.md](../results.md#how-to-read-the-tables)."
        )
        yield Table("", "", ("claim", "whose", "evidence", "judge"), rows).grid()


def _section_parts(section: Mapping[str, Any], data: str, files: ResultFiles, describe: bool) -> Iterator[str]:
    """Note, how it was made (with `describe`), figure and tables of an experiment; or the command that makes them."""
    experiment = f"{data}-{section['kind']}"
    shown = {name: options for name, options in section["tables"].items() if files.rows(f"{experiment}-{name}")}
    if not shown:
        yield "No such results on this data." if files.record(experiment) else not_run(experiment)
        return
    yield section["note"].strip()
    if describe:
        yield _made_by(experiment, files)
    path = files.folder / f"{data}-{section.get('figure')}.svg"
    if path.is_file():
        yield f"![{section['title']}, {PAGES['data'][data]['title']}]({path.name})"
    for name, options in shown.items():
        yield page_table(files, [f"{experiment}-{name}"], [option for option in options.split(";") if option]).grid()


def _made_by(experiment: str, files: ResultFiles) -> str:
    """Command, sizes and versions of an experiment, and what it lacks."""
    record = next(iter(files.record(experiment).values()))
    settings, run = record["settings"], record["run"]
    sizes = f"{settings['rounds']:,} rounds of {settings['round_sessions']:,} sessions, " * experiment.endswith("-growing")
    trainings = f"{settings['seeds']} training{'s' * (settings['seeds'] != 1)}"
    made = f"`{record['command']}`: {sizes}{trainings}, {record['test sessions']:,} test sessions"
    notes = shortcomings(files, experiment)
    lacks = f" Incomplete: {'; '.join(notes)}." if notes else ""
    return f"{made}; mbcal {run['mbcal']}, torch {run['versions']['torch']} on {run['device']}.{lacks}"


def _script_parts(script: Mapping[str, Any], data: str, files: ResultFiles) -> Iterator[str]:
    """Note, the command that was recorded and table of a script; or the command that would make it."""
    recorded = files.record(script["file"]).get(data, {})
    command = recorded.get("command", script["command"].replace("DATA", data))
    rows = [row for row in files.rows(script["file"]) if row.get("data", data) == data]
    if not rows:
        yield f"Not run yet: `{command}`."
        return
    yield script["note"].strip()
    yield f"`{command}`"
    rows = [row if row.get("sessions") != 0 else {**row, "sessions": None, "seeds": None} for row in rows]  # learned nothing
    if "mean_over_seeds" in script:
        rows = _mean_over_seeds(rows, script["mean_over_seeds"])
    columns = script.get("columns") or [column for column in rows[0] if column != "data"]
    yield table_of(rows, columns, f"{script['file']}.csv").grid()


def _mean_over_seeds(rows: Sequence[Row], keys: Sequence[str]) -> list[Row]:
    """Rows with equal keys as one: means of numbers, the different texts, and how many trainings there are."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    columns = [column for column in rows[0] if column not in (*keys, "data", "seed")]
    return [
        {**dict(zip(keys, key, strict=True)), "seeds": len(own)} | {column: _joined(own, column) for column in columns}
        for key, own in groups.items()
    ]


def _joined(rows: Sequence[Row], column: str) -> Any:
    """The mean of the numbers of a column, or its texts."""
    values = [row[column] for row in rows if row[column] is not None]
    if values and all(isinstance(value, int | float) for value in values):
        return mean(map(float, values))
    return ", ".join(map(str, values)) or None
