"""A run: the folder of one experiment, with its settings, finished cells and results.

::

    RUN/settings.json                        all settings, resolved
    RUN/run.json                             versions, device, content hash of the data (other data is refused on resuming)
    RUN/data, RUN/simulators/FAMILY          the generated log and the fitted simulators
    RUN/cells/PROTOCOL/AGENT/seed-S          one result: a manifest with the record, and the reward of every test session
    RUN/models/PROTOCOL/AGENT/seed-S         the agent as it was tested, for `mbcal rank`, `mbcal evaluate` or a warm start
    RUN/partial/…                            checkpoints of unfinished cells
    RUN/metrics.jsonl                        one line per test: protocol, agent, seed, round, judge, reward
    RUN/tables, RUN/figures, report.html     written by `mbcal report`

Every cell (protocol, agent, seed) depends on the settings alone. So cells may run in any order and in any process, and a run
that was killed and resumed ends with the same tables.
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
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from mbcal.agents import AGENTS
from mbcal.config import from_dict, to_dict
from mbcal.data.cutting import SessionConfig
from mbcal.data.store import Store
from mbcal.environments.base import Environment
from mbcal.environments.gymnasium.world import GymnasiumWorld
from mbcal.environments.newsfeed import oracle
from mbcal.environments.newsfeed.log import NewsfeedConfig, prepare_newsfeed
from mbcal.environments.newsfeed.world import Newsfeed
from mbcal.environments.simulator import Simulator
from mbcal.errors import ModelError, OptionError, OutputError, StoreError
from mbcal.evaluation.evaluator import TEST_SEED
from mbcal.evaluation.experiment.batch_rl import batch_rl
from mbcal.evaluation.experiment.config import NEWSFEED, ExperimentConfig, JudgeName
from mbcal.evaluation.experiment.context import ExperimentContext, agent_config
from mbcal.evaluation.experiment.growing_batch import growing_batch
from mbcal.evaluation.judges import TRUTH, true_environment
from mbcal.evaluation.sampling import sample_test_sessions
from mbcal.evaluation.worlds import collect
from mbcal.nn.embeddings import require_features
from mbcal.progress import SILENT, Progress
from mbcal.storage.artifacts import Artifact, write_artifact
from mbcal.storage.atomic import write_atomic
from mbcal.storage.checkpoints import Checkpoints
from mbcal.storage.json_text import parse_json
from mbcal.storage.manifest import ArtifactKind
from mbcal.training.device import release_memory, resolve_device
from mbcal.types import Catalog, Sessions
from mbcal.version import __version__

SCHEMA = 1
MAX_NAME = 120
"""Most characters of an agent's name that its folder's name takes."""
CELL_KIND = ArtifactKind("cell", SCHEMA, "an experiment writes cells", "remove it and resume the run", ModelError)


class Cell(NamedTuple):
    """One unit of an experiment: an agent trained once under one protocol."""

    protocol: str
    agent: str
    seed: int

    def __str__(self) -> str:
        return f"{self.protocol} {self.agent} seed {self.seed}"


@dataclass(frozen=True)
class CellRecord:
    """The result of a cell, as it is read back from disk."""

    cell: Cell
    record: dict[str, Any]
    """Plain values for the report."""
    rewards: dict[str, NDArray[np.float32]]
    """By judge: reward of every test session, (N,), after the last fit."""


class Run:
    """The folder of one experiment.

    Create it with `Run.create` or open it with `Run.open`; then `prepare` it, `execute` the cells that are `missing`, and
    read the `results`. `run_experiment` does all of it.

    Args:
        folder: The folder; it has been written by `create`.
        settings: All settings of the experiment.
        device: Where cells compute: `cpu` or `cuda`.
    """

    def __init__(self, folder: Path, settings: ExperimentConfig, device: str) -> None:
        self.folder, self.settings, self.device = folder, settings, device

    @classmethod
    def create(cls, folder: str | Path, settings: ExperimentConfig, device: str = "auto") -> Self:
        """Create a run. Nothing is written if a setting is wrong.

        Args:
            folder: A folder that is empty or does not exist.
            settings: All settings.
            device: Where cells will compute.

        Raises:
            OptionError: If an agent, a setting of an agent, a feature or the device is unknown, or the truth of the data is.
            OutputError: If the folder is not empty or cannot be written.
            StoreError: If the data is not a store.
        """
        folder = Path(folder)
        agent_features = [agent_config(name, settings, (), 0)[1].net.features for name in _agent_names(settings)]
        resolved_device = str(resolve_device(device))
        store = None if settings.is_generated else Store.open(settings.data)
        catalog = _generated_catalog(settings) if store is None else store.catalog
        for features in (*agent_features, settings.net.features, settings.simulator.features):
            require_features(catalog, features or ())
        if TRUTH in settings.judges and store is not None and store.manifest["source"] != "newsfeed":
            raise OptionError("judges: only the generated newsfeed knows its truth; give lstm or transformer")
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise OutputError(f"{folder}: already exists; resume it with --resume {folder}, or choose another --out")
        _write_json(folder / "settings.json", to_dict(settings))
        _write_json(folder / "run.json", version_record(resolved_device))
        return cls(folder, settings, resolved_device)

    @classmethod
    def open(cls, folder: str | Path, device: str = "auto") -> Self:
        """Open an existing run, finished or not.

        Raises:
            StoreError: If the folder is not a run, is damaged, or has another schema.
            OptionError: If there is no such device.
        """
        folder = Path(folder)
        try:
            record, settings = (parse_json((folder / name).read_bytes()) for name in ("run.json", "settings.json"))
            schema = dict(record).get("schema")
        except OSError:
            raise StoreError(f"{folder}: not a run; make one with 'mbcal experiment … --out {folder}'") from None
        except (ValueError, TypeError) as error:
            raise StoreError(f"{folder}: damaged ({error}); start the run again") from error
        if schema != SCHEMA:
            raise StoreError(f"{folder}: schema {schema}, this mbcal reads schema {SCHEMA}; start the run again")
        return cls(folder, from_dict(ExperimentConfig, settings), str(resolve_device(device)))

    # ---- cells

    @property
    def cells(self) -> list[Cell]:
        """All cells, in the order of the report."""
        settings = self.settings
        has_oracle = TRUTH in self.judge_names and "batch" in settings.protocols
        return [Cell("batch", oracle.NAME, 0)] * has_oracle + [
            Cell(protocol, agent, seed)
            for protocol in settings.protocols
            for seed in range(settings.seeds)
            for agent in _agent_names(settings)
        ]

    @property
    def missing(self) -> list[Cell]:
        """Cells that are not done yet."""
        return [cell for cell in self.cells if not self._is_done(cell)]

    def path(self, cell: Cell, kind: Literal["cells", "models"] = "cells") -> Path:
        """Return the folder of a cell's result, or of its agent (`models`)."""
        return self.folder / kind / cell.protocol / _folder_name(cell.agent) / f"seed-{cell.seed}"

    def _is_done(self, cell: Cell) -> bool:
        return (self.path(cell) / "manifest.json").is_file()

    # ---- data and judges

    @property
    def judge_names(self) -> tuple[JudgeName, ...]:
        """Who judges, in the order of the report."""
        if self.settings.judges:
            return self.settings.judges
        if self.settings.is_world:
            return ("world",)
        return ("truth", "lstm") if self.settings.data == NEWSFEED else ("lstm",)

    @cached_property
    def world(self) -> GymnasiumWorld:
        """The Gymnasium world that is the data; raises OptionError if the data is not one."""
        return GymnasiumWorld(self.settings.data, repeats=self.settings.repeats)

    def store(self, progress: Progress = SILENT) -> Store:
        """Open the data. The log of the newsfeed or of a Gymnasium world is generated on the first call."""
        settings, path = self.settings, self.folder / "data"
        if not settings.is_generated:
            return Store.open(settings.data)
        if not (path / "manifest.json").is_file():
            if settings.is_world:
                collect(self.world, path, sessions=settings.log_episodes, split=(0.0, 1.0, 0.0), progress=progress)
            else:
                config = NewsfeedConfig(settings.log_sessions, settings.items)
                prepare_newsfeed(path, config, SessionConfig(), progress=progress)
        return Store.open(path)

    def test_users(self) -> NDArray[np.int32]:
        """Return the user of every test session, (N,); in a Gymnasium world, one per episode."""
        if self.settings.is_world:
            return np.arange(self.settings.test_sessions, dtype=np.int32)
        return self.test_sessions(self.store()).user

    def test_sessions(self, store: Store) -> Sessions:
        """Return the test sessions, the same for every cell: a sample of users, with candidates (`evaluation.sampling`)."""
        return sample_test_sessions(store.sessions("test"), self.settings.test_sessions, TEST_SEED)

    def prepare(self, progress: Progress = SILENT) -> None:
        """Make what cells need: the generated log and the simulators. Idempotent; a fit that was killed is resumed.

        Raises:
            StoreError: If the data is not the one the run began with.
        """
        self.sweep()
        store = self.store(progress)
        self._require_same_data(store)
        for judge in self.judge_names:
            path = self.folder / "simulators" / judge
            if judge == "truth" or judge == "world" or (path / "manifest.json").is_file():
                continue
            config = replace(self.settings.simulator, family=judge)
            fit_settings = {"config": to_dict(config), "data": store.manifest["content_hash"]}
            checkpoints = Checkpoints(self.folder / "partial" / f"simulator-{judge}", fit_settings)
            simulator = Simulator(config, self.device).fit(store, progress=progress, checkpoints=checkpoints)
            simulator.provenance = {"data": store.manifest["content_hash"]}
            simulator.save(path, card=simulator.evaluate(self.test_sessions(store), progress=progress))
            checkpoints.remove()
            release_memory()

    def sweep(self) -> None:
        """Remove files and folders that killed processes left half-written. No process may be writing to the run."""
        for partial in list(self.folder.rglob(".*.partial-*")):
            if partial.is_dir():
                shutil.rmtree(partial, ignore_errors=True)
            else:
                partial.unlink(missing_ok=True)

    def _require_same_data(self, store: Store) -> None:
        """Record which data this is; refuse to go on with other data under the same name."""
        record, content = json.loads((self.folder / "run.json").read_bytes()), store.manifest["content_hash"]
        if record["data"] is None:
            _write_json(self.folder / "run.json", {**record, "data": content})
        elif record["data"] != content:
            problem = (
                f"{store.path}: is not the data this run began with (content {content[:16]}, then {record['data'][:16]})"
            )
            raise StoreError(f"{problem}; restore it, or start a new run")

    @cached_property
    def context(self) -> ExperimentContext:
        """What the cells share, in memory once per process. The run must be prepared."""
        store = self.store()
        train = store.sessions("train")
        if self.settings.is_world:
            judged_by: dict[str, Environment | GymnasiumWorld] = {"world": self.world}
            return ExperimentContext(self.settings, train, train[:0], judged_by, store.agent_features, self.device)
        if not self.settings.is_generated and self.settings.log_sessions:
            train = train[: self.settings.log_sessions]
        test = self.test_sessions(store)
        judges: dict[str, Environment | GymnasiumWorld] = {}
        for name in self.judge_names:
            if name == "truth":
                judges[name] = true_environment(store, self.device)
            else:
                simulator = Simulator.load(self.folder / "simulators" / name, self.device)
                simulator.require_unseen_users(test)
                simulator.require_unseen_users(train[:1])
                judges[name] = simulator
        return ExperimentContext(self.settings, train, test, judges, store.agent_features, self.device)

    # ---- running and reading cells

    def execute(self, cell: Cell, progress: Progress = SILENT) -> None:
        """Run one cell and write its result. A cell that was killed is resumed from its checkpoint."""
        partial = self.folder / "partial" / f"{cell.protocol}-{_folder_name(cell.agent)}-{cell.seed}"
        if cell.protocol == "batch":
            checkpoints = Checkpoints(partial, {"cell": list(cell)})
            result = batch_rl(self.context, cell.agent, cell.seed, progress, checkpoints)
        else:
            partial.mkdir(parents=True, exist_ok=True)
            result = growing_batch(self.context, cell.agent, cell.seed, partial, progress)
        if result.agent is not None:
            provenance = {"data": self.context.train.origin, "part": "train", "cell": list(cell)}
            result.agent.save(self.path(cell, "models"), overwrite=True, provenance=provenance)
        manifest = {"cell": list(cell), "record": result.record}
        write_artifact(self.path(cell), CELL_KIND, manifest, {"rewards": result.rewards}, overwrite=True)
        shutil.rmtree(partial, ignore_errors=True)
        release_memory()

    def results(self) -> Iterator[CellRecord]:
        """Read the results of all cells that are done, in the order of `cells`."""
        for cell in filter(self._is_done, self.cells):
            artifact = Artifact.open(self.path(cell), CELL_KIND)
            yield CellRecord(cell, artifact.manifest["record"], artifact.arrays("rewards"))

    def write_metrics(self) -> None:
        """Write metrics.jsonl anew from all cells that are done."""
        lines = []
        for result in self.results():
            cell = result.cell._asdict()
            lines += [json.dumps({**cell, **entry}) for entry in result.record.get("rounds", [])]
            lines += [json.dumps({**cell, "judge": judge, **values}) for judge, values in result.record["judges"].items()]
        write_atomic(self.folder / "metrics.jsonl", "".join(f"{line}\n" for line in lines).encode())


