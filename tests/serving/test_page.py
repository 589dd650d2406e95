"""The operator's page in a real browser, against a real server."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from mbcal.client import Client
from mbcal.errors import ServiceError
from mbcal.registry.registry import Registry
from tests.support.browser import CHROMIUM, Browser, browsing
from tests.support.servers import serving
from tests.support.versions import ITEMS

HOSTILE = "<!--<script>document.title='broken'</script>"
UPDATE = {
    "live": "v000001", "version": "v000002", "answer": "cannot tell", "action": "canary",
    "reason": "the log cannot tell: sessions go on: wait; feedback is late",
    "checks": [{"name": "log", "answer": "cannot tell", "detail": HOSTILE}],
    "estimates": [], "counts": None,
}  # fmt: skip

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")


@pytest.fixture(scope="module")
def address(models: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with two versions, three updates (one damaged), and no requests yet."""
    folder = tmp_path_factory.mktemp("page")
    registry = Registry(folder / "registry")
    for path in models:
        registry.publish(path, activate=True)
    canary = registry.publish(models[0], activate=False)
    registry.start_canary(canary)
    side = {"sessions": 40, "users": 30, "reward": {"mean": 2.5, "low": 2.0, "high": 3.0}, "length": {"mean": 4.0}}
    gap = {"value": 0.5, "anytime_low": -0.25, "anytime_high": 1.25}
    sentence = f"cannot tell yet {HOSTILE}"
    missing = {"sessions_missing": 1234.5, "for_difference": 0.05}
    sides = {"a": {**side, "version": canary}, "b": {**side, "version": "v000002"}}
    look = {
        "began": registry.pointer().canary_began,
        "time": 1_800_000_000_000_000,
        "reason": f"wait: {sentence}",
        "ends": 1_800_000_000_000_000,
        "comparison": {**sides, "reward": gap, "sentence": sentence, **missing},
    }
    (registry.path / "canaries").mkdir()
    (registry.path / "canaries" / f"{canary}.json").write_text(json.dumps(look))
    updates = registry.path / "updates"
    updates.mkdir()
    (updates / "000001.json").write_text(json.dumps({**UPDATE, "answer": "no worse", "action": "published"}))
    (updates / "000002.json").write_text("{")
    (updates / "000003.json").write_text(json.dumps(UPDATE))
    (updates / "000003.html").write_text("<!doctype html><title>update 3</title>")
    os.symlink(registry.path / "current.json", updates / "000004.html")
    with serving(registry, "--log", str(folder / "log"), "--epsilon", "0") as (_, port):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


def tiles(browser: Browser) -> dict[str, list[str]]:
    """Value and further text of every tile, by its name."""
    return {name: more for name, *more in (text.split("\n") for text in browser.texts(".tile"))}


@needs_browser
def test_before_the_first_request_nothing_is_claimed(address: str, browser: Browser) -> None:
    browser.open(address)
    browser.wait("document.body.dataset.drawn")
    shown = tiles(browser)
    for name in ("requests per second", "refused or failed", "unknown candidates", "decisions with feedback"):
        assert shown[name][0] == "–"
    assert shown["time to answer, p50"] == ["–", "p99 –"]
    assert shown["registry read"][0] == "just now"
    assert shown["decision log"][0].endswith(" B")
    assert browser.texts("#reward") == ["No sessions in the last hour, of those that requests name."]
    assert browser.texts("#versions-served tbody tr") == ["v000002 live\t0\t0\t0\t–\t–"]
    assert "v000002 (mbcal) · 12 items · explores 0% of ranks" in browser.texts("#live")[0]


