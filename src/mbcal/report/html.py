"""Parts of self-contained pages that reports and updates share: tables with explained columns, states, greyed values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files

from mbcal.report.columns import column

STATES = {"no worse": "good", "worse": "bad", "cannot tell": "unknown"}
"""CSS class of each answer of a check. Only `no worse` looks like success."""


def page_part(name: str) -> str:
    """Return a file of the folder `report/page`: a style, a script or a template."""
    return files("mbcal.report").joinpath("page", name).read_text("utf-8")


def state(answer: str) -> str:
    """Return an answer (`no worse`, `worse`, `cannot tell`, or any other word) as a coloured label."""
    return f'<span class="state {STATES.get(answer, "unknown")}">{escape(answer)}</span>'


def void(text: str, reason: str) -> str:
    """Return a value that says nothing, greyed, with the reason beside it."""
    return f'<span class="void">{escape(text)}</span> <span class="reason">{escape(reason)}</span>'


def scroll_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    numbers: Sequence[bool] = (),
    label: str = "",
    warnings: Mapping[int, str] | None = None,
) -> str:
    """Return a table that scrolls by itself where it is wider than the page, with shadows at the edges that hide columns.

    Args:
        columns: Names of the columns; those that `report.columns` knows are shown in words, with their meaning one tap away.
        rows: Cells as HTML.
        numbers: Whether each column holds numbers.
        label: What the table is called for screen readers.
        warnings: Texts that stand above rows, by row.
    """
    numbers = numbers or [False] * len(columns)

    def cell(tag: str, k: int, text: str) -> str:
        return f"<{tag}{' class=number' if numbers[k] else ''}>{text}</{tag}>"

    head = "".join(cell("th", k, heading(name)) for k, name in enumerate(columns))
    above = {
        number: f'<tr><td class="above" colspan="{len(columns)}"><p class="warning">{escape(text)}</p></td></tr>'
        for number, text in (warnings or {}).items()
    }
    body = "".join(
        f"{above.get(number, '')}<tr>{''.join(cell('td', k, text) for k, text in enumerate(row))}</tr>"
        for number, row in enumerate(rows)
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label or "table")}">{table}</div>'


def heading(name: str) -> str:
    """Return the heading of a column; its meaning opens by a tap, a click or the keyboard, and as a tooltip."""
    title, meaning = column(name)
    if not meaning:
        return escape(title)
    text = escape(meaning)
    return f'<button type="button" class="explain" title="{text}" data-meaning="{text}">{escape(title)}</button>'