def _agent_names(settings: ExperimentConfig) -> list[str]:
    """Names of the agents, `all` resolved."""
    return [agent for name in settings.agents for agent in (AGENTS if name == "all" else [name])]


def _generated_catalog(settings: ExperimentConfig) -> Catalog:
    """A catalogue with the features of the data that the run will generate."""
    return GymnasiumWorld(settings.data, repeats=settings.repeats).catalog if settings.is_world else Newsfeed(1, 100).catalog


def _folder_name(agent: str) -> str:
    """The agent's name if a folder can have it; else its usable characters and a hash, so that no two share a folder."""
    usable = "".join(letter if letter.isalnum() or letter in "-_+=." else "_" for letter in agent)[:MAX_NAME]
    return usable if usable == agent else f"{usable}-{hashlib.sha256(agent.encode()).hexdigest()[:8]}"


def version_record(device: str) -> dict[str, Any]:
    """Return versions and device, as a new run.json has them; the data is not known yet."""
    versions = {name: _version(name) for name in ("torch", "numpy", "pyarrow", "safetensors")}
    record = {"schema": SCHEMA, "mbcal": __version__, "python": platform.python_version(), "device": device}
    return {**record, "versions": versions, "data": None}


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def _write_json(path: Path, value: Any) -> None:
    write_atomic(path, (json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n").encode())
