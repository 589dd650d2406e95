"""The trial of a canary by its log: promoted, withdrawn, or kept; and what `mbcal compare-versions` says."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from mbcal.cli import app
from mbcal.decision_log import Decision, Feedback, Record
from mbcal.errors import LogError, OptionError
from mbcal.registry.registry import Registry
from mbcal.release.canary import CanaryWatcher, Look, watch_canary
from mbcal.release.gate import Verdict
from mbcal.release.judge import UNSERVED, CanaryConfig, judge_canary
from mbcal.release.outcomes import SessionRule
from mbcal.release.update import loop
from mbcal.serving.stats import registry_answer
from tests.support.trials import SECOND, session_records, trial_records, write_quickly
from tests.support.versions import fitted

LIVE, CANARY = "v000001", "v000002"
BETTER, WORSE, EQUAL = (0.7, 0.5), (0.3, 0.5), (0.5, 0.5)
CONFIG = CanaryConfig(promote_after=50, min_seconds=0, sessions=SessionRule(idle=10, longest=60))
REWARDS = {"skip": 0.0, "click": 1.0, "like": 4.0}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    registry = Registry(tmp_path_factory.mktemp("published") / "registry")
    for seed in range(3):
        registry.publish(fitted("popular", seed), activate=seed == 0)
    return registry.path


@pytest.fixture
def registry(published: Path, tmp_path: Path) -> Registry:
    """Version 1 live, version 2 the canary; versions are shared by the tests."""
    (tmp_path / "registry").mkdir()
    (tmp_path / "registry/versions").symlink_to(published / "versions")
    registry = Registry(tmp_path / "registry")
    registry.activate(LIVE)
    registry.start_canary(CANARY)
    return registry


def log_of(folder: Path, registry: Registry, sessions: int, likes: tuple[float, float], seed: int = 0) -> Path:
    began = registry.pointer().canary_began
    write_quickly(folder / "log", trial_records(sessions, canary=CANARY, live=LIVE, likes=likes, began=began, seed=seed))
    return folder / "log"


def watcher_at(registry: Registry, log: Path, seconds: float, config: CanaryConfig = CONFIG) -> CanaryWatcher:
    """A watcher whose clock stands this many seconds after the beginning of the trial."""
    return CanaryWatcher(registry, [log], config, lambda: registry.pointer().canary_began / 1e6 + seconds)


def _renamed(record: Record, prefix: str) -> Record:
    """The record with other names of decisions and sessions."""
    names = ("id", "session") if isinstance(record, Decision) else ("id", "decision")
    return msgspec.structs.replace(record, **{name: prefix + getattr(record, name) for name in names})


def look_twice(watcher: CanaryWatcher) -> Look:
    """The second look; the first ends no trial by time."""
    first, second = watcher.look(), watcher.look()
    assert first is not None
    assert second is not None
    assert first.action == "wait"
    return second


def test_a_better_canary_is_promoted(registry: Registry, tmp_path: Path) -> None:
    log = log_of(tmp_path, registry, 600, BETTER)
    look = watcher_at(registry, log, 1000).look()
    assert look is not None
    assert (look.action, look.canary, look.live) == ("promote", CANARY, LIVE)
    assert (registry.current(), registry.canary()) == (CANARY, None)
    assert look.reason.startswith("earns more: +")
    record = json.loads((registry.path / "canaries" / f"{CANARY}.json").read_text())
    assert record["action"] == "promote"
    assert record["comparison"]["a"]["sessions"] + record["comparison"]["b"]["sessions"] > 550
    assert watcher_at(registry, log, 1000).look() is None


def test_nothing_is_promoted_where_the_log_has_lost_records(registry: Registry, tmp_path: Path) -> None:
    log = log_of(tmp_path, registry, 600, BETTER)
    (segment,) = log.glob("segment-*.log")
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 255
    segment.write_bytes(content)
    look = watcher_at(registry, log, 1000).look()
    assert look is not None
    assert (look.action, look.ignored.lost) == ("wait", 1)
    assert "1 records of its trial are lost" in look.reason


def test_a_watcher_that_is_started_again_decides_nothing_while_a_log_that_was_read_is_gone(
    registry: Registry, tmp_path: Path
) -> None:
    log = log_of(tmp_path, registry, 600, BETTER)
    config = replace(CONFIG, promote_after=10_000)
    assert watcher_at(registry, log, 1000, config).look().action == "wait"  # type: ignore[union-attr]
    log.rename(tmp_path / "away")
    with pytest.raises(LogError, match="log: the log was there and is gone"):
        watcher_at(registry, log, 1000, config).look()
    registry.withdraw_canary()
    registry.start_canary(CANARY)  # another trial
    assert watcher_at(registry, log, 1000, config).look().reason == UNSERVED  # type: ignore[union-attr]


def test_a_canary_serves_three_days_before_it_is_promoted(registry: Registry, tmp_path: Path) -> None:
    """By default. The days count from its first session, not from when it became the canary: no server knew it before."""
    day, began = 86400, registry.pointer().canary_began
    for part in range(3):
        start = began + (2 + part) * day * SECOND
        records = trial_records(400, canary=CANARY, live=LIVE, likes=BETTER, began=start, seed=part)
        write_quickly(tmp_path / "log" / f"worker-{part}", records)
    config = replace(CONFIG, min_seconds=CanaryConfig().min_seconds)
    early = look_twice(watcher_at(registry, tmp_path / "log", 4.5 * day, config))
    assert (early.action, registry.canary()) == ("wait", CANARY)
    assert "; better so far; promoted after 12.0 hours more of usual traffic, " in early.reason
    late = watcher_at(registry, tmp_path / "log", 5.1 * day, config)
    first = late.look()  # the clock may be wrong
    assert first is not None
    assert (first.action, "; better so far; promoted after " in first.reason) == ("wait", True)
    assert late.look().action == "promote"  # type: ignore[union-attr]


def test_a_promotion_waits_again_after_the_share_was_changed(registry: Registry, tmp_path: Path) -> None:
    """The share is raised from 30% to 50% after two days; what sessions earned before still counts."""
    day, began = 86400, registry.pointer().canary_began
    for part, (days, share) in enumerate(((0, 0.3), (2, 0.5))):
        log, start = tmp_path / "log" / f"worker-{part}", began + days * day * SECOND
        records = trial_records(600, canary=CANARY, live=LIVE, likes=BETTER, share=share, began=start)
        write_quickly(log, [_renamed(record, f"{part}-") for record in records])
    config = replace(CONFIG, min_seconds=day)
    early = look_twice(watcher_at(registry, tmp_path / "log", 2.5 * day, config))
    assert early.action == "wait"
    assert (
        "promoted after 12.0 hours more of usual traffic, since users met both versions as the share was changed"
        in early.reason
    )
    assert look_twice(watcher_at(registry, tmp_path / "log", 3.1 * day, config)).action == "promote"


def test_purchases_hours_after_the_visit_keep_a_worse_canary_from_being_promoted(registry: Registry, tmp_path: Path) -> None:
    """The canary has more clicks and none of the late purchases; within the first hours only the clicks are seen."""
    began, noise, hour = registry.pointer().canary_began, np.random.default_rng(0), 3600
    records: list[Record] = []
    late: list[Record] = []
    for number in range(1000):
        version, start = (LIVE, CANARY)[number % 2], began + number * SECOND
        clicks = ["like" if noise.random() < (0.7 if version == CANARY else 0.5) else "skip" for _ in range(2)]
        records += session_records(f"s{number}", version, clicks, user=f"u{number % 200}", began=start)
        if version == LIVE and number % 10 == 0:
            late.append(Feedback(f"s{number}-1", "b", "like", start + 3 * hour * SECOND, f"bought-{number}"))
    both = {"items": ["a", "b"], "propensities": [0.95, 1.0]}
    records = [msgspec.structs.replace(record, **both) if isinstance(record, Decision) else record for record in records]
    clock = [began / 1e6]
    config = replace(CONFIG, min_seconds=24 * hour)
    watcher = CanaryWatcher(registry, [tmp_path / "log"], config, lambda: clock[0], lambda: clock[0])
    seen = []
    for hours, part in ((1, records), (29, late)):
        clock[0] += hours * hour
        write_quickly(tmp_path / "log" / f"worker-{hours}", part)
        look = watcher.look()
        assert look is not None
        seen.append((look.action, "better so far" in look.reason, look.ignored.total().late))
    assert seen == [("wait", True, 0), ("wait", False, 100)]
    assert registry.current() == LIVE


def test_a_worse_canary_is_withdrawn_with_few_sessions(registry: Registry, tmp_path: Path) -> None:
    log = log_of(tmp_path, registry, 600, WORSE)
    clock = [registry.pointer().canary_began / 1e6]
    watcher = CanaryWatcher(registry, [log], CONFIG, lambda: clock[0])
    looks = []

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    watch_canary(watcher, 5, until=lambda: registry.canary() is None, on_look=looks.append, sleep=sleep)
    assert (registry.current(), registry.canary()) == (LIVE, None)
    assert [look.action for look in looks[:-1]] == ["wait"] * (len(looks) - 1)
    assert looks[-1].action == "withdraw"
    lost = looks[-1].comparison
    assert lost is not None
    assert 20 <= lost.a.sessions <= 120
    assert registry.pointer().withdrawn[CANARY].startswith("earns less: -")


def test_equal_versions_are_withdrawn_at_the_end_by_default(registry: Registry, tmp_path: Path) -> None:
    log, day = log_of(tmp_path, registry, 300, EQUAL, seed=3), 86400
    config = replace(CONFIG, max_seconds=2 * day)
    assert watcher_at(registry, log, day, config).look().action == "wait"  # type: ignore[union-attr]
    waiting = look_twice(watcher_at(registry, log, 3 * day, replace(config, undecided="wait")))
    assert waiting.action == "wait"
    assert waiting.reason.startswith("undecided after 3.0 days: ")
    assert registry.canary() == CANARY
    assert look_twice(watcher_at(registry, log, 3 * day, config)).action == "withdraw"
    registry.start_canary(CANARY)
    began = registry.pointer().canary_began - 10**9
    write_quickly(tmp_path / "before", trial_records(300, canary=CANARY, live=LIVE, likes=BETTER, began=began))
    unserved = look_twice(watcher_at(registry, tmp_path / "before", 3 * day, replace(config, undecided="promote")))
    assert (unserved.action, unserved.comparison) == ("wait", None)  # its log is that of a trial before
    assert (registry.current(), registry.canary()) == (LIVE, CANARY)


def test_the_page_shows_no_verdict_of_an_earlier_trial(registry: Registry, tmp_path: Path) -> None:
    watcher_at(registry, log_of(tmp_path, registry, 200, EQUAL), 1000).look()
    trial = registry_answer(registry).trial
    assert trial is not None
    assert trial["began"] == registry.pointer().canary_began
    registry.withdraw_canary()
    registry.start_canary(CANARY)
    assert registry_answer(registry).trial is None


def test_equal_versions_are_promoted_at_the_end_if_told_to(registry: Registry, tmp_path: Path) -> None:
    log, day = log_of(tmp_path, registry, 600, EQUAL, seed=3), 86400
    config = replace(CONFIG, max_seconds=2 * day, undecided="promote", user_loss=0.5)
    unsure = look_twice(watcher_at(registry, log, 3 * day, replace(config, user_loss=0.1)))
    assert unsure.action == "wait"
    assert "not promoted, since its users could earn 16% less in all their sessions" in unsure.reason
    few = look_twice(watcher_at(registry, log, 3 * day, replace(config, promote_after=100_000)))
    assert few.action == "wait"
    look = look_twice(watcher_at(registry, log, 3 * day, config))
    assert (look.action, registry.current()) == ("promote", CANARY)
    assert look.comparison is not None
    shorter = replace(look.comparison, length=replace(look.comparison.length, anytime_high=-0.1))
    action, reason = judge_canary(shorter, config, 3 * day)
    assert action == "wait"
    assert reason.endswith("; its sessions are shorter, so a person has to decide")


def test_a_trial_begun_anew_during_a_look_is_not_ended_by_it(registry: Registry, tmp_path: Path) -> None:
    log, began = log_of(tmp_path, registry, 600, WORSE), registry.pointer().canary_began

    def clock() -> float:
        if registry.pointer().canary_began == began:  # after the watcher has read the pointer
            registry.withdraw_canary()
            registry.start_canary(CANARY)
        return began / 1e6 + 1000

    look = CanaryWatcher(registry, [log], CONFIG, clock).look()
    assert look is not None
    assert (look.action, look.reason) == (
        "wait",
        f"{registry.path}: {CANARY} became the canary in the meantime; its trial goes on",
    )
    assert registry.canary() == CANARY


def test_an_operator_wins(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of(tmp_path, registry, 600, BETTER)
    watcher = watcher_at(registry, log, 1000)
    monkeypatch.setattr(
        watcher, "_compare", lambda *a: (registry.activate("v000003"), CanaryWatcher._compare(watcher, *a))[1]
    )
    clock = registry.pointer().canary_began / 1e6 + 1000
    monkeypatch.setattr(watcher, "_clock", lambda: clock)
    look = watcher.look()
    assert look is not None
    assert look.action == "wait"
    assert "v000003 is live instead of v000001" in look.reason
    assert registry.current() == "v000003"


def test_a_watcher_that_comes_too_late_leaves_what_was_written(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_of(tmp_path, registry, 600, BETTER)
    clock = registry.pointer().canary_began / 1e6 + 1000
    first, second = (CanaryWatcher(registry, [log], CONFIG, lambda: clock) for _ in range(2))
    monkeypatch.setattr(second, "_compare", lambda *a: (first.look(), CanaryWatcher._compare(second, *a))[1])
    late = second.look()
    assert late is not None
    assert late.action == "wait"
    written = json.loads((registry.path / "canaries" / f"{CANARY}.json").read_text())
    assert (written["action"], registry.current()) == ("promote", CANARY)


def test_errors_of_a_look_are_told_and_it_is_repeated(registry: Registry, tmp_path: Path) -> None:
    (registry.path / "current.json").write_text("{")
    errors: list[str] = []
    watch_canary(
        CanaryWatcher(registry, [tmp_path]),
        1,
        until=lambda: len(errors) == 2,
        on_error=lambda error: errors.append(str(error)),
        sleep=lambda _: None,
    )
    assert all("current.json: damaged" in error for error in errors)


def test_a_watcher_counts_sessions_of_several_workers_and_copies_once(registry: Registry, tmp_path: Path) -> None:
    """The canary's second steps earn nothing. Without them it would look better: they are in a log that is read first."""
    began, noise = registry.pointer().canary_began, np.random.default_rng(0)
    parts: list[list[Record]] = [[], []]
    for number in range(600):
        version = (LIVE, CANARY)[number % 2]
        steps = [["skip", "like"][int(noise.random() < p)] for p in ((0.5, 0.5) if version == LIVE else (0.7, 0.1))]
        records = session_records(f"s{number}", version, steps, user=f"u{number % 50}", began=began + number * SECOND)
        for record in records:
            parts["-0" in (record.id if isinstance(record, Decision) else record.decision)[-2:]].append(record)
    for worker, part in enumerate(parts):
        write_quickly(tmp_path / "log" / f"worker-{worker}", part)
    watcher = watcher_at(registry, tmp_path / "log", 1000, replace(CONFIG, withdraw_alpha=1e-6))
    look = watcher.look()
    assert look is not None
    assert look.comparison is not None
    assert look.comparison.a.length.mean == look.comparison.b.length.mean == 2.0
    assert look.comparison.reward.value < -0.4
    assert look.action == "wait"
    shutil.copytree(tmp_path / "log/worker-0", tmp_path / "log/worker-2")
    shutil.copytree(tmp_path / "log/worker-1", tmp_path / "log/worker-3")
    again = watcher.look()
    assert again is not None
    assert again.comparison == look.comparison
    assert again.ignored.repeated == 1200
    written = json.loads((registry.path / "canaries" / f"{CANARY}.json").read_text())
    assert written["ignored"] == {
        "repeated": 1200,
        "not_shown": 0,
        "dropped": 0,
        "lost": 0,
        "partial_visits": {},
    }


