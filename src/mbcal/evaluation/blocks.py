"""Computations over many sessions in blocks, on the workers of an engine.

::

    evaluate_in_blocks         rewards of a model, judged by an environment           (N,)    see `evaluate`
                               times that it showed each item                         (rows,)
    policy_choices_in_blocks   choices of a model along logged sessions               (N, T)  see `policy_choices`
    labels_in_blocks           counterfactual advantages, and residuals               (N, T)  see `advantage_and_residual`
    estimate_value_in_blocks   off-policy estimates from the choices                          see `estimate_value`

A block is a range in a sample of the sessions of a part of a store. Workers open the store and the models themselves, read
the shards that hold their block, and return only the arrays above. Noise is indexed by session and blocks are whole batches,
so the result is that of one pass: bit for bit on a CPU, up to rounding on a GPU, whose batches are larger.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mbcal.agents import MBCAL, Agent, Random, load
from mbcal.data.store import Store
from mbcal.data.store_format import Part
from mbcal.distributed.engines import ONE_CORE, Engine, WorkerResources
from mbcal.environments.base import Environment
from mbcal.environments.candidates import session_candidates
from mbcal.environments.rollout import CPU_BLOCK
from mbcal.environments.simulator import Simulator
from mbcal.errors import OptionError
from mbcal.evaluation.diagnose import LabelArrays, advantage_and_residual
from mbcal.evaluation.evaluator import ServedSummary, evaluate
from mbcal.evaluation.judges import TRUTH, true_environment
from mbcal.evaluation.ope.estimate import estimate_value
from mbcal.evaluation.ope.intervals import Estimate
from mbcal.evaluation.ope.propensity import PolicyChoices, policy_choices
from mbcal.evaluation.sampling import sample_sessions
from mbcal.progress import SILENT, Progress
from mbcal.types import Sessions

CHANCE = "chance"
"""As a model: a uniformly random policy."""
BLOCKS_PER_WORKER = 4
"""With several blocks each, workers finish at about the same time."""
MAX_BLOCK = 64 * CPU_BLOCK
"""Most sessions in a block, which is computed again if its worker is lost."""


@dataclass(frozen=True)
class SessionRange:
    """Sessions of a part of a store, all or a sample of users, and the seed of sample, candidates and noise."""

    data: Path
    """Folder of the store."""
    part: Part = "test"
    sessions: int | None = None
    """How many sessions; all of the part if None or more than there are."""
    seed: int = 0
    """Seed of the sample of sessions (`evaluation.sampling`), sampled candidates and the noise of roll-outs."""

    @property
    def count(self) -> int:
        """Number of sessions in the range."""
        available = _store(str(self.data.resolve())).n_sessions(self.part)
        return available if self.sessions is None else min(self.sessions, available)


class Block(NamedTuple):
    """One task: sessions `first` to `last` - 1 of the sample, and what to compute for them. Can be pickled."""

    data: str
    part: Part
    sessions: int
    """Size of the sample."""
    seed: int
    first: int
    last: int
    model: str
    device: str
    judge: str = ""
    epsilon: float = 0.0


def evaluate_in_blocks(
    engine: Engine,
    users: SessionRange,
    model: Path | str,
    judge: Path | str,
    *,
    epsilon: float = 0.0,
    resources: WorkerResources = ONE_CORE,
    title: str = "roll-outs",
    progress: Progress = SILENT,
) -> ServedSummary:
    """Serve users by a model on the workers of an engine.

    Args:
        engine: Whose workers compute. They must see the store, the model and the judge under the same paths.
        users: The sessions whose users are served.
        model: Folder of a model, or `CHANCE` for a uniformly random policy.
        judge: Folder of a simulator, or `TRUTH` for the generated newsfeed.
        epsilon: Probability of a uniformly random candidate at each step.
        resources: What each worker takes of a machine; with a share of a GPU it computes there.
        title: Title of the progress.
        progress: Notified of sessions.

    Returns:
        Rewards of the N sessions, and how often each item was shown.
    """
    blocks = _blocks(engine, users, model, resources)
    tasks = [block._replace(judge=_absolute(judge, TRUTH), epsilon=epsilon) for block in blocks]
    parts = _map_blocks(engine, _evaluate_block, tasks, resources, title, progress)
    rewards, times_shown, steps, left = zip(*parts, strict=True)
    n_left = None if None in left else sum(left)
    return ServedSummary(np.concatenate(rewards), np.sum(times_shown, 0), sum(steps), n_left)


def policy_choices_in_blocks(
    engine: Engine, users: SessionRange, model: Path, *, resources: WorkerResources = ONE_CORE, progress: Progress = SILENT
) -> PolicyChoices:
    """Find what a model would have chosen at every logged step; arguments as for `evaluate_in_blocks`."""
    blocks = _blocks(engine, users, model, resources)
    parts = _map_blocks(engine, _choose_in_block, blocks, resources, "choices along the log", progress)
    best, logged, count = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return PolicyChoices(best, logged, count)


def labels_in_blocks(
    engine: Engine, users: SessionRange, model: Path, *, resources: WorkerResources = ONE_CORE, progress: Progress = SILENT
) -> LabelArrays:
    """Compute the labels of an MBCAL model for logged sessions; arguments as for `evaluate_in_blocks`.

    Returns:
        Counterfactual future advantages and residuals, (N, T) each; see `advantage_and_residual`.

    Raises:
        OptionError: If the folder holds another method.
    """
    blocks = _blocks(engine, users, model, resources)
    parts = _map_blocks(engine, _label_block, blocks, resources, "labels", progress)
    advantage, residual = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return advantage, residual


def estimate_value_in_blocks(
    engine: Engine,
    users: SessionRange,
    model: Path,
    baseline: Path | None,
    *,
    resources: WorkerResources = ONE_CORE,
    progress: Progress = SILENT,
    **options: Any,
) -> list[Estimate]:
    """Estimate the value of models from logged sessions: choices by blocks, then one estimate and interval from all.

    Args:
        engine: Whose workers find the choices.
        users: The logged sessions; its seed is that of `estimate_value`.
        model: Folder of the model.
        baseline: Folder of the model to compare with; the log itself if None.
        resources: What each worker takes of a machine.
        progress: Notified of sessions.
        **options: All other arguments of `estimate_value`.

    Returns:
        The estimates of `estimate_value`.
    """
    policy, other = load(model, "cpu"), None if baseline is None else load(baseline, "cpu")
    data = str(users.data.resolve())
    sessions = _store(data).sessions(users.part)[_sample(data, users.part, users.count, users.seed)]
    choices, baseline_choices = (
        None if path is None else policy_choices_in_blocks(engine, users, path, resources=resources, progress=progress)
        for path in (model, baseline)
    )
    return estimate_value(
        policy,
        sessions,
        baseline=other,
        seed=users.seed,
        choices=(choices, baseline_choices),
        progress=progress,
        **options,
    )


# ---- from a range to blocks and back


def _blocks(engine: Engine, users: SessionRange, model: Path | str, resources: WorkerResources) -> list[Block]:
    """Cut a range into blocks of whole batches, several for every worker."""
    engine.require_shared_file(users.data / "manifest.json")
    count = users.count
    batches = -(-count // CPU_BLOCK)
    size = min(max(batches // (BLOCKS_PER_WORKER * engine.workers), 1) * CPU_BLOCK, MAX_BLOCK)
    data, device = str(users.data.resolve()), "cuda" if resources.gpus else "cpu"
    return [
        Block(data, users.part, count, users.seed, first, min(first + size, count), _absolute(model, CHANCE), device)
        for first in range(0, count, size)
    ]


def _absolute(folder: Path | str, keyword: str) -> str:
    """The absolute path of a folder; the keyword itself is returned as it is."""
    return keyword if folder == keyword else str(Path(folder).resolve())


def _map_blocks(
    engine: Engine,
    job: Callable[[Block], Any],
    blocks: list[Block],
    resources: WorkerResources,
    title: str,
    progress: Progress,
) -> list[Any]:
    """Results of all blocks, in their order."""
    results: list[Any] = [None] * len(blocks)
    progress.phase(title, blocks[-1].last)
    for number, result in engine.map_unordered(job, blocks, resources):
        results[number] = result
        progress.advance(blocks[number].last - blocks[number].first)
    return results


# ---- jobs, run by workers


def _evaluate_block(block: Block) -> ServedSummary:
    sessions = _sessions_with_candidates(block)
    agent = Random(device=block.device).fit(sessions) if block.model == CHANCE else _agent(block.model, block.device)
    judge = _judge(block.judge, block.data, block.device)
    result = evaluate(agent, judge, sessions, epsilon=block.epsilon, seed=block.seed, first_index=block.first)
    return ServedSummary.of(result)


def _choose_in_block(block: Block) -> tuple[NDArray[np.int64], ...]:
    agent, sessions = _agent(block.model, block.device), _logged_sessions(block)
    agent.domain.require_compatible(sessions, block.model)
    choices = policy_choices(agent, sessions, first=block.first)
    return choices.best, choices.logged, choices.count


def _label_block(block: Block) -> LabelArrays:
    agent, sessions = _agent(block.model, block.device), _logged_sessions(block)
    if not isinstance(agent, MBCAL):
        raise OptionError(f"{block.model}: holds a {agent.name} agent; counterfactual advantages need an MBCAL model")
    agent.domain.require_compatible(sessions, block.model)
    return advantage_and_residual(agent, sessions)


def _block_indices(block: Block) -> NDArray[np.int64]:
    """Indices of the block's sessions in their part, rising."""
    return _sample(block.data, block.part, block.sessions, block.seed)[block.first : block.last]


