"""The verdict of an update as one self-contained HTML page, without a script."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

from mbcal.report.html import page_part, scroll_table, state

_OF = {"policy": "candidate", "baseline": "live version", "log": "log", "difference": "difference"}
_ESTIMATORS = {
    "mean": ("mean", "What the sessions of the log earned, as they are."),
    "ips": (
        "weighted sessions",
        "Each session counts as often as the candidate would make its choices (importance sampling).",
    ),
    "snips": (
        "weighted sessions, normalised",
        "The same, divided by the sum of the weights instead of the number of sessions.",
    ),
    "pdis": ("weighted steps", "Each reward counts as often as the candidate would make the choices up to it."),
    "wpdis": ("weighted steps, normalised", "The same, divided by the sum of the weights at each step."),
    "dr": ("doubly robust", "A model of the rewards, corrected by weighted steps where it is wrong."),
    "direct": ("model alone", "What a model of the rewards predicts, without a correction."),
}
_INTERVALS = {"bca": "bootstrap"}
_COUNTS = {
    "decisions": ("decisions", "Requests to rank that the compared versions answered."),
    "feedback": ("feedback", "All feedback in the log, or in its newest part."),
    "sessions": ("sessions", "Rows of steps with feedback; a session longer than the horizon makes several."),
    "steps": ("steps", "Items with feedback, in these sessions."),
    "unanswered": ("decisions without feedback", "They are left out, and may have led to anything."),
    "repeated_decisions": ("repeated decisions", "Decisions with the id of another; the latest counts."),
    "repeated_feedback": ("repeated feedback", "Further feedback on the same item of a decision; the first counts."),
    "changed_feedback": (
        "items with further behaviours",
        "Another behaviour was reported after the one that counts, as a purchase after a click. Also repeated feedback.",
    ),
    "orphans": ("feedback without a decision", "No such decision was read, or the decision did not return the item."),
    "other_versions": (
        "feedback on other versions",
        "Its decisions were those of a canary, or of versions too old to teach.",
    ),
    "unknown_behaviours": ("feedback with unknown behaviours", "The model does not know these behaviours; it is left out."),
    "unknown_history": ("steps of histories with unknown behaviours", "They are left out likewise."),
    "missing_start": ("sessions without a beginning", "Something was shown before their first decision in the log."),
    "unattributed": ("decisions with neither session nor user", "Any of them may belong to any session."),
    "unmatched": ("visits known in two ways", "By user alone at first and by session alone later, or the other way round."),
    "since": (
        "read from",
        "Earlier decisions were left out with the feedback on them: only the newest are read (--decisions).",
    ),
    "narrowed": ("steps with a sample of candidates", "They had so many more candidates than others that a sample is kept."),
    "lost": ("lost records", "What the log has lost: damaged bytes, missing segments."),
    "new_items": ("new items", "Items that the log added to the catalogue."),
}
_ALWAYS = ("decisions", "feedback", "sessions", "steps")
"""Counts that are shown if they are zero."""


def verdict_page(verdict: Mapping[str, Any]) -> str:
    """Return the page of one update.

    Args:
        verdict: A `release.gate.Verdict` as plain values, None for numbers that are not finite.

    Returns:
        HTML.
    """
    outcome, style = _outcome(verdict), page_part("page.css") + page_part("update.css")
    checks = [
        f"<p><b>By the {escape(c['name'])}</b> {state(c['answer'])} {escape(c['detail'])}</p>" for c in verdict["checks"]
    ]
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>mbcal update: {escape(outcome)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<style>{style}</style>"
        f'<header><p class="kind"><a href="../">Back</a> · mbcal update of {escape(verdict["live"])}</p>'
        f"<h1>{escape(outcome)}</h1>{_as_of_html(verdict)}</header><main>{_reason_html(verdict['reason'])}{_next_html(verdict)}"
        f"<h2>What was compared</h2>{scroll_table(('', ''), _facts(verdict), label='what was compared')}"
        f"<h2>Checks</h2>{''.join(checks) or '<p>None was made.</p>'}"
        f"{_estimates_html(verdict)}"
        f"<h2>Records</h2>{scroll_table(('', ''), _counts(verdict['counts'] or {}), (False, True), 'records')}"
        "</main></html>\n"
    )


def _as_of_html(verdict: Mapping[str, Any]) -> str:
    """When this was written, and where to read what happened since: the page is never written again."""
    since = (
        f" What became of {escape(verdict['version'])} since then is on the service's page, and in the registry's folder: "
        "<code>mbcal registry list --registry .</code>"
        if verdict["version"]
        else ""
    )
    return f"<p class='note'>As of {_utc(verdict['time'])}.{since}</p>"


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


def _reason_html(reason: str) -> str:
    """The reason: a list if it names several after a colon, else its clauses as sentences."""
    first, *rest = reason.split("; ")
    lead, colon, head = first.partition(": ")
    if colon and rest:
        items = "".join(f"<li>{escape(_sentence(part))}</li>" for part in (head, *rest))
        return f"<p>{escape(lead[:1].upper() + lead[1:])}:</p><ul>{items}</ul>"
    return f"<p>{escape(' '.join(map(_sentence, (first, *rest))))}</p>"


def _next_html(verdict: Mapping[str, Any]) -> str:
    """What an operator can do next, with commands for the registry's folder, whose path no page tells."""
    version = escape(str(verdict["version"]))
    if verdict["action"] == "canary":
        todo = (
            "Servers started with <code>--canary</code> try it on users, and what these earn decides. To decide by hand, in "
            f"the registry's folder: <code>mbcal registry activate {version} --registry .</code> or "
            "<code>mbcal registry withdraw --registry .</code>"
        )
    elif verdict["action"] == "published":
        todo = "To go back, in the registry's folder: <code>mbcal registry rollback --registry .</code>"
    else:
        todo = "Nothing changed. The next update learns from what is logged by then."
    return f"<p><b>Next.</b> {todo}</p>"


