"""An update's verdict as one page for people, without links to anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Any


def verdict_page(said: dict[str, Any]) -> str:
    """The checks, the estimates and the counts of one update."""
    style = files("mbcal.report").joinpath("page/page.css").read_text("utf-8")
    title = f"published as {said['published']}" if said["published"] else "refused"
    checks = [["passed" if check["passed"] else "FAILED", check["name"], check["detail"]] for check in said["checks"]]
    estimates = [
        [
            one["of"],
            one["name"],
            f"{one['value']:.3f}",
            f"[{one['low']:.3f}, {one['high']:.3f}]",
            one["method"],
            f"{one['ess']:.0f}",
        ]
        for one in said["estimates"]
    ]
    counts = [[name.replace("_", " "), str(value)] for name, value in (said["counts"] or {}).items()]
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>mbcal update: {escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{style}</style>'
        f'<header><p class="kind">mbcal update of {escape(said["live"])}</p>'
        f"<h1>The candidate was {escape(title)}</h1></header><main>"
        f"<h2>Checks</h2>{_table(('', 'check', 'what was found'), checks)}"
        "<h2>Off-policy estimates</h2><p class='note'>Reward per session, of users the candidate did not learn from.</p>"
        f"{_table(('of', 'estimator', 'value', '95% interval', 'interval by', 'effective sessions'), estimates)}"
        f"<h2>Records</h2>{_table(('', ''), counts)}</main></html>\n"
    )


def _interval(one: dict[str, Any]) -> str:
    return f"[{one['low']:.3f}, {one['high']:.3f}]"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}" for name in columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape(value)}' for value in row)}" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</thead><tbody>{body}</tbody></table></div>'
