"""`mbcal update` and `mbcal loop`: learn from the decision log; try, publish or refuse what was learned."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mbcal.cli.canary import (
    IdleOption,
    MaxDaysOption,
    MinDaysOption,
    PromoteAfterOption,
    UndecidedOption,
    UserLossOption,
    WithdrawBelowOption,
    canary_config,
    print_look,
    print_lost,
)
from mbcal.cli.console import progress
from mbcal.cli.options import (
    AddressOption,
    DeviceOption,
    EngineOption,
    GpusOption,
    WorkersOption,
    require_ray,
    worker_resources,
)
from mbcal.config import Device
from mbcal.distributed.engines import EngineName
from mbcal.errors import described

if TYPE_CHECKING:
    from mbcal.agents.base import Agent
    from mbcal.release.gate import Verdict
    from mbcal.release.update import UpdateConfig

REFUSED = 3
"""Exit code where the candidate was refused, which is no failure of the command."""

NoWorse = Literal["canary", "publish"]
RegistryOption = Annotated[Path, typer.Option(help="The registry to publish to.", show_default=False)]
LogOption = Annotated[
    list[Path],
    typer.Option(help="The decision log to learn from; repeat it for the logs of several servers.", show_default=False),
]
SimulatorOption = Annotated[Path | None, typer.Option(help="A simulator; a candidate that it finds worse is refused.")]
ReplayOption = Annotated[
    int, typer.Option(min=1, help="Learn from the decisions of so many latest versions; 1 is the live one alone.")
]
DecisionsOption = Annotated[
    int, typer.Option(min=1, help="Newest decisions of these versions that teach and judge; more take more memory.")
]
PassesOption = Annotated[
    int | None,
    typer.Option("--epochs", min=1, help="Most passes over them; held-out users decide.", show_default="by the data"),
]
SessionsOption = Annotated[int, typer.Option(min=2, help="Logged sessions there must be.")]
ToleranceOption = Annotated[
    float, typer.Option(min=0, max=0.99, help="How much worse the lower bound may be, as a share of the reward.")
]
NoWorseOption = Annotated[
    NoWorse,
    typer.Option(
        "--if-no-worse", help="What happens to a candidate that is no worse: it becomes the canary, or goes live at once."
    ),
]
SeedOption = Annotated[int, typer.Option(help="Seed of resamples and simulated noise.")]


def update_registry(
    registry: RegistryOption,
    log: LogOption,
    simulator: SimulatorOption = None,
    replay: ReplayOption = 10,
    decisions: DecisionsOption = 500_000,
    epochs: PassesOption = None,
    min_sessions: SessionsOption = 200,
    tolerance: ToleranceOption = 0.01,
    no_worse: NoWorseOption = "canary",
    candidate: Annotated[
        Path | None,
        typer.Option(
            help="Judge this model instead of learning one. It must not have learned from users who judge: "
            "'mbcal log export --teaching' leaves them out."
        ),
    ] = None,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
    engine: EngineOption = "local",
    workers: WorkersOption = None,
    address: AddressOption = None,
    gpus: GpusOption = 0.0,
) -> None:
    """Learn from the live version's decisions; make the result the canary, or refuse it.

    Users are split by name: most teach the candidate, the others judge it. If it is worse by their log, it is refused. If it
    is no worse, or the log cannot tell, which is the rule where little was explored, it becomes the canary: servers started
    with --canary try it on users, and promote or withdraw it. With --if-no-worse publish, one that is no worse goes live at
    once. While a canary is on trial, an update changes nothing and ends with an error. The reasons are written to
    REGISTRY/updates as a page and as JSON. Exit code 0: it became the canary, or was published; 3: it was refused,
    or there were too few sessions.
    """
    from mbcal.agents import load

    config = _update_config(replay, decisions, epochs, min_sessions, tolerance, no_worse, seed)
    judged = None if candidate is None else load(candidate, device)
    with _runner(registry, log, config, simulator, judged, device, engine, workers, address, gpus) as run_update:
        verdict = run_update()
    _show_verdict(registry, log, verdict)
    if verdict.action == "refused":
        raise typer.Exit(REFUSED)


def loop_updates(
    registry: RegistryOption,
    log: LogOption,
    every: Annotated[float, typer.Option(min=1, help="Seconds from one update to the next.")] = 3600.0,
    times: Annotated[int, typer.Option(min=0, help="Updates to run; 0 is without end.")] = 0,
    simulator: SimulatorOption = None,
    replay: ReplayOption = 10,
    decisions: DecisionsOption = 500_000,
    epochs: PassesOption = None,
    min_sessions: SessionsOption = 200,
    tolerance: ToleranceOption = 0.01,
    no_worse: NoWorseOption = "canary",
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
    engine: EngineOption = "local",
    workers: WorkersOption = None,
    address: AddressOption = None,
    gpus: GpusOption = 0.0,
    promote_after: PromoteAfterOption = 200,
    withdraw_below: WithdrawBelowOption = 0.0,
    canary_max_days: MaxDaysOption = 7.0,
    canary_min_days: MinDaysOption = 3.0,
    user_loss: UserLossOption = 0.1,
    undecided: UndecidedOption = "withdraw",
    idle: IdleOption = 1800.0,
) -> None:
    """Update again and again. An update that fails or is refused changes nothing; the next one tries again.

    A candidate that is not refused becomes the canary (see 'mbcal update'). While it is, nothing new is learned: the loop
    watches the canary's sessions and promotes or withdraws it ('mbcal watch-canary'). Servers give it sessions if they were
    started with --canary; without any, it is withdrawn after --canary-max-days.
    """
    from mbcal.registry.registry import Registry
    from mbcal.release.canary import CanaryWatcher, watch_canary
    from mbcal.release.update import loop

    watched = Registry(registry)
    limits = canary_config(promote_after, withdraw_below, canary_max_days, canary_min_days, user_loss, undecided, idle)
    watcher = CanaryWatcher(watched, log, limits)

    def wait_for_canary() -> None:
        watch_canary(
            watcher,
            min(10.0, idle / 4),
            until=lambda: watched.canary() is None,
            on_look=print_look,
            on_error=lambda error: typer.echo(f"canary not read: {described(error)}", err=True),
        )

    config = _update_config(replay, decisions, epochs, min_sessions, tolerance, no_worse, seed)
    with _runner(registry, log, config, simulator, None, device, engine, workers, address, gpus) as run_update:
        loop(
            run_update,
            every=every,
            times=times,
            wait_for_canary=wait_for_canary,
            on_verdict=lambda verdict: _show_verdict(registry, log, verdict, is_watched=times == 0),
            on_error=lambda error: typer.echo(f"update failed: {described(error)}", err=True),
        )


def _update_config(
    replay: int,
    decisions: int,
    epochs: int | None,
    min_sessions: int,
    tolerance: float,
    no_worse: NoWorse,
    seed: int,
) -> UpdateConfig:
    from mbcal.release.gate import GateConfig
    from mbcal.release.update import UpdateConfig

    gate = GateConfig(min_sessions=min_sessions, tolerance=tolerance, no_worse=no_worse)
    return UpdateConfig(replay, decisions, epochs, gate, seed)


@contextmanager
def _runner(
    registry: Path,
    log: list[Path],
    config: UpdateConfig,
    simulator: Path | None,
    candidate: Agent | None,
    device: Device,
    engine: EngineName,
    workers: int | None,
    address: str | None,
    gpus: float,
) -> Iterator[Callable[[], Verdict]]:
    """One update as a function, with progress and an engine around it."""
    from mbcal.distributed.engines import create_engine
    from mbcal.registry.registry import Registry
    from mbcal.release.update import update

    resources = worker_resources(engine, device, gpus)
    require_ray(engine, workers)
    with create_engine(engine, workers, address) as running_engine:

        def run_update() -> Verdict:
            with progress() as listener:
                return update(
                    Registry(registry),
                    log,
                    config,
                    simulator=simulator,
                    candidate=candidate,
                    device=device,
                    engine=None if engine == "local" else running_engine,
                    resources=resources,
                    progress=listener,
                )

        yield run_update


def _show_verdict(registry: Path, log: list[Path], verdict: Verdict, is_watched: bool = False) -> None:
    """Print the verdict; of a canary, also what to do next. `is_watched` as in `_next_step`."""
    if verdict.page_problem:
        typer.echo(f"page not written: {verdict.page_problem}", err=True)
    print_lost(verdict.counts.lost if verdict.counts else ())
    for check in verdict.checks:
        typer.echo(f"{check.name}: {check.answer}. {check.detail}")
    outcome = {
        "published": f"{verdict.version} is live instead of {verdict.live}",
        "canary": f"{verdict.version} is the canary; {verdict.live} stays live",
        "refused": f"refused; {verdict.live} stays live",
    }[verdict.action]
    typer.echo(f"{outcome}: {verdict.reason} ({verdict.page or 'no page'})")
    if verdict.action == "canary":
        typer.echo(_next_step(registry, log, str(verdict.version), is_watched))


def _next_step(registry: Path, log: list[Path], version: str, is_watched: bool) -> str:
    """Say, as commands, what gives a canary sessions and decides about it.

    Args:
        registry: The registry.
        log: The decision logs of all servers.
        version: The canary.
        is_watched: Whether this process goes on watching it, so that servers need not.
    """
    where, logs = f"--registry {shlex.quote(str(registry))}", " ".join(f"--log {shlex.quote(str(one))}" for one in log)
    if is_watched:
        how = f"mbcal serve {where} --log FOLDER --canary 0.1 --no-watch (this loop watches)"
    elif len(log) == 1:
        how = f"mbcal serve {where} {logs} --canary 0.1"
    else:
        how = f"mbcal serve {where} --log FOLDER --canary 0.1 --no-watch on every machine"
        how += f", mbcal watch-canary {where} {logs} on one"
    return (
        f"next: servers that run with --canary try it on users, and what these earn decides; if none does: {how}\n"
        f"or decide by hand: mbcal registry activate {version} {where}, or mbcal registry withdraw {where}"
    )
