"""How a fit runs, the same for every method: data to the device, users held out, networks trained, a failed fit undone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mbcal.agents.domain import Domain
from mbcal.agents.fit_context import FitContext
from mbcal.agents.growth import extend_fields, with_agent_items
from mbcal.data.clicks import only_reranks
from mbcal.data.store import Store
from mbcal.data.store_format import Part
from mbcal.distributed.group import Group
from mbcal.distributed.worker_slice import WorkerSlice, all_reduce_count, require_equal_weights
from mbcal.environments.candidates import session_candidates
from mbcal.errors import InputError
from mbcal.nn.embeddings import fill_unknown_items, mark_seen_items
from mbcal.nn.fields import centre_fields
from mbcal.progress import Progress
from mbcal.scoring.scorers import UNKNOWN_USER
from mbcal.storage.checkpoints import Checkpoints
from mbcal.training.config import TrainingConfig
from mbcal.training.device_data import DeviceSessions
from mbcal.training.holdout import split_held_out_users
from mbcal.training.propensities import exploration_ratios, step_weights
from mbcal.training.random import derive_seed, seeded_weights, uniform
from mbcal.training.state import load_state_arrays, state_to_arrays
from mbcal.training.threads import one_thread
from mbcal.types import FIRST_ITEM_ROW, Sessions, SessionTensors

if TYPE_CHECKING:
    from mbcal.agents.base import Agent

FEW_STEPS, ENOUGH_STEPS = 2_000, 30_000
"""Steps below which a fit warns that the log is too small, and steps that were enough on the generated newsfeed."""
UNKNOWN_USER_SHARE = 0.1
"""Share of sessions whose user is masked for an id encoder, so that it learns a row for unknown users."""


@one_thread()
def fit_agent(
    agent: Agent,
    data: Store | Sessions | SessionTensors,
    training: TrainingConfig,
    progress: Progress,
    checkpoints: Checkpoints | None,
    group: Group,
) -> None:
    """Fit an agent; see `Agent.fit`."""
    sessions = _training_sessions(agent, data)
    worker_slice = WorkerSlice.create(len(sessions), group, checkpoints.number if checkpoints else 0)
    if not worker_slice.total:
        raise InputError("fit: there are no sessions to learn from")
    users = worker_slice.all_gather(torch.as_tensor(sessions.user)).cpu().numpy()
    n_steps = all_reduce_count(int(sessions.length.sum()), group)
    if not agent.is_started:
        agent.config = replace(agent.config, net=agent.config.net.sized(n_steps))
        net = agent.config.net
        fields = sessions.fields.select(net.user_features, net.context)
        agent.reset(Domain.from_sessions(sessions, int(users.max()) + 1, fields))
    sessions = with_agent_items(agent, sessions)
    agent.domain.require_compatible(sessions, "this agent")
    extend_fields(agent, sessions.fields)
    sessions = sessions.encoded_by(agent.domain.fields)
    is_first_fit, config, choices = agent.n_fits == 0, agent.config, dict(agent.choices)
    backup = {} if is_first_fit else {name: _state(agent, name) for name in agent.nets}
    try:
        if not is_first_fit and training.shrink < 1:
            _shrink_weights(agent, training.shrink)
        context = _create_context(agent, sessions, worker_slice, users, training, progress, checkpoints)
        if agent.optimisers and n_steps < FEW_STEPS:
            context.warnings.append(_small_log_warning(worker_slice.total, n_steps))
        agent.learn(context)
        require_equal_weights(agent.nets, agent.name, group)
    except BaseException:
        agent.config, agent.choices = config, choices
        if is_first_fit:
            agent.reset(agent.domain)
        for name, arrays in backup.items():
            load_state_arrays(agent.nets[name], agent.optimisers.get(name), arrays)
        raise
    for net in agent.nets.values():
        fill_unknown_items(net)
        centre_fields(net, context.data.tensors, group)
    agent.records, agent.n_fits = context.records, agent.n_fits + 1
    agent.warnings = tuple(context.warnings)
    if isinstance(data, Store):
        note_clicks_alone(agent, data)
    if sessions.origin and sessions.origin not in agent.origins:
        agent.origins = (*agent.origins, sessions.origin)
    agent.refresh_scorer()


def note_clicks_alone(agent: Agent, store: Store, part: Part = "train") -> None:
    """Warn if the store an agent was fitted on holds clicks alone, and remember how often each item occurs in it.

    Args:
        agent: The agent, fitted.
        store: Its store.
        part: The part it was fitted on.
    """
    sentence = only_reranks(store.manifest)
    agent.support = None
    if sentence is not None:
        agent.warnings = (*agent.warnings, sentence)
        counts = np.zeros(store.catalog.n_rows, np.int64)
        for shard in store.shards(part):
            counts += np.bincount(shard.items, minlength=len(counts))
        catalog = agent.domain.catalog  # which may have the store's items in other rows
        agent.support = np.zeros(catalog.n_rows, np.int64)
        agent.support[catalog.rows_of(store.catalog.items)] = counts[FIRST_ITEM_ROW:]


@torch.no_grad()
def _shrink_weights(agent: Agent, share: float) -> None:
    """Mix the weights with those of a fresh network, and forget the optimisers' state.

    Ash and Adams, *On Warm-Starting Neural Network Training* (NeurIPS 2020): a network that goes on from old weights ends
    worse than a fresh one on the same data. Shrunk weights learn as well as fresh ones, and sooner.
    """
    with seeded_weights(agent.config.seed, agent.name, "weights", agent.n_fits):
        fresh = agent.build_networks(agent.domain)
    for name, optimiser in agent.optimisers.items():
        for parameter, new in zip(agent.nets[name].parameters(), fresh[name].parameters(), strict=True):
            parameter.mul_(share).add_(new.to(parameter.device), alpha=1 - share)
        optimiser.state.clear()


def _training_sessions(agent: Agent, data: Store | Sessions | SessionTensors) -> Sessions | SessionTensors:
    """The sessions to fit on. If no features were configured, they become the store's `agent_features`, or none."""
    if not isinstance(data, Store | Sessions | SessionTensors):
        raise InputError(f"fit: takes a store or sessions, got {type(data).__name__}; open a store with mbcal.Store.open")
    if agent.config.net.features is None and not agent.is_started:
        features = data.agent_features if isinstance(data, Store) else ()
        agent.config = replace(agent.config, net=replace(agent.config.net, features=features))
    return data.sessions("train") if isinstance(data, Store) else data


