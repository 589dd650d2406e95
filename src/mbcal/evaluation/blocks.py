"""Questions about many sessions, a block at a time, wherever an engine takes the blocks.

::

    evaluate_in_blocks   what a model earns from users of a simulator      (N,)    `evaluate`
    policy_choices_in_blocks   what a model would have chosen along the log      (N, T)  `policy_choices`, for off-policy estimates
    labels_in_blocks    counterfactual advantages, and what came instead  (N, T)  `advantage_and_residual`

A block is some rows of a part of a store. Workers open the store and the models by themselves, read the shards that hold
their rows, and send back no more than these arrays. Luck goes by a session's place in the part and blocks are whole batches,
so the answer is that of one pass: on a CPU to the last bit, on a GPU, whose batches are larger, up to rounding.
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

from mbcal.agents import AGENTS, MBCAL, Agent, load
from mbcal.data.store import Store
from mbcal.data.store_format import Part
from mbcal.distributed.engines import ONE_CORE, Engine, WorkerResources
from mbcal.environments.base import Environment
from mbcal.environments.candidates import session_candidates
from mbcal.environments.newsfeed.world import Newsfeed
from mbcal.environments.rollout import CPU_BLOCK
from mbcal.environments.simulator import Simulator
from mbcal.errors import OptionError
from mbcal.evaluation.diagnose import Labels, advantage_and_residual
from mbcal.evaluation.evaluator import evaluate
from mbcal.evaluation.ope.estimate import estimate_value
from mbcal.evaluation.ope.intervals import Estimate
from mbcal.evaluation.ope.propensity import PolicyChoices, policy_choices
from mbcal.progress import SILENT, Progress
from mbcal.types import Sessions

CHANCE, TRUTH = "chance", "truth"
"""In place of a model: any candidate. In place of a simulator: the generated newsfeed itself."""
TURNS = 4
"""Blocks a worker, where there are sessions enough: the last ones to finish keep the others waiting less."""
LARGEST = 64 * CPU_BLOCK
"""Sessions a block at most: what is lost with a worker."""


@dataclass(frozen=True)
class SessionRange:
    """The first so many sessions of a part of a store, with candidates; of what is drawn for them, the seed."""

    data: Path
    part: Part = "test"
    sessions: int | None = None
    seed: int = 0

    @property
    def count(self) -> int:
        every = _store(str(self.data.resolve())).n_sessions(self.part)
        return every if self.sessions is None else min(self.sessions, every)


class Block(NamedTuple):
    """One task: rows `first` to `last` of a part, and who is asked about them."""

    data: str
    part: Part
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
) -> NDArray[np.float32]:
    """(N,) what the model (a folder, or `CHANCE`) earns of each session, answered by a simulator's folder or the `TRUTH`."""
    blocks = _blocks(engine, users, model, resources)
    asked = [block._replace(judge=_place(judge, TRUTH), epsilon=epsilon) for block in blocks]
    return np.concatenate(_all(engine, _serve, asked, resources, title, progress))


def policy_choices_in_blocks(
    engine: Engine, users: SessionRange, model: Path, *, resources: WorkerResources = ONE_CORE, progress: Progress = SILENT
) -> PolicyChoices:
    """What the model would have chosen at every logged step."""
    found = _all(engine, _choose, _blocks(engine, users, model, resources), resources, "choices along the log", progress)
    best, logged, count = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return PolicyChoices(best, logged, count)


def labels_in_blocks(
    engine: Engine, users: SessionRange, model: Path, *, resources: WorkerResources = ONE_CORE, progress: Progress = SILENT
) -> Labels:
    """An MBCAL model's counterfactual future advantages, and what the future brought beyond what it expected."""
    found = _all(engine, _label, _blocks(engine, users, model, resources), resources, "labels", progress)
    advantage, surprise = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return advantage, surprise


def estimate_value_in_blocks(
    engine: Engine,
    users: SessionRange,
    model: Path,
    baseline: Path | None,
    *,
    resources: WorkerResources = ONE_CORE,
    progress: Progress = SILENT,
    **how: Any,
) -> list[Estimate]:
    """`estimate_value` of models on logged sessions: their choices by blocks, then one estimate and its interval from all."""
    policy, other = load(model, "cpu"), None if baseline is None else load(baseline, "cpu")
    sessions = _store(str(users.data.resolve())).sessions(users.part, 0, users.count)
    chosen = policy_choices_in_blocks(engine, users, model, resources=resources, progress=progress)
    against = (
        None
        if baseline is None
        else policy_choices_in_blocks(engine, users, baseline, resources=resources, progress=progress)
    )
    return estimate_value(policy, other, sessions, seed=users.seed, choices=(chosen, against), progress=progress, **how)


