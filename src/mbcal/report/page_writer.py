"""Write `RUN/report.html`, tables and figures of a run, finished or not."""

from __future__ import annotations

import json
import re
from html import escape
from pathlib import Path
from typing import Any

from mbcal.config import to_dict
from mbcal.evaluation.comparison import LOG_ROW
from mbcal.evaluation.experiment.run import Run
from mbcal.report.advice import asked, certainty, next_steps, repeat_command
from mbcal.report.figures import draw_figures
from mbcal.report.html import page_part, scroll_table
from mbcal.report.palette import styles
from mbcal.report.standing import compare
from mbcal.report.summary import JUDGES, PROTOCOLS, RunSummary
from mbcal.report.tables import Table, run_tables
from mbcal.storage.atomic import write_atomic
from mbcal.storage.json_text import script_json

SCRIPTS = ("charts.js", "drawings.js", "xray.js", "page.js")
"""Scripts of the page, in the order in which they need each other."""


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
    """Return the page as HTML: one self-contained file with style, scripts and data inside."""
    run = summary.run
    contents = {
        "STYLE": page_part("page.css"),
        "SOURCE": escape(run.settings.data),
        "ASKED": escape(asked(summary)),
        "RESULT": escape(summary.result()),
        "MEASURED": escape(summary.measured()),
        "GROWING": _paragraph(summary.after_rounds(), "note strong"),
        "WARNINGS": _paragraph(summary.warnings().get(summary.judges[0], ""), "warning"),
        "CERTAINTY": "".join(f"<li>{escape(sentence)}</li>" for sentence in certainty(summary)),
        "JUDGES": _judges_html(summary),
        "NEXT": "".join(_step_html(*step) for step in next_steps(summary)),
        "BANDS": "mean over trainings; bands reach from the lowest to the highest training"
        if max(map(len, summary.by_agent("growing").values()), default=0) > 1
        else "of one training of each method",
        "TABLES": "".join(table_html(table) for table in tables),
        "REPEAT": escape(repeat_command(summary)),
        "SETTINGS": escape(json.dumps(to_dict(run.settings), indent=2)),
        "VERSIONS": escape((run.folder / "run.json").read_text("utf-8")),
        "DATA": script_json(page_data(summary)),
        "SCRIPT": "\n".join(page_part(name) for name in SCRIPTS),
    }
    # in one pass, so that no value can contain the name of another
    return re.sub(r"\{\{([A-Z]+)\}\}", lambda found: contents[found[1]], page_part("page.html"))


def table_html(table: Table) -> str:
    """Return a section of the page with the table; columns without any value are left out."""
    used = [k for k in range(len(table.columns)) if any(row[k] is not None for row in table.rows)]
    is_number = [all(isinstance(row[k], int | float | None) for row in table.rows) for k in used]
    rows = [[escape(table.texts(row)[k]) for k in used] for row in table.rows]
    grid = scroll_table([table.columns[k] for k in used], rows, is_number, table.title, table.warnings)
    return f'<section id="table-{table.name}"><h3>{escape(table.title)}</h3>{grid}{_paragraph(table.note, "note")}</section>'


def page_data(summary: RunSummary) -> dict[str, Any]:
    """Return the values that the page's scripts draw."""
    mbcal_records = [result.record for result in summary.by_agent("batch").get("mbcal", [])]
    no_xray: dict[str, Any] = {"xray": [], "gamma": None}
    with_xray = next((record for record in mbcal_records if record.get("xray")), no_xray)
    rewards = summary.run.store().behaviours.rewards
    agents = list(dict.fromkeys(result.cell.agent for result in summary.results))
    return {
        "styles": {agent: {"role": role, "dash": dash} for agent, (role, dash) in styles([*agents, LOG_ROW]).items()},
        "baseline": summary.baseline,
        "protocols": {name: title for name, title in PROTOCOLS.items() if summary.by_agent(name)},
        "judges": {judge: _judge_data(summary, judge) for judge in summary.judges},
        "gaps": {protocol: _gaps(summary, protocol) for protocol in PROTOCOLS if summary.by_agent(protocol)},
        "curves": {agent: curve for agent, curve in summary.curves().items() if agent != "random"},
        "references": [{"name": name, "value": value} for name, value in summary.references().items()],
        "gamma": with_xray["gamma"],
        "range": [min(rewards), max(rewards)],
        "xray": with_xray["xray"],
    }


def _judge_data(summary: RunSummary, judge: str) -> dict[str, Any]:
    trust, card = summary.trust.get(judge), summary.report_cards.get(judge)
    finite = trust is not None and not trust.problem
    return {
        "title": JUDGES[judge],
        "trusted": trust.difference if trust is not None and finite else None,
        "warning": None if trust is None else trust.warning,
        "card": card and {name: card[name] for name in ("reliability", "real", "simulated", "error", "reached")},
    }


def _gaps(summary: RunSummary, protocol: str) -> dict[str, list[dict[str, Any]]]:
    """By judge: the gap of every method and of the log to the baseline, best first, the baseline among them with none."""
    gaps: dict[str, list[dict[str, Any]]] = {}
    base = summary.baseline
    for judge in summary.judges:
        rewards = summary.rewards_with_log(protocol, judge)
        if base not in rewards:
            continue
        entries = []
        for agent, mean, spread in summary.ranked_with_log(protocol, judge):
            gap = compare(agent, base, rewards, summary.users, summary.trust.get(judge))
            values = {"mean": gap.gap.mean, "low": gap.gap.low, "high": gap.gap.high}
            finite = {name: value if abs(value) != float("inf") else None for name, value in values.items()}
            is_unjudged = agent == LOG_ROW and judge in summary.trust
            relation = "baseline" if agent == base else "unjudged" if is_unjudged else gap.relation
            entries.append({"agent": agent, **finite, "relation": relation, "reward": mean.mean, "spread": spread})
        gaps[judge] = entries
    return gaps


def _judges_html(summary: RunSummary) -> str:
    """What each judge is and can be trusted for, with room for the curves of its report card."""
    parts = []
    for judge in summary.judges:
        trust, card = summary.trust.get(judge), summary.report_cards.get(judge)
        title = escape(JUDGES[judge][0].upper() + JUDGES[judge][1:])
        if trust is None or card is None:
            parts.append(f"<h3>{title}</h3><p>Not a model: nothing about these users is estimated.</p>")
            continue
        shown = [
            sum(value * reached for value, reached in zip(card[name], card["reached"], strict=True))
            for name in ("real", "simulated")
        ]
        level = (
            f"On the logged items of the test users it expects {shown[1]:.1f} per session where they gave {shown[0]:.1f}."
            f" {card['sessions']:,} sessions of users it was not fitted on."
        )
        parts.append(
            f"<h3>{title}</h3>{_paragraph(trust.warning or trust.sentence, 'warning' if trust.is_low else 'trusted')}"
            f"<p>{escape(level)}</p><div class=pair data-card='{escape(judge)}'></div>"
        )
    return "".join(parts)


def _step_html(text: str, command: str) -> str:
    return f"<li>{escape(text)}{f'<pre>{escape(command)}</pre>' if command else ''}</li>"


def _paragraph(text: str, kind: str) -> str:
    return f'<p class="{kind}">{escape(text)}</p>' if text else ""