@needs_browser
def test_the_figures_are_those_of_the_traffic(address: str, browser: Browser) -> None:
    with Client(address, retries=0) as client:
        for number, behaviours in enumerate((["click", "like"], ["skip"], ["like"])):  # rewards 6, 0 and 5
            for behaviour in behaviours:
                answer = client.rank([], [*ITEMS[:9], f"unknown {number}"], session=f"s{number}", k=2)
                client.feedback(answer.decision, behaviour)
        client.rank([], ITEMS[:10], session="s3")  # without feedback
        for _ in range(2):
            with pytest.raises(ServiceError):
                client.rank([], ["twice", "twice"])
    browser.open(address, 390, 844)
    browser.wait("document.body.dataset.drawn")
    shown = tiles(browser)
    assert shown["requests per second"][1].startswith("11 in ")
    assert shown["refused or failed"] == ["2", "18.2% of requests"]
    assert shown["unknown candidates"] == ["8%", "4 of 50"]
    assert shown["decisions with feedback"] == ["80%", "4 of 5"]
    assert browser.texts("#refusals tbody tr") == ["422\ta field is wrong\t2\t18.2%"]
    # rewards of the four sessions are 6, 0, 5 and 0: mean 2.75, standard error 1.601, t(3) 3.18
    assert browser.texts("#versions-served tbody tr") == ["v000002 live\t5\t4\t4\t2.75\t[−2.34, 7.84]"]
    assert browser.texts("#reward") == ["No point yet: it takes 5 sessions that began within some minutes."]
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")  # nothing sticks out on a phone


@needs_browser
def test_updates_and_versions(address: str, browser: Browser) -> None:
    browser.open(address, 390, 844)
    browser.wait("document.querySelectorAll('#versions tbody tr').length")
    browser.run("document.querySelectorAll('#updates details').forEach(d => { d.open = true; })")
    third, second, first = browser.texts("#updates .update > p")
    assert third.startswith("3 details ")
    assert third.endswith("cannot tell canary v000002")
    assert first.startswith("1 ")
    assert first.endswith("no worse published v000002")
    assert second.startswith("2 ")
    assert "damaged" in browser.texts("#updates .update")[1]
    assert f"cannot tellby the log: {HOSTILE}" in browser.texts("#updates .checks")[0]
    boxes = "[...document.querySelectorAll('#updates .checks')].map(one => one.getBoundingClientRect().right)"
    assert max(browser.run(boxes)) <= 390  # nothing of an opened update is off the screen of a phone
    assert browser.texts("#updates .why > summary")[0] == "the log cannot tell:"
    assert browser.texts("#updates .why > ul:not(.checks)")[0].split("\n") == ["sessions go on: wait", "feedback is late"]
    versions = [text.split("\t") for text in browser.texts("#versions tbody tr")]
    assert [row[0] for row in versions] == ["v000003 canary", "v000002 live", "v000001 live before"]
    assert versions[2][4] == "mbcal registry rollback --registry ."
    canary = browser.texts("#canary")[0]
    assert canary.startswith(
        "v000003 is the canary beside v000002, but gets no sessions from this server, which was started"
    )
    assert canary.count(f"cannot tell yet {HOSTILE}") == 1  # the reason is the comparison's sentence
    assert "Still needed: about 1,235 sessions, to see a difference of 5%." in canary
    assert "The trial ends 2027-01-15 " in canary
    assert "v000003\t40\t30\t2.50\t[2.00, 3.00]\t4.00" in canary
    assert "Difference +0.500 per session; [−0.250, 1.25] is valid however often one looks." in canary
    assert browser.run("document.title") == "mbcal service"


@needs_browser
def test_the_canary_and_its_share(models: list[Path], tmp_path: Path, browser: Browser) -> None:
    registry = Registry(tmp_path / "registry")
    registry.publish(models[0])
    registry.start_canary(registry.publish(models[0], activate=False))
    with serving(registry, "--log", str(tmp_path / "log"), "--canary", "0.3", "--no-watch") as (_, port):
        while httpx.get(f"http://127.0.0.1:{port}/v1/stats").json()["canary"] is None:
            time.sleep(0.05)
        browser.open(f"http://127.0.0.1:{port}/")
        browser.wait("document.body.dataset.drawn")
        shown = browser.texts("#canary")[0].splitlines()
    assert [line for line in shown if line] == [
        "v000002 gets 30% of users beside v000001.",
        "It has not been looked at yet.",
    ]


