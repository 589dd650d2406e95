"""The verdict of an update as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from mbcal.report.html import page_part, scroll_table, state


def verdict_page(verdict: Mapping[str, Any]) -> str:
    """Return the page of one update.

    Args:
        verdict: A `release.gate.Verdict` as plain values, None for numbers that are not finite.

    Returns:
        HTML.
    """
    outcome, style = _outcome(verdict), page_part("page.css")
    checks = [f"<p><b>{escape(c['name'])}</b> {state(c['answer'])} {escape(c['detail'])}</p>" for c in verdict["checks"]]
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>mbcal update: {escape(outcome)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{style}</style>'
        f'<header><p class="kind">mbcal update of {escape(verdict["live"])}</p>'
        f"<h1>{escape(outcome)}</h1></header><main><p>{escape(_sentence(verdict['reason']))}</p>"
        f"<h2>Checks</h2>{''.join(checks)}"
        f"{_estimates_html(verdict['estimates'], verdict['void'])}"
        f"<h2>Records</h2>{scroll_table(('', ''), _counts(verdict['counts'] or {}), label='records')}</main></html>\n"
    )


def _outcome(verdict: Mapping[str, Any]) -> str:
    version, live = verdict["version"], verdict["live"]
    answer = {"worse": "Worse", "no worse": "No worse", "cannot tell": "Cannot tell"}[verdict["answer"]]
    action = {
        "published": f"{version} is live",
        "canary": f"{version} is the canary, {live} stays live",
        "refused": f"refused, {live} stays live",
    }[verdict["action"]]
    return f"{answer}: {action}"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _estimates_html(estimates: Sequence[Mapping[str, Any]], void: str | None) -> str:
    """The estimates that decide nothing; greyed, with the reason, where they are void."""
    rows = [
        [
            escape(estimate["of"]),
            escape(estimate["name"]),
            _number(estimate["value"]),
            f"[{_number(estimate['low'])}, {_number(estimate['high'])}]",
            escape(estimate["method"]),
            _number(estimate["ess"], 0),
        ]
        for estimate in estimates
    ]
    if not rows:
        return ""
    note = (
        f"Void: {void}." if void else "Reward per session, of users the candidate did not learn from. They decide nothing."
    )
    columns = ("of", "estimator", "value", "95% interval", "interval by", "effective sessions")
    table = scroll_table(columns, rows, (False, False, True, True, False, True), "off-policy estimates")
    return (
        f"<h2>Further off-policy estimates</h2><p class='note'>{escape(note)}</p>"
        f"<div class='{'void' if void else ''}'>{table}</div>"
    )


def _number(value: float | None, digits: int = 3) -> str:
    """A number in words of the page; a dash if it is not finite."""
    return "–" if value is None else f"{value:.{digits}f}"


def _counts(counts: Mapping[str, Any]) -> list[list[str]]:
    return [[escape(name.replace("_", " ")), escape(str(value))] for name, value in counts.items()]
