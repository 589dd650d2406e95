"""A run: a folder that knows what it was told, what is done, and what came of it.

::

    RUN/settings.json                     everything it was told, resolved
    RUN/run.json                          versions, device, the data's hash (other data is refused when resuming)
    RUN/data, RUN/simulators/FAMILY       what had to be made first
    RUN/cells/PROTOCOL/MODEL_KIND/seed-S       one result: a manifest with the record, rewards of every test session
    RUN/models/PROTOCOL/MODEL_KIND/seed-S      its agent as it was tested: for `mbcal rank`, `mbcal evaluate`, a warm start
    RUN/partial/…                         checkpoints of cells under way
    RUN/metrics.jsonl                     a line a test: protocol, agent, seed, round, judge, reward
    RUN/tables, RUN/figures, report.html  made by `mbcal report`

Every cell (protocol, method, seed) depends on the settings alone, so cells may run in any order, in any process, and a run
that was killed and resumed ends in the same tables.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from mbcal.agents import AGENTS
from mbcal.config import from_dict, to_dict
from mbcal.data.cutting import SessionConfig
from mbcal.data.store import Store
from mbcal.environments.base import Environment
from mbcal.environments.candidates import session_candidates
from mbcal.environments.newsfeed import oracle
from mbcal.environments.newsfeed.log import NewsfeedConfig, prepare_newsfeed
from mbcal.environments.newsfeed.world import Newsfeed
from mbcal.environments.simulator import Simulator
from mbcal.errors import ModelError, OptionError, OutputError, StoreError
from mbcal.evaluation.experiment.batch_rl import TEST_SEED, batch_rl
from mbcal.evaluation.experiment.config import ExperimentConfig, Judge
from mbcal.evaluation.experiment.context import ExperimentContext, agent_config
from mbcal.evaluation.experiment.growing_batch import growing_batch
from mbcal.nn.embeddings import require_features
from mbcal.progress import SILENT, Progress
from mbcal.storage import artifacts as bundle
from mbcal.storage.atomic import write_atomic
from mbcal.storage.checkpoints import Checkpoints
from mbcal.storage.manifest import ArtifactKind
from mbcal.training.device import resolve_device
from mbcal.types import Sessions
from mbcal.version import __version__

SCHEMA = 1
LONGEST_NAME = 120
"""Letters of an agent's name that a folder takes from it."""
CELL_KIND = ArtifactKind("cell", SCHEMA, "an experiment writes cells", "remove it and resume the run", ModelError)


class Cell(NamedTuple):
    """One result to be had."""

    protocol: str
    agent: str
    seed: int

    def __str__(self) -> str:
        return f"{self.protocol} {self.agent} seed {self.seed}"


@dataclass(frozen=True)
class CellRecord:
    """What came of a cell."""

    cell: Cell
    record: dict[str, Any]
    rewards: dict[str, NDArray[np.float32]]
    """By judge, of every test session after the last fit."""


