"""Fit a simulator on a store, measure it on test users, and write it with its report card."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from mbcal.config import to_dict, with_settings
from mbcal.data.store import Store
from mbcal.environments.report_card import ReportCard
from mbcal.environments.simulator import Simulator, SimulatorConfig
from mbcal.evaluation.report_card_files import report_card_files
from mbcal.progress import SILENT, Progress
from mbcal.storage.artifacts import SIMULATOR_KIND
from mbcal.storage.atomic import AtomicFolder
from mbcal.storage.checkpoints import Checkpoints, checkpoint_folder
from mbcal.training.device import resolve_device


class SimulatorFit(NamedTuple):
    """A fitted simulator and its report card."""

    simulator: Simulator
    card: ReportCard
    """Measured on the store's `test` users, who were not fitted on."""
    path: Path
    """Its folder, with `report-card.json` and `report-card.png`."""


def fit_simulator(
    store: Store | str | Path,
    out: str | Path,
    config: SimulatorConfig | None = None,
    *,
    device: str = "auto",
    overwrite: bool = False,
    progress: Progress = SILENT,
    on_resume: Callable[[], None] = lambda: None,
    **settings: Any,
) -> SimulatorFit:
    """Fit a simulator on a store's `simulator` users, evaluate it on its `test` users, and write it to a folder.

    A fit that is stopped, even by `kill -9`, resumes when it is called again with the same arguments.

    Args:
        store: The data, or its folder.
        out: Folder to write. Checkpoints lie beside it, in a hidden folder, until the fit is done.
        config: All settings.
        device: Where to compute.
        overwrite: Replace a simulator that is there. Other folders are never replaced.
        progress: Notified of epochs and sessions.
        on_resume: Called if a checkpoint is resumed.
        **settings: Single settings by name: `fit_simulator(store, "sim", family="transformer", epochs=5)`.

    Returns:
        The simulator, its report card and its folder.

    Raises:
        OptionError: If a setting is unknown or out of range, or there is no such device.
        OutputError: If the folder exists or cannot be written.
        TrainingError: If a loss becomes NaN, or a checkpoint is of other settings or data.
    """
    out = Path(out)
    config = with_settings(config or SimulatorConfig(), settings, "simulator: ")
    resolve_device(device)
    with AtomicFolder(out, SIMULATOR_KIND.noun, overwrite):  # refuses now what it would refuse after the fit
        pass
    store = store if isinstance(store, Store) else Store.open(store)
    test = store.sessions("test")
    source = store.manifest["source"]
    provenance = {"data": store.manifest["content_hash"], "source": source, "part": "simulator"}
    checkpoints = Checkpoints(checkpoint_folder(out), {"config": to_dict(config), **provenance})
    if checkpoints.folder.is_dir():
        on_resume()
    simulator = Simulator(config, device).fit(store, progress=progress, checkpoints=checkpoints)
    simulator.provenance = provenance
    card = simulator.evaluate(test, progress=progress)
    files = report_card_files(card, simulator.behaviours, f"{config.family} on {source}")
    path = simulator.save(out, card=card, extra_files=files, overwrite=overwrite)
    checkpoints.remove()
    return SimulatorFit(simulator, card, path)
