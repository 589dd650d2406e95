"""The report in a real browser: it loads without errors, draws its curves, and its toggles work."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from mbcal.cli import main
from mbcal.errors import OptionError
from mbcal.evaluation.experiment.config import ExperimentConfig, experiment_config
from mbcal.evaluation.experiment.run import Run
from mbcal.report.advice import repeat_command
from mbcal.report.page_writer import table_html, write_report
from mbcal.report.summary import RunSummary
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


needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")


@needs_chromium
def test_the_first_figure_is_the_gap_to_the_baseline(page: Path, tmp_path: Path) -> None:
    script = """
      const dots = () => [...document.querySelectorAll('#gap-chart circle')];
      const agents = () => dots().map(dot => dot.dataset.agent);
      const fill = Object.fromEntries(dots().map(dot => [dot.dataset.agent, dot.getAttribute('stroke')]));
      const first = document.querySelector('main svg').parentElement.id, byTruth = agents();
      const plain = document.querySelectorAll('#gap-warning p').length;
      document.querySelector('#gap-judges [data-value=lstm]').click();
      window.result = {first, byTruth, fill, plain, bySimulator: agents(),
        relations: dots().map(dot => dot.dataset.relation),
        warning: document.getElementById('gap-warning').textContent, note: document.getElementById('gap-note').textContent,
        intervals: document.querySelectorAll('#gap-chart path.interval').length};
      document.querySelector('#gap-protocols [data-value=growing]').click();
      window.result.growing = agents();
    """
    probe = json.loads(in_browser(page, script, tmp_path))
    assert probe["errors"] == []
    result = probe["result"]
    assert result["first"] == "gap-chart"
    assert set(result["byTruth"]) == {"oracle", "mbcal", "the log", "gru4rec", "random"}
    assert set(result["bySimulator"]) == set(result["growing"]) == {"mbcal", "the log", "gru4rec", "random"}
    assert result["fill"]["mbcal"] == "var(--mbcal)"
    assert result["fill"]["gru4rec"] == "var(--baseline)"
    assert "baseline" in result["relations"]
    assert result["intervals"] == 3
    assert result["plain"] == 0  # the truth needs no warning
    assert "no better than the frequencies" in result["warning"] or "Large" in result["warning"]
    assert "minus that of gru4rec" in result["note"]


@needs_chromium
def test_gaps_have_marks_intervals_and_a_legend(page: Path, tmp_path: Path) -> None:
    """Hollow is what is not distinguishable from the baseline, whatever the role; too small gaps are marked."""
    script = """
      data.judges.lstm.trusted = 0.5; data.judges.lstm.warning = 'Large.';
      const ends = (mean) => ({low: mean - 0.01, high: mean + 0.01});
      const gap = (agent, mean, relation) => ({agent, mean, ...ends(mean), relation, reward: 5 + mean, spread: null});
      data.gaps.batch.lstm = [gap('mbcal', 2, 'ahead'), gap('random', 0.3, 'untrusted'), gap('gru4rec', 0, 'baseline'),
        gap('the log', -1, 'unjudged')];
      drawGaps('batch', 'lstm');
      const all = (selector) => [...document.querySelectorAll('#gap-chart ' + selector)];
      window.result = {
        hollow: all('circle').filter(dot => dot.getAttribute('fill') === 'var(--paper)').map(dot => dot.dataset.agent),
        drawn: all('path.interval').map(path => path.getAttribute('d')), zones: all('rect.zone').length,
        papers: all('rect.paper').length, texts: all('text').map(text => text.textContent),
        note: document.getElementById('gap-note').textContent};
      byId('gap-protocols').hidden = true;
      window.result.choice = getComputedStyle(byId('gap-protocols')).display;
    """
    result = json.loads(in_browser(page, script, tmp_path, "--window-size=390,844"))["result"]
    assert result["hollow"] == ["random", "the log"]
    assert len(result["drawn"]) == 3
    assert all(line.count("v14") == 2 for line in result["drawn"])  # ends that stand out beside the mark
    assert (result["zones"], result["papers"]) == (1, 4)
    assert {"+2.00 [+1.99, +2.01]", "+0.30 [+0.29, +0.31] (!)", "−1.00 [−1.01, −0.99]", "the log"} <= set(result["texts"])
    assert "A hollow mark: not distinguishable from gru4rec." in result["note"]
    assert "The grey zone is the simulator's own error (±0.500)" in result["note"]
    assert "(!) marks gaps inside." in result["note"]
    assert result["choice"] == "none"


@needs_chromium
def test_an_opened_step_says_what_its_numbers_say(page: Path, tmp_path: Path) -> None:
    script = """
      const step = (instant, ...others) => ({item: 'shown', instant, future: 0.25, behaviour: 'b', reward: 1,
        changed: [0.5, -0.2], rivals: others.map((value, k) => ({item: 'r' + k, instant: value, future: 0}))});
      const draw = (gamma) => {
        data.gamma = gamma; data.xray = [{steps: [step(5, 4, 3), step(5, 6, 4), step(5, 7, 6)]}];
        drawSession(0);
        const texts = (inside) => [...inside.querySelectorAll(':scope > p')].map(p => p.textContent);
        return [...document.querySelectorAll('.inside')].map(texts);
      };
      window.result = {discounted: draw(0.5)[0][0], plain: draw(1),
        head: getComputedStyle(document.querySelector('.step-head')).display,
        scales: [...document.querySelectorAll('.step-head .scale')].filter(scale => scale.offsetWidth).length,
        covered: document.querySelectorAll('.track span').length};
    """
    result = json.loads(in_browser(page, script, tmp_path, "--window-size=390,844"))["result"]
    raised = "By the model of users, this item raises the rewards of later steps by "
    network = " The advantage network, which is fast enough to rank by, expects +0.25. Step by step, by the model of users:"
    assert result["discounted"] == f"{raised}0.20 in all, later steps counting less (gamma 0.500).{network}"
    assert [texts[0] for texts in result["plain"]] == [f"{raised}0.30 in all.{network}"] * 3
    assert [texts[1] for texts in result["plain"]] == [
        "No other candidate has a higher reward now. The next best:",
        "A candidate has a higher reward now; the sum decides. The candidates with the highest reward now:",
        "2 candidates have a higher reward now; the sum decides. The candidates with the highest reward now:",
    ]
    assert (result["head"], result["scales"], result["covered"]) == ("grid", 2, 0)


@needs_chromium
def test_the_page_draws_and_toggles_without_errors(page: Path, tmp_path: Path) -> None:
    script = """
      const count = (selector) => document.querySelectorAll(selector).length;
      const before = count('#curve path.curve');
      const toggle = document.querySelector('#toggles button');
      toggle.click();
      const after = count('#curve path.curve');
      const pressed = toggle.getAttribute('aria-pressed');
      toggle.click();
      document.querySelectorAll('#steps details').forEach(d => { d.open = true; });
      document.querySelector('#curve circle').dispatchEvent(new PointerEvent('pointerenter', {clientX: 5, clientY: 5}));
      const tip = document.getElementById('tip').textContent;
      const heading = document.querySelector('#table-batch .explain');
      heading.click();
      const texts = (selector) => [...document.querySelectorAll(selector)].map(e => e.textContent);
      const steps = JSON.parse(document.getElementById('data').textContent).xray[0].steps;
      window.result = {before, after, pressed, back: count('#curve path.curve'), tip,
        meaning: document.getElementById('tip').textContent,
        references: [...document.querySelectorAll('#curve line.reference')].map(l => l.dataset.name),
        labels: texts('#curve text'),
        steps: count('#steps details'), changed: count('#steps rect.change'), head: texts('.step-head > span'),
        later: texts('.step summary .bar:nth-child(4) span'), signs: steps.map(s => s.future),
        inside: texts('.inside p:first-child'),
        bins: count('[data-card] circle') - count('[data-card] line.interval'), card: texts('[data-card]')[0],
        cards: count('[data-card] path.calibration') + count('[data-card] path.drift'),
        wide: document.documentElement.scrollWidth <= innerWidth, scrolls: count('.scroll.wide'),
        tables: count('#tables table')};
    """
    probe = json.loads(in_browser(page, script, tmp_path, "--window-size=390,844"))
    assert probe["errors"] == []
    result = probe["result"]
    assert (result["before"], result["after"], result["back"]) == (2, 1, 2)  # chance is a line of its own
    assert result["pressed"] == "false"
    assert "round 1" in result["tip"]
    assert result["meaning"].startswith("Who responds to the methods")
    assert result["references"] == ["oracle", "random", "the log"]
    assert {"mbcal", "gru4rec", "oracle", "random", "the log"} <= set(result["labels"])
    assert result["steps"] == 20
    assert result["changed"] > 100
    heads = ["#", "item shown", "reward now", "change later", "sum", "the user did"]
    assert all(text.startswith(head) for text, head in zip(result["head"], heads, strict=True))
    for text, future in zip(result["later"], result["signs"], strict=True):
        assert ("−" in text) == (future < 0)
    assert all(("lowers" in text) != ("raises" in text) for text in result["inside"][:19])
    assert result["bins"] == 0  # a point has an interval
    assert "Grey bars: the share of steps." in result["card"]
    assert "logged" in result["card"]
    assert "real users" not in result["card"]
    assert result["cards"] == 3  # calibration, and drift of two lines
    assert result["wide"]  # nothing sticks out on a phone
    assert result["scrolls"] >= 2  # wide tables say that they scroll
    assert result["tables"] >= 6


def test_the_page_answers_in_words(page: Path) -> None:
    text = page.read_text()
    for part in (
        "Which of 3 methods earns the most reward per session from users of newsfeed",
        "test sessions of ",
        "2 of each method. The means of ",
        "Not a model: nothing about these users is estimated.",
        "Train each method 5 times",
        "<td>the log</td>",
    ):
        assert part in text, part
    assert "earns most" not in text
    order = [text.index(f'id="{name}"') for name in ("gaps", "sure", "judges", "next", "curves", "xray", "tables", "repeat")]
    assert order == sorted(order)


def test_the_command_on_the_page_repeats_the_run(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = Run.open(page.parent, "cpu")
    words = shlex.split(repeat_command(RunSummary(run), out=str(tmp_path / "again")))
    found: list[ExperimentConfig] = []

    def keep(config: ExperimentConfig, *_: object, **__: object) -> None:
        found.append(config)
        raise OptionError("that is enough")

    monkeypatch.setattr("mbcal.evaluation.experiment.runner.run_experiment", keep)
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit):
        main()
    assert found == [run.settings]


def test_the_page_needs_nothing_from_elsewhere(page: Path) -> None:
    class Links(HTMLParser):
        found: list[str] = []  # noqa: RUF012

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.found += [value or "" for name, value in attrs if name in ("src", "href")]

    links = Links()
    links.feed(page.read_text())
    assert [link for link in links.found if not link.startswith("#")] == ["data:,"]
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
