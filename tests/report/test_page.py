"""The report in a real browser: it loads without errors, draws its curves, and its toggles work."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from mbcal.evaluation.experiment.config import experiment_config
from mbcal.evaluation.experiment.run import Run
from mbcal.report.page_writer import table_html, write_report
from mbcal.report.tables import Table
from tests.support.experiments import TINY

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = Run.create(tmp_path_factory.mktemp("run") / "run", experiment_config(TINY), "cpu")
    run.prepare()
    for cell in run.missing:
        run.execute(cell)
    return write_report(run)


def in_browser(page: Path, script: str, folder: Path, *options: str) -> str:
    """The page's text after a script has run in it; with the errors it raised."""
    probe = (
        "<script>window.errors=[];addEventListener('error',e=>errors.push(e.message));</script>",
        f"<script>try{{{script}}}catch(e){{errors.push(String(e))}}"
        "const p=document.createElement('pre');p.id='result';p.textContent=JSON.stringify({errors,result:window.result});"
        "document.body.append(p);</script>",
    )
    text = page.read_text().replace("<head>", f"<head>{probe[0]}", 1).replace("</body>", f"{probe[1]}</body>", 1)
    copy = folder / "probe.html"
    copy.write_text(text)
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}", *options]
    done = subprocess.run(
        [*command, "--virtual-time-budget=3000", "--dump-dom", copy.as_uri()],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    found = re.search(r'<pre id="result">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stdout[-2000:]
    return found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
def test_the_page_draws_and_toggles_without_errors(page: Path, tmp_path: Path) -> None:
    script = """
      const count = (selector) => document.querySelectorAll(selector).length;
      const before = count('#curve path.curve');
      const toggle = document.querySelector('#toggles button');
      toggle.click();
      const after = count('#curve path.curve');
      const pressed = toggle.getAttribute('aria-pressed');
      toggle.click();
      const judges = [...document.querySelectorAll('#judges button')];
      judges[1].click();
      document.querySelectorAll('#steps details').forEach(d => { d.open = true; });
      document.querySelector('#curve circle').dispatchEvent(new PointerEvent('pointerenter', {clientX: 5, clientY: 5}));
      window.result = {before, after, pressed, back: count('#curve path.curve'), bars: count('#bars circle'),
        steps: count('#steps details'), changed: count('#steps svg rect'), tip: document.getElementById('tip').textContent,
        wide: document.documentElement.scrollWidth <= innerWidth, tables: count('table'), judge: judges.length};
    """
    probe = json.loads(in_browser(page, script, tmp_path, "--window-size=390,844"))
    assert probe["errors"] == []
    result = probe["result"]
    assert (result["before"], result["after"], result["back"]) == (3, 2, 3)
    assert result["pressed"] == "false"
    assert result["judge"] == 2
    assert result["bars"] == 3  # the second judge has no oracle
    assert result["steps"] == 20
    assert result["changed"] > 100
    assert "round 1" in result["tip"]
    assert result["wide"]  # nothing sticks out on a phone
    assert result["tables"] >= 6


def test_the_page_needs_nothing_from_elsewhere(page: Path) -> None:
    class Links(HTMLParser):
        found: list[str] = []  # noqa: RUF012

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.found += [value or "" for name, value in attrs if name in ("src", "href")]

    links = Links()
    links.feed(page.read_text())
    assert links.found == ["data:,"]
    text = page.read_text()
    assert "http" not in re.sub(r"http://www\.w3\.org/\S+", "", text)
    assert "{{" not in text
    assert "prefers-color-scheme: dark" in text


def test_names_cannot_break_out_of_the_page() -> None:
    table = Table("t", "a <b>", ("<script>",), [["</script><img>"]])
    assert "<b>" not in table.markdown().replace("a <b>", "")
    assert "<img>" not in table_html(table)
    assert "&lt;/script&gt;" in table_html(table)


def test_tables_as_csv_and_markdown() -> None:
    made = Table("t", "T", ("agent", "macro_f1", "p to x"), [["a", 1.5, 0.0], ["b", None, 0.04]], "why")
    assert made.csv() == "agent,macro_f1,p to x\na,1.5,0.0\nb,,0.04\n"
    assert "| method | macro-F1 | p |" in made.markdown()
    assert "| a | 1.50 | <0.001 |" in made.markdown()
    assert "| b | – | 0.04 |" in made.markdown()
