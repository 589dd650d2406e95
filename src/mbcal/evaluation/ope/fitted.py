"""Fitted Q evaluation: a network learns what the target policy would earn from logged steps (Le et al., 2019).

    y_t = r_t + gamma sum_a pi(a | s_{t+1}) Q'(s_{t+1}, a)        a among the candidates open at that step

It is DQN with the policy's own choice in place of the maximum, and shares its networks. Users are dealt into folds, and the
values of a fold come from a network that was fitted on the others: what judges a session has never seen its user.
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
from mbcal.training.loop import Objective, TrainingJob, train
from mbcal.training.random import Noise, derive_seed, hash_order, seeded_weights
from mbcal.training.targets import temporal_difference_targets
from mbcal.types import Sessions, SessionTensors

HOW = DQNConfig(training=TrainingConfig(epochs=12, batch=128, learning_rate=3e-3))
"""Faster than agents learn: nothing stops these fits early, and a few slow passes leave them at the log's own mean."""


@dataclass(frozen=True, eq=False)
class FittedValues:
    """What the target policy is expected to earn from each logged step on; 0 in the padding."""

    q: Floats  # (N, T) with the logged item shown first
    v: Floats  # (N, T) with the policy's own choice


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
    """Cross-fitted over folds of users. `config` says what the networks are like and how long they learn.

    `choices` are the policy's along these sessions, where somebody has them already.
    """
    if not 0 <= epsilon <= 1:
        raise OptionError(f"epsilon: must be in [0, 1], got {epsilon}")
    config = replace(config or HOW, gamma=gamma)
    if config.net.user == "id":
        raise OptionError("net.user: fitted values judge users they have not met; use 'history' or 'none'")
    fold = assign_folds(sessions.user, folds, seed)
    chosen = choices or policy_choices(policy, sessions, progress=progress)
    given = DeviceSessions(sessions, resolve_device(device), candidates=True)
    fit = _Fit(given, torch.from_numpy(chosen.best), torch.from_numpy(chosen.logged), epsilon, config, seed, progress)
    q, v = (np.zeros(sessions.items.shape) for _ in range(2))
    for each in range(folds):
        net = fit.network(np.flatnonzero(fold != each), each)
        own = np.flatnonzero(fold == each)
        q[own], v[own] = fit.values(net, own)
    return FittedValues(q * sessions.mask, v * sessions.mask)


def assign_folds(user: NDArray[np.int32], folds: int, seed: int) -> NDArray[np.int64]:
    """(N,) the fold of each session: users in hashed order, dealt one by one."""
    users, place = np.unique(user, return_inverse=True)
    if not 2 <= folds <= len(users):
        raise InputError(f"folds: must be from 2 to the number of users, {len(users)}, got {folds}")
    fold = np.empty(len(users), np.int64)
    fold[hash_order(users.astype(np.int32), seed, "folds")] = np.arange(len(users)) % folds
    return fold[place]


@dataclass(frozen=True, eq=False)
class _Fit:
    """What the networks of all folds share."""

    data: DeviceSessions
    best: Tensor  # (N, T)
    logged: Tensor  # (N, T)
    epsilon: float
    config: DQNConfig
    seed: int
    progress: Progress

    def network(self, rows: NDArray[np.int64], fold: int) -> QNetwork:
        """Fitted on these rows."""
        data, how = self.data, self.config.training
        with seeded_weights(self.seed, "fitted values", fold):
            net = QNetwork(Domain.from_sessions(data.tensors), self.config).to(data.device)
        mine = torch.from_numpy(rows).to(data.device)
        mark_seen_items(net, data[mine], True)
        net.online.label_scaler.fit(session_returns(data, self.config.gamma)[mine], data.mask[mine])
        job = TrainingJob(
            name=f"values, fold {fold + 1}",
            net=net,
            objective=self._objective(net),
            optimiser=how.create_optimiser(net.parameters()),
            train_rows=rows,
            held_out_rows=NO_ROWS,
            before_update=net.begin_update,
            use_cuda_graph=False,  # choices may lie elsewhere than the network
            loss_scale=float(net.online.label_scaler.scale) ** 2,
        )
        train(job, how, seed=derive_seed(self.seed, "fitted values", fold), progress=self.progress)
        fill_unknown_items(net)
        return net.eval()

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
        values = self._possible(values, batch)
        best = values.gather(2, self._at(self.best, rows)).squeeze(2)
        average = (values * available).sum(2) / available.sum(2)
        return (1 - self.epsilon) * best + self.epsilon * average

    def _possible(self, values: Tensor, batch: SessionTensors) -> Tensor:
        """Values (B, T, C) kept within what the steps that remain can earn, or errors could grow from copy to copy."""
        steps = torch.arange(1, batch.horizon + 1, device=values.device, dtype=values.dtype)
        left = torch.cumsum(self.config.gamma ** (steps - 1), 0).flip(0)[:, None]
        least, most = min(0.0, *batch.behaviour_set.rewards), max(0.0, *batch.behaviour_set.rewards)
        return torch.minimum(torch.maximum(values, least * left), most * left)

    def _at(self, places: Tensor, rows: Tensor) -> Tensor:
        """Places of candidates (B, T, 1) for some sessions."""
        return places[rows.to(places.device)].to(self.data.device).unsqueeze(2)

    @torch.no_grad()
    def values(self, net: QNetwork, rows: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """q and v (rows, T)."""
        term, found = value_term(net.online), []
        for part in self.data.blocks():
            mine = torch.from_numpy(rows[part]).to(self.data.device)
            if not len(mine):
                break
            batch = self.data[mine]
            each = candidate_values(net.online, term, batch)
            q = self._possible(each, batch).gather(2, self._at(self.logged, mine)).squeeze(2)
            found.append(torch.stack([q, self._expected(each, batch, mine)]).double().cpu())
        q, v = torch.cat(found, 1).numpy()
        return q, v
