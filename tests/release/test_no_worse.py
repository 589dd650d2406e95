"""A candidate that the log finds no worse: tried on users by default, live at once only if asked for."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mbcal import GateConfig, load
from mbcal.cli import app
from mbcal.errors import ConflictError, OutputError
from mbcal.registry.registry import Registry
from mbcal.release.canary import CanaryWatcher
from mbcal.release.gate import Verdict
from mbcal.release.update import update
from tests.support.releases import agent, let_the_log_say, served


@pytest.fixture
def arguments(weak: Registry, weak_model: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options of `mbcal update` whose candidate the log finds no worse."""
    let_the_log_say("no worse", monkeypatch)
    where = ["--registry", str(weak.path), "--log", str(log)]
    return [*where, "--candidate", str(weak_model), "--device", "cpu", "--min-sessions", "100"]


def run(*words: str) -> int:
    """Run a command; return its exit code."""
    with pytest.raises(SystemExit) as left:
        app([*words])
    return int(left.value.code or 0)


def test_by_default_it_is_the_canary(weak: Registry, weak_model: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    let_the_log_say("no worse", monkeypatch)
    assert GateConfig().no_worse == "canary"
    verdict = update(weak, log, device="cpu", candidate=load(weak_model, "cpu"), min_sessions=100)
    assert (verdict.answer, verdict.action, verdict.version) == ("no worse", "canary", "v000002")
    assert (weak.current(), weak.canary(), weak.previous_versions()) == ("v000001", "v000002", [])


def test_it_is_published_if_asked_for(arguments: list[str], weak: Registry, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("update", *arguments, "--if-no-worse", "publish") == 0
    assert (weak.current(), weak.canary(), weak.previous_versions()) == ("v000002", None, ["v000001"])
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1].startswith("v000002 is live instead of v000001: the log shows that it is no worse, unless it learned")


def test_the_command_says_what_to_do_next(
    arguments: list[str], weak: Registry, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("update", *arguments) == 0
    assert (weak.current(), weak.canary()) == ("v000001", "v000002")
    *_, outcome, automatic, by_hand = capsys.readouterr().out.splitlines()
    assert outcome.startswith("v000002 is the canary; v000001 stays live: the log shows that it is no worse, unless it")
    assert automatic == (
        "next: servers that run with --canary try it on users, and what these earn decides; if none does: "
        f"mbcal serve --registry {weak.path} --log {log} --canary 0.1"
    )
    activate = f"mbcal registry activate v000002 --registry {weak.path}"
    assert by_hand == f"or decide by hand: {activate}, or mbcal registry withdraw --registry {weak.path}"
    assert run(*shlex.split(activate)[1:]) == 0
    assert (weak.current(), weak.canary(), weak.pointer().withdrawn) == ("v000002", None, {})


def test_names_are_quoted_and_several_logs_have_one_watcher(
    weak: Registry, log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    more = tmp_path / "second log"
    served(weak, more, 5, seed=1)
    registry = weak.path.rename(tmp_path / "our registry")
    arguments[1:4] = [str(registry), "--log", str(log), "--log", str(more)]
    assert run("update", *arguments) == 0
    *_, automatic, by_hand = capsys.readouterr().out.splitlines()
    where = f"--registry '{registry}'"
    serve = f"mbcal serve {where} --log FOLDER --canary 0.1 --no-watch on every machine"
    assert automatic.endswith(f": {serve}, mbcal watch-canary {where} --log {log} --log '{more}' on one")
    assert by_hand.endswith(f" activate v000002 {where}, or mbcal registry withdraw {where}")


@pytest.mark.parametrize("times", [0, 1])
def test_an_endless_loop_watches_the_canary_itself(
    times: int, weak: Registry, log: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def once(_: Any, on_verdict: Callable[[Verdict], None], **__: Any) -> None:
        on_verdict(Verdict(live="v000001", answer="no worse", action="canary", version="v000002"))

    monkeypatch.setattr("mbcal.release.update.loop", once)
    where = arguments[:4]
    assert run("loop", *where, "--times", str(times)) == 0
    automatic = capsys.readouterr().out.splitlines()[-2]
    watched = f"mbcal serve --registry {weak.path} --log FOLDER --canary 0.1 --no-watch (this loop watches)"
    alone = f"mbcal serve --registry {weak.path} --log {log} --canary 0.1"
    assert automatic.endswith(f": {alone if times else watched}")


def test_a_refusal_whose_page_cannot_be_written_is_told(
    arguments: list[str], weak: Registry, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    let_the_log_say("worse", monkeypatch)
    (weak.path / "updates").write_text("not a folder")
    assert run("update", *arguments) == 3
    printed = capsys.readouterr()
    assert "page not written: " in printed.err
    assert "refused; v000001 stays live: the candidate is worse: log detail (no page)" in printed.out


@pytest.mark.parametrize("no_worse", ["canary", "publish"])
@pytest.mark.parametrize("full", [".html", ".json"])
def test_no_version_is_named_without_its_verdict(
    no_worse: str,
    full: str,
    arguments: list[str],
    weak: Registry,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As on a disk that fills up: the command fails, a loop tells it and goes on, and nothing of the update stays."""

    def write(path: Path, content: bytes) -> None:
        if path.suffix == full:
            raise OutputError(f"{path}: the disk is full")
        path.write_bytes(content)

    monkeypatch.setattr("mbcal.release.verdict_files.write_atomic", write)
    before = weak.pointer()
    with pytest.raises(OutputError, match="the disk is full"):
        app(["update", *arguments, "--if-no-worse", no_worse])
    monkeypatch.setattr("mbcal.release.update._learn", lambda *_: agent(30, epochs=1))
    where = [*arguments[:4], "--min-sessions", "100", "--device", "cpu"]
    assert run("loop", *where, "--if-no-worse", no_worse, "--times", "2", "--every", "1") == 0
    assert capsys.readouterr().err.count(f"000001{full}: the disk is full") == 2
    assert replace(weak.pointer(), newest=before.newest) == before  # the numbers of all three are not used again
    assert (weak.pointer().newest, weak.versions(), list((weak.path / "updates").iterdir())) == (4, ["v000001"], [])


@pytest.mark.parametrize("no_worse", ["canary", "publish"])
def test_a_canary_on_trial_stays_and_the_update_says_how_it_ends(
    no_worse: str, arguments: list[str], weak: Registry, log: Path, tmp_path: Path
) -> None:
    assert run("update", *arguments) == 0
    began, where = weak.pointer(), f"--registry {weak.path}"
    by_hand = f"; by hand: 'mbcal registry activate v000002 {where}' or 'mbcal registry withdraw {where}'"
    trial = f"{weak.path}: v000002 is the canary, and its trial goes on; update when it is promoted or withdrawn"
    unseen = "; nothing has looked at its sessions yet: start 'mbcal serve' with --canary 0.1"
    for hint in (unseen, ""):
        with pytest.raises(ConflictError, match=f"^{re.escape(trial + hint + by_hand)}$"):
            update(weak, log, device="cpu", no_worse=no_worse)
        assert (weak.pointer(), weak.versions()) == (began, ["v000001", "v000002"])
        CanaryWatcher(weak, [tmp_path / "none yet"]).look()
    look = json.loads((weak.path / "canaries" / "v000002.json").read_text())
    assert look["reason"].startswith("no finished sessions of both versions yet: a session is finished --lifetime")
