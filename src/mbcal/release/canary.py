"""The trial of a canary: a share of sessions goes to it, and their rewards decide whether it is promoted or withdrawn.

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
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from mbcal.decision_log.follow import LogFollower
from mbcal.decision_log.reader import merge_by_time
from mbcal.errors import ConflictError, MbcalError, ModelError, OptionError
from mbcal.registry.pointer import Pointer
from mbcal.registry.registry import Registry
from mbcal.registry.updates import CANARIES, read_trial
from mbcal.release.comparison import VersionComparison, compare_versions
from mbcal.release.ignored import Apart, Ignored
from mbcal.release.outcomes import OutcomeReader, SessionRule
from mbcal.storage.atomic import write_atomic

DAY = 86400.0
Action = Literal["promote", "withdraw", "wait"]
MAX_APART = 0.01
"""Nothing is promoted where `Apart.count` is more than this share of a version's compared sessions, or `Apart.reward` of
their reward, without signs: few sessions may hold most of it, and all that is hidden may be of one version."""
LEAST_EXPLORATION = 1e-6
"""Differences of epsilon that are no more than rounding."""
MOST_AHEAD = 60.0
"""Seconds that a clock may gain on the stopwatch between two looks; one that gains more is believed at the next look."""
UNSERVED = "no finished sessions of both versions yet (servers started with --canary give the canary some)"
"""Why nothing is known of a trial."""


@dataclass(frozen=True)
class CanaryConfig:
    """When a canary is promoted or withdrawn without a person."""

    promote_after: int = 200
    """Fewest finished sessions of the canary before it is promoted."""
    withdraw_below: float = 0.0
    """Withdrawn when it is surely worse than this share of the live version's reward, in [0, 1)."""
    shortest: float = DAY
    """Seconds that a canary serves before it is promoted. What users do later than that cannot be seen."""
    longest: float = 7 * DAY
    """Seconds after which a trial ends."""
    undecided: Action = "withdraw"
    """What happens then: `withdraw`, `promote`, or `wait` for a person. A canary is promoted only if `promote_after` of its
    sessions were compared and nothing but its reward is undecided; if not, it waits."""
    promote_alpha: float = 0.05
    """Probability that a canary no better than the live version is ever promoted by its reward."""
    withdraw_alpha: float = 0.1
    """Probability that a canary no worse is ever withdrawn by its reward. An error costs less here than a late end."""
    sessions: SessionRule = field(default_factory=SessionRule)
    """What a session is; its horizon is taken from the live version."""

    def __post_init__(self) -> None:
        if self.promote_after < 1 or self.longest <= 0 or not 0 <= self.withdraw_below < 1:
            raise OptionError("canary: promote_after must be at least 1, longest positive, withdraw_below in [0, 1)")
        if not 0 <= self.shortest <= self.longest:
            days = f"{self.shortest / DAY:.4g} (--canary-least-days) and {self.longest / DAY:.4g} (--canary-days)"
            raise OptionError(f"canary: a trial cannot last at least and at most {days} days; give fewer days at least")
        if not (0 < self.promote_alpha < 0.5 and 0 < self.withdraw_alpha < 0.5):
            raise OptionError("canary: promote_alpha and withdraw_alpha must be in (0, 0.5)")


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

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        compared = None if self.comparison is None else self.comparison.as_dict()
        return {**vars(self), "comparison": compared, "ignored": asdict(self.ignored)}


def judge_canary(
    comparison: VersionComparison | None,
    config: CanaryConfig,
    elapsed: float,
    ignored: Ignored | None = None,
    served: float | None = None,
) -> tuple[Action, str]:
    """Decide about a canary.

    Args:
        comparison: The canary (a) against the live version (b); None while one has no finished session.
        config: The limits.
        elapsed: Seconds since the trial began.
        ignored: What did not count in the trial; by default nothing.
        served: Seconds since the canary's first session began; by default as long as the trial.

    Returns:
        What to do, and why in words.
    """
    not_whole = _why_not_whole(comparison, ignored or Ignored())
    words, may_promote = UNSERVED, False
    if comparison is not None:
        gap, live = comparison.reward, abs(comparison.b.reward.mean)
        lower, upper = (
            float(comparison.reward_difference.lower(config.promote_alpha)),
            float(comparison.reward_difference.upper(config.withdraw_alpha)),
        )
        counts = f"{comparison.a.sessions:,} sessions against {comparison.b.sessions:,} of {comparison.b.version}"
        size = f"{gap.value:+.3g} per session" + ("" if gap.share is None else f" ({gap.share:+.1%})")
        safe = float(comparison.reward_difference.safe_lower(config.promote_alpha))
        words = f"{counts}; {comparison.sentence()}"
        if comparison.together and upper < -config.withdraw_below * live:
            return "withdraw", f"earns less: {size}, at most {upper:+.3g}, after {counts}{_feedback_hint(comparison)}"
        losses = [
            *(["its sessions are shorter"] if comparison.length.upper < 0 else []),
            *(["its users have fewer sessions"] if comparison.visits.high < 0 else []),
            *(["it explored less than the live version"] if comparison.exploration.high < -LEAST_EXPLORATION else []),
        ]
        is_enough = comparison.together and comparison.a.sessions >= config.promote_after
        may_promote = is_enough and not not_whole and not losses
        missing = config.shortest - (elapsed if served is None else served)
        if may_promote and safe > 0 and missing <= 0:
            return "promote", f"earns more: {size}, at least {safe:+.3g}, after {counts}"
        if may_promote and safe > 0:
            words += f"; {_still_waits(missing)}"
        may_promote &= missing <= 0
        if lower > 0 >= safe and comparison.caution() not in words:
            words += f"; {comparison.caution()}"
        if losses and (safe > 0 or elapsed > config.longest):
            words += f"; {' and '.join(losses)}, so a person has to decide"
    if not_whole:
        words += f"; {not_whole}"
    if elapsed > config.longest:
        action: Action = "wait" if config.undecided == "promote" and not may_promote else config.undecided
        return action, f"undecided after {elapsed / DAY:.1f} days: {words}"
    return "wait", words


