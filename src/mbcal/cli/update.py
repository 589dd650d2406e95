"""`mbcal update` and `mbcal loop`: learn from the decision log, publish or refuse."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

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
from mbcal.errors import MbcalError, OptionError

REFUSED = 3
"""Exit code where the gate said no: nothing went wrong, and nothing changed."""

RegistryOption = Annotated[Path, typer.Option(help="The registry to publish to.", show_default=False)]
LogOption = Annotated[
    list[Path],
    typer.Option(help="The decision log to learn from; repeat it for the logs of several servers.", show_default=False),
]
SimulatorOption = Annotated[Path | None, typer.Option(help="A simulator that must find the candidate no worse, too.")]
ReplayOption = Annotated[int, typer.Option(min=1, help="Versions whose decisions teach: 1 is the live one alone.")]
EpochsOption = Annotated[int, typer.Option(min=1, help="Passes over them.")]
EpsilonOption = Annotated[float, typer.Option(min=0, max=1, help="Exploration the candidate would be served with.")]
SessionsOption = Annotated[int, typer.Option(min=2, help="Logged sessions there must be.")]
ToleranceOption = Annotated[
    float, typer.Option(min=0, max=0.99, help="How much worse a lower bound may be, as a share of the reward.")
]


def update_registry(
    registry: RegistryOption,
    log: LogOption,
    simulator: SimulatorOption = None,
    replay: ReplayOption = 1,
    epochs: EpochsOption = 1,
    epsilon: EpsilonOption = 0.1,
    min_sessions: SessionsOption = 200,
    tolerance: ToleranceOption = 0.01,
    candidate: Annotated[Path | None, typer.Option(help="Judge this model instead of learning one.")] = None,
    seed: Annotated[int, typer.Option(help="Of the split of users and the intervals.")] = 0,
    device: DeviceOption = "auto",
    engine: EngineOption = "local",
    workers: WorkersOption = None,
    address: AddressOption = None,
    gpus: GpusOption = 0.0,
) -> None:
    """Learn from the live version's decisions; publish the result if the log (and a simulator) say it is no worse.

    Users are split: most teach the candidate, the others judge it by off-policy estimates. The reasons are written to
    REGISTRY/updates as a page and as JSON. Exit code 0: published, 3: refused.
    """
    from mbcal.agents import load
    from mbcal.distributed.engines import create_engine
    from mbcal.registry.registry import Registry
    from mbcal.release.gate import GateConfig
    from mbcal.release.update import update, write_verdict

    gate, resources = GateConfig(sessions=min_sessions, tolerance=tolerance), worker_resources(engine, device, gpus)
    require_ray(engine, workers)
    with progress() as listener, create_engine(engine, workers, address) as where:
        verdict = update(
            Registry(registry),
            log,
            simulator=simulator,
            replay=replay,
            epochs=epochs,
            epsilon=epsilon,
            gate=gate,
            seed=seed,
            device=device,
            candidate=None if candidate is None else load(candidate, device),
            engine=None if engine == "local" else where,
            resources=resources,
            progress=listener,
        )
    page = write_verdict(registry / "updates", verdict)
    for check in verdict.checks:
        typer.echo(f"{'passed' if check.passed else 'FAILED'}  {check.name}: {check.detail}")
    typer.echo(f"published as {verdict.published}" if verdict.published else f"refused; {verdict.live} stays live ({page})")
    if verdict.published is None:
        raise typer.Exit(REFUSED)


def loop_updates(
    registry: RegistryOption,
    log: LogOption,
    every: Annotated[float, typer.Option(min=1, help="Seconds between the beginnings of updates.")] = 3600.0,
    times: Annotated[int, typer.Option(min=0, help="Updates to make; 0 is without end.")] = 0,
    simulator: SimulatorOption = None,
    replay: ReplayOption = 1,
    epochs: EpochsOption = 1,
    epsilon: EpsilonOption = 0.1,
    min_sessions: SessionsOption = 200,
    tolerance: ToleranceOption = 0.01,
    device: DeviceOption = "auto",
    engine: EngineOption = "local",
    workers: WorkersOption = None,
    address: AddressOption = None,
    gpus: GpusOption = 0.0,
) -> None:
    """Update again and again. An update that fails or is refused changes nothing; the next one tries again."""
    done = 0
    while True:
        began = time.monotonic()
        try:
            update_registry(
                registry, log, simulator, replay, epochs, epsilon, min_sessions, tolerance, None, done, device, engine,
                workers, address, gpus,
            )  # fmt: skip
        except typer.Exit:
            pass  # refused: said already
        except MbcalError as error:
            if isinstance(error, OptionError):
                raise
            typer.echo(f"update failed: {error}", err=True)
        done += 1
        if done == times:
            return
        time.sleep(max(0.0, every - (time.monotonic() - began)))
