"""Results for the tools people look at runs with: TensorBoard always, MLflow and Weights & Biases where asked for."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from mbcal.config import to_dict
from mbcal.errors import OptionError
from mbcal.evaluation.experiment.run import Run

Scalar = tuple[str, str, float, int]
"""Series (protocol/agent/seed), name, value, step."""


def scalars(run: Run) -> Iterator[Scalar]:
    """Everything that has a curve or a number."""
    for result in run.results():
        protocol, agent, seed = result.cell
        series = f"{protocol}/{agent}/seed-{seed}"
        for entry in result.record.get("rounds", []):
            yield series, "reward per session by round", entry["mean"], entry["round"]
        for judge, values in result.record["judges"].items():
            yield series, f"reward per session, judged by {judge}", values["mean"], 0
        for net, curve in (result.record.get("curves") or {}).items():
            for step, epoch in enumerate(curve):
                for name, value in epoch.items():
                    yield series, f"{net}/{name}", value, step


def write_tensorboard(run: Run) -> None:
    """RUN/tensorboard, made anew."""
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
    """Send a run's numbers to `mlflow` or `wandb`, one run a series."""
    if service not in ("mlflow", "wandb"):
        raise OptionError(f"track: {service!r} is unknown; known are mlflow, wandb")
    try:
        tool = __import__(service)
    except ImportError:
        raise OptionError(f"track: {service} is not installed; run pip install 'mbcal[track]'") from None
    by_series: dict[str, list[Scalar]] = {}
    for scalar in scalars(run):
        by_series.setdefault(scalar[0], []).append(scalar)
    for series, values in by_series.items():
        if service == "mlflow":
            with tool.start_run(run_name=series):
                tool.log_params({key: str(value) for key, value in to_dict(run.settings).items()})
                for _, name, value, step in values:
                    tool.log_metric(name.replace(",", ""), value, step=step)
        else:
            sent = tool.init(project="mbcal", name=series, config=to_dict(run.settings), dir=str(run.folder))
            for _, name, value, step in values:
                sent.log({name: value, "step": step})
            sent.finish()
