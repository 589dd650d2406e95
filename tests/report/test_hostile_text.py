"""Names and titles that look like HTML are text in every page."""

from __future__ import annotations

import json
from html.parser import HTMLParser

from mbcal.report.update_page import verdict_page
from mbcal.storage.json_text import script_json

HOSTILE = (
    "<!--<script>",
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "{{DATA}}",
    "]]>",
    "\u2028",
)


class Elements(HTMLParser):
    """Counts elements."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)


def test_data_of_a_page_cannot_leave_its_script_element() -> None:
    data = {"titles": list(HOSTILE), "<!--": 1}
    text = script_json(data)
    assert "<" not in text
    assert json.loads(text) == data
    assert Elements(f"<script>{text}</script><p>").tags == ["script", "p"]


def test_the_page_of_an_update_shows_names_as_text() -> None:
    def page(name: str) -> str:
        check = {"name": name, "answer": name, "detail": name}
        verdict = {"live": name, "answer": "no worse", "action": "published", "version": name, "reason": name}
        more = {"time": 0.0, "method": name, "difference": None, "estimates": [], "void": None, "counts": {name: [name]}}
        return verdict_page({**verdict, **more, "checks": [check]})

    plain = Elements(page("v000001")).tags
    for name in HOSTILE:
        assert Elements(page(name)).tags == plain
