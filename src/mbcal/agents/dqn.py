"""DQN and Double DQN: one step of reward, then what the best remaining candidate is worth.

Mnih et al., *Human-level control through deep reinforcement learning* (2015), and van Hasselt et al., *Deep Reinforcement
Learning with Double Q-learning* (2016), in the form of Zheng et al., *DRN* (2018): the state is the GRU's, as in every
method here.

    DQN     y_t = r_t + gamma max_a Q'(s_{t+1}, a)                        a among the candidates not yet shown
    DDQN    y_t = r_t + gamma Q'(s_{t+1}, argmax_a Q(s_{t+1}, a))         Q' is the target network

Q' is a copy of Q made every 20 updates. The candidates of all steps are scored in one pass by tables (`scoring.Tables`).

Deviations: (1) sessions are the replay memory, taken whole; (2) the maximum is over what could have been shown next, where
the authors' code takes the session's own items; (3) labels are standardised by the returns of the first fit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from mbcal.agents.base import Agent, Domain, FitContext, value_term
from mbcal.agents.mcpe import ValueConfig, session_returns
from mbcal.errors import OptionError
from mbcal.nn.recurrent import ValueNet
from mbcal.scoring.backend import copy_into
from mbcal.scoring.scorers import NetScorer, ScoreTerm
from mbcal.training.device_data import DeviceSessions
from mbcal.training.loop import Objective
from mbcal.training.random import Noise
from mbcal.training.targets import temporal_difference_targets
from mbcal.types import MASK_ROW, SessionTensors

NO_ROWS = np.zeros(0, np.int64)
"""To hold out: a target moves with the network, so that a held-out error tells nothing about when to stop."""
ROWS_AT_ONCE = 512
"""Steps scored together on a CPU, so that the work stays in its cache."""


@dataclass(frozen=True)
class DQNConfig(ValueConfig):
    """ExperimentConfig of DQN and its kin."""

    copy_every: int = 20
    """Updates between copies into the target network."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.copy_every < 1:
            raise OptionError(f"copy_every: must be at least 1, got {self.copy_every}")


class TargetCopy(nn.Module):
    """A network, its slower copy, and how many updates there have been: all that a checkpoint must hold."""

    def __init__(self, online: nn.Module, target: nn.Module, every: int) -> None:
        super().__init__()
        self.online, self.target, self.every = online, target.requires_grad_(False), every
        self.updates = 0

    def begin_update(self) -> None:
        """Once an update: now and then the copy is renewed."""
        if self.updates % self.every == 0:
            self.renew()
        self.updates += 1

    @torch.no_grad()
    def renew(self) -> None:
        """In the copy's own memory, which a recorded step goes on reading."""
        for mine, new in zip(self.target.state_dict().values(), self.online.state_dict().values(), strict=True):
            mine.copy_(new)

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.updates)

    def set_extra_state(self, state: Tensor) -> None:
        self.updates = int(state)


class QNetwork(TargetCopy):
    """Q and Q'."""

    online: ValueNet
    target: ValueNet

    def __init__(self, domain: Domain, config: DQNConfig) -> None:
        known = (domain.catalog, domain.behaviours, config.net, domain.n_users, domain.horizon)
        super().__init__(ValueNet(*known), ValueNet(*known), config.copy_every)
        self._judge: ScoreTerm | None = None

    def judge(self) -> ScoreTerm:
        """Q' in tables, made once a copy."""
        if self._judge is None:
            self._judge = value_term(self.target)
        return self._judge

    def renew(self) -> None:
        super().renew()
        if self._judge is not None:
            copy_into(self._judge, value_term(self.target))

    def set_extra_state(self, state: Tensor) -> None:
        super().set_extra_state(state)
        self._judge = None


