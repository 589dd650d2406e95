"""Every sequence of commands in docs/data.md runs, on small files with the columns that the page shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.documents import commands_of, run
from tests.support.logs import ROOT
from tests.support.sample_logs import write_sample_logs

PAGE = (ROOT / "docs/data.md").read_text()
KINDS = {"Ratings": 6, "Impressions with actions": 9, "Clicks alone": 5, "Dwell": 9}
"""Heading of a kind of log -> commands in its sequence."""


def section(heading: str) -> str:
    found = re.search(rf"^### {heading}\n(.*?)^##", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None, heading
    return found[1]


def test_the_page_shows_the_columns_of_the_samples(tmp_path: Path) -> None:
    for header in write_sample_logs(tmp_path):
        assert ",".join(header) in PAGE
    headings = re.findall("^### (.*)$", PAGE, re.MULTILINE)
    assert headings == list(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_every_sequence_runs(tmp_path: Path, kind: str) -> None:
    write_sample_logs(tmp_path)
    commands = commands_of(section(kind))
    assert len(commands) == KINDS[kind]
    run(commands, tmp_path)
