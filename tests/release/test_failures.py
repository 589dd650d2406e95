"""Errors of `loop` and of a canary's watcher that nobody foresaw, and verdicts that are written before they take effect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mbcal import load
from mbcal.cli import app
from mbcal.errors import InputError, OptionError, OutputError, described
from mbcal.registry.pointer import Pointer, write_pointer
from mbcal.registry.registry import Registry
from mbcal.release.canary import CanaryWatcher, watch_canary
from mbcal.release.failures import MOST_UNEXPECTED
from mbcal.release.gate import GateConfig, Verdict
from mbcal.release.update import loop, update
from tests.support.releases import GATE, PUBLISHING, let_the_log_say


def test_a_loop_goes_on_after_errors_of_any_kind() -> None:
    """The ninth update in a row that fails is followed by one that succeeds, and then all begins anew."""
    told: list[str] = []
    outcomes: list[Exception | None] = [MemoryError("no memory")] * (MOST_UNEXPECTED - 1)
    outcomes += [None, OSError(28, "No space left on device"), InputError("log: is away")]
    outcomes += [KeyError("bug")] * (MOST_UNEXPECTED - 1)
    left = iter(outcomes)

    def run_update() -> Verdict:
        if (error := next(left)) is not None:
            raise error
        return Verdict("v000001")

    loop(run_update, every=0, times=len(outcomes), on_error=lambda error: told.append(described(error)))
    assert len(told) == len(outcomes) - 1
    assert told[0].startswith("MemoryError: no memory (in test_failures.py, line ")
    assert told[MOST_UNEXPECTED] == "log: is away"


def test_an_error_that_nobody_can_be_told_ends_no_loop() -> None:
    """Standard error is on a full disk, when looks and updates fail most."""
    begun: list[int] = []

    def run_update() -> Verdict:
        begun.append(1)
        raise InputError("log: is away")

    def tell(error: Exception) -> None:
        raise OSError(28, "No space left on device") from error

    loop(run_update, every=0, times=3, on_error=tell)
    assert len(begun) == 3


@pytest.mark.parametrize(("error", "updates"), [(RuntimeError("CUDA error"), MOST_UNEXPECTED), (OptionError("epochs"), 1)])
def test_a_loop_ends_with_what_fails_every_time(error: Exception, updates: int) -> None:
    begun: list[int] = []

    def run_update() -> Verdict:
        begun.append(1)
        raise error

    with pytest.raises(type(error)):
        loop(run_update, every=0)
    assert len(begun) == updates


def test_what_fails_while_the_loop_waits_for_a_canary_does_not_end_it() -> None:
    waited: list[int] = []

    def wait_for_canary() -> None:
        waited.append(1)
        if len(waited) == 1:
            raise MemoryError

    loop(lambda: Verdict("v000001"), every=0, times=2, wait_for_canary=wait_for_canary)
    assert len(waited) == 2


def test_a_canary_is_watched_between_two_updates_and_the_output_may_be_closed() -> None:
    """With updates a day apart nobody else looks at it: servers that a loop watches for run with --no-watch."""
    steps: list[str] = []

    def closed(_: Verdict) -> None:
        raise BrokenPipeError

    def run_update() -> Verdict:
        steps.append("update")
        return Verdict("v000001")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mbcal.release.update.WATCH_SECONDS", 0.05)
        loop(
            run_update,
            every=0.2,
            times=2,
            wait_for_canary=lambda: steps.append("watch"),
            on_verdict=closed,
            on_error=lambda error: steps.append(str(error)),
        )
    assert steps[:3] == ["watch", "update", "watch"]
    assert steps.count("watch") >= 3  # before each of the two updates, and between them
    assert set(steps) == {"watch", "update"}


def test_a_watcher_looks_again_after_errors_of_any_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[str] = []

    def broken(_: CanaryWatcher) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(CanaryWatcher, "look", broken)
    watcher = CanaryWatcher(Registry(tmp_path), [tmp_path])
    with pytest.raises(ZeroDivisionError):
        watch_canary(watcher, 0, on_error=lambda error: errors.append(described(error)))
    assert len(errors) == MOST_UNEXPECTED
    assert errors[0].startswith("ZeroDivisionError: division by zero (in test_failures.py")


def test_the_loop_on_the_command_line_tells_an_unforeseen_error(
    weak: Registry, log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr("mbcal.release.update.update", broken)
    with pytest.raises(SystemExit) as left:
        app(["loop", "--registry", str(weak.path), "--log", str(log), "--times", "2", "--every", "1"])
    assert left.value.code in (0, None)
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2
    assert all(line.startswith("update failed: RuntimeError: CUDA out of memory (in ") for line in told)


@pytest.mark.parametrize("gate", [GATE, PUBLISHING], ids=["canary", "publish"])
@pytest.mark.parametrize("killed", [KeyboardInterrupt, OutputError], ids=["killed", "disk full"])
def test_the_verdict_is_written_before_its_version_is_live_or_tried(
    gate: GateConfig,
    killed: type[BaseException],
    weak: Registry,
    weak_model: Path,
    log: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """When the pointer is about to be replaced, page and JSON say what will be; if it is not, they say so."""
    let_the_log_say("no worse", monkeypatch)
    action, found = "published" if gate is PUBLISHING else "canary", []

    def end(folder: Path, pointer: Pointer) -> None:
        if folder != weak.path:  # the candidate as it would be published
            write_pointer(folder, pointer)
            return
        found.append(json.loads((weak.path / "updates" / "000001.json").read_text()))
        assert "v000002 is " in (weak.path / "updates" / "000001.html").read_text()
        raise killed("current.json: no space left")

    with monkeypatch.context() as patch:
        patch.setattr("mbcal.registry.registry.write_pointer", end)
        with pytest.raises(killed):
            update(weak, log, gate=gate, device="cpu", candidate=load(weak_model, "cpu"))
    assert (found[0]["action"], found[0]["version"]) == (action, "v000002")
    assert (weak.current(), weak.canary()) == ("v000001", None)
    if killed is OutputError:
        written = json.loads((weak.path / "updates" / "000001.json").read_text())
        assert (written["action"], written["version"]) == ("refused", None)
        assert written["reason"].endswith("; but v000002 is neither live nor the canary: current.json: no space left")
    verdict = update(weak, log, gate=gate, device="cpu", candidate=load(weak_model, "cpu"))
    unnoted = killed is OutputError  # that v000002 was taken back
    assert (verdict.action, verdict.version) == (action, "v000002" if unnoted else "v000003")
    assert verdict.page == weak.path / "updates" / "000002.html"