def _still_waits(seconds: float) -> str:
    """Say that a canary is better so far, and how long it is not promoted all the same."""
    time = f"{seconds / DAY:.1f} days" if seconds >= DAY else f"{seconds / 3600:.1f} hours"
    return f"better so far; promoted in {time} at the earliest, since rewards may come later than sessions end"


def _feedback_hint(comparison: VersionComparison) -> str:
    """Say that a canary has fewer steps with feedback, if it surely has: its feedback may be lost on the way."""
    if comparison.length.upper >= 0:
        return ""
    steps = f"{comparison.a.length.mean:.3g} steps with feedback per session against {comparison.b.length.mean:.3g}"
    return f"; it has {steps}: its sessions are shorter, or its feedback does not arrive"


def _why_not_whole(comparison: VersionComparison | None, ignored: Ignored) -> str:
    """Say why sessions of a version may be parts of visits only, and what to do; empty if they are not.

    What is of neither version counts for the live one.
    """
    if comparison is None:
        found = [_found(total)] if (total := ignored.total()) else []
    else:
        a, b, others = comparison.a, comparison.b, ignored.apart.keys() - {comparison.a.version}
        found = [
            f"{_found(apart)}{f', worth {apart.reward:.4g}' if apart.reward else ''}, beside "
            f"{side.sessions:,} sessions of {side.version}, worth {side.size:.4g}"
            for side, apart in ((a, ignored.total([a.version])), (b, ignored.total(others)))
            if apart.count > MAX_APART * side.sessions or apart.reward > MAX_APART * side.size
        ]
    rule = "send the same user, or the same session and no user, with every request of a visit"
    return f"not promoted, since {', and '.join(found)}: {rule}" if found else ""


def _found(apart: Apart) -> str:
    """Say what may belong to other sessions."""
    kinds = (
        (apart.headless, "sessions have no beginning in the log"),
        (apart.nameless, "decisions have neither session nor user"),
        (
            apart.late,
            "decisions have rewards that came after the end of their session "
            "(give a longer --lifetime, or --idle; send what ends a visit last)",
        ),
        (apart.unlinked, "visits may be known by user alone at first and by session alone later"),
    )
    return ", ".join(f"{count:,} {words}" for count, words in kinds if count)


def why_blocked(registry: Registry, pointer: Pointer) -> str:
    """Say which trial an update would disturb, whether anything decides about it, and what to do.

    Args:
        registry: The registry.
        pointer: Its pointer, which has a canary.
    """
    look, where = read_trial(registry.path, str(pointer.canary)), f"--registry {shlex.quote(str(registry.path))}"
    is_watched = look is not None and look.get("began") == pointer.canary_began
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
        self._ahead: float | None = None  # by how much the clock was ahead of the stopwatch at the last look
        self._outcomes: OutcomeReader
        self._followers: list[LogFollower] = []

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
        if trial != self._trial:
            self._begin(*trial, now)
        comparison = self._compare(pointer.canary, pointer.current, now)
        ignored = deepcopy(self._outcomes.ignored)
        elapsed = max((now - pointer.canary_began) / 1e6, self._stopwatch() - self._began)
        unserved = 0.0 if comparison is None else (comparison.began - pointer.canary_began) / 1e6
        action, reason = judge_canary(comparison, self._config, elapsed, ignored, elapsed - unserved)
        look = Look(pointer.canary, pointer.current, pointer.canary_began, now, action, reason, comparison, ignored)
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
        self._followers = [LogFollower(log, began - before) for log in self._logs]
        self._trial = (canary, live, began)
        self._began = self._stopwatch() - max(now - began, 0) / 1e6

    def _compare(self, canary: str, live: str, now: int) -> VersionComparison | None:
        for record in merge_by_time(follower.read() for follower in self._followers):
            self._outcomes.add(record)
        outcomes = self._outcomes.outcomes(now - int(self._config.sessions.settling * 1e6))
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
    on_error: Callable[[MbcalError], None] = lambda _: None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Look at the canary again and again. A look that fails is repeated.

    Args:
        watcher: The watcher.
        every: Seconds between two looks.
        until: Asked before every look; true ends the watch.
        on_look: Is given every look at a canary.
        on_error: Is given the error of a look that failed.
        sleep: Waits for some seconds.
    """
    while not until():
        try:
            look = watcher.look()
            if look is not None:
                on_look(look)
        except MbcalError as error:
            on_error(error)
        sleep(every)