@needs_browser
def test_no_interval_is_cut_silently_and_no_line_crosses_a_gap(address: str, browser: Browser) -> None:
    """Five points of 2 [1, 3]; the first is of few sessions and has the interval [-50, 3], the third is missing."""
    browser.open(address)
    browser.wait("document.body.dataset.drawn")
    browser.run(
        "import('/page/charts.js').then(({ lineChart }) => { const box = document.createElement('div'); box.id = 'own';"
        " document.body.append(box); const at = (x, more) => ({ x, y: 2, low: 1, high: 3, ...more });"
        " const points = [at(0, { low: -50, loose: true }), at(1), at(2, { y: null }), at(3), at(4)];"
        " lineChart(box, [{ name: 'a', colour: 'red', points, dots: true }], { formatX: String, zero: false }); })"
    )
    browser.wait("document.querySelectorAll('#own circle').length === 4")
    assert browser.run("document.querySelectorAll('#own .cut').length") == 1
    assert browser.run("document.querySelectorAll('#own .line').length") == 2
    bars = "[...document.querySelectorAll('#own line[stroke-width]')]"
    cut, *whole = browser.run(f"{bars}.map(line => [+line.getAttribute('y1'), +line.getAttribute('y2')])")
    ys = [(low - high) / 2 for low, high in whole]  # pixels of one unit
    assert ys == pytest.approx([ys[0]] * 3)
    assert cut[1] == pytest.approx(whole[0][1])  # the upper end is where it is in the others
    assert cut[0] - whole[0][0] == pytest.approx(ys[0], rel=0.01)  # a half of the span 2 is shown of what is below


@needs_browser
def test_around_a_single_point_there_is_less_than_one_step(address: str, browser: Browser) -> None:
    browser.open(address)
    browser.wait("document.body.dataset.drawn")
    browser.run(
        "import('/page/charts.js').then(({ lineChart }) => { const box = document.createElement('div'); box.id = 'own';"
        " document.body.append(box); const series = [{ name: 'a', colour: 'red', points: [{ x: 1, y: 2 }], dots: true }];"
        " lineChart(box, series, { formatX: (x) => `epoch ${x}`, ticksX: (low, high) => [low, high] }); })"
    )
    browser.wait("document.querySelectorAll('#own circle').length === 1")
    labels = browser.run("[...document.querySelectorAll('#own text')].map(e => e.textContent)")
    assert [text for text in labels if "epoch" in text] == ["epoch 0.5", "epoch 1.5"]


