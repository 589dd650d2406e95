"""DDPG: a point in a small space of items, and the candidate nearest to it.

Lillicrap et al., *Continuous control with deep reinforcement learning* (2016), in the form of Zhao et al. that the MBCAL
paper compares with. Items are mapped to v(a) in four dimensions. The actor gives a point p(s_t), the policy shows the
candidate whose v(a) lies nearest, the critic Q(s_t, v) judges points.

    critic   y_t = r_t + gamma Q'(s_{t+1}, p'(s_{t+1})),   (Q(s_t, v(a_t)) - y_t)²
    actor    -Q(s_t, p(s_t)), the critic held still

Q' and p' are copies made every 20 updates; the actor learns ten times slower than the critic.

Deviations: (1) copies instead of slow averages, as in DQN; (2) the actor reads the masking item where others read the
candidate, so that its network has the shape of all others; (3) v(a) is learned through the critic alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mbcal.agents.base import Agent, Domain, FitContext
from mbcal.agents.dqn import NO_ROWS, DQNConfig, TargetCopy
from mbcal.agents.mcpe import session_returns
from mbcal.nn.embeddings import Embedding, ItemEmbedding
from mbcal.nn.label_scaler import LabelScaler
from mbcal.nn.recurrent import RecurrentNet, last_hidden, run_gru
from mbcal.scoring.scorers import NearestScorer
from mbcal.training.device_data import DeviceSessions
from mbcal.training.loop import Objective
from mbcal.training.random import Noise
from mbcal.training.targets import temporal_difference_targets
from mbcal.types import SessionTensors


@dataclass(frozen=True)
class DDPGConfig(DQNConfig):
    """ExperimentConfig of DDPG."""

    action: int = 4
    """Dimensions of the space of points; the paper found more to be worse."""
    actor_share: float = 0.1
    """The actor's learning rate as a share of the critic's."""


class _Pair(nn.Module):
    """Actor and critic. The critic's items are their points: Emb(a) -> v(a) in (-1, 1)^4."""

    def __init__(self, domain: Domain, config: DDPGConfig) -> None:
        super().__init__()
        known = (domain.catalog, domain.behaviours, config.net)
        self.actor = RecurrentNet(*known, config.action, domain.n_users)
        self.items = ItemEmbedding(domain.catalog, config.net)
        self.point = nn.Linear(self.items.size, config.action)
        self.behaviours = Embedding(domain.behaviours.start + 1, config.net.embedding)
        width, hidden = config.net.embedding + config.action, config.net.hidden
        self.history, self.cell = (nn.GRU(width, hidden, batch_first=True) for _ in range(2))
        self.head = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def points(self, items: Tensor) -> Tensor:
        """v(a): (…) -> (…, 4)."""
        return torch.tanh(self.point(self.items(items)))

    def act(self, batch: SessionTensors) -> Tensor:
        """p(s_t) (B, T, 4): the actor at every logged step, the step's own item unseen."""
        return torch.tanh(self.actor.forward_masked(batch))

    def forward(self, batch: SessionTensors) -> Tensor:
        """Q (B, T) of the actor's own points."""
        return self.judge(batch, self.act(batch))

    def judge(self, batch: SessionTensors, points: Tensor | None = None) -> Tensor:
        """Q (B, T) of the logged items, or of other points (B, T, 4) shown in their place, one step at a time."""
        inside = torch.cat([self.behaviours(self.actor.previous(batch.behaviours).int()), self.points(batch.items)], -1)
        begin = self._read(batch)
        hidden = run_gru(self.cell, inside, begin)
        if points is not None:
            before = torch.cat([begin.unsqueeze(1), hidden[:, :-1]], 1)  # h_{t-1}
            other = torch.cat([inside[..., : -points.shape[-1]], points], -1)
            hidden = run_gru(self.cell, other.flatten(0, 1).unsqueeze(1), before.flatten(0, 1)).view_as(hidden)
        value: Tensor = self.head(hidden).squeeze(-1)
        return value

    def _read(self, batch: SessionTensors) -> Tensor:
        size, span = batch.history_items.shape
        if span == 0 or self.actor.config.user != "history":
            return torch.zeros(size, self.cell.hidden_size, device=batch.items.device)
        past = torch.cat([self.behaviours(batch.history_behaviours.int()), self.points(batch.history_items)], -1)
        nothing = torch.zeros(size, self.cell.hidden_size, device=past.device)
        return last_hidden(run_gru(self.history, past, nothing), batch.history_length)


class ActorCritic(TargetCopy):
    """The pair that learns, its slower copy, and the scale of values."""

    online: _Pair
    target: _Pair

    def __init__(self, domain: Domain, config: DDPGConfig) -> None:
        super().__init__(_Pair(domain, config), _Pair(domain, config), config.copy_every)
        self.label_scaler = LabelScaler(domain.horizon)


class DDPG(Agent):
    """Score = minus the squared distance to the actor's point."""

    name = "ddpg"
    Config = DDPGConfig
    config: DDPGConfig

    def build_networks(self, domain: Domain) -> dict[str, nn.Module]:
        return {"value": ActorCritic(domain, self.config)}

    def create_optimiser(self, net: nn.Module) -> torch.optim.Adam:
        learned = [(name, parameter) for name, parameter in net.named_parameters() if parameter.requires_grad]
        critic = [parameter for name, parameter in learned if not name.startswith("online.actor.")]
        actor = [parameter for name, parameter in learned if name.startswith("online.actor.")]
        made = self.config.training.create_optimiser(critic)
        made.add_param_group({"params": actor, "share": self.config.actor_share})
        self.config.training.apply_to(made)
        return made

    def learn(self, context: FitContext) -> None:
        net: ActorCritic = self.nets["value"]
        if context.first:
            returns = session_returns(context.data, self.config.gamma)
            net.label_scaler.fit(returns, context.data.mask, context.worker_slice.group)
        context.train("value", self._objective(net, context.data), held=NO_ROWS, before=net.begin_update)

    def _objective(self, net: ActorCritic, data: DeviceSessions) -> Objective:
        def objective(rows: Tensor, _: Noise) -> tuple[Tensor, Tensor]:
            batch = data[rows]
            counted = batch.mask
            error = net.online.judge(batch) - net.label_scaler.normalize(self.label(batch))
            still = {name: parameter.detach() for name, parameter in net.online.named_parameters()}
            still |= {name: parameter for name, parameter in net.online.named_parameters() if name.startswith("actor.")}
            judged = torch.func.functional_call(net.online, still, (batch,))
            return ((error.square() - judged) * counted).sum(), counted.sum()

        return objective

    @torch.no_grad()
    def label(self, batch: SessionTensors) -> Tensor:
        """y_t (B, T)."""
        net: ActorCritic = self.nets["value"]
        value = net.label_scaler.denormalize(net.target(batch))
        return temporal_difference_targets(batch.rewards, value, batch.mask, self.config.gamma)

    @torch.no_grad()
    def value_regression(self, batch: SessionTensors) -> tuple[Tensor, Tensor]:
        net: ActorCritic = self.nets["value"]
        return self.label(batch), net.label_scaler.denormalize(net.online.judge(batch))

    @torch.no_grad()
    def build_scorer(self) -> NearestScorer:
        pair: _Pair = self.nets["value"].online
        rows = torch.arange(self.domain.catalog.n_rows, device=self.device)
        return NearestScorer(pair.actor.scoring_tables(), pair.points(rows), self.domain.behaviours.start)