def _blocks(engine: Engine, users: SessionRange, model: Path | str, resources: WorkerResources) -> list[Block]:
    """Of whole batches, some for every worker."""
    engine.require_shared_file(users.data / "manifest.json")
    batches = -(-users.count // CPU_BLOCK)
    size = min(max(batches // (TURNS * engine.workers), 1) * CPU_BLOCK, LARGEST)
    data, device = str(users.data.resolve()), "cuda" if resources.gpus else "cpu"
    return [
        Block(data, users.part, users.seed, first, min(first + size, users.count), _place(model, CHANCE), device)
        for first in range(0, users.count, size)
    ]


def _place(given: Path | str, instead: str) -> str:
    return instead if given == instead else str(Path(given).resolve())


def _all(
    engine: Engine,
    job: Callable[[Block], Any],
    blocks: list[Block],
    resources: WorkerResources,
    title: str,
    progress: Progress,
) -> list[Any]:
    """What came of the blocks, in their order."""
    made: list[Any] = [None] * len(blocks)
    progress.phase(title, blocks[-1].last)
    for number, found in engine.map_unordered(job, blocks, resources):
        made[number] = found
        progress.advance(blocks[number].last - blocks[number].first)
    return made


def _serve(block: Block) -> NDArray[np.float32]:
    sessions = _sessions(block)
    if block.model == CHANCE:
        agent = AGENTS["random"](device=block.device).fit(sessions)
    else:
        agent = _agent(block.model, block.device)
    judge = _judge(block.judge, block.data, block.device)
    return evaluate(agent, judge, sessions, epsilon=block.epsilon, seed=block.seed, first_index=block.first).rewards


def _choose(block: Block) -> tuple[NDArray[np.int64], ...]:
    agent, sessions = _agent(block.model, block.device), _store(block.data).sessions(block.part, block.first, block.last)
    agent.domain.require_compatible(sessions, block.model)
    found = policy_choices(agent, sessions, first=block.first)
    return found.best, found.logged, found.count


def _label(block: Block) -> Labels:
    agent, sessions = _agent(block.model, block.device), _store(block.data).sessions(block.part, block.first, block.last)
    if not isinstance(agent, MBCAL):
        raise OptionError(f"{block.model}: holds a {agent.name} agent; counterfactual advantages are MBCAL's")
    agent.domain.require_compatible(sessions, block.model)
    return advantage_and_residual(agent, sessions)


def _sessions(block: Block) -> Sessions:
    """Of a block, with candidates. Where none were logged they are drawn from the whole part, which is then read whole."""
    some = _store(block.data).sessions(block.part, block.first, block.last)
    if some.candidates is not None and some.candidates.ndim == 2:
        return some
    return replace(some, candidates=_candidates(block.data, block.part, block.seed)[block.first : block.last])


def _store(data: str) -> Store:
    return _open_store(data, _written(data))


def _candidates(data: str, part: Part, seed: int) -> NDArray[np.int32]:
    return _draw_candidates(data, part, seed, _written(data))


def _agent(model: str, device: str) -> Agent:
    return _load_agent(model, device, _written(model))


def _judge(judge: str, data: str, device: str) -> Environment:
    if judge == TRUTH:
        return Newsfeed.from_options(dict(_store(data).manifest["options"]), device)
    return _load_simulator(judge, device, _written(judge))


def _written(folder: str) -> int:
    """When, so that what a worker remembers is not that of another folder of this name; 0 where there is none to read."""
    try:
        return os.stat(f"{folder}/manifest.json").st_mtime_ns
    except OSError:
        return 0


# what blocks share a worker reads once


@lru_cache(maxsize=1)
def _open_store(data: str, _: int) -> Store:
    return Store.open(data)


@lru_cache(maxsize=1)
def _draw_candidates(data: str, part: Part, seed: int, _: int) -> NDArray[np.int32]:
    drawn: NDArray[np.int32] = session_candidates(_store(data).sessions(part), seed)
    return drawn


@lru_cache(maxsize=2)
def _load_agent(model: str, device: str, _: int) -> Agent:
    return load(model, device)


@lru_cache(maxsize=2)
def _load_simulator(judge: str, device: str, _: int) -> Environment:
    return Simulator.load(judge, device)
