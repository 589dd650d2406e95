"""DDPG: an actor chooses a point in a small space of items, and the candidate nearest to it is shown.

Lillicrap et al., *Continuous control with deep reinforcement learning* (2016), in the form of Zhao et al., a baseline of the
MBCAL paper. Items are mapped to points v(a) in D = 4 dimensions. The actor gives a point p(s_t), the policy shows the
candidate whose v(a) is nearest, and the critic Q(s_t, v) values points.

    critic   y_t = r_t + gamma Q'(s_{t+1}, p'(s_{t+1})),   huber(Q(s_t, v(a_t)) - y_t)
    actor    -Q(s_t, p(s_t)), the critic's parameters fixed

Q' and p' are copies of Q and p, renewed every few updates as in DQN; the actor's learning rate is a tenth of the critic's.

Deviations: (1) copies instead of moving averages, as in DQN; (2) the actor's network is like all others, with the masking
item in place of the candidate; (3) v(a) is learned by the critic's loss alone; (4) the critic encodes the history or
nothing, never the user's id, and reads neither user features nor context, which the actor does; (5) targets are bounded and
large errors count linearly, as in DQN.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mbcal.agents.base import Agent
from mbcal.agents.domain import Domain
from mbcal.agents.dqn import DQNConfig
from mbcal.agents.fit_context import NO_ROWS, FitContext
from mbcal.agents.values import TargetCopy, largest_loss, session_returns
from mbcal.nn.embeddings import Embedding, ItemEmbedding
from mbcal.nn.label_scaler import LabelScaler
from mbcal.nn.recurrent import RecurrentNet, last_hidden, run_gru
from mbcal.scoring.scorers import NearestScorer
from mbcal.training.device_data import DeviceSessions
from mbcal.training.labels import bounded_targets
from mbcal.training.loop import Objective
from mbcal.training.losses import huber
from mbcal.training.random import Noise
from mbcal.types import SessionTensors


@dataclass(frozen=True)
class DDPGConfig(DQNConfig):
    """Settings of DDPG."""

    action: int = 4
    """D, dimensions of the action space; the paper found more to be worse."""
    actor_share: float = 0.1
    """The actor's learning rate as a share of the critic's."""


class _ActorCritic(nn.Module):
    """Actor p(s) and critic Q(s, v). The critic reads items as points v(a) in (-1, 1)^D, mapped from Emb(a)."""

    def __init__(self, domain: Domain, config: DDPGConfig) -> None:
        super().__init__()
        shape = (domain.catalog, domain.behaviours, config.net, config.action, domain.n_users)
        self.actor = RecurrentNet(*shape, domain.fields)
        self.items = ItemEmbedding(domain.catalog, config.net)
        self.point = nn.Linear(self.items.size, config.action)
        self.behaviours = Embedding(domain.behaviours.start + 1, config.net.embedding, config.net.embedding_scale)
        width, hidden = config.net.embedding + config.action, config.net.width
        self.history, self.cell = (nn.GRU(width, hidden, batch_first=True) for _ in range(2))
        self.head = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def points(self, items: Tensor) -> Tensor:
        """v(a): catalogue rows (…) -> (…, D)."""
        return torch.tanh(self.point(self.items(items)))

    def actions(self, batch: SessionTensors) -> Tensor:
        """p(s_t) at every logged step, (B, T, D); the step's own item is masked."""
        return torch.tanh(self.actor.forward_masked(batch))

    def forward(self, batch: SessionTensors) -> Tensor:
        """Q of the actor's own actions, (B, T)."""
        return self.critic(batch, self.actions(batch))

    def critic(self, batch: SessionTensors, points: Tensor | None = None) -> Tensor:
        """Q (B, T) of the logged items, or of `points` (B, T, D), each in place of its step's item alone."""
        previous = self.behaviours(self.actor.previous(batch.behaviours).int())
        inputs = torch.cat([previous, self.points(batch.items)], -1)
        first_state = self.encode_history(batch)
        hidden = run_gru(self.cell, inputs, first_state)
        if points is not None:
            states_before = torch.cat([first_state.unsqueeze(1), hidden[:, :-1]], 1)
            replaced = torch.cat([previous, points], -1)
            hidden = run_gru(self.cell, replaced.flatten(0, 1).unsqueeze(1), states_before.flatten(0, 1)).view_as(hidden)
        values: Tensor = self.head(hidden).squeeze(-1)
        return values

    def encode_history(self, batch: SessionTensors) -> Tensor:
        """The critic's state before the first step, (B, H)."""
        size, span = batch.history_items.shape
        zeros = torch.zeros(size, self.cell.hidden_size, device=batch.items.device)
        if span == 0 or self.actor.config.user != "history":
            return zeros
        inputs = torch.cat([self.behaviours(batch.history_behaviours.int()), self.points(batch.history_items)], -1)
        return last_hidden(run_gru(self.history, inputs, zeros), batch.history_length)


