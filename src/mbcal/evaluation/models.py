"""Compare models: each serves the test users of a store, judged by simulators or by the truth.

All models meet the same users, candidates and noise, so that differences are paired. A uniformly random policy serves as a
yardstick.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from mbcal.agents import Agent, Random, load
from mbcal.data.store import Store
from mbcal.distributed.engines import ONE_CORE, Engine, WorkerResources
from mbcal.environments.base import Environment
from mbcal.environments.simulator import Simulator
from mbcal.errors import OptionError
from mbcal.evaluation.blocks import CHANCE, SessionRange, evaluate_in_blocks
from mbcal.evaluation.comparison import ModelComparison, ModelResult, compare_rewards
from mbcal.evaluation.coverage import coverage, times_logged
from mbcal.evaluation.evaluator import ServedSummary, evaluate, require_same_store
from mbcal.evaluation.judges import TRUTH, true_environment
from mbcal.evaluation.sampling import sample_test_sessions
from mbcal.metrics import mean_interval
from mbcal.progress import SILENT, Progress
from mbcal.training.device import resolve_device
from mbcal.types import Sessions

TRUTH_TITLE = "the generated users themselves"
"""How results name the judge `truth`."""


class OpenModel(NamedTuple):
    """A loaded model with its name in results."""

    name: str
    agent: Agent
    folder: Path | str
    """For workers of an engine: a folder, or `CHANCE`."""


class _Judge(NamedTuple):
    name: str
    environment: Environment
    folder: Path | str
    """For workers of an engine: a folder, or `TRUTH`."""


_Entry = TypeVar("_Entry", OpenModel, _Judge)


def evaluate_models(
    models: Sequence[str | Path | Agent],
    judges: Sequence[str | Path | Simulator],
    store: Store | str | Path,
    *,
    sessions: int | None = None,
    epsilon: float = 0.0,
    seed: int = 0,
    device: str = "auto",
    engine: Engine | None = None,
    resources: WorkerResources = ONE_CORE,
    progress: Progress = SILENT,
) -> ModelComparison:
    """Serve the test users of a store by several models, under several judges.

    Args:
        models: Folders of models, or fitted agents. Differences are to the first.
        judges: Folders of simulators, fitted simulators, or the string "truth" for the generated newsfeed itself.
        store: The store whose test users are served, or its folder.
        sessions: Most test sessions to serve; all if None. Of more, a sample: one of each user before a second of any.
        epsilon: Probability of a uniformly random candidate at each step; 0 is greedy.
        seed: Seed of sampled candidates and noise, the same for all models.
        device: Where to load models and judges. Agents and simulators given as objects must be there already.
        engine: Whose workers serve the users, block by block; by default this process. Models and judges must then be given
            as folders that every worker can read.
        resources: What each worker of the engine takes of a machine; with a share of a GPU it computes there.
        progress: Notified of sessions.

    Returns:
        Rewards and paired differences of all models and of a uniformly random policy.

    Raises:
        OptionError: If there is no model or no judge, the truth is not known, or an engine is given objects.
        ModelError: If a model or simulator is damaged, knows other items or behaviours, or was fitted on another store.
        InputError: If a simulator was fitted on some of the test users.
    """
    if not models or not judges:
        raise OptionError("evaluate: give at least one model and one judge")
    if engine is not None:
        if not all(isinstance(subject, str | Path) for subject in (*models, *judges)):
            raise OptionError("engine: its workers read models and judges from folders; give folders")
        device = "cpu"  # here they are only checked
    store = store if isinstance(store, Store) else Store.open(store)
    test = sample_test_sessions(store.sessions("test"), sessions, seed)
    serving = _Serving(store, test, times_logged(store), epsilon, seed, engine, resources, progress)
    opened_judges = _open_judges(judges, store, test, device)
    opened_models = _open_models(models, test, device)
    random = Random(device=opened_judges[0].environment.device.type).fit(test)
    opened_models.append(OpenModel(CHANCE, random, CHANCE))
    rows = [row for judge in opened_judges for row in serving.compare(opened_models, judge)]
    trust = {judge.name: judge.environment.trust for judge in opened_judges if isinstance(judge.environment, Simulator)}
    return ModelComparison(rows, mean_interval(test.rewards.sum(1), test.user), len(test), seed, trust)


@dataclass(frozen=True, eq=False)
class _Serving:
    """How all models of one comparison are served."""

    store: Store
    test: Sessions
    logged: NDArray[np.int64]
    """Times that each catalogue row was shown in the train part, (rows,)."""
    epsilon: float
    seed: int
    engine: Engine | None
    resources: WorkerResources
    progress: Progress

    def compare(self, models: Sequence[OpenModel], judge: _Judge) -> list[ModelResult]:
        """Results of all models under one judge, in their order."""
        served = [self._serve(model, judge) for model in models]
        names = [(model.name, model.agent.name) for model in models]
        rows = compare_rewards(judge.name, names, [summary.rewards for summary in served], self.test.user)
        results = []
        for row, summary in zip(rows, served, strict=True):
            length, left = summary.staying
            results.append(replace(row, coverage=coverage(summary.times_shown, self.logged), length=length, left=left))
        return results

    def _serve(self, model: OpenModel, judge: _Judge) -> ServedSummary:
        """Rewards and items shown in all test sessions, in this process or on the engine's workers."""
        title = f"{model.name}, judged by {judge.name}"
        if self.engine is None:
            result = evaluate(
                model.agent,
                judge.environment,
                self.test,
                epsilon=self.epsilon,
                seed=self.seed,
                title=title,
                progress=self.progress,
            )
            return ServedSummary.of(result)
        return evaluate_in_blocks(
            self.engine,
            SessionRange(self.store.path, "test", len(self.test), self.seed),
            model.folder,
            judge.folder,
            epsilon=self.epsilon,
            resources=self.resources,
            title=title,
            progress=self.progress,
        )


