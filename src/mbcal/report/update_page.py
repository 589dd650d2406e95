"""The verdict of an update as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any


def verdict_page(verdict: Mapping[str, Any]) -> str:
    """Return the page of one update.

    Args:
        verdict: A `release.gate.Verdict` as plain values: live and published version, checks, estimates, counts.

    Returns:
        HTML.
    """
    style = files("mbcal.report").joinpath("page/page.css").read_text("utf-8")
    outcome = f"published as {verdict['published']}" if verdict["published"] else "refused"
    checks = [["passed" if check["passed"] else "FAILED", check["name"], check["detail"]] for check in verdict["checks"]]
    estimates = [
        [
            estimate["of"],
            estimate["name"],
            f"{estimate['value']:.3f}",
            f"[{estimate['low']:.3f}, {estimate['high']:.3f}]",
            estimate["method"],
            f"{estimate['ess']:.0f}",
        ]
        for estimate in verdict["estimates"]
    ]
    counts = [[name.replace("_", " "), str(value)] for name, value in (verdict["counts"] or {}).items()]
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>mbcal update: {escape(outcome)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{style}</style>'
        f'<header><p class="kind">mbcal update of {escape(verdict["live"])}</p>'
        f"<h1>The candidate was {escape(outcome)}</h1></header><main>"
        f"<h2>Checks</h2>{_table_html(('', 'check', 'details'), checks)}"
        "<h2>Off-policy estimates</h2><p class='note'>Reward per session, of users the candidate did not learn from.</p>"
        f"{_table_html(('of', 'estimator', 'value', '95% interval', 'interval by', 'effective sessions'), estimates)}"
        f"<h2>Records</h2>{_table_html(('', ''), counts)}</main></html>\n"
    )


def _table_html(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}" for name in columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape(value)}' for value in row)}" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</thead><tbody>{body}</tbody></table></div>'