def _facts(verdict: Mapping[str, Any]) -> list[list[str]]:
    """What was compared and by how much of the log, as rows of a table."""
    difference, method = verdict["difference"], verdict["method"]
    candidate = " · ".join(filter(None, (verdict["version"], method))) or "none was learned"
    rows = [["candidate", candidate], ["live version", verdict["live"]]]
    if difference is not None:
        rows += [
            ["judged by", f"{difference['sessions']:,} sessions of {difference['users']:,} users who did not teach it"],
            ["reward in the log", f"{_number(difference['reward'])} per session"],
            ["choices that differ", f"{difference['differing']:,} of {difference['steps']:,}"],
            ["of these, shown by the log", f"{difference['n_observed']:,}"],
        ]
    return [[escape(cell) for cell in row] for row in rows]


def _estimates_html(verdict: Mapping[str, Any]) -> str:
    """The estimates that decide nothing. Where those of the candidate are void, a row without numbers stands for them."""
    void: str | None = verdict["void"]
    estimates: Sequence[Mapping[str, Any]] = verdict["estimates"]
    if not estimates:
        return ""
    kept = [estimate for estimate in estimates if void is None or estimate["of"] not in ("policy", "difference")]
    rows = [
        [
            escape(_OF.get(estimate["of"], estimate["of"])),
            _term(*_ESTIMATORS.get(estimate["name"], (estimate["name"], ""))),
            _number(estimate["value"]),
            f"[{_number(estimate['low'])}, {_number(estimate['high'])}]",
            _number(estimate["ess"], 2),
        ]
        for estimate in kept
    ]
    for of in dict.fromkeys(estimate["of"] for estimate in estimates if estimate not in kept):
        count = min((e["ess"] for e in estimates if e["of"] == of and e["ess"] is not None), default=None)
        cells = (escape(_OF[of]), "all of these", "–", "–", _number(count, 2))
        rows.append([f'<span class="unshown">{cell}</span>' for cell in cells])
    about = f"“–” says nothing: {void}." if void else "Of users the candidate did not learn from. They decide nothing."
    by = ", ".join(dict.fromkeys(_INTERVALS.get(estimate["method"], estimate["method"]) for estimate in kept))
    note = f"{about} Intervals by {by}." if by else about
    columns, numbers = (
        ("of", "estimate", "per session", "95% interval", "sessions that count"),
        (False, False, True, True, True),
    )
    table = scroll_table(columns, rows, numbers, "further estimates")
    return f"<h2>Further estimates by the log</h2><p class='note'>{escape(note)}</p>{table}"


def _term(title: str, meaning: str) -> str:
    """A word whose meaning opens by a tap, a click or the keyboard."""
    if not meaning:
        return escape(title)
    return f'<details class="term"><summary>{escape(title)}</summary><p>{escape(meaning)}</p></details>'


def _number(value: float | None, significant: int = 3) -> str:
    """A number with some significant digits and separators of thousands; a dash if it is not finite."""
    if value is None:
        return "–"
    digits = significant - 1 - math.floor(math.log10(abs(value))) if value else 0
    return f"{value:,.{min(max(digits, 0), 6)}f}".replace("-", "−")


def _counts(counts: Mapping[str, Any]) -> list[list[str]]:
    """Counts in words, without those that are zero."""
    return [
        [_term(*_COUNTS.get(name, (name, ""))), escape(_utc(value / 1e6) if name == "since" else _plain(value))]
        for name, value in counts.items()
        if value or name in _ALWAYS
    ]


def _utc(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


def _plain(value: Any) -> str:
    """A count, the counts of several names, or several sentences, as text."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {count:,}" for name, count in value.items())
    return f"{value:,}" if isinstance(value, int) else ", ".join(map(str, value))
