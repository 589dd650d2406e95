"""`mbcal compare-versions` and `mbcal watch-canary`: what versions earn, and what follows for a canary."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from mbcal.cli.options import Json
from mbcal.errors import InputError, OptionError, described
from mbcal.serving.events import print_event

if TYPE_CHECKING:
    from mbcal.decision_log.reader import Loss
    from mbcal.registry.registry import Registry
    from mbcal.release.canary import Look
    from mbcal.release.comparison import VersionComparison
    from mbcal.release.judge import CanaryConfig
    from mbcal.release.outcomes import Outcomes, SessionRule

RESTART_SECONDS = 2.0
"""Seconds before a watcher that ended is started again."""

RegistryOption = Annotated[Path, typer.Option(help="The registry of the versions.", show_default=False)]
LogsOption = Annotated[
    list[Path], typer.Option("--log", help="Decision log of a server; repeat it for several servers.", show_default=False)
]
PromoteAfterOption = Annotated[
    int, typer.Option(min=1, help="Finished sessions a canary needs before it is promoted, if they say it earns more.")
]
WithdrawBelowOption = Annotated[
    float,
    typer.Option(
        min=0, max=0.99, help="Withdraw a canary that surely earns less, by more than this share of the live reward."
    ),
]
MaxDaysOption = Annotated[float, typer.Option(min=0.0001, help="Longest trial of a canary, in days.")]
MinDaysOption = Annotated[
    float,
    typer.Option(
        min=0, help="Days that a canary serves one share of users before it is promoted. Raise it if users buy days later."
    ),
]
UserLossOption = Annotated[
    float,
    typer.Option(
        min=0,
        max=1,
        help="Promote a canary only if its users have earned no less so far, and surely not more than this share less. "
        "1: no such check, for requests that name no user.",
    ),
]
Undecided = Literal["withdraw", "promote", "wait"]
UndecidedOption = Annotated[
    Undecided,
    typer.Option(help="What happens to a canary at the end of the longest trial, if it is undecided."),
]
IdleOption = Annotated[
    float,
    typer.Option(min=0.1, help="Seconds without a record after which a session is finished; the server's --lifetime."),
]


def compare_versions_command(
    registry: RegistryOption,
    log: LogsOption,
    versions: Annotated[
        list[str] | None,
        typer.Argument(metavar="[A B]", help="Two versions; by default the two whose sessions began last."),
    ] = None,
    difference: Annotated[
        float, typer.Option(min=0.0001, max=10, help="Share of the reward for which the missing sessions are estimated.")
    ] = 0.05,
    idle: IdleOption = 1800.0,
    as_json: Json = False,
) -> None:
    """Compare what two versions earn per session, by a decision log.

    A session counts for the version of its first decision, once it is finished. Intervals are clustered by user:
    'CI (one look)' is right if you look once, at a time fixed in advance; 'anytime-valid' is right however often you look.
    """
    from mbcal.registry.registry import Registry
    from mbcal.release.comparison import compare_versions
    from mbcal.release.judge import losses_of

    outcomes = _read_outcomes(Registry(registry), log, idle)
    comparison = compare_versions(outcomes, *_two_versions(outcomes, versions))
    if as_json:
        values = {**comparison.as_dict(difference), "losses": losses_of(comparison)}
        typer.echo(json.dumps(values, indent=2, ensure_ascii=False))
        return
    console = Console(highlight=False, markup=False, emoji=False)
    for table in _tables(comparison):
        console.print(table)
        typer.echo()
    typer.echo("; but ".join(filter(None, (comparison.sentence(difference), " and ".join(losses_of(comparison))))))


def watch_canary_command(
    registry: RegistryOption,
    log: LogsOption,
    promote_after: PromoteAfterOption = 200,
    withdraw_below: WithdrawBelowOption = 0.0,
    canary_max_days: MaxDaysOption = 7.0,
    canary_min_days: MinDaysOption = 3.0,
    user_loss: UserLossOption = 0.1,
    undecided: UndecidedOption = "withdraw",
    idle: IdleOption = 1800.0,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 10.0,
    parent: Annotated[int | None, typer.Option(hidden=True, help="End when this is no longer the parent process.")] = None,
) -> None:
    """Look at the registry's canary again and again; promote it or withdraw it when its sessions say so.

    'mbcal serve --canary' and 'mbcal loop' do this themselves. Run it alone where several machines serve: one watcher must
    read the logs of all. What it sees is in REGISTRY/canaries.
    """
    from mbcal.cli.registry import existing_registry
    from mbcal.release.canary import CanaryWatcher, watch_canary

    config = canary_config(promote_after, withdraw_below, canary_max_days, canary_min_days, user_loss, undecided, idle)
    watch_canary(
        CanaryWatcher(existing_registry(registry), log, config),
        every,
        until=lambda: parent is not None and os.getppid() != parent,
        on_look=print_look,
        on_error=lambda error: print_event("canary not read", error=described(error)),
    )


def watch_options(config: CanaryConfig) -> list[str]:
    """Return the options of 'mbcal watch-canary' for limits that `canary_config` returned."""
    from mbcal.release.judge import DAY

    values = {
        "--promote-after": config.promote_after,
        "--withdraw-below": config.withdraw_below,
        "--canary-max-days": config.max_seconds / DAY,
        "--canary-min-days": config.min_seconds / DAY,
        "--user-loss": config.user_loss,
        "--undecided": config.undecided,
        "--idle": config.sessions.idle,
        "--every": min(10.0, config.sessions.idle / 4),
    }
    return [str(text) for pair in values.items() for text in pair]


@contextmanager
def canary_watcher(registry: Path, log: Path | None, options: list[str]) -> Iterator[None]:
    """Run 'mbcal watch-canary' in a process of its own, so that it costs requests nothing; started again if it ends.

    Args:
        registry: The registry.
        log: The decision log; None to run nothing.
        options: More options of the command.
    """
    if log is None:
        yield
        return
    command = [sys.executable, "-P", "-m", "mbcal", "watch-canary", "--registry", str(registry), "--log", str(log), *options]
    command += ["--parent", str(os.getpid())]

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL)  # noqa: S603 - this program with options of our own

    process, stopping = start(), threading.Event()

    def start_again() -> None:
        nonlocal process
        while True:
            code = str(process.wait())
            if stopping.wait(RESTART_SECONDS):
                return
            try:
                process = start()
                print_event("canary watcher ended", exit_code=code)
            except OSError as error:  # no memory for a process, at the moment
                print_event("canary watcher not started", exit_code=code, problem=str(error))

    threading.Thread(target=start_again, name="canary-watcher", daemon=True).start()
    try:
        yield
    finally:
        stopping.set()
        process.terminate()


def canary_config(
    promote_after: int,
    withdraw_below: float,
    days: float,
    least_days: float,
    user_loss: float,
    undecided: Undecided,
    idle: float,
) -> CanaryConfig:
    """Return the limits of a trial from the options."""
    from mbcal.release.judge import DAY, CanaryConfig

    return CanaryConfig(
        promote_after,
        withdraw_below,
        min_seconds=least_days * DAY,
        max_seconds=days * DAY,
        undecided=undecided,
        user_loss=user_loss,
        sessions=_session_rule(idle),
    )


def _session_rule(idle: float) -> SessionRule:
    from mbcal.release.outcomes import SessionRule

    return SessionRule(idle=idle, longest=4 * idle)


def print_look(look: Look) -> None:
    """Print a decision about a canary as one line of JSON on standard error; looks that decide nothing are not printed."""
    if look.action != "wait":
        done = {"promote": "promoted", "withdraw": "withdrawn"}[look.action]
        print_event(f"canary {done}", version=look.canary, live=look.live, reason=look.reason)


def print_lost(lost: Iterable[object]) -> None:
    """Print what a decision log has lost, one line each on standard error."""
    for loss in lost:
        typer.echo(f"the log has lost records: {loss}", err=True)


def _read_outcomes(registry: Registry, logs: list[Path], idle: float) -> Outcomes:
    from mbcal.decision_log.reader import read_logs
    from mbcal.release.outcomes import OutcomeReader

    rule = _session_rule(idle)
    reader = OutcomeReader.of_version(registry.open(), rule)
    lost: list[Loss] = []
    now = time.time_ns() // 1000
    for record in read_logs(logs, lost):
        reader.add(record)
    print_lost(lost)
    outcomes = reader.outcomes(now - int(rule.logging_delay * 1e6))
    if reader.ignored:
        typer.echo(f"not counted: {reader.ignored}", err=True)
    if not len(outcomes):
        if reader.n_waiting:
            raise InputError(
                f"log: no session is finished yet; one is finished {idle:g} seconds after its last record (--idle): ask "
                "again later"
            )
        if reader.ignored.total().unattributed:
            raise InputError("log: no session can be counted, since requests had neither session nor user; send a session")
    return outcomes


def _two_versions(outcomes: Outcomes, named: list[str] | None) -> tuple[str, str]:
    """The versions to compare, the newer one first."""
    if named:
        if len(named) != 2:
            raise OptionError(f"compare-versions: needs two versions or none, got {len(named)}")
        return named[0], named[1]
    first_seen = {version: int(outcomes.began[outcomes.version == n].min()) for n, version in enumerate(outcomes.versions)}
    newest = sorted(outcomes.versions, key=lambda version: first_seen[version])[-2:]
    if len(newest) < 2:
        known = f"sessions of {outcomes.versions[0]} alone" if outcomes.versions else "no sessions"
        raise InputError(f"log: it has {known} that are finished; two versions are needed")
    return newest[1], newest[0]


def _tables(comparison: VersionComparison) -> list[Table]:
    sides = Table(box=None, pad_edge=False)
    for number, column in enumerate(("version", "sessions", "users", "reward per session", "steps per session")):
        sides.add_column(column, justify="right" if number else "left")
    for side in (comparison.a, comparison.b):
        sides.add_row(side.version, f"{side.sessions:,}", f"{side.users:,}", str(side.reward), str(side.length))
    gaps = Table(box=None, pad_edge=False)
    for number, column in enumerate(("difference", "", "share", "95% CI (one look)", "95% anytime-valid")):
        gaps.add_column(column, justify="right" if number else "left")
    measured = [("reward", comparison.reward), ("steps", comparison.length)]
    if comparison.visits.ci_low > -float("inf"):
        measured += [("sessions of a user", comparison.visits), ("reward of a user", comparison.user_reward)]
    for name, gap in measured:
        share = "–" if gap.share is None else f"{gap.share:+.1%}"
        gaps.add_row(
            name, f"{gap.value:+.3f}", share, _range(gap.ci_low, gap.ci_high), _range(gap.anytime_low, gap.anytime_high)
        )
    return [sides, gaps]


def _range(low: float, high: float) -> str:
    return "unknown" if low == -float("inf") else f"[{low:+.3f}, {high:+.3f}]"
