"""Fitted Q evaluation: a network learns the value of the target policy from logged steps (Le et al., 2019).

    y_t = r_t + gamma sum_a pi(a | s_{t+1}) Q'(s_{t+1}, a)        a among the candidates available at that step

It is DQN with the policy's own choice in place of the maximum, and shares its networks. Users are split into folds, and the
values of a fold come from a network that was trained on the other folds, so no session is valued by a network that has seen
its user.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mbcal.agents.domain import Domain
from mbcal.agents.dqn import DQNConfig, QNetwork, candidate_values
from mbcal.agents.fit_context import NO_ROWS
from mbcal.agents.values import session_returns, value_term
from mbcal.environments.rollout import Policy
from mbcal.errors import InputError, OptionError
from mbcal.evaluation.ope.estimators import Floats
from mbcal.evaluation.ope.propensity import PolicyChoices, policy_choices
from mbcal.nn.embeddings import fill_unknown_items, mark_seen_items
from mbcal.progress import SILENT, Progress
from mbcal.scoring.choice import available_by_step
from mbcal.training.config import TrainingConfig
from mbcal.training.device import resolve_device
from mbcal.training.device_data import DeviceSessions
from mbcal.training.labels import return_bounds, temporal_difference_targets
from mbcal.training.loop import Objective, TrainingJob, train
from mbcal.training.random import Noise, derive_seed, hash_order, seeded_weights
from mbcal.types import Sessions, SessionTensors

DEFAULT_CONFIG = DQNConfig(copy_every=20, training=TrainingConfig(epochs=12, batch=128, learning_rate=3e-3))
"""Faster than agents learn: these fits are not stopped early, and a few slow passes only reach the log's mean."""


@dataclass(frozen=True, eq=False)
class FittedValues:
    """Expected return of the target policy from each logged step on; 0 in the padding."""

    q: Floats
    """(N, T) if the logged item is shown at this step."""
    v: Floats
    """(N, T) if the target policy chooses at this step."""


def fit_q_values(
    sessions: Sessions,
    policy: Policy,
    *,
    epsilon: float,
    folds: int = 2,
    gamma: float = 1.0,
    config: DQNConfig | None = None,
    seed: int = 0,
    device: str = "auto",
    choices: PolicyChoices | None = None,
    progress: Progress = SILENT,
) -> FittedValues:
    """Fit the values of a target policy on logged sessions, cross-fitted over folds of users.

    Args:
        sessions: N logged sessions with candidates.
        policy: The target policy: anything with begin, score and observe.
        epsilon: Exploration with which it would be served.
        folds: Number of folds.
        gamma: The discount; replaces that of the config.
        config: Network and training settings.
        seed: Seed of folds, initial weights and batches.
        device: Where the networks are trained.
        choices: The policy's choices along these sessions; computed if None.
        progress: Notified of epochs and sessions.

    Returns:
        q and v, (N, T) each.

    Raises:
        OptionError: If epsilon is outside [0, 1], or the networks would identify users by id.
        InputError: If there are fewer users than folds.
    """
    if not 0 <= epsilon <= 1:
        raise OptionError(f"epsilon: must be in [0, 1], got {epsilon}")
    config = replace(config or DEFAULT_CONFIG, gamma=gamma)
    if config.net.user == "id":
        raise OptionError("net.user: fitted values are for users the network has not seen; use 'history' or 'none'")
    fold = assign_folds(sessions.user, folds, seed)
    choices = choices or policy_choices(policy, sessions, progress=progress)
    data = DeviceSessions(sessions, resolve_device(device), candidates=True)
    fit = _CrossFit(data, torch.from_numpy(choices.best), torch.from_numpy(choices.logged), epsilon, config, seed, progress)
    q, v = (np.zeros(sessions.items.shape) for _ in range(2))
    for number in range(folds):
        net = fit.train_network(np.flatnonzero(fold != number), number)
        rows = np.flatnonzero(fold == number)
        q[rows], v[rows] = fit.values(net, rows)
    return FittedValues(q * sessions.mask, v * sessions.mask)


