"""`mbcal studio`: what it finds and says, what it refuses, and its pages in a real browser."""

from __future__ import annotations

import hashlib
import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import quote

import httpx
import psutil
import pytest

from mbcal.agents import load
from mbcal.data import Store
from mbcal.errors import InputError
from mbcal.studio.finder import find, resolve
from tests.studio.conftest import HOSTILE
from tests.support.browser import CHROMIUM, Browser

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")


@contextmanager
def studio(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `mbcal studio` in a process; yields it and its address with the token."""
    command = [sys.executable, "-m", "mbcal", "studio", str(folder), "--port", "0", "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with studio(folder) as running:
        yield running


@pytest.fixture(scope="module")
def http(running: tuple[subprocess.Popen[str], str]) -> Iterator[httpx.Client]:
    """A client that has visited the printed address."""
    _, address = running
    with httpx.Client(base_url=address.split("/?")[0], follow_redirects=True, timeout=60) as client:
        assert "mbcal studio" in client.get(address).text
        yield client


def test_what_is_found_and_what_is_damaged(folder: Path) -> None:
    findings = find(folder)
    assert findings.complete
    own = {found.path: found for found in findings.artifacts if found.run is None}
    kinds = {path: found.kind for path, found in own.items()}
    assert kinds == {
        "decisions": "decision log",
        "feed": "store",
        "live": "registry",
        **{f"models/{name}": "model" for name in ("flipped", "garbled", "linked", "mbcal", "missing")},  # not "outside"
        **{f"runs/{name}": "run" for name in ("elsewhere", "one", "two")},
    }
    problems = {path: found.problem for path, found in own.items() if found.problem}
    assert set(problems) == {"models/garbled", "models/linked", "models/missing"}
    assert problems["models/missing"] == "models/missing/items.parquet: missing from the model; fit the model again"
    assert "links are not followed" in (problems["models/linked"] or "")
    inside = {found.path for found in findings.artifacts if found.run == "runs/one"}
    assert inside == {"runs/one/data", "runs/one/models/batch/popular/seed-0", "runs/one/models/batch/random/seed-0"}
    files = Store.open(folder / "feed").manifest["files"]
    assert own["feed"].bytes == sum(entry["bytes"] for entry in files.values())
    assert own["live"].summary == "1 version, v000001 live"
    segment = folder / "decisions" / "segment-000001.log"
    assert own["decisions"].changed == segment.stat().st_mtime  # not when the folder was


def test_nothing_else_can_be_named(folder: Path) -> None:
    assert resolve(folder, "models/mbcal", "model") == folder / "models/mbcal"
    paths = (
        "..",
        "../x",
        "/etc",
        "models/outside",
        "models/linked",
        "models",
        "secret.txt",
        "models/../feed",
        ".",
        "\0",
        "",
        "a" * 5000,
        "a/" * 3000,
    )
    for path in paths:
        with pytest.raises(InputError):
            resolve(folder, path, "model")
    with pytest.raises(InputError, match=r"cannot be looked for \(File name too long\)") as refusal:
        resolve(folder, "a" * 5000, "model")
    assert str(folder) not in str(refusal.value)


def test_only_the_printed_address_opens_it(running: tuple[subprocess.Popen[str], str], http: httpx.Client) -> None:
    _, address = running
    base = address.split("/?")[0]
    assert httpx.get(f"{base}/api/list").status_code == 403
    assert httpx.get(f"{base}/?token=wrong").status_code == 403
    assert http.get("/api/list", headers={"host": "evil.example"}).status_code == 421
    assert http.post("/api/list").status_code == 405
    assert http.get("/api/nothing").status_code == 404
    many = "/api/store?" + "path=x&" * 60
    assert httpx.get(f"{base}{many}").status_code == 403
    assert http.get(many).status_code == 400
    page = http.get("/")
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]
    cookie = httpx.get(address).headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie


def test_who_has_no_token_cannot_fill_it(running: tuple[subprocess.Popen[str], str], http: httpx.Client) -> None:
    process, address = running
    port, server = httpx.URL(address).port, psutil.Process(process.pid)
    memory, files = server.memory_info().rss, server.num_fds()
    with ExitStack() as wires:
        for _ in range(150):
            wire = wires.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))
            wire.sendall(b"GET / HTTP/1.1\r\nx: ")
        assert http.get("/api/list").status_code == 200
        assert server.num_fds() - files <= 110
        endless = wires.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))
        with pytest.raises(OSError, match=r"reset|pipe"):
            endless.sendall(b"GET / HTTP/1.1\r\nx: " + b"a" * (25 << 20))
        assert server.memory_info().rss - memory < 20 << 20


def test_cookies_of_other_programs_do_not_matter(running: tuple[subprocess.Popen[str], str]) -> None:
    _, address = running
    ours, url = httpx.get(address).headers["set-cookie"].split(";")[0], f"{address.split('/?')[0]}/api/list"
    for other in ("a,b=1", "foo[bar]=1", "session", 'a="never closed', "path=/", "=", "", f"{ours[:9]}=1"):
        for cookies, status in ((f"{other}; {ours}", 200), (f"{ours};{other}", 200), (other, 403)):
            assert httpx.get(url, headers={"cookie": cookies}).status_code == status, cookies


def test_files_that_are_no_artifacts_are_not_read(http: httpx.Client) -> None:
    for route in ("report", "api/store", "api/model", "api/run", "api/registry", "update"):
        for path in ("secret.txt", "../../etc", "/etc/passwd", "models/outside", "%2e%2e"):
            answer = http.get(f"/{route}?path={path}&name=000001.html")
            assert answer.status_code in (404, 422), (route, path)
            assert "secret" not in answer.text.replace("secret.txt", "")
    assert http.get("/update?path=live&name=../current.json").status_code == 422
    report = http.get("/report?path=runs/one")
    assert report.text.startswith("<!doctype html><title>report")
    assert report.headers["content-security-policy"].startswith("sandbox allow-scripts")


def test_it_answers_without_torch_until_a_run_is_opened(folder: Path) -> None:
    with studio(folder) as (process, address), httpx.Client(follow_redirects=True, base_url=address.split("/?")[0]) as http:
        http.get(address)
        assert http.get("/api/list").status_code == 200
        assert (
            http.get("/api/store?path=feed").json()["sessions"] == Store.open(folder / "feed").manifest["counts"]["sessions"]
        )
        assert http.get("/api/model?path=models/mbcal").json()["agent"] == "mbcal"
        assert http.get("/api/registry?path=live").json()["live"] == "v000001"
        maps = Path(f"/proc/{process.pid}/maps")
        if maps.exists():
            assert "libtorch" not in maps.read_text()


def test_a_flipped_bit_is_named(http: httpx.Client) -> None:
    files = http.get("/api/model?path=models/flipped").json()["files"]
    problems = {file["name"]: file["problem"] for file in files if file["problem"]}
    assert problems == {"weights.safetensors": "weights.safetensors: damaged (hash mismatch); fit the model again"}
    why = http.get("/api/why?model=models/flipped&store=feed&part=test&session=0")
    assert why.status_code == 422
    assert "hash mismatch" in why.json()["error"]


def test_content_that_makes_no_sense_is_one_sentence(folder: Path, http: httpx.Client) -> None:
    """Manifests whose hashes are right, written by someone else."""
    odd = {"kind": "model", "schema": 1, "agent": "x", "config": {}, "mbcal": "0", "horizon": float("inf"), "history": 1}
    complete = {**odd, "behaviours": {}, "training": {"net": {"curve": []}}, "provenance": {}, "files": {}}
    for name, manifest in (
        ("odd", {**odd, "files": {}}),
        ("infinite", complete),
        ("climbing", {**complete, "files": {"../a": {}}}),
    ):
        path = folder / "models" / "odd" / name
        path.mkdir(parents=True)
        content = json.dumps(manifest, sort_keys=True, ensure_ascii=False).encode()
        text = json.dumps({**manifest, "content_hash": hashlib.sha256(content).hexdigest()})
        (path / "manifest.json").write_text(text)
    try:
        answer = http.get("/api/model?path=models/odd/odd")
        assert (answer.status_code, "KeyError" in answer.json()["error"]) == (422, True)
        assert http.get("/api/model?path=models/odd/infinite").json()["horizon"] is None
        assert http.get("/api/model?path=models/odd/climbing").status_code == 422
    finally:
        shutil.rmtree(folder / "models" / "odd")


def test_why_is_what_the_agent_ranks(folder: Path, http: httpx.Client) -> None:
    view = http.get("/api/why?model=models/mbcal&store=feed&part=test&session=2").json()
    sessions = Store.open(folder / "feed").sessions("test", 2, 3)
    names, behaviours = sessions.catalog.items, sessions.behaviour_set.names
    assert [step["item"] for step in view["steps"]] == [
        sessions.catalog.title_of(int(row)) for row in sessions.items[0, : sessions.length[0]]
    ]
    agent, step = load(folder / "models" / "mbcal", "cpu"), 3
    history = [
        (names[int(item) - 2], behaviours[int(behaviour)])
        for item, behaviour in zip(sessions.history.items[0], sessions.history.behaviours[0], strict=True)
    ][: int(sessions.history.length[0])]
    shown = [(names[int(sessions.items[0, k]) - 2], behaviours[int(sessions.behaviours[0, k])]) for k in range(step)]
    candidates = [one["item"] for one in view["steps"][step]["candidates"]]
    ranked = agent.rank(history, candidates, shown)
    assert [entry.item for entry in ranked] == candidates
    for entry, one in zip(ranked, view["steps"][step]["candidates"], strict=True):
        assert one["score"] == pytest.approx(entry.score, abs=1e-4)
        assert one["parts"] == pytest.approx(dict(entry.parts), abs=1e-4)
    assert http.get("/api/why?model=models/mbcal&store=feed&part=test&session=99999").status_code == 422


def test_runs_side_by_side(http: httpx.Client) -> None:
    view = http.get("/api/compare?path=runs/one&path=runs/two").json()
    assert view["clustered"]
    first, second = (run["results"] for run in view["runs"])
    assert first == second
    assert {result["agent"] for result in first} == {"oracle", "popular", "random", "the log"}
    assert all(result["low"] < result["mean"] < result["high"] for result in first)
    assert [row["difference"]["mean"] for row in view["differences"][0]["rows"]] == [0.0] * 3
    assert view["differences"][0]["problem"] is None
    assert [run["comparable"] for run in view["runs"]] == [["truth"], ["truth"]]
    apart = http.get("/api/compare?path=runs/one&path=runs/elsewhere").json()
    assert apart["differences"][0]["rows"] == []
    assert "outside of this folder" in apart["differences"][0]["problem"]
    assert apart["runs"][1]["comparable"] == []
    outside = http.get("/api/run?path=runs/elsewhere").json()
    assert not outside["clustered"]
    assert outside["headline"] is None  # it might need the data
    means = [result["mean"] for result in first if result["agent"] != "the log"]  # it is in the data
    assert [result["mean"] for result in outside["results"]] == pytest.approx(means)


def opened(browser: Browser, address: str, page: str, width: int = 1280) -> None:
    browser.open(f"{address}#{page}", width, 844)
    browser.wait(f"document.body.dataset.shown === {json.dumps('#' + page)}", 60)


@needs_browser
@pytest.mark.parametrize("width", [1280, 390])
def test_every_page_in_a_browser(running: tuple[subprocess.Popen[str], str], browser: Browser, width: int) -> None:
    _, address = running
    pages = {
        "/": "Decision logs",
        f"/store/{quote('feed', '')}": "Mean reward by step",
        f"/model/{quote('models/mbcal', '')}": "Every file was read and has the hash it should have.",
        f"/run/{quote('runs/one', '')}": "Reward per session: Batch-RL, judged by the truth",
        "/registry/live": HOSTILE,
        f"/{quote('decision log')}/decisions": "segment-000001.log",
        f"/compare?run={quote('runs/one', '')}&run={quote('runs/two', '')}": "two minus one, session by session",
        f"/model/{quote('models/flipped', '')}": "hash mismatch",
    }
    for page, text in pages.items():
        opened(browser, address, page, width)
        assert text in browser.run("document.body.innerText"), page
        assert browser.errors == []
        assert browser.run("document.documentElement.scrollWidth") <= width, page
        assert {url.split("/")[2] for url in browser.requested if not url.startswith("data:")} == {address.split("/")[2]}
    assert browser.run("document.title") == "mbcal studio"


@needs_browser
def test_the_list_leads_to_why_this_item(running: tuple[subprocess.Popen[str], str], browser: Browser) -> None:
    _, address = running
    opened(browser, address, "/")
    damaged = [text.split("\t") for text in browser.texts("main tr") if "damaged" in text]
    assert sorted(row[0] for row in damaged) == ["models/garbled", "models/linked", "models/missing"]
    browser.run("[...document.querySelectorAll('main a')].find(a => a.innerText === 'models/mbcal').click()")
    browser.wait("document.body.dataset.shown === '#/model/models%2Fmbcal'")
    browser.wait("document.querySelectorAll('.chart .line').length >= 2")  # the loss of two networks, drawn once laid out
    browser.run("[...document.querySelectorAll('main a')].find(a => a.innerText === 'Why this item?').click()")
    browser.wait("document.querySelectorAll('form.pick button').length")
    browser.run("document.querySelector('form.pick button').click()")
    browser.wait("document.querySelectorAll('.candidate').length > 2", 60)
    steps = browser.run("document.querySelectorAll('.steps button').length")
    browser.run("document.querySelectorAll('.steps button')[1].click()")
    assert browser.texts(".steps button[aria-pressed=true]")[0].startswith("step 2: ")
    rows = [text.split("\n") for text in browser.texts(".candidate")[1:]]
    scores = [float(row[-1].replace("−", "-")) for row in rows]
    assert scores == sorted(scores, reverse=True)
    for row in rows[:5]:
        instant, future, score = (float(value.replace("−", "-")) for value in row[-3:])
        assert instant + future == pytest.approx(score, abs=2e-3)
    assert sum("(shown)" in row[1] for row in rows) == 1
    assert steps == 20
    browser.wait("document.querySelectorAll('#step .chart circle').length === 18")  # the later steps


@needs_browser
def test_a_report_runs_in_a_sandbox(running: tuple[subprocess.Popen[str], str], browser: Browser) -> None:
    _, address = running
    opened(browser, address, "/")
    browser.open(f"{address.split('/?')[0]}/report?path=runs/one")
    assert browser.wait("document.title.startsWith('report ') && document.title") == "report null"  # an origin of its own


def test_a_wrong_folder_is_one_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mbcal", "studio", str(tmp_path / "none"), "--no-browser"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert done.stderr.strip() == f"mbcal: {tmp_path / 'none'}: no such folder; give the folder to look into"
