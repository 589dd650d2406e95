"""DQN and Double DQN: the reward of a step plus the value of the best candidate that is then available.

Mnih et al., *Human-level control through deep reinforcement learning* (2015), and van Hasselt et al., *Deep Reinforcement
Learning with Double Q-learning* (2016), in the form of Zheng et al., *DRN* (2018): the state is the GRU's, as in every
method here.

    DQN     y_t = r_t + gamma max_a Q'(s_{t+1}, a)                        a among the candidates available at t+1
    DDQN    y_t = r_t + gamma Q'(s_{t+1}, argmax_a Q(s_{t+1}, a))         Q' is the target network

Q' is a copy of Q, renewed every few updates. Candidates of all steps are scored in one pass by tables (`scoring.tables`).

Deviations: (1) whole logged sessions are the replay memory; (2) the maximum is over the candidates available at the next
step, where the authors' code takes the session's own items; (3) targets are normalised by the returns of the first fit; (4)
no held-out loss tells when to stop, since targets move with the network; (5) Q'(s_{t+1}, a) is clamped to what the rest of a
session can pay, errors beyond one standard deviation of returns count linearly, and the interval between copies follows from
the number of updates, where the paper copies every 20. docs/methods/dqn.md has the reasons.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mbcal.agents.base import Agent
from mbcal.agents.domain import Domain
from mbcal.agents.fit_context import NO_ROWS, FitContext
from mbcal.agents.values import TargetCopy, ValueConfig, largest_loss, session_returns, value_term
from mbcal.environments.candidates import available_candidates
from mbcal.errors import OptionError
from mbcal.nn.recurrent import ValueNet
from mbcal.scoring.backend import copy_into
from mbcal.scoring.scorers import NetScorer, ScoreTerm
from mbcal.training.device_data import DeviceSessions
from mbcal.training.labels import bounded_targets
from mbcal.training.loop import Objective
from mbcal.training.losses import huber
from mbcal.training.random import Noise
from mbcal.types import Catalog, SessionTensors

CPU_BLOCK, GPU_BLOCK = 512, 32_768
"""Steps scored at a time: few enough for the cache of a CPU, and for a GPU that other processes share."""


@dataclass(frozen=True)
class DQNConfig(ValueConfig):
    """Settings of DQN and the methods derived from it."""

    copy_every: int | None = None
    """Updates between two renewals of the target network, 20 in the paper. None: chosen by the number of planned updates."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.copy_every is not None and self.copy_every < 1:
            raise OptionError(f"copy_every: must be at least 1, got {self.copy_every}")


class QNetwork(TargetCopy):
    """Q (`online`) and its target network Q' (`target`)."""

    online: ValueNet
    target: ValueNet

    def __init__(self, domain: Domain, config: DQNConfig) -> None:
        shape = (domain.catalog, domain.behaviours, config.net, domain.n_users, domain.horizon, domain.fields)
        super().__init__(ValueNet(*shape), ValueNet(*shape), config.copy_every)
        self._target_term: ScoreTerm | None = None

    def target_term(self) -> ScoreTerm:
        """Q' as a score term, which `renew` keeps up to date."""
        if self._target_term is None:
            self._target_term = value_term(self.target)
        return self._target_term

    def renew(self) -> None:
        super().renew()
        if self._target_term is not None:
            copy_into(self._target_term, value_term(self.target))

    def set_extra_state(self, state: Tensor) -> None:
        super().set_extra_state(state)
        self._target_term = None

    def grow(self, _: Catalog) -> None:
        """Both networks grow; the tables of Q' are made again when they are needed."""
        self._target_term = None