def _create_context(
    agent: Agent,
    sessions: Sessions | SessionTensors,
    worker_slice: WorkerSlice,
    users: NDArray[np.int32],
    training: TrainingConfig,
    progress: Progress,
    checkpoints: Checkpoints | None,
) -> FitContext:
    seed = derive_seed(agent.config.seed, agent.name, "fit", agent.n_fits)
    weights = _step_weights(sessions, worker_slice.group) if training.propensity_weights else None
    tensors = DeviceSessions(sessions, agent.device, agent.needs_candidates).tensors
    train_rows, held_out_rows = split_held_out_users(users, training.validation, agent.config.seed)
    if agent.config.net.user == "id":
        tensors = replace(tensors, user=_mask_users(tensors.user, held_out_rows, seed, worker_slice))
    if agent.needs_candidates:
        tensors = replace(tensors, candidates=session_candidates(tensors, seed, worker_slice=worker_slice))
    for name, net in agent.nets.items():
        mark_seen_items(net, tensors, agent.n_fits == 0, worker_slice.group)
        if name in agent.optimisers:
            training.apply_to(agent.optimisers[name])
    return FitContext(
        data=DeviceSessions(tensors, agent.device, agent.needs_candidates),
        worker_slice=worker_slice,
        train_rows=train_rows,
        held_out_rows=held_out_rows,
        config=training,
        seed=seed,
        is_first_fit=agent.n_fits == 0,
        progress=progress,
        checkpoints=checkpoints,
        nets=agent.nets,
        optimisers=agent.optimisers,
        weights=None if weights is None else weights.to(agent.device),
    )


def _small_log_warning(n_sessions: int, n_steps: int) -> str:
    return (
        f"The log is too small to learn from: {n_sessions:,} sessions with {n_steps:,} steps. Networks begin to tell items "
        f"and users apart with some {ENOUGH_STEPS:,} steps; collect more, or use the agent 'popular' until then."
    )


def _step_weights(sessions: Sessions | SessionTensors, group: Group) -> Tensor:
    """How much each step counts, (N, T), by its logged propensity."""
    tensors = sessions.tensors() if isinstance(sessions, Sessions) else sessions
    ratios = exploration_ratios(tensors)
    if ratios is None:
        raise InputError("propensity_weights: these sessions have no propensities; log them, or leave the weights out")
    return step_weights(ratios, tensors.mask, group)


def _mask_users(users: Tensor, held_out_rows: NDArray[np.int64], seed: int, worker_slice: WorkerSlice) -> Tensor:
    """User numbers (N,), with the unknown user for held-out users and for a random share of the other sessions."""
    unknown = uniform(derive_seed(seed, "strangers"), (len(users),), users.device, worker_slice.begin) < UNKNOWN_USER_SHARE
    unknown[worker_slice.local_rows(torch.from_numpy(held_out_rows)).to(users.device)] = True
    return torch.where(unknown, UNKNOWN_USER, users)


def _state(agent: Agent, name: str) -> dict[str, NDArray[np.generic]]:
    return state_to_arrays(agent.nets[name], agent.optimisers.get(name))
