"""Send the numbers of a run to trackers: TensorBoard always, MLflow and Weights & Biases on request."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib import import_module
from typing import NamedTuple

from mbcal.config import to_dict
from mbcal.errors import OptionError
from mbcal.evaluation.experiment.run import Run

SERVICES = ("mlflow", "wandb")


class Scalar(NamedTuple):
    """One number of a run."""

    series: str
    """PROTOCOL/AGENT/seed-S."""
    name: str
    value: float
    step: int
    """The round or epoch; 0 for final results."""


def scalars(run: Run) -> Iterator[Scalar]:
    """Read all rewards and losses of the cells that are done."""
    for result in run.results():
        protocol, agent, seed = result.cell
        series = f"{protocol}/{agent}/seed-{seed}"
        for entry in result.record.get("rounds", []):
            yield Scalar(series, "reward per session by round", entry["mean"], entry["round"])
        for judge, values in result.record["judges"].items():
            yield Scalar(series, f"reward per session, judged by {judge}", values["mean"], 0)
        for net, curve in (result.record.get("curves") or {}).items():
            for step, epoch in enumerate(curve):
                for name, value in epoch.items():
                    yield Scalar(series, f"{net}/{name}", value, step)


def write_tensorboard(run: Run) -> None:
    """Write RUN/tensorboard anew."""
    from torch.utils.tensorboard.writer import SummaryWriter

    folder = run.folder / "tensorboard"
    shutil.rmtree(folder, ignore_errors=True)
    writers: dict[str, SummaryWriter] = {}
    for series, name, value, step in scalars(run):
        if series not in writers:
            writers[series] = SummaryWriter(str(folder / series.replace("/", "-")))
        writers[series].add_scalar(name, value, step)
    for writer in writers.values():
        writer.close()


def track(run: Run, service: str) -> None:
    """Send the numbers of a run to a tracking service, each series as a run of its own.

    Args:
        run: The run.
        service: `mlflow` or `wandb`.

    Raises:
        OptionError: If the service is unknown or its package is not installed.
    """
    if service not in SERVICES:
        raise OptionError(f"track: {service!r} is unknown; known are {', '.join(SERVICES)}")
    try:
        tool = import_module(service)
    except ImportError:
        raise OptionError(f"track: {service} is not installed; run pip install 'mbcal[track]'") from None
    settings = to_dict(run.settings)
    by_series: dict[str, list[Scalar]] = {}
    for scalar in scalars(run):
        by_series.setdefault(scalar.series, []).append(scalar)
    for series, values in by_series.items():
        if service == "mlflow":
            with tool.start_run(run_name=series):
                tool.log_params({key: str(value) for key, value in settings.items()})
                for scalar in values:
                    tool.log_metric(scalar.name.replace(",", ""), scalar.value, step=scalar.step)
        else:
            tracked = tool.init(project="mbcal", name=series, config=settings, dir=str(run.folder))
            for scalar in values:
                tracked.log({scalar.name: scalar.value, "step": scalar.step})
            tracked.finish()