class ActorCritic(TargetCopy):
    """Actor and critic (`online`), their target network (`target`), and the scale of values."""

    online: _ActorCritic
    target: _ActorCritic

    def __init__(self, domain: Domain, config: DDPGConfig) -> None:
        super().__init__(_ActorCritic(domain, config), _ActorCritic(domain, config), config.copy_every)
        self.label_scaler = LabelScaler(domain.horizon)


class DDPG(Agent):
    """Score = minus the squared distance of the item's point to the actor's."""

    name = "ddpg"
    Config = DDPGConfig
    config: DDPGConfig

    def build_networks(self, domain: Domain) -> dict[str, nn.Module]:
        return {"value": ActorCritic(domain, self.config)}

    def create_optimiser(self, net: nn.Module) -> torch.optim.Adam:
        """Create one Adam for both: the critic at the config's learning rate, the actor at `actor_share` of it."""
        trainable = [(name, parameter) for name, parameter in net.named_parameters() if parameter.requires_grad]
        critic = [parameter for name, parameter in trainable if not name.startswith("online.actor.")]
        actor = [parameter for name, parameter in trainable if name.startswith("online.actor.")]
        optimiser = self.config.training.create_optimiser(critic)
        optimiser.add_param_group({"params": actor, "share": self.config.actor_share})
        self.config.training.apply_to(optimiser)
        return optimiser

    def learn(self, context: FitContext) -> None:
        net: ActorCritic = self.nets["value"]
        context.fit_label_scaler(net.label_scaler, session_returns(context.data, self.config.gamma))
        objective = self._objective(net, context.data)
        horizon = context.data.tensors.horizon
        max_loss = largest_loss(self.domain.behaviours, horizon, self.config.gamma, net.label_scaler)
        context.train("value", objective, held_out_rows=NO_ROWS, before_update=net.begin_update, max_loss=max_loss)

    def _objective(self, net: ActorCritic, data: DeviceSessions) -> Objective:
        def objective(rows: Tensor, _: Noise) -> tuple[Tensor, Tensor]:
            batch = data[rows]
            mask = batch.mask
            errors = net.online.critic(batch) - net.label_scaler.normalize(self.label(batch))
            # the actor's loss must not change the critic: only the actor's parameters carry gradients in it
            parameters = {name: parameter.detach() for name, parameter in net.online.named_parameters()}
            parameters |= {name: p for name, p in net.online.named_parameters() if name.startswith("actor.")}
            action_values = torch.func.functional_call(net.online, parameters, (batch,))
            return ((huber(errors) - action_values) * mask).sum(), mask.sum()

        return objective

    @torch.no_grad()
    def label(self, batch: SessionTensors) -> Tensor:
        """Return the critic's targets y_t of B sessions, (B, T)."""
        net: ActorCritic = self.nets["value"]
        next_value = net.label_scaler.denormalize(net.target(batch))
        return bounded_targets(batch.rewards, next_value, batch.mask, self.config.gamma, batch.behaviour_set.rewards)

    @torch.no_grad()
    def value_regression(self, batch: SessionTensors) -> tuple[Tensor, Tensor]:
        net: ActorCritic = self.nets["value"]
        return self.label(batch), net.label_scaler.denormalize(net.online.critic(batch))

    @torch.no_grad()
    def build_scorer(self) -> NearestScorer:
        net: _ActorCritic = self.nets["value"].online
        rows = torch.arange(self.domain.catalog.n_rows, device=self.device)
        start, fields = self.domain.behaviours.start, self.domain.fields
        return NearestScorer(net.actor.scoring_tables(), net.points(rows), start, fields)