class Run:
    """`Run.create(folder, settings)` or `Run.open(folder)`; then `prepare`, `execute` what is `missing`, read `results`."""

    def __init__(self, folder: Path, settings: ExperimentConfig, device: str) -> None:
        self.folder, self.settings, self.device = folder, settings, device

    @classmethod
    def create(cls, folder: str | Path, settings: ExperimentConfig, device: str = "auto") -> Self:
        """A new run; the folder must be empty or absent."""
        folder = Path(folder)
        seen = [agent_config(name, settings, (), 0, settings.training(1))[1].net.features for name in _agents(settings)]
        place = str(resolve_device(device))
        given = None if settings.data == "newsfeed" else Store.open(settings.data)
        catalog = Newsfeed(1, 100).catalog if given is None else given.catalog
        for features in (*seen, settings.features, settings.simulator.features):
            require_features(catalog, features or ())
        if "truth" in settings.judges and given is not None and given.manifest["source"] != "newsfeed":
            raise OptionError("judges: only the generated newsfeed knows its truth; name lstm or transformer")
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise OutputError(f"{folder}: already exists; resume it with --resume {folder}, or choose another --out")
        _write_json(folder / "settings.json", to_dict(settings))
        versions = {name: _version(name) for name in ("torch", "numpy", "pyarrow", "safetensors")}
        said = {"schema": SCHEMA, "mbcal": __version__, "python": platform.python_version(), "device": place}
        _write_json(folder / "run.json", {**said, "versions": versions, "data": None})
        return cls(folder, settings, place)

    @classmethod
    def open(cls, folder: str | Path, device: str = "auto") -> Self:
        """An existing run, finished or not."""
        folder = Path(folder)
        try:
            said = json.loads((folder / "run.json").read_bytes())
            told = json.loads((folder / "settings.json").read_bytes())
        except OSError:
            raise StoreError(f"{folder}: not a run; make one with 'mbcal experiment … --out {folder}'") from None
        except ValueError as error:
            raise StoreError(f"{folder}: damaged ({error}); start the run again") from error
        if said.get("schema") != SCHEMA:
            raise StoreError(f"{folder}: schema {said.get('schema')}, this mbcal reads schema {SCHEMA}; start the run again")
        return cls(folder, from_dict(ExperimentConfig, told), str(resolve_device(device)))

    @property
    def cells(self) -> list[Cell]:
        """All of them, in the order of the report."""
        settings = self.settings
        known = "truth" in self.judge_names and "batch" in settings.protocols
        return [Cell("batch", oracle.NAME, 0)] * known + [
            Cell(protocol, agent, seed)
            for protocol in settings.protocols
            for seed in range(settings.seeds)
            for agent in _agents(settings)
        ]

    def path(self, cell: Cell, what: str = "cells") -> Path:
        """Where a cell's result lies, or its trained agent (`models`)."""
        return self.folder / what / cell.protocol / _file_name(cell.agent) / f"seed-{cell.seed}"

    @property
    def missing(self) -> list[Cell]:
        """Cells not done yet."""
        return [cell for cell in self.cells if not (self.path(cell) / "manifest.json").is_file()]

    def sweep(self) -> None:
        """Remove what killed processes half wrote. Nobody may be writing."""
        for torn in list(self.folder.rglob(".*.partial-*")):
            if torn.is_dir():
                shutil.rmtree(torn, ignore_errors=True)
            else:
                torn.unlink(missing_ok=True)

    def prepare(self, progress: Progress = SILENT) -> None:
        """Make what cells need: the generated log, the simulators."""
        self.sweep()
        store = self.store(progress)
        self._require_data(store)
        for judge in self.judge_names:
            path = self.folder / "simulators" / judge
            if judge == "truth" or (path / "manifest.json").is_file():
                continue
            config = replace(self.settings.simulator, family=judge)
            about = {"config": to_dict(config), "data": store.manifest["content_hash"]}
            kept = Checkpoints(self.folder / "partial" / f"simulator-{judge}", about)
            fitted = Simulator(config, self.device).fit(store, progress=progress, checkpoints=kept)
            fitted.provenance = {"data": store.manifest["content_hash"]}
            fitted.save(path, card=fitted.evaluate(self.test_sessions(store), progress=progress))
            kept.remove()

    def _require_data(self, store: Store) -> None:
        """Write down which data this is; refuse to go on with other data under the same name."""
        said, found = json.loads((self.folder / "run.json").read_bytes()), store.manifest["content_hash"]
        if said["data"] is None:
            _write_json(self.folder / "run.json", {**said, "data": found})
        elif said["data"] != found:
            rule = f"{store.path}: is not the data this run began with"
            raise StoreError(f"{rule} (content {found[:16]}, then {said['data'][:16]}); restore it, or start a new run")

    def store(self, progress: Progress = SILENT) -> Store:
        """The data; the newsfeed is generated when first asked for."""
        if self.settings.data != "newsfeed":
            return Store.open(self.settings.data)
        path = self.folder / "data"
        if not (path / "manifest.json").is_file():
            log = NewsfeedConfig(self.settings.log_sessions, self.settings.items)
            prepare_newsfeed(path, log, SessionConfig(), progress=progress)
        return Store.open(path)

    @property
    def judge_names(self) -> tuple[Judge, ...]:
        if self.settings.judges:
            return self.settings.judges
        return ("truth", "lstm") if self.settings.data == "newsfeed" else ("lstm",)

    def test_sessions(self, store: Store) -> Sessions:
        """The same sessions with the same candidates for every cell, however many are served."""
        test = store.sessions("test")
        return replace(test, candidates=session_candidates(test, TEST_SEED))[: self.settings.test_sessions]

    @cached_property
    def context(self) -> ExperimentContext:
        """Everything cells resources, in memory once a process."""
        store = self.store()
        train = store.sessions("train")
        if self.settings.data != "newsfeed" and self.settings.log_sessions:
            train = train[: self.settings.log_sessions]
        test = self.test_sessions(store)
        judges: dict[str, Environment] = {}
        for name in self.judge_names:
            if name == "truth":
                judges[name] = Newsfeed.from_options(dict(store.manifest["options"]), self.device)
            else:
                simulator = Simulator.load(self.folder / "simulators" / name, self.device)
                simulator.require_unseen_users(test)
                simulator.require_unseen_users(train[:1])
                judges[name] = simulator
        return ExperimentContext(self.settings, train, test, judges, store.agent_features, self.device)

    def execute(self, cell: Cell, progress: Progress = SILENT) -> None:
        """Run one cell to its end, going on from where it was left, and put its result on disk."""
        under_way = self.folder / "partial" / f"{cell.protocol}-{_file_name(cell.agent)}-{cell.seed}"
        if cell.protocol == "batch":
            kept = Checkpoints(under_way, {"cell": list(cell)})
            played = batch_rl(self.context, cell.agent, cell.seed, progress, kept)
        else:
            under_way.mkdir(parents=True, exist_ok=True)
            played = growing_batch(self.context, cell.agent, cell.seed, under_way, progress)
        if played.agent is not None:
            about = {"data": self.context.train.origin, "part": "train", "cell": list(cell)}
            played.agent.save(self.path(cell, "models"), overwrite=True, provenance=about)
        said = {"cell": list(cell), "record": played.record}
        bundle.write_artifact(self.path(cell), CELL_KIND, said, {"rewards": played.rewards}, overwrite=True)
        shutil.rmtree(under_way, ignore_errors=True)

    def results(self) -> Iterator[CellRecord]:
        """Of the cells that are done, in order."""
        for cell in self.cells:
            if (self.path(cell) / "manifest.json").is_file():
                opened = bundle.Artifact.open(self.path(cell), CELL_KIND)
                yield CellRecord(cell, opened.manifest["record"], opened.arrays("rewards"))

    def write_metrics(self) -> None:
        """metrics.jsonl, whole, from what is done."""
        lines = []
        for result in self.results():
            said = {"protocol": result.cell.protocol, "agent": result.cell.agent, "seed": result.cell.seed}
            lines += [json.dumps({**said, **entry}) for entry in result.record.get("rounds", [])]
            lines += [json.dumps({**said, "judge": judge, **values}) for judge, values in result.record["judges"].items()]
        write_atomic(self.folder / "metrics.jsonl", "".join(f"{line}\n" for line in lines).encode())


def _agents(settings: ExperimentConfig) -> list[str]:
    return [name for given in settings.agents for name in (AGENTS if given == "all" else [given])]


def _file_name(agent: str) -> str:
    """The name itself where it can be a folder's; else what is left of it and a hash, so that no two share a folder."""
    plain = "".join(letter if letter.isalnum() or letter in "-_+=." else "_" for letter in agent)[:LONGEST_NAME]
    return plain if plain == agent else f"{plain}-{hashlib.sha256(agent.encode()).hexdigest()[:8]}"


def _version(name: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"


def _write_json(path: Path, value: Any) -> None:
    write_atomic(path, (json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n").encode())
