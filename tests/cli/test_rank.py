"""The table of `mbcal rank`."""

from __future__ import annotations

import io

from rich.console import Console

from mbcal.agents.ranking import RankedItem
from mbcal.cli.rank import ranking_table


def test_rank_shows_names_beside_titles() -> None:
    ranked = [RankedItem("a1", "First", 1.0, {"instant": 1.0}, True), RankedItem("a2", "a2", 0.5, {"instant": 0.5}, False)]
    printed = io.StringIO()
    Console(file=printed, width=80).print(ranking_table(ranked))
    lines = [line.split() for line in printed.getvalue().splitlines()]
    assert lines[0] == ["item", "title", "instant", "reward", "total"]
    assert lines[1:] == [["a1", "First", "1.0000", "1.0000"], ["a2", "(new)", "a2", "0.5000", "0.5000"]]
