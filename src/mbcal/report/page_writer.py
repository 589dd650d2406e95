"""Write `RUN/report.html`, tables and figures of a run, finished or not."""

from __future__ import annotations

import json
import re
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from mbcal.config import to_dict
from mbcal.evaluation.experiment.run import Run
from mbcal.report.figures import colour, draw_figures
from mbcal.report.formats import format_value
from mbcal.report.summary import RunSummary
from mbcal.report.tables import Table, run_tables
from mbcal.storage.atomic import write_atomic
from mbcal.storage.json_text import script_json
from mbcal.types import Behaviours


def write_report(run: Run, summary: RunSummary | None = None) -> Path:
    """Write the page, all tables (CSV, and one Markdown file) and all figures (SVG, PNG) into the run's folder.

    Args:
        run: The run, finished or not.
        summary: Its summary; made if None.

    Returns:
        The path of the page.
    """
    summary = summary or RunSummary(run)
    tables = run_tables(summary)
    for table in tables:
        write_atomic(run.folder / "tables" / f"{table.name}.csv", table.csv().encode())
    write_atomic(run.folder / "tables" / "tables.md", "\n".join(table.markdown() for table in tables).encode())
    for name, content in draw_figures(summary).items():
        write_atomic(run.folder / "figures" / name, content)
    page = run.folder / "report.html"
    write_atomic(page, render_page(summary, tables).encode())
    return page


def render_page(summary: RunSummary, tables: list[Table]) -> str:
    """Return the page as HTML: one self-contained file with style, script and data inside."""
    run = summary.run
    parts = {
        name: files("mbcal.report").joinpath("page", name).read_text("utf-8")
        for name in ("page.html", "page.css", "page.js")
    }
    contents = {
        "STYLE": parts["page.css"],
        "HEADLINE": escape(summary.headline()),
        "WARNINGS": "".join(f"<p class=warning>{escape(warning)}</p>" for warning in summary.warnings()),
        "SOURCE": escape(run.settings.data),
        "TABLES": "".join(table_html(table) for table in tables),
        "SETTINGS": escape(json.dumps(to_dict(run.settings), indent=2)),
        "VERSIONS": escape((run.folder / "run.json").read_text("utf-8")),
        "DATA": script_json(_page_data(summary)),
        "SCRIPT": parts["page.js"],
    }
    # in one pass: what a run calls itself is not searched for the names of other parts
    return re.sub(r"\{\{(\w+)\}\}", lambda match: contents[match[1]], parts["page.html"])


def table_html(table: Table) -> str:
    """Return a section of the page with the table; columns without any value are left out."""
    count = len(table.columns)
    is_number = [all(isinstance(row[k], int | float | None) for row in table.rows) for k in range(count)]
    used = [k for k in range(count) if any(row[k] is not None for row in table.rows)]

    def cell(tag: str, k: int, text: str) -> str:
        return f"<{tag}{' class=number' if is_number[k] else ''}>{escape(text)}</{tag}>"

    head = "".join(cell("th", k, table.columns[k]) for k in used)
    body = "".join(f"<tr>{''.join(cell('td', k, format_value(row[k])) for k in used)}</tr>" for row in table.rows)
    note = f"<p class=note>{escape(table.note)}</p>" if table.note else ""
    return (
        f'<section id="table-{table.name}"><h2>{escape(table.title)}</h2><div class=scroll><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{note}</section>"
    )


def _page_data(summary: RunSummary) -> dict[str, Any]:
    """The values that page.js draws."""
    run = summary.run
    agents = list(dict.fromkeys(result.cell.agent for result in summary.results))
    mbcal_records = [result.record for result in summary.by_agent("batch").get("mbcal", [])]
    no_xray: dict[str, Any] = {"xray": [], "gamma": None}
    with_xray = next((record for record in mbcal_records if record.get("xray")), no_xray)
    behaviours: Behaviours = run.store().behaviours
    return {
        "colours": {agent: colour(index) for index, agent in enumerate(agents)},
        "curves": summary.curves(),
        "rewards": {
            judge: [
                {"agent": agent, "mean": mean.mean, "low": mean.low, "high": mean.high}
                for agent, mean, _ in summary.ranked("batch", judge)
            ]
            for judge in summary.judges
        },
        "judge": summary.judges[0],
        "gamma": with_xray["gamma"],
        "most": max(behaviours.rewards),
        "xray": with_xray["xray"],
    }