class DQN(Agent):
    """Score = Q; the target network both chooses and values the next candidate."""

    name = "dqn"
    Config = DQNConfig
    config: DQNConfig
    needs_candidates = True
    double = False
    """Whether the online network chooses the action that the target network values."""

    def build_networks(self, domain: Domain) -> dict[str, nn.Module]:
        return {"value": QNetwork(domain, self.config)}

    def learn(self, context: FitContext) -> None:
        self.learn_values(context, context.data)

    def learn_values(self, context: FitContext, data: DeviceSessions, copies: int = 1) -> None:
        """Train Q on temporal differences.

        Args:
            context: The fit.
            data: The context's sessions, or several copies of them one after another.
            copies: How many.
        """
        net: QNetwork = self.nets["value"]
        context.fit_label_scaler(net.online.label_scaler, session_returns(context.data, self.config.gamma))
        context.train(
            "value",
            self._objective(net, data),
            held_out_rows=NO_ROWS,
            before_update=net.begin_update,
            use_cuda_graph=data.is_on_device,
            copies=copies,
            max_loss=largest_loss(self.domain.behaviours, data.tensors.horizon, self.config.gamma, net.online.label_scaler),
        )

    def _objective(self, net: QNetwork, data: DeviceSessions) -> Objective:
        def objective(rows: Tensor, _: Noise) -> tuple[Tensor, Tensor]:
            batch = data[rows]
            mask, targets = batch.mask, self.label(batch)
            errors = net.online.forward_batch(batch).squeeze(-1) - net.online.label_scaler.normalize(targets)
            return (huber(errors) * mask).sum(), mask.sum()

        return objective

    @torch.no_grad()
    def label(self, batch: SessionTensors) -> Tensor:
        """Return the targets y_t of B sessions with candidates, (B, T)."""
        net: QNetwork = self.nets["value"]
        available = available_candidates(batch)
        values = candidate_values(net.target, net.target_term(), batch)
        if self.double:
            online_values = candidate_values(net.online, value_term(net.online), batch)
            best = online_values.masked_fill(~available, -torch.inf).argmax(2, keepdim=True)
            next_value = values.gather(2, best).squeeze(2)
        else:
            next_value = values.masked_fill(~available, -torch.inf).amax(2)
        return bounded_targets(batch.rewards, next_value, batch.mask, self.config.gamma, batch.behaviour_set.rewards)

    @torch.no_grad()
    def value_regression(self, batch: SessionTensors) -> tuple[Tensor, Tensor]:
        return self.label(batch), self.nets["value"].online.values(batch)

    def build_scorer(self) -> NetScorer:
        terms = {"value": value_term(self.nets["value"].online)}
        return NetScorer(terms, self.domain.behaviours.start, self.domain.fields)


class DDQN(DQN):
    """Score = Q; the online network chooses the next candidate, the target network values it."""

    name = "ddqn"
    double = True


@torch.no_grad()
def candidate_values(net: ValueNet, term: ScoreTerm, batch: SessionTensors) -> Tensor:
    """Compute the value of every candidate at every logged step.

    Args:
        net: The network, for the states before each step.
        term: The same network as a score term.
        batch: B sessions with candidates, (B, C) or (B, T, C).

    Returns:
        (B, T, C) in reward units.
    """
    candidates = batch.require_candidates()
    size, horizon = batch.items.shape
    states = net.states_before(batch).flatten(0, 1)  # (B·T, H)
    previous = net.previous(batch.behaviours).flatten()
    if candidates.dim() == 2:
        candidates = candidates.unsqueeze(1).expand(-1, horizon, -1)
    per_step = candidates.flatten(0, 1)  # (B·T, C)
    block = CPU_BLOCK if states.device.type == "cpu" else GPU_BLOCK
    context = batch.encoded_by(net.fields).context
    gates = None if context is None else term.tables.context_gates(context.flatten(0, 1))
    values = []
    for begin in range(0, len(states), block):
        part = slice(begin, begin + block)
        values.append(term.score(states[part], previous[part], per_step[part], None if gates is None else gates[part]))
    # tables contain the mean shift of all steps; add the difference of each step's shift to it
    step_shift = net.label_scaler.denormalize(torch.zeros(1, horizon, device=states.device)) - net.label_scaler.shift.mean()
    return torch.cat(values).view(size, horizon, -1) + step_shift.unsqueeze(2)
