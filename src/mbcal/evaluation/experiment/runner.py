"""Run an experiment from its settings to its results."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from mbcal.distributed.engines import ONE_CORE, Engine, WorkerResources
from mbcal.errors import OptionError
from mbcal.evaluation.experiment.config import ExperimentConfig
from mbcal.evaluation.experiment.run import Cell, Run
from mbcal.evaluation.experiment.tracking import track, write_tensorboard
from mbcal.evaluation.experiment.workers import RunObserver, SilentObserver, execute_all, execute_on, prepare_on
from mbcal.progress import SILENT, Progress


def run_experiment(
    config: ExperimentConfig | None,
    out: str | Path,
    *,
    resume: bool = False,
    only: Callable[[Cell], bool] | None = None,
    workers: int | None = 1,
    device: str = "auto",
    engine: Engine | None = None,
    resources: WorkerResources = ONE_CORE,
    tracker: str | None = None,
    observer: RunObserver | None = None,
    progress: Progress = SILENT,
) -> Run:
    """Compare methods: run all cells of an experiment, or those of a run that are still missing.

    A run may be killed at any moment. Resumed, it keeps what is done and ends with the same tables.

    Args:
        config: All settings (see `load_experiment_config`); may be None if a run is resumed, which knows its own.
        out: Folder of the run.
        resume: Go on with the run in `out` instead of creating one.
        only: Which of the missing cells to run; by default all. The others stay missing.
        workers: Cells at a time on this machine, in processes if more than 1. None is one per core on a CPU, and 1 on a GPU.
            Processes import the calling script again, so call with more than 1 only under `if __name__ == "__main__":`. With
            an engine it has no effect.
        device: Where to compute on this machine.
        engine: Whose workers run the cells; by default this machine.
        resources: What each worker of the engine takes of a machine; with a share of a GPU it computes there.
        tracker: Also send results to `mlflow` or `wandb`.
        observer: Notified of the progress of cells.
        progress: Notified of the preparation: the generated log, the simulators.

    Returns:
        The run, finished unless `only` left something out, with metrics.jsonl and TensorBoard files written. `mbcal.report`
        makes tables and pages of it.

    Raises:
        OptionError: If a setting is wrong, or a resumed run has other settings than `config`.
        OutputError: If the folder exists and `resume` is false.
        StoreError: If there is no run to resume, or the data is not the one the run began with.
    """
    run = _create_or_open(config, Path(out), resume, "cpu" if engine is not None else device)
    observer = _MetricsObserver(run, observer or SilentObserver())
    if engine is None:
        run.prepare(progress)
    else:
        prepare_on(engine, run, resources, progress)
    missing = [cell for cell in run.missing if only is None or only(cell)]
    observer.begin(missing)
    if engine is None:
        execute_all(run, missing, min(workers or _default_workers(run.device), max(len(missing), 1)), observer)
    else:
        execute_on(engine, run, missing, observer, resources)
    run.write_metrics()
    write_tensorboard(run)
    if tracker:
        track(run, tracker)
    return run


def _create_or_open(config: ExperimentConfig | None, out: Path, resume: bool, device: str) -> Run:
    if not resume:
        if config is None:
            raise OptionError("config: a new run needs settings; give them, or resume a run")
        return Run.create(out, config, device)
    run = Run.open(out, device)
    if config is not None and config != run.settings:
        raise OptionError(f"config: {out} was begun with other settings; resume it without a config, or start a new run")
    return run


def _default_workers(device: str) -> int:
    return len(os.sched_getaffinity(0)) if device == "cpu" and hasattr(os, "sched_getaffinity") else 1


class _MetricsObserver:
    """Writes the metrics after every cell, and passes everything on."""

    def __init__(self, run: Run, observer: RunObserver) -> None:
        self._run, self._observer = run, observer
        self.begin, self.phase, self.advance = observer.begin, observer.phase, observer.advance

    def done(self, cell: Cell) -> None:
        self._observer.done(cell)
        self._run.write_metrics()
