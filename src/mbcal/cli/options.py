"""Options that several commands share."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mbcal.config import Device
from mbcal.distributed.engines import EngineName, WorkerResources
from mbcal.errors import OptionError

if TYPE_CHECKING:
    from mbcal.training.record import TrainingRecord

Out = Annotated[Path, typer.Option(help="Folder to write.", show_default=False)]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what an earlier run wrote there.")]
DeviceOption = Annotated[Device, typer.Option(help="Where to compute; auto takes a GPU if there is one.")]
Seed = Annotated[int, typer.Option(help="Seed of all noise; the same seed gives the same result.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
EngineOption = Annotated[EngineName, typer.Option(help="Where to run: this machine, or the workers of Ray (docs/scale.md).")]
AddressOption = Annotated[
    str | None,
    typer.Option(help="A running Ray cluster, '10.0.0.5:6379' or 'auto'.", show_default="start one on this machine"),
]
WorkersOption = Annotated[int | None, typer.Option(help="Workers of --engine ray.", min=1, show_default="all cores")]
GpusOption = Annotated[float, typer.Option(help="GPUs per worker of --engine ray, such as 0.25 or 1.", min=0)]
EpochsOption = Annotated[
    int | None, typer.Option(help="Most passes over the data; held-out users decide when to stop.", show_default="40")
]
PatienceOption = Annotated[
    int | None,
    typer.Option(help="Epochs without a better held-out loss before the rate is reduced.", show_default="1"),
]
BatchOption = Annotated[
    int | None, typer.Option(help="Sessions per update.", show_default="640 to 5,120 steps, by the data")
]
RateOption = Annotated[float | None, typer.Option(help="Learning rate after the warm-up.", show_default="0.003")]
ContextOption = Annotated[
    str | None,
    typer.Option(help="Fields of steps that are read: 'device,hour', or 'none'.", show_default="all that the store has"),
]
UserFeaturesOption = Annotated[
    str | None,
    typer.Option(help="Fields of users that are read: 'country,age', or 'none'.", show_default="all that the store has"),
]
ContextColumnsOption = Annotated[
    str | None,
    typer.Option(
        help="Columns of the log that describe steps, 'device,hour:number'. Kinds are inferred as for --features, "
        "or declared. Agents and simulators use them, and requests may carry them.",
        show_default=False,
    ),
]
UserFilesOption = Annotated[list[Path] | None, typer.Option(help="Table of users, Parquet or CSV.", show_default=False)]
UserColumnsOption = Annotated[
    str | None,
    typer.Option(help="Columns of the user table that describe users, 'country,age:number'.", show_default=False),
]
UsersKeyOption = Annotated[
    str | None, typer.Option(help="User column of the user table, if not called as in the log.", show_default=False)
]
HiddenOption = Annotated[
    int | None, typer.Option(help="Size of the hidden state.", show_default="64; 128 from two million steps on")
]
EmbeddingOption = Annotated[int | None, typer.Option(help="Size of every embedding.", show_default="32")]
DataDir = Annotated[Path, typer.Argument(metavar="DIR", help="A store written by 'mbcal prepare'.")]


def given(**options: Any) -> dict[str, Any]:
    """Return the options that were given; all others keep the defaults of the library."""
    return {name: value for name, value in options.items() if value is not None}


def feature_names(text: str) -> tuple[str, ...]:
    """Parse `category,type`; `none` is no feature."""
    return () if text.strip() in ("", "none") else tuple(name.strip() for name in text.split(","))


def shell_quoted(path: Path) -> str:
    """Quote a path so that it can be pasted into a shell."""
    return shlex.quote(str(path))


def worker_resources(engine: str, device: str, gpus: float) -> WorkerResources:
    """Return what each worker needs of a machine.

    Raises:
        OptionError: If engine, device and GPUs contradict each other.
    """
    if engine == "local" and gpus:
        raise OptionError("gpus: only workers of --engine ray are given GPUs; use --device cuda")
    if engine == "ray" and device == "cuda" and not gpus:
        raise OptionError("device: workers of --engine ray need --gpus 1 to compute on a GPU")
    return WorkerResources(gpus=gpus)


def require_ray(engine: str, workers: int | None) -> None:
    """Raise OptionError if workers are given to a command that runs in one process here."""
    if engine == "local" and workers is not None:
        raise OptionError("workers: only --engine ray has workers; add it, or leave --workers out")


def print_records(records: Mapping[str, TrainingRecord]) -> None:
    """Print how the training of each network went; warn on standard error about those that have learned nothing."""
    for name, record in records.items():
        typer.echo(f"  {name}: {record}")
    for name, record in records.items():
        if not record.has_learned:
            problem = f"warning: {name} has learned nothing yet: it predicts held-out users no better than a constant"
            typer.echo(f"{problem}; more sessions would help, or more --epochs, or item features", err=True)
