"""`RUN/report.html`, tables and figures from what a run has so far."""

from __future__ import annotations

import json
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from mbcal.config import to_dict
from mbcal.evaluation.experiment.run import Run
from mbcal.report.figures import colour, draw_figures
from mbcal.report.tables import RunSummary, Table, shown
from mbcal.storage.atomic import write_atomic
from mbcal.types import Behaviours


def write_report(run: Run) -> Path:
    """Write everything and return the page's path."""
    findings = RunSummary(run)
    tables = findings.tables()
    for table in tables:
        write_atomic(run.folder / "tables" / f"{table.name}.csv", table.csv().encode())
    write_atomic(run.folder / "tables" / "tables.md", "\n".join(table.markdown() for table in tables).encode())
    for name, content in draw_figures(findings).items():
        write_atomic(run.folder / "figures" / name, content)
    page = run.folder / "report.html"
    write_atomic(page, render(findings, tables).encode())
    return page


def render(findings: RunSummary, tables: list[Table]) -> str:
    """One self-contained page: style, script and data inside, nothing from elsewhere."""
    run = findings.run
    parts = {
        name: files("mbcal.report").joinpath("page", name).read_text("utf-8")
        for name in ("page.html", "page.css", "page.js")
    }
    # a script element ends at the first "</", wherever it stands; JSON may write it as "<\/"
    data = json.dumps(_data(findings), ensure_ascii=False, allow_nan=False).replace("</", "<\\/")
    filled = {
        "STYLE": parts["page.css"],
        "HEADLINE": escape(findings.headline()),
        "WARNINGS": "".join(f"<p class=warning>{escape(warning)}</p>" for warning in findings.warnings()),
        "SOURCE": escape(run.settings.data),
        "TABLES": "".join(_table(table) for table in tables),
        "SETTINGS": escape(json.dumps(to_dict(run.settings), indent=2)),
        "VERSIONS": escape((run.folder / "run.json").read_text("utf-8")),
        "DATA": data,
        "SCRIPT": parts["page.js"],
    }
    page = parts["page.html"]
    for name, text in filled.items():
        page = page.replace("{{" + name + "}}", text)
    return page


def _table(table: Table) -> str:
    numeric = [all(isinstance(row[k], int | float | None) for row in table.rows) for k in range(len(table.columns))]
    kept = [k for k in range(len(table.columns)) if any(row[k] is not None for row in table.rows)]

    def cell(tag: str, k: int, text: str) -> str:
        return f"<{tag}{' class=number' if numeric[k] else ''}>{escape(text)}</{tag}>"

    head = "".join(cell("th", k, table.columns[k]) for k in kept)
    body = "".join(f"<tr>{''.join(cell('td', k, shown(row[k])) for k in kept)}</tr>" for row in table.rows)
    note = f"<p class=note>{escape(table.note)}</p>" if table.note else ""
    return (
        f'<section id="table-{table.name}"><h2>{escape(table.title)}</h2><div class=scroll><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{note}</section>"
    )


def _data(findings: RunSummary) -> dict[str, Any]:
    """What the page draws."""
    run, curves = findings.run, findings.curves()
    agents = list(dict.fromkeys(result.cell.agent for result in findings.results))
    seen = next((one.record["xray"] for one in findings.of("batch").get("mbcal", []) if one.record.get("xray")), None)
    behaviours: Behaviours = run.store().behaviours
    return {
        "colours": {agent: colour(place) for place, agent in enumerate(agents)},
        "curves": curves,
        "rewards": {
            judge: [
                {"agent": agent, "mean": mean.mean, "low": mean.low, "high": mean.high}
                for agent, mean, _ in findings.ranked("batch", judge)
            ]
            for judge in findings.judges
        },
        "judge": findings.judges[0],
        "gamma": run.settings.gamma,
        "most": max(behaviours.rewards),
        "xray": seen or [],
    }
