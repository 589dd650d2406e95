"""MBCAL: rank by instant reward + counterfactual future advantage.

Wang et al., *MBCAL: Sample Efficient and Variance Reduced Reinforcement Learning for Recommender Systems*. Two networks of
one architecture:

1. the masked environment model f_phi learns the behaviour at every step, items masked at random
   (`losses.behaviour_nll`, Eq. environment_loss);
2. it labels every logged step with the rest of the session as it expects it, minus the same with this step's item masked
   (`labels.counterfactual_future_advantage`, Eq. couterfactual_future_advantage);
3. the future advantage model g_eta learns these labels (`losses.value_mse`, Eq. CFAApproximator);
4. the policy ranks by r_phi + g_eta (`scoring.NetScorer`, Eq. Recommendation_policy).

With `mix` above 0 the label also holds a share of the future with the item masked, over what is usual in the state
(`labels.mixed_advantage`): two more networks, one of the state alone and one that learns what it leaves over.

Without variance reduction (`mbcal-no-vr`, the paper's ablation) the label is the simulated future reward itself
(`labels.simulated_future_reward`, Eq. future_reward).

Deviations: (1) labels are standardised inside g_eta and restored at its output; (2) a one-off fit stops early on users
held out; (3) sessions may be shorter than the horizon, and losses are means over steps, not over sessions; (4) h_0 is read
from the user's history by a GRU unless told otherwise, where the paper writes Emb(u).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from mbcal.agents.base import Agent, AgentConfig, Domain, FitContext, reward_term, value_term
from mbcal.environments.candidates import session_candidates
from mbcal.environments.model import ModelEnvironment
from mbcal.environments.rollout import rollout
from mbcal.errors import OptionError
from mbcal.metrics import mean_interval
from mbcal.nn.base import expected_reward
from mbcal.nn.recurrent import RecurrentNet, ValueNet
from mbcal.scoring.scorers import NetScorer
from mbcal.training.losses import behaviour_nll, value_mse
from mbcal.training.targets import counterfactual_future_advantage, mixed_advantage, simulated_future_reward
from mbcal.types import SessionTensors

MIXES = (0.1, 0.3, 1.0)
"""What `auto` tries beside 0."""
IMAGINED = 16_384
"""Sessions it tries each on."""
LEVEL = 0.99
"""Of the interval that must lie above 0."""


@dataclass(frozen=True)
class MBCALConfig(AgentConfig):
    """ExperimentConfig of MBCAL."""

    gamma: float = 0.95
    """Discount of the future."""
    mask_rate: float = 0.2
    """Probability with which the environment model is not told an item."""
    mix: float | Literal["auto"] = 0.0
    """lambda of `labels.mixed_advantage`: 0 is the paper's advantage, 1 the whole future over what is usual in the state;
    `auto` chooses by the environment model."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.gamma <= 1:
            raise OptionError(f"gamma: must be in [0, 1], got {self.gamma}")
        if not 0 <= self.mask_rate < 1:
            raise OptionError(f"mask_rate: must be in [0, 1), got {self.mask_rate}")
        if self.mix != "auto" and (isinstance(self.mix, str) or not 0 <= self.mix <= 1):
            raise OptionError(f"mix: must be in [0, 1], or auto, got {self.mix}")


class Mix(nn.Module):
    """lambda as it was given or chosen, kept with the weights."""

    value: Tensor

    def __init__(self, value: float) -> None:
        super().__init__()
        self.register_buffer("value", torch.tensor(value))


