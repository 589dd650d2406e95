"""Options that several commands resources, and how numbers are shown."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from mbcal.config import Device
from mbcal.data import Store
from mbcal.distributed.engines import EngineName, WorkerResources
from mbcal.errors import OptionError

Out = Annotated[Path, typer.Option(help="Folder to write.", show_default=False)]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing one.")]
DeviceOption = Annotated[Device, typer.Option(help="Where to compute; auto takes a GPU if there is one.")]
Seed = Annotated[int, typer.Option(help="Another seed, another result; the same seed, the same.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
EngineOption = Annotated[EngineName, typer.Option(help="Where to run: this machine, or Ray, with workers (docs/scale.md).")]
AddressOption = Annotated[
    str | None, typer.Option(help="A Ray cluster, '10.0.0.5:6379' or 'auto'.", show_default="one of this machine's own")
]
WorkersOption = Annotated[int | None, typer.Option(help="Workers of --engine ray.", min=1, show_default="all cores")]
GpusOption = Annotated[float, typer.Option(help="Of a GPU, what each worker of --engine ray takes; 0.25 or 1, say.", min=0)]
DataDir = Annotated[Path, typer.Argument(metavar="DIR", help="A store written by 'mbcal prepare'.")]


def features_of(store: Store, wanted: str | None) -> tuple[str, ...]:
    """The features named, 'none' for none, or those usual for this kind of store."""
    if wanted is None:
        return store.agent_features
    return () if wanted.strip() in ("", "none") else tuple(name.strip() for name in wanted.split(","))


def quoted(path: Path) -> str:
    """A path one can paste into a shell."""
    return shlex.quote(str(path))


def checkpoint_folder(out: Path) -> Path:
    """Where a fit keeps its state until it is done: beside its result, hidden."""
    return out.resolve().parent / f".{out.name}.checkpoint"


def about(store: Store, part: str) -> dict[str, Any]:
    """Which data a model was made of."""
    return {"data": store.manifest["content_hash"], "source": store.manifest["source"], "part": part}


def worker_resources(engine: str, device: str, gpus: float) -> WorkerResources:
    """What each worker takes, after refusing what contradicts itself."""
    if engine == "local" and gpus:
        raise OptionError("gpus: workers of --engine ray take a share of a GPU; here say --device cuda")
    if engine == "ray" and device == "cuda" and not gpus:
        raise OptionError("device: workers of --engine ray are on a GPU where they are given a share of one; say --gpus 1")
    return WorkerResources(gpus=gpus)


def require_ray(engine: str, workers: int | None) -> None:
    """A fit on this machine is one process."""
    if engine == "local" and workers is not None:
        raise OptionError("workers: share a fit on --engine ray; here it is one process, leave them out")