def assign_folds(user: NDArray[np.int32], folds: int, seed: int) -> NDArray[np.int64]:
    """Assign sessions to folds: users in hashed order, in turn, so that folds have equally many users.

    Args:
        user: (N,) user of each session.
        folds: Number of folds.
        seed: Seed of the order.

    Returns:
        (N,) fold of each session; all sessions of a user are in one fold.

    Raises:
        InputError: If there are fewer users than folds, or fewer than 2 folds.
    """
    users, index = np.unique(user, return_inverse=True)
    if not 2 <= folds <= len(users):
        raise InputError(f"folds: must be from 2 to the number of users, {len(users)}, got {folds}")
    fold = np.empty(len(users), np.int64)
    fold[hash_order(users.astype(np.int32), seed, "folds")] = np.arange(len(users)) % folds
    return fold[index]


@dataclass(frozen=True, eq=False)
class _CrossFit:
    """What the networks of all folds share."""

    data: DeviceSessions
    best: Tensor  # (N, T) index of the policy's best candidate
    logged: Tensor  # (N, T) index of the logged item
    epsilon: float
    config: DQNConfig
    seed: int
    progress: Progress

    def train_network(self, rows: NDArray[np.int64], fold: int) -> QNetwork:
        """The network of a fold, trained on the sessions `rows` of the other folds."""
        data, training = self.data, self.config.training
        with seeded_weights(self.seed, "fitted values", fold):
            net = QNetwork(Domain.from_sessions(data.tensors), self.config).to(data.device)
        row_index = torch.from_numpy(rows).to(data.device)
        mark_seen_items(net, data[row_index], True)
        net.online.label_scaler.fit(session_returns(data, self.config.gamma)[row_index], data.mask[row_index])
        job = TrainingJob(
            name=f"values, fold {fold + 1}",
            net=net,
            objective=self._objective(net),
            optimiser=training.create_optimiser(net.parameters()),
            train_rows=rows,
            held_out_rows=NO_ROWS,
            before_update=net.begin_update,
            n_steps=float(data.mask[row_index].sum()),
            use_cuda_graph=False,  # the choices may be on another device than the network
            loss_scale=float(net.online.label_scaler.scale) ** 2,
        )
        train(job, training, seed=derive_seed(self.seed, "fitted values", fold), progress=self.progress)
        fill_unknown_items(net)
        return net.eval()

    @torch.no_grad()
    def values(self, net: QNetwork, rows: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Values q and v of the sessions `rows`, (rows, T) each."""
        term, parts = value_term(net.online), []
        for block in self.data.blocks():
            row_index = torch.from_numpy(rows[block]).to(self.data.device)
            if not len(row_index):
                break
            batch = self.data[row_index]
            candidate_q = candidate_values(net.online, term, batch)
            q = self._bounded(candidate_q, batch).gather(2, self._index_of(self.logged, row_index)).squeeze(2)
            parts.append(torch.stack([q, self._expected(candidate_q, batch, row_index)]).double().cpu())
        q, v = torch.cat(parts, 1).numpy()
        return q, v

    def _objective(self, net: QNetwork) -> Objective:
        def objective(rows: Tensor, _: Noise) -> tuple[Tensor, Tensor]:
            batch = self.data[rows]
            expected = self._expected(candidate_values(net.target, net.target_term(), batch), batch, rows)
            target = temporal_difference_targets(batch.rewards, expected, batch.mask, self.config.gamma)
            error = net.online.forward_batch(batch).squeeze(-1) - net.online.label_scaler.normalize(target)
            return (error.square() * batch.mask).sum(), batch.mask.sum()

        return objective

    @torch.no_grad()
    def _expected(self, values: Tensor, batch: SessionTensors, rows: Tensor) -> Tensor:
        """sum_a pi(a | s_t) Q(s_t, a): (B, T, C) -> (B, T)."""
        available = torch.stack(available_by_step(batch.require_candidates(), batch.items), 1)
        values = self._bounded(values, batch)
        best = values.gather(2, self._index_of(self.best, rows)).squeeze(2)
        average = (values * available).sum(2) / available.sum(2)
        return (1 - self.epsilon) * best + self.epsilon * average

    def _bounded(self, values: Tensor, batch: SessionTensors) -> Tensor:
        """Values (B, T, C), clamped to the range of the remaining return, so that errors cannot grow by bootstrapping."""
        lowest, highest = return_bounds(batch.behaviour_set.rewards, batch.horizon, self.config.gamma, values.device)
        return values.clamp(lowest.unsqueeze(1), highest.unsqueeze(1))

    def _index_of(self, candidate_index: Tensor, rows: Tensor) -> Tensor:
        """Rows of a candidate index (N, T), on the network's device: (B, T, 1)."""
        return candidate_index[rows.to(candidate_index.device)].to(self.data.device).unsqueeze(2)