class DQN(Agent):
    """Score = Q."""

    name = "dqn"
    Config = DQNConfig
    config: DQNConfig
    needs_candidates = True
    double = False

    def build_networks(self, domain: Domain) -> dict[str, nn.Module]:
        return {"value": QNetwork(domain, self.config)}

    def learn(self, context: FitContext) -> None:
        self.learn_values(context, context.data)

    def learn_values(self, context: FitContext, data: DeviceSessions, times: int = 1) -> None:
        """Fit Q to the temporal differences of these sessions: the context's, or several forms of them."""
        net: QNetwork = self.nets["value"]
        if context.first:
            returns = session_returns(context.data, self.config.gamma)
            net.online.label_scaler.fit(returns, context.data.mask, context.worker_slice.group)
        context.train("value", self._objective(net, data), NO_ROWS, net.begin_update, data.is_on_device, times)

    def _objective(self, net: QNetwork, data: DeviceSessions) -> Objective:
        def objective(rows: Tensor, _: Noise) -> tuple[Tensor, Tensor]:
            batch = data[rows]
            counted, target = batch.mask, self.label(batch)
            error = net.online.forward_batch(batch).squeeze(-1) - net.online.label_scaler.normalize(target)
            return (error.square() * counted).sum(), counted.sum()

        return objective

    @torch.no_grad()
    def label(self, batch: SessionTensors) -> Tensor:
        """y_t (B, T)."""
        net: QNetwork = self.nets["value"]
        available = still_available(batch)
        values = candidate_values(net.target, net.judge(), batch)
        if self.double:
            chosen = candidate_values(net.online, value_term(net.online), batch)
            best = chosen.masked_fill(~available, -torch.inf).argmax(2, keepdim=True)
            value = values.gather(2, best).squeeze(2)
        else:
            value = values.masked_fill(~available, -torch.inf).amax(2)
        value = torch.where(available.any(2), value, 0)  # nothing is left to show: nothing more is earned
        return temporal_difference_targets(batch.rewards, value, batch.mask, self.config.gamma)

    @torch.no_grad()
    def value_regression(self, batch: SessionTensors) -> tuple[Tensor, Tensor]:
        return self.label(batch), self.nets["value"].online.values(batch)

    def build_scorer(self) -> NetScorer:
        return NetScorer({"value": value_term(self.nets["value"].online)}, self.domain.behaviours.start)


class DDQN(DQN):
    """Double DQN: the online network chooses, the target network judges."""

    name = "ddqn"
    double = True


def still_available(batch: SessionTensors) -> Tensor:
    """(B, T, C): which candidates have not been shown before each step."""
    candidates, items = batch.require_candidates(), batch.items
    horizon = items.shape[1]
    shown = (candidates.unsqueeze(2) == items.unsqueeze(1)) & batch.mask.unsqueeze(1)  # (B, C, T)
    first = torch.where(shown.any(2), shown.int().argmax(2), horizon)  # the step at which each was shown
    step = torch.arange(horizon, device=items.device)
    return (first.unsqueeze(1) >= step.unsqueeze(1)) & (candidates != MASK_ROW).unsqueeze(1)


@torch.no_grad()
def candidate_values(net: ValueNet, term: ScoreTerm, batch: SessionTensors) -> Tensor:
    """(B, T, C): the value of every candidate at every logged step."""
    candidates = batch.require_candidates()
    size, horizon = batch.items.shape
    standing = net.states_before(batch).flatten(0, 1)  # (B·T, H)
    previous = net.previous(batch.behaviours).flatten()
    if candidates.dim() == 2:
        candidates = candidates.unsqueeze(1).expand(-1, horizon, -1)
    spread = candidates.flatten(0, 1)  # (B·T, C)
    rows = ROWS_AT_ONCE if standing.device.type == "cpu" else len(standing)
    parts = [
        term.score(standing[begin : begin + rows], previous[begin : begin + rows], spread[begin : begin + rows])
        for begin in range(0, len(standing), rows)
    ]
    here = net.label_scaler.denormalize(torch.zeros(1, horizon, device=standing.device)) - net.label_scaler.shift.mean()
    return torch.cat(parts).view(size, horizon, -1) + here.unsqueeze(2)