def test_a_trial_ends_though_the_clock_was_set_back(registry: Registry, tmp_path: Path) -> None:
    began, elapsed, clock = registry.pointer().canary_began / 1e6, [0.0], [0.0]
    watcher = CanaryWatcher(registry, [tmp_path], CONFIG, lambda: began + clock[0], lambda: elapsed[0])
    clock[0] = 86400.0
    for _ in range(2):  # one look may be by a wrong clock
        assert watcher.look().action == "wait"  # type: ignore[union-attr]
    clock[0], elapsed[0] = -(10**9), 5 * 86400.0
    assert watcher.look().action == "wait"  # type: ignore[union-attr]
    elapsed[0] = 7 * 86400.0
    look = watcher.look()
    assert look is not None
    assert (look.action, look.reason[:24]) == ("withdraw", "undecided after 8.0 days")


def test_a_clock_that_jumps_ahead_for_one_look_ends_nothing(registry: Registry, tmp_path: Path) -> None:
    began, elapsed, jump = registry.pointer().canary_began, [100.0], [0.0]
    write_quickly(tmp_path / "log", session_records("s", LIVE, ["like", "like"], began=began + 95 * SECOND))
    clock = lambda: began / 1e6 + elapsed[0] + jump[0]  # noqa: E731
    watcher = CanaryWatcher(registry, [tmp_path / "log"], CONFIG, clock, lambda: elapsed[0])
    seen = []
    for elapsed[0], jump[0] in ((100.0, 0.0), (110.0, 8 * 86400.0), (111.0, 0.0), (112.0, 8 * 86400.0)):
        look = watcher.look()
        assert look is not None
        seen.append((look.action, (look.time - began) // SECOND, len(watcher._outcomes._decisions)))
    assert seen == [("wait", seconds, 2) for seconds in (100, 110, 111, 112)]  # the session may still go on
    elapsed[0] = 113.0  # still ahead: the clock was wrong before
    look = watcher.look()
    assert look is not None
    assert (look.action, look.reason[:24]) == ("withdraw", "undecided after 8.0 days")


def test_a_clock_that_is_ahead_at_the_first_look_ends_nothing(registry: Registry, tmp_path: Path) -> None:
    began, elapsed, jump, day = registry.pointer().canary_began / 1e6, [60.0], [0.0], 86400.0
    clock, stopwatch = lambda: began + elapsed[0] + jump[0], lambda: elapsed[0]
    for second, ended in ((0.0, False), (8 * day, True)):  # right at the second look, or still ahead: then it was set
        watcher = CanaryWatcher(registry, [tmp_path], CONFIG, clock, stopwatch)
        seen = []
        for elapsed[0], jump[0] in ((60.0, 8 * day), (70.0, second), (80.0, second)):
            if registry.canary() is not None:
                seen.append(watcher.look().action)  # type: ignore[union-attr]
        assert seen == (["wait", "withdraw"] if ended else ["wait"] * 3)
    registry.start_canary(CANARY)
    began = registry.pointer().canary_began / 1e6
    watcher = CanaryWatcher(registry, [tmp_path], CONFIG, clock, stopwatch)
    for elapsed[0], jump[0] in ((60.0, 8 * day), (70.0, -(10.0**9)), (6.9 * day, -(10.0**9))):
        assert watcher.look().action == "wait"  # type: ignore[union-attr]
    elapsed[0] = 7 * day + 61  # the watcher itself has seen seven days pass
    assert watcher.look().reason.startswith("undecided after 7.0 days")  # type: ignore[union-attr]


def test_the_command_compares_two_versions(registry: Registry, tmp_path: Path) -> None:
    began = int((time.time() - 90_000) * 1e6)
    for number in range(2):
        records = trial_records(400, canary=CANARY, live=LIVE, likes=BETTER, began=began, seed=number)
        write_quickly(tmp_path / str(number) / f"worker-{number}", records)
    options = [
        "compare-versions",
        "--registry",
        str(registry.path),
        "--log",
        str(tmp_path / "0"),
        "--log",
        str(tmp_path / "1"),
        "--idle",
        "10",
    ]
    done = CliRunner().invoke(app, options)
    assert done.exit_code == 0, done.output
    assert f"{CANARY} earns more than {LIVE}: +" in done.stdout
    assert "95% anytime-valid" in done.stdout
    assert "sessions of a user  " in done.stdout
    values = json.loads(CliRunner().invoke(app, [*options, CANARY, LIVE, "--json", "--difference", "0.1"]).stdout)
    assert values["a"]["version"] == CANARY
    assert 780 <= values["a"]["sessions"] + values["b"]["sessions"] <= 800
    assert values["answer"] == "more"
    assert 0 < values["reward"]["anytime_low"] < values["reward"]["ci_low"] < values["reward"]["value"]
    assert values["for_difference"] == 0.1
    assert isinstance(CliRunner().invoke(app, [*options, CANARY]).exception, OptionError)
    assert done.stderr == ""
    segment = tmp_path / "1" / "worker-1" / "segment-000001.log"
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 255
    segment.write_bytes(content)
    damaged = CliRunner().invoke(app, options)
    assert damaged.exit_code == 0, damaged.output
    assert damaged.stderr.startswith(f"the log has lost records: {segment}: damaged at byte ")


def test_the_command_says_what_speaks_against_a_version_that_earns_more(registry: Registry, tmp_path: Path) -> None:
    records = trial_records(800, canary=CANARY, live=LIVE, likes=BETTER, began=int((time.time() - 90_000) * 1e6))
    explored = [
        msgspec.structs.replace(record, epsilon=0.3) if isinstance(record, Decision) and record.version == LIVE else record
        for record in records
    ]
    write_quickly(tmp_path / "log", explored)
    options = ["compare-versions", "--registry", str(registry.path), "--log", str(tmp_path / "log"), "--idle", "10"]
    assert CliRunner().invoke(app, options).stdout.endswith(f"; but it explored less than {LIVE}\n")
    assert json.loads(CliRunner().invoke(app, [*options, "--json"]).stdout)["losses"] == [f"it explored less than {LIVE}"]


def test_the_loop_learns_nothing_while_a_canary_runs(registry: Registry, tmp_path: Path) -> None:
    log = log_of(tmp_path, registry, 600, BETTER)
    clock = registry.pointer().canary_began / 1e6 + 1000
    watcher = CanaryWatcher(registry, [log], CONFIG, lambda: clock)
    seen: list[tuple[str | None, str | None]] = []

    def run_update() -> Verdict:
        seen.append((registry.current(), registry.canary()))
        return Verdict(CANARY)

    def wait_for_canary() -> None:
        watch_canary(watcher, 0, until=lambda: registry.canary() is None)

    loop(run_update, every=0, times=2, wait_for_canary=wait_for_canary)
    assert seen == [(CANARY, None)] * 2  # promoted before the first update
    helped = CliRunner().invoke(app, ["loop", "--help"]).stdout
    assert all(
        option in helped
        for option in (
            "--promote-after",
            "--withdraw-below",
            "--canary-max-days",
            "--canary-min-days",
            "--user-loss",
            "--undecided",
        )
    )
