"""The trial of a canary: a share of users gets it, and the rewards decide whether it is promoted or withdrawn.

Where requests name no user, it is a share of sessions.

::

    decision logs ──▶ sessions as they finish ──▶ canary against live version, at every look ──▶ promoted, withdrawn, or wait

A watcher may look as often as it likes and be restarted at any time: it reads the log again from the beginning of the trial,
and the limits hold at all looks together. Several watchers do no harm if they read the same logs. No torch.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mbcal.decision_log.follow import LogFollower
from mbcal.decision_log.reader import merge_by_time
from mbcal.errors import ConflictError, ModelError
from mbcal.registry.pointer import Pointer
from mbcal.registry.registry import Registry
from mbcal.registry.updates import CANARIES, read_trial
from mbcal.release.comparison import VersionComparison, compare_versions
from mbcal.release.failures import Failures
from mbcal.release.ignored import Ignored
from mbcal.release.judge import Action, CanaryConfig, judge_canary
from mbcal.release.outcomes import OutcomeReader
from mbcal.storage.atomic import write_atomic

MOST_AHEAD = 60.0
"""Seconds that a clock may gain on the stopwatch between two looks; one that gains more is believed at the next look."""


@dataclass(frozen=True)
class Look:
    """One look at a canary."""

    canary: str
    live: str
    began: int
    """When the trial began, in microseconds since 1970."""
    time: int
    """When the look was, likewise."""
    action: Action
    """What was done. A decision that came too late, after an operator's, is `wait`."""
    reason: str
    comparison: VersionComparison | None
    """None while one of the versions has no finished session."""
    ignored: Ignored
    """Records of the trial that did not count."""
    ends: int
    """When the trial ends at the latest, in microseconds since 1970."""
    logs: dict[str, dict[str, int]]
    """By log, the folders in which records were read, and the number of the first: a watcher that is started again misses
    those that are gone."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        compared = None if self.comparison is None else self.comparison.as_dict()
        return {**vars(self), "comparison": compared, "ignored": asdict(self.ignored)}


def running_trial_problem(registry: Registry, pointer: Pointer) -> str:
    """Say which trial an update would disturb, whether anything decides about it, and what to do.

    Args:
        registry: The registry.
        pointer: Its pointer, which has a canary.
    """
    is_watched = read_trial(registry.path, str(pointer.canary), pointer.canary_began) is not None
    where = f"--registry {shlex.quote(str(registry.path))}"
    unwatched = "" if is_watched else "; nothing has looked at its sessions yet: start 'mbcal serve' with --canary 0.1"
    return (
        f"{pointer.canary} is the canary, and its trial goes on; update when it is promoted or withdrawn{unwatched}; "
        f"by hand: 'mbcal registry activate {pointer.canary} {where}' or 'mbcal registry withdraw {where}'"
    )


class CanaryWatcher:
    """Looks at the canary of a registry and promotes or withdraws it.

    Args:
        registry: The registry.
        logs: The decision logs of all servers that give the canary sessions.
        config: The limits.
        clock: Seconds since 1970.
        stopwatch: Seconds since any time. A trial ends by it if the clock was set back; it shows if the clock jumps ahead.
    """

    def __init__(
        self,
        registry: Registry,
        logs: Sequence[str | Path],
        config: CanaryConfig | None = None,
        clock: Callable[[], float] = time.time,
        stopwatch: Callable[[], float] = time.monotonic,
    ) -> None:
        self.registry, self._logs, self._config, self._clock = registry, logs, config or CanaryConfig(), clock
        self._stopwatch = stopwatch
        self._trial: tuple[str, str, int] | None = None  # canary, live version, beginning
        self._began = 0.0  # when the trial began, by the stopwatch
        self._first: float | None = None  # time of the first look by the stopwatch, until the second
        self._ahead: float | None = None  # by how much the clock was ahead of the stopwatch at the last look
        self._outcomes: OutcomeReader
        self._followers: dict[str, LogFollower] = {}

    def look(self) -> Look | None:
        """Read what was logged since the last look, compare, and act.

        Returns:
            What was found and done; None if there is no canary.

        Raises:
            LogError: If a log cannot be read.
            ModelError: If the registry or the live version is damaged.
            OutputError: If the registry cannot be written.
        """
        pointer = self.registry.pointer()
        if pointer.canary is None or pointer.current is None:
            self._trial = None
            return None
        trial = (pointer.canary, pointer.current, pointer.canary_began)
        now = self._now()
        if is_first := trial != self._trial:
            self._begin(*trial, now)
        elif self._first is not None:
            self._check_beginning(pointer.canary_began, now, self._first)
        comparison = self._compare(pointer.canary, pointer.current, now)
        ignored = deepcopy(self._outcomes.ignored)
        elapsed = max((now - pointer.canary_began) / 1e6, self._stopwatch() - self._began)
        if is_first:  # by a clock that may be wrong
            elapsed = min(elapsed, self._config.max_seconds)
        served = elapsed
        if comparison is not None:
            served -= (comparison.assignment_fixed_since - pointer.canary_began) / 1e6
            if is_first:
                served = min(served, (comparison.last - comparison.assignment_fixed_since) / 1e6)
        action, reason = judge_canary(comparison, self._config, elapsed, ignored, served)
        ends = now + int(max(self._config.max_seconds - elapsed, 0.0) * 1e6)
        logs = {log: follower.folders for log, follower in self._followers.items()}
        look = Look(
            pointer.canary, pointer.current, pointer.canary_began, now, action, reason, comparison, ignored, ends, logs
        )
        look = self._act(look, pointer)
        if look.action == "wait" and self.registry.canary() != look.canary:
            return look  # another watcher or an operator ended the trial; what was written then stays
        content = json.dumps(look.as_dict(), indent=2, allow_nan=False) + "\n"
        write_atomic(self.registry.path / CANARIES / f"{look.canary}.json", content.encode())
        return look

    def _now(self) -> int:
        """The time in microseconds since 1970. A clock that jumps ahead counts only if it is still ahead at the next look.

        Else one wrong reading would end trials, and finish sessions that go on.
        """
        stopwatch = self._stopwatch()
        before, ahead = self._ahead, self._clock() - stopwatch
        self._ahead = ahead
        if before is not None and ahead > before + MOST_AHEAD:
            ahead = before
        return int((stopwatch + ahead) * 1e6)

    def _begin(self, canary: str, live: str, began: int, now: int) -> None:
        self._outcomes = OutcomeReader.of_version(self.registry.open(live), self._config.sessions, began)
        before = int(self._config.sessions.longest * 1e6)  # sessions that were going on when the trial began
        known = (read_trial(self.registry.path, canary, began) or {}).get("logs", {})  # of a watcher before this one
        self._followers = {str(log): LogFollower(log, began - before, known.get(str(log))) for log in self._logs}
        self._trial = (canary, live, began)
        self._first = self._stopwatch()
        self._began = self._first - max(now - began, 0) / 1e6

    def _check_beginning(self, began: int, now: int, first: float) -> None:
        """Correct when the trial began, if at the second look the clock is behind: it may have been ahead at the first.

        What passed by the stopwatch since the first look did pass.
        """
        by_clock = self._stopwatch() - max(now - began, 0) / 1e6
        self._began, self._first = max(self._began, min(by_clock, first)), None

    def _compare(self, canary: str, live: str, now: int) -> VersionComparison | None:
        for record in merge_by_time(follower.read() for follower in self._followers.values()):
            self._outcomes.add(record)
        self._outcomes.ignored.lost = sum(follower.lost for follower in self._followers.values())
        outcomes = self._outcomes.outcomes(now - int(self._config.sessions.logging_delay * 1e6))
        if canary not in outcomes.versions or live not in outcomes.versions:
            return None
        return compare_versions(outcomes, canary, live)

    def _act(self, look: Look, pointer: Pointer) -> Look:
        try:
            if look.action == "promote":
                self.registry.promote_canary(look.canary, expected=pointer)
            elif look.action == "withdraw":
                self.registry.withdraw_canary(look.canary, reason=look.reason, expected=pointer)
        except ConflictError as error:  # an operator was faster
            return replace(look, action="wait", reason=str(error))
        except ModelError as error:
            if self.registry.canary() != look.canary:  # likewise
                return replace(look, action="wait", reason=str(error))
            self.registry.withdraw_canary(look.canary, reason=str(error))  # it was damaged since
            return replace(look, action="withdraw", reason=str(error))
        return look


def watch_canary(
    watcher: CanaryWatcher,
    every: float,
    *,
    until: Callable[[], bool] = lambda: False,
    on_look: Callable[[Look], None] = lambda _: None,
    on_error: Callable[[Exception], None] = lambda _: None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Look at the canary again and again. A look that fails is repeated.

    Args:
        watcher: The watcher.
        every: Seconds between two looks.
        until: Asked before every look; true ends the watch. Its errors are those of a look.
        on_look: Is given every look at a canary.
        on_error: Is given the error of a look that failed, of whatever kind.
        sleep: Waits for some seconds.

    Raises:
        OptionError: If an option is wrong.
        Exception: An error that is no MbcalError, if ten looks in a row end with one (`Failures`).
    """
    failures = Failures(on_error)
    while True:
        with failures:
            if until():
                return
            look = watcher.look()
            if look is not None:
                with suppress(OSError):  # nobody reads the output any more
                    on_look(look)
        sleep(every)