@needs_browser
def test_ranking_by_hand_shows_the_parts_as_numbers_and_bars(address: str, browser: Browser) -> None:
    browser.open(address)
    browser.wait("document.body.dataset.drawn")
    browser.run("document.getElementById('fill').click()")
    candidates = json.dumps("\n".join(["item 1", "item 2", HOSTILE]))
    browser.run(f"document.getElementById('candidates').value = {candidates}")
    before = httpx.get(f"{address}/v1/stats").json()
    browser.run("document.querySelector('#ask button').click()")
    browser.wait("document.querySelectorAll('#ranked .step').length === 4")
    rows = browser.texts("#ranked .step")[1:]
    assert sum(HOSTILE in row and "unseen" in row for row in rows) == 1
    for row in rows:
        instant, future, score = (float(part.replace("−", "-")) for part in row.split("\n") if part[-4:-3] == ".")
        assert instant + future == pytest.approx(score, abs=2e-3)
    pieces = browser.run(
        "[...document.querySelectorAll('#ranked .parts')].flatMap(bar => { const zero = bar.querySelector('.zero')"
        ".getBoundingClientRect().left; return [...bar.querySelectorAll('.instant, .future')].map(piece => { const box ="
        " piece.getBoundingClientRect(); return [box.left - zero, box.right - zero, piece.title]; }); })"
    )
    values = [float(title.split()[1].replace("−", "-")) for *_, title in pieces]  # such as "future +0.0123"
    pixels = max(right for _, right, _ in pieces) / max(values)
    assert [right for _, right, _ in pieces] == pytest.approx([max(value, 0) * pixels for value in values], abs=1.5)
    assert [left for left, *_ in pieces] == pytest.approx([min(value, 0) * pixels for value in values], abs=1.5)
    low, *_, high = browser.texts("#ranked .parts-scale span")
    assert float(high) == pytest.approx(max(values), rel=5e-3)
    assert float(low.replace("−", "-")) == pytest.approx(min(0, *values), rel=5e-3)
    choose = "document.querySelector('#ranked select')"
    browser.run(f"{choose}.value = 'like'; {choose}.dispatchEvent(new Event('change'))")
    browser.wait("document.querySelectorAll('#shown .step').length === 2")
    assert browser.texts("#shown .act")[0] == "like"
    browser.wait("document.querySelectorAll('#ranked .step').length === 3")  # what was shown is not ranked again
    after = httpx.get(f"{address}/v1/stats").json()
    assert [after[name] for name in ("versions", "rewards")] == [before[name] for name in ("versions", "rewards")]
    assert after["recent"]["requests"] <= before["recent"]["requests"]
    browser.run("document.getElementById('history').value = 'item 1:adored'; document.querySelector('#ask button').click()")
    browser.wait("document.querySelector('#ask-problem').innerText.includes('adored')")
    browser.wait("document.querySelectorAll('#ranked .step').length === 3")
    browser.run("document.querySelector('#ask-problem').replaceChildren()")
    browser.run(f"{choose}.value = 'skip'; {choose}.dispatchEvent(new Event('change'))")
    browser.wait("document.querySelector('#ask-problem').innerText.includes('adored')")
    browser.run("document.getElementById('history').value = ''")
    browser.run(f"{choose}.value = 'click'; {choose}.dispatchEvent(new Event('change'))")
    browser.wait("document.querySelectorAll('#shown .step').length > 2")
    assert browser.texts("#shown .act") == ["like", "click"]  # once, and not as it was refused
    refused = [error for error in browser.errors if "422" not in error]
    assert refused == []
    assert {url.split("/")[2] for url in browser.requested if not url.startswith("data:")} == {address.split("/")[2]}
    assert browser.run("document.title") == "mbcal service"


@needs_browser
def test_every_part_of_a_score_has_a_column_and_a_colour(address: str, browser: Browser) -> None:
    browser.open(address)
    browser.wait("document.body.dataset.drawn")
    found = browser.run(
        "import('/page/charts.js').then(({ partsOf, partsNumbers, partsHead }) => {"
        " const parts = [{ instant: 1.5, future: -0.25, residual: 0.5, bonus: 2 }, { instant: 1, future: 1, bonus: 0 }];"
        " const { names, bars, scale, legend } = partsOf(parts), head = partsHead(names, scale, 'step');"
        " const all = (node, selector, get) => [...node.querySelectorAll(selector)].map(get);"
        " return { head: all(head, '.number', e => e.textContent), columns: head.style.getPropertyValue('--numbers'),"
        " numbers: partsNumbers(names, parts[0], 3.75).map(e => e.lastChild.data),"
        " bars: bars.map(bar => all(bar, 'i:not(.zero)', e => e.className)),"
        " legend: all(legend, 'i', e => e.className.split(' ')[1]) }; })"
    )
    assert found["head"] == ["instant", "future", "residual", "bonus", "score"]
    assert found["columns"] == "5"
    assert found["numbers"] == ["1.500", "−0.250", "+0.500", "+2.000", "3.750"]
    assert found["legend"] == ["instant", "future", "other", "third"]
    assert found["bars"] == [found["legend"], ["instant", "future", "third"]]


@needs_browser
def test_the_page_says_why_a_version_was_withdrawn(models: list[Path], tmp_path: Path, browser: Browser) -> None:
    registry = Registry(tmp_path / "registry")
    for path in models[:2]:
        registry.publish(path, activate=not registry.versions())
    registry.start_canary("v000002")
    registry.withdraw_canary(reason=f"earns less {HOSTILE}")
    with serving(registry) as (_, port):
        browser.open(f"http://127.0.0.1:{port}/")
        browser.wait("document.querySelector('#versions li') !== null")
        assert browser.texts("#versions li") == [f"v000002: earns less {HOSTILE}"]
        assert sum("(read below why it was withdrawn)" in row for row in browser.texts("#versions tr")) == 1