class MBCAL(Agent):
    """Score = expected instant reward + future advantage."""

    name = "mbcal"
    Config = MBCALConfig
    config: MBCALConfig

    def build_networks(self, domain: Domain) -> dict[str, nn.Module]:
        known = (domain.catalog, domain.behaviours, self.config.net)
        made: dict[str, nn.Module] = {
            "environment": RecurrentNet(*known, len(domain.behaviours), domain.n_users),
            "advantage": ValueNet(*known, domain.n_users, domain.horizon),
        }
        if self.config.mix:
            made["usual"] = ValueNet(*known, domain.n_users, domain.horizon)
            made["rest"] = ValueNet(*known, domain.n_users, domain.horizon)
            made["mix"] = Mix(0.0 if self.config.mix == "auto" else self.config.mix)
        return made

    def learn(self, context: FitContext) -> None:
        environment = self.nets["environment"]
        context.train("environment", behaviour_nll(environment, context.data, self.config.mask_rate))
        self.learn_label(context, "advantage", self.advantage)
        if self.config.mix:
            self.learn_label(context, "usual", self.masked_future, told=False)
            self.learn_label(context, "rest", self.rest)
        if self.config.mix == "auto":
            self.nets["mix"].value.fill_(self._chosen_mix(context))

    def learn_label(
        self, context: FitContext, name: str, label: Callable[[SessionTensors], Tensor], told: bool = True
    ) -> None:
        """Fit a network of values to a label of every step."""
        net: ValueNet = self.nets[name]
        context.progress.phase(f"labels of {name}", len(context.data))
        labels = []
        for rows in context.data.blocks():
            labels.append(label(context.data[rows]))
            context.progress.advance(len(labels[-1]))
        made = torch.cat(labels)
        if context.first:
            net.label_scaler.fit(made, context.data.mask, context.worker_slice.group)
        context.train(name, value_mse(net, context.data, made, told))

    def advantage(self, batch: SessionTensors) -> Tensor:
        """What g_eta learns at every step (B, T)."""
        return counterfactual_future_advantage(self.nets["environment"], self._rewards(), batch, self.config.gamma)

    @torch.no_grad()
    def future(self, batch: SessionTensors) -> Tensor:
        """The simulated future reward (B, T)."""
        predicted = expected_reward(self.nets["environment"].forward_batch(batch), self._rewards())
        return simulated_future_reward(predicted, batch.mask, self.config.gamma)

    def masked_future(self, batch: SessionTensors) -> Tensor:
        """The same with each step's item masked (B, T)."""
        return self.future(batch) - self.advantage(batch)

    @torch.no_grad()
    def rest(self, batch: SessionTensors) -> Tensor:
        """The masked future over what is usual in the state (B, T)."""
        return torch.where(batch.mask, self.masked_future(batch) - self.nets["usual"].values(batch, told=False), 0)

    @torch.no_grad()
    def label(self, batch: SessionTensors) -> Tensor:
        """What the networks of values learn together (B, T)."""
        advantage = self.advantage(batch)
        if not self.config.mix:
            return advantage
        usual = torch.where(batch.mask, self.nets["usual"].values(batch, told=False), 0)
        return mixed_advantage(advantage, self.future(batch) - advantage, usual, float(self.nets["mix"].value))

    def _rewards(self) -> Tensor:
        return self.domain.behaviours.reward_table(self.device)

    @torch.no_grad()
    def value_regression(self, batch: SessionTensors) -> tuple[Tensor, Tensor]:
        predicted: Tensor = self.nets["advantage"].values(batch)
        if self.config.mix:
            predicted = predicted + self.nets["mix"].value * self.nets["rest"].values(batch)
        return self.label(batch), predicted

    def build_scorer(self) -> NetScorer:
        return self._scorer_with(float(self.nets["mix"].value) if self.config.mix else 0.0)

    def _scorer_with(self, mix: float) -> NetScorer:
        terms = {
            "instant": reward_term(self.nets["environment"], self.domain.behaviours),
            "future": value_term(self.nets["advantage"]),
        }
        if mix:
            terms["rest"] = value_term(self.nets["rest"], mix)
        return NetScorer(terms, self.domain.behaviours.start)

    def environment(self) -> ModelEnvironment:
        """The environment model as users one can ask: for imagined sessions."""
        domain = self.domain
        return ModelEnvironment(self.nets["environment"], domain.catalog, domain.behaviours)

    def _chosen_mix(self, context: FitContext) -> float:
        """The lambda whose policy earns most with users as the environment model imagines them, all in the same luck.

        Zero unless another is better by more than chance: what cannot be told apart stays the paper's.
        """
        worker_slice, count = context.worker_slice, min(context.worker_slice.total, IMAGINED)
        some = context.data.tensors[: max(count - worker_slice.begin, 0)]
        offered = session_candidates(some, context.seed, context.data.tensors, worker_slice)
        users, groups = self.environment(), worker_slice.all_gather(some.user)[:count].cpu().numpy()
        served = {
            mix: rollout(
                self._scorer_with(mix), users, some, candidates=offered, seed=context.seed, first=worker_slice.begin,
                title=f"mix {mix}", progress=context.progress,
            ).rewards.sum(1) if len(some) else some.rewards.sum(1)
            for mix in (0.0, *MIXES)
        }  # fmt: skip
        earned = {mix: worker_slice.all_gather(rewards)[:count].cpu().numpy() for mix, rewards in served.items()}
        gaps = {mix: mean_interval(earned[mix] - earned[0.0], groups, LEVEL) for mix in MIXES}
        better = [mix for mix in MIXES if gaps[mix].low > 0]
        return max(better, key=lambda mix: gaps[mix].mean, default=0.0)


class MBCALWithoutVarianceReduction(MBCAL):
    """The paper's ablation: the future advantage model learns the simulated future reward."""

    name = "mbcal-no-vr"

    def advantage(self, batch: SessionTensors) -> Tensor:
        return self.future(batch)