def _logged_sessions(block: Block) -> Sessions:
    indices = _block_indices(block)
    return _store(block.data).sessions(block.part, int(indices[0]), int(indices[-1]) + 1)[indices - indices[0]]


def _sessions_with_candidates(block: Block) -> Sessions:
    """The sessions of a block. Where no candidates were logged they are sampled from the whole part, which is then read."""
    sessions = _logged_sessions(block)
    if sessions.candidates is not None and sessions.candidates.ndim == 2:
        return sessions
    return replace(sessions, candidates=_candidates(block.data, block.part, block.seed)[_block_indices(block)])


# ---- caches of a worker: blocks share stores and models; a folder that was written anew has another manifest time


def _store(data: str) -> Store:
    return _open_store(data, _written_at(data))


def _sample(data: str, part: Part, sessions: int, seed: int) -> NDArray[np.int64]:
    return _sample_part(data, part, sessions, seed, _written_at(data))


def _candidates(data: str, part: Part, seed: int) -> NDArray[np.int32]:
    return _sample_candidates(data, part, seed, _written_at(data))


def _agent(model: str, device: str) -> Agent:
    return _load_agent(model, device, _written_at(model))


def _judge(judge: str, data: str, device: str) -> Environment:
    if judge == TRUTH:
        return true_environment(_store(data), device)
    return _load_simulator(judge, device, _written_at(judge))


def _written_at(folder: str) -> int:
    """Modification time of a folder's manifest in nanoseconds; 0 if it cannot be read."""
    try:
        return os.stat(f"{folder}/manifest.json").st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=1)
def _open_store(data: str, _: int) -> Store:
    return Store.open(data)


@lru_cache(maxsize=1)
def _sample_part(data: str, part: Part, sessions: int, seed: int, _: int) -> NDArray[np.int64]:
    return sample_sessions(_store(data).session_users(part), sessions, seed)


@lru_cache(maxsize=1)
def _sample_candidates(data: str, part: Part, seed: int, _: int) -> NDArray[np.int32]:
    candidates: NDArray[np.int32] = session_candidates(_store(data).sessions(part), seed)
    return candidates


@lru_cache(maxsize=2)
def _load_agent(model: str, device: str, _: int) -> Agent:
    return load(model, device)


@lru_cache(maxsize=2)
def _load_simulator(judge: str, device: str, _: int) -> Environment:
    return Simulator.load(judge, device)
