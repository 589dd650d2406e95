"""The page of an update: what it says, in words, and what it does not claim."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from mbcal.decision_log.joined import JoinCounts
from mbcal.evaluation.ope.intervals import Estimate
from mbcal.release.gate import Check, Verdict
from mbcal.release.verdict_files import write_verdict
from tests.support.browser import CHROMIUM, browsing
from tests.support.releases import DIFFERENCE

REASONS = "78 of 78 sessions may still be going on: update later; users gave no feedback on 5 choices: send it"


def written(folder: Path, **changes: Any) -> Path:
    counts = JoinCounts(decisions=12_345, unknown_behaviours={"zap": 3}, other_versions=254)
    of = ("policy", "log", "baseline", "difference")
    values: dict[str, Any] = {
        "time": 1_800_000_000.0,
        "method": "mbcal",
        "action": "canary",
        "version": "v000002",
        "reason": f"the log cannot tell: {REASONS}",
        "checks": [Check("log", "cannot tell", "between -44.6 and +242 per session")],
        "difference": DIFFERENCE,
        "estimates": [Estimate(name, "ips", -1234.567, 0.012345, 5.0, "bca", 7.9, 129) for name in of],
        "void": "the log shows 3 choices",
        "counts": counts,
    }
    return write_verdict(folder, Verdict("v000001", **(values | changes)))


def rows(page: str) -> list[list[str]]:
    """The cells of all rows of tables, as text."""
    found = re.findall(r"<tr>(.*?)</tr>", page)
    return [
        [unescape(re.sub("<[^>]+>", " ", cell)).strip() for cell in re.findall(r"<td.*?>(.*?)</td>", row)] for row in found
    ]


def test_it_says_when_which_method_how_sure_and_what_to_do(tmp_path: Path) -> None:
    page = written(tmp_path).read_text()
    assert "As of 2027-01-15 08:00 UTC. What became of v000002 since then is on the service's page" in page
    assert "mbcal registry list --registry ." in page
    found = {cells[0]: cells[1:] for cells in rows(page) if len(cells) == 2}
    assert found["candidate"] == ["v000002 · mbcal"]
    assert found["choices that differ"] == [f"{DIFFERENCE.differing:,} of {DIFFERENCE.steps:,}"]
    assert found["of these, shown by the log"] == [f"{DIFFERENCE.n_observed:,}"]
    assert found["reward in the log"] == [f"{DIFFERENCE.reward:.2f} per session"]
    assert "mbcal registry activate v000002 --registry ." in page
    assert 'href="../"' in page
    assert str(tmp_path) not in page
    first, second = REASONS.split("; ")
    assert f"<p>The log cannot tell:</p><ul><li>{first}.</li><li>{second[:1].upper()}{second[1:]}.</li></ul>" in page


def test_what_says_nothing_has_no_numbers(tmp_path: Path) -> None:
    """The log's own mean is not void. The candidate's estimates are one row, as its difference's are."""
    page = written(tmp_path).read_text()
    estimates = [cells for cells in rows(page) if len(cells) == 5]
    known, void = ["−1,235", "[0.0123, 5.00]", "7.9"], ["–", "–", "7.9"]
    assert [(cells[0], cells[2:]) for cells in estimates] == [
        ("log", known),
        ("live version", known),
        ("candidate", void),
        ("difference", void),
    ]
    assert "“–” says nothing: the log shows 3 choices. Intervals by bootstrap." in page
    grey = re.findall(r'<span class="unshown">([^<]+)</span>', page)
    assert "candidate" in grey
    assert "log" not in grey
    assert [cells[2:] for cells in rows(written(tmp_path, void=None).read_text()) if len(cells) == 5] == [known] * 4


def test_records_are_words_without_zeros_and_code(tmp_path: Path) -> None:
    page = written(tmp_path).read_text()
    records = rows(page.partition("<h2>Records</h2>")[2])
    found = {cells[0].split("  ")[0]: cells[1] for cells in records if cells}
    assert found == {
        "decisions": "12,345",
        "feedback": "0",
        "sessions": "0",
        "steps": "0",
        "feedback with unknown behaviours": "zap: 3",
        "feedback on other versions": "254",
    }
    text = re.sub("<[^>]+>", " ", page.partition("<main>")[2])
    assert not re.search(
        r"\b(ips|bca|policy|baseline|missing_start|unattributed|unmatched|narrowed|orphans)\b|{}|\[\]", text
    )


def test_a_verdict_without_a_candidate_has_a_page(tmp_path: Path) -> None:
    page = write_verdict(tmp_path, Verdict("v000001", reason="3 sessions are logged")).read_text()
    assert "none was learned" in page
    assert "3 sessions are logged." in page
    assert json.loads((tmp_path / "000001.json").read_text())["method"] == ""


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
def test_on_a_phone_words_explain_themselves_by_a_tap(tmp_path: Path) -> None:
    page = written(tmp_path)
    with browsing(tmp_path / "browser") as browser:
        browser.open(page.as_uri(), 390, 844)
        browser.wait("document.querySelectorAll('details.term').length")
        assert browser.run("document.documentElement.scrollWidth <= innerWidth")
        meaning = "Each session counts as often as the candidate would make its choices"
        assert not browser.run(f"document.body.innerText.includes({json.dumps(meaning)})")
        browser.run("document.querySelector('details.term summary').click()")
        assert browser.run(f"document.body.innerText.includes({json.dumps(meaning)})")
        assert browser.errors == []