def _open_judges(judges: Sequence[str | Path | Simulator], store: Store, test: Sessions, device: str) -> list[_Judge]:
    """Judges with distinct names; raises InputError if a simulator was fitted on some of the test users."""
    opened = _number_repeats([_open_judge(judge, store, device) for judge in judges])
    for judge in opened:
        if isinstance(judge.environment, Simulator):
            judge.environment.require_unseen_users(test)
    return opened


def _open_models(models: Sequence[str | Path | Agent], test: Sessions, device: str) -> list[OpenModel]:
    """Models with distinct names; raises ModelError if one does not fit the test sessions."""
    opened = open_models(models, device)
    for model in opened:
        require_same_store(model.agent, test, model.name)
    return opened


def open_models(models: Sequence[str | Path | Agent], device: str) -> list[OpenModel]:
    """Load models that are given as folders; names are made distinct: the second "mbcal" becomes "mbcal (2)"."""
    return _number_repeats([_open_model(model, device) for model in models])


def _open_judge(judge: str | Path | Simulator, store: Store, device: str) -> _Judge:
    if judge == TRUTH:
        return _Judge(TRUTH_TITLE, true_environment(store, str(resolve_device(device))), TRUTH)
    if isinstance(judge, str | Path):
        return _Judge(str(judge), Simulator.load(judge, device), judge)
    return _Judge(f"{judge.config.family} simulator", judge, "")


def _open_model(model: str | Path | Agent, device: str) -> OpenModel:
    if isinstance(model, str | Path):
        return OpenModel(str(model), load(model, device), model)
    return OpenModel(model.name, model, "")


def _number_repeats(entries: list[_Entry]) -> list[_Entry]:
    """Entries whose names differ: the second "mbcal" becomes "mbcal (2)"."""
    seen: Counter[str] = Counter()
    renamed = []
    for entry in entries:
        seen[entry.name] += 1
        count = seen[entry.name]
        renamed.append(entry if count == 1 else entry._replace(name=f"{entry.name} ({count})"))
    return renamed