@needs_browser
def test_the_page_asks_for_a_token(models: list[Path], tmp_path: Path, browser: Browser) -> None:
    registry = Registry(tmp_path / "registry")
    registry.publish(models[0])
    token = "t" * 32
    (tmp_path / "token").write_text(token)
    with serving(registry, "--token-file", str(tmp_path / "token")) as (_, port):
        assert httpx.get(f"http://127.0.0.1:{port}/").status_code == 401
        browser.send_headers({"authorization": "Basic " + base64.b64encode(f":{token}".encode()).decode()})
        browser.open(f"http://127.0.0.1:{port}/")
        browser.wait("document.body.dataset.drawn")
        browser.send_headers({})  # the browser has forgotten it
        for text, heading in (("wrong", "This server requires a token"), (token, "This token is wrong")):
            browser.wait(f"document.querySelector('#token')?.innerText.includes({json.dumps(heading)})")
            entered = f"const f = document.querySelector('#token'); f.querySelector('input').value = {json.dumps(text)};"
            browser.run(f"{{ {entered} f.requestSubmit(); }}")
        drawn = browser.run("document.body.dataset.drawn")
        browser.wait(f"document.querySelector('#token') === null && document.body.dataset.drawn !== {json.dumps(drawn)}")
        assert browser.run("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]


def test_workers_answer_with_the_figures_of_all(models: list[Path], tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry")
    registry.publish(models[0])
    with serving(registry, "--workers", "2", "--epsilon", "0") as (_, port):
        address = f"http://127.0.0.1:{port}"
        for number in range(8):  # a connection each, so that both workers get some
            with Client(address) as client:
                decision = client.rank([], ITEMS, session=f"s{number}").decision
            with Client(address) as client:
                client.feedback(decision, "like" if number % 2 else "click")  # rewards 5 and 1
        deadline = time.monotonic() + 20
        while True:
            stats = httpx.get(f"{address}/v1/stats").json()
            version = stats["versions"].get("v000001", {})
            if (
                stats["workers"] == 2
                and (version.get("decisions"), version.get("feedback")) == (8, 8)
                and version["low"] is not None
                and not stats["elsewhere"]
            ):
                break
            assert time.monotonic() < deadline, stats
            time.sleep(0.2)
    assert (version["sessions"], version["feedback"], version["reward_per_session"]) == (8, 8, 3.0)
    assert version["low"] == pytest.approx(3 - 2.3646 * 2 * (1 / 7) ** 0.5, abs=0.01)  # t(7) and the standard error
    assert stats["recent"]["requests"] == 16


def test_pages_of_updates_are_served_by_name_only(address: str) -> None:
    with httpx.Client(base_url=address) as http:
        page = http.get("/updates/000003.html")
        assert (page.status_code, page.text) == (200, "<!doctype html><title>update 3</title>")
        for name in ("000001.html", "000004.html", "000003.json", "..%2Fcurrent.json", "%2e%2e/current.json", "", "3.html"):
            assert http.get(f"/updates/{name}").status_code == 404
        registry = http.get("/v1/registry").json()
        assert (registry["live"], registry["before"]) == ("v000002", ["v000001"])
        assert [update["number"] for update in registry["updates"]] == [3, 2, 1]
        assert "/registry" not in json.dumps(registry)  # no path of the server's machine


def test_the_page_has_no_inline_script_or_style(address: str) -> None:
    with httpx.Client(base_url=address) as http:
        page = http.get("/").text
        assert "style=" not in page
        assert "<style" not in page
        assert "<script>" not in page
        for name in ("base.css", "base.js", "charts.js", "page.css", "page.js", "rank.js"):
            text = http.get(f"/page/{name}")
            assert text.status_code == 200
            assert "innerHTML" not in text.text
            assert "http" not in text.text.replace("http://www.w3.org/2000/svg", "")
