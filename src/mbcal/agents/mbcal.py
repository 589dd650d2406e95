"""MBCAL: rank by expected instant reward + counterfactual future advantage.

Wang et al., *MBCAL: Sample Efficient and Variance Reduced Reinforcement Learning for Recommender Systems*. Two networks of
one architecture:

1. the masked environment model f_phi learns the behaviour at every step, items masked at random
   (`losses.behaviour_nll`, Eq. environment_loss);
2. it labels every logged step: the reward it expects of the rest of the session, minus the same with this step's item masked
   (`labels.counterfactual_future_advantage`, Eq. couterfactual_future_advantage);
3. the future advantage model g_eta learns these labels (`losses.value_mse`, Eq. CFAApproximator);
4. the policy ranks by r_phi + g_eta (`scorers.NetScorer`, Eq. Recommendation_policy).

In later fits, whose sessions the policy itself has chosen, the masked branch answers anew, under the noise that the logged
behaviours give away (`noise_labels`). The paper keeps the behaviours, and where these tell which item was masked, the
advantage fades from round to round.

With `mix` above 0, a share of the future with the item masked, less its mean in the state, is added to the label
(`labels.mixed_advantage`). It takes two more networks: the baseline, which predicts that mean from the state alone, and one
that learns the residual.

Where users can leave (`Behaviours.terminal`), futures are weighted by survival in both branches (`labels`), and sessions
that ended early are completed before they are labelled (`completion`).

Without variance reduction (`mbcal-no-vr`, the paper's ablation) the label is the simulated future reward itself
(`labels.simulated_future_reward`, Eq. future_reward).

Deviations: (1) labels are normalised inside g_eta and restored at its output; (2) a one-off fit stops early on held-out
users; (3) sessions may be shorter than the horizon, and losses are means over steps, not over sessions; (4) h_0 is read
from the user's history by a GRU unless configured otherwise, where the paper writes Emb(u); (5) gamma is 1 and the mask rate
0.05, where the paper has 0.95 and 0.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from mbcal.agents.base import Agent
from mbcal.agents.config import AgentConfig
from mbcal.agents.domain import Domain
from mbcal.agents.fit_context import FitContext
from mbcal.agents.values import require_discount, reward_term, value_term
from mbcal.environments.candidates import session_candidates
from mbcal.environments.model import ModelEnvironment
from mbcal.environments.rollout import rollout
from mbcal.errors import OptionError
from mbcal.metrics import mean_interval
from mbcal.nn.base import expected_reward
from mbcal.nn.recurrent import RecurrentNet, ValueNet
from mbcal.scoring.scorers import NetScorer
from mbcal.training.completion import complete_sessions
from mbcal.training.labels import counterfactual_future_advantage, mixed_advantage, simulated_future_reward
from mbcal.training.noise_labels import noise_counterfactual_advantage
from mbcal.types import SessionTensors

MIXES = (0.1, 0.3, 1.0)
"""Values of lambda that `mix="auto"` compares with 0."""
MIX_SESSIONS = 16_384
"""Imagined sessions that each of them is compared on, at most."""
MIX_LEVEL = 0.99
"""Level of the confidence interval of the gain, which must lie above 0."""


MAX_NOISE_DRAWS, NOISE_SESSIONS = 8, 50_000
"""Draws of the noise in the labels of few sessions; and draws times sessions, at most, where more than one draw is made."""


@dataclass(frozen=True)
class MBCALConfig(AgentConfig):
    """Settings of MBCAL."""

    gamma: float = 1.0
    """Discount of future rewards, in [0, 1]."""
    mask_rate: float = 0.05
    """Probability with which an item is masked when the environment model is trained, in [0, 1)."""
    mix: float | Literal["auto"] = 0.0
    """lambda of `labels.mixed_advantage`, in [0, 1]: 0 is the paper's advantage, 1 the whole future less its mean in the
    state. `auto` chooses the lambda whose policy earns most in the environment model."""

    counterfactual: Literal["auto", "behaviours", "noise"] = "auto"
    """What the masked branch of a label keeps of the logged session: its behaviours, as in the paper, or its noise
    (`noise_labels`). `auto`: the behaviours in a first fit, the noise in later ones."""
    noise_draws: int | None = None
    """Draws of the noise that a label is the mean of. None: 8, and fewer where there are many sessions (`noise_draws`)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        known = ("auto", "behaviours", "noise")
        if self.counterfactual not in known:
            raise OptionError(f"counterfactual: {self.counterfactual!r} is unknown; known are {', '.join(known)}")
        if self.noise_draws is not None and self.noise_draws < 1:
            raise OptionError(f"noise_draws: must be at least 1, got {self.noise_draws}")
        require_discount(self.gamma)
        if not 0 <= self.mask_rate < 1:
            raise OptionError(f"mask_rate: must be in [0, 1), got {self.mask_rate}")
        if self.mix != "auto" and (isinstance(self.mix, str) or not 0 <= self.mix <= 1):
            raise OptionError(f"mix: must be in [0, 1], or auto, got {self.mix}")


class Mix(nn.Module):
    """lambda as it was configured or chosen, saved with the weights."""

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
        shape = (domain.catalog, domain.behaviours, self.config.net)
        nets: dict[str, nn.Module] = {
            "environment": RecurrentNet(*shape, len(domain.behaviours), domain.n_users, domain.fields),
            "advantage": ValueNet(*shape, domain.n_users, domain.horizon, domain.fields),
        }
        if self.config.mix:
            nets["baseline"] = ValueNet(*shape, domain.n_users, domain.horizon, domain.fields)
            nets["residual"] = ValueNet(*shape, domain.n_users, domain.horizon, domain.fields)
            nets["mix"] = Mix(0.0 if self.config.mix == "auto" else self.config.mix)
        return nets

    def learn(self, context: FitContext) -> None:
        if draws := self._noise_draws(context):
            self.choices["noise_draws"] = draws
        context.fit_behaviours("environment", self.config.mask_rate)
        advantage = context.label("labels of advantage", self.advantage)
        context.fit_values("advantage", advantage)
        if self.config.mix:
            masked_future = context.label("labels of baseline", self.future) - advantage
            context.fit_values("baseline", masked_future, mask_item=True)
            baseline = context.label("labels of residual", self.baseline)
            residual = torch.where(context.data.mask, masked_future - baseline, 0)
            context.fit_values("residual", residual)
        if self.config.mix == "auto":
            self.nets["mix"].value.fill_(self._choose_mix(context))

    def advantage(self, batch: SessionTensors) -> Tensor:
        """Return the label of g_eta at every step, (B, T)."""
        draws = self.choices.get("noise_draws", 0)
        return counterfactual_labels(self.nets["environment"], self._rewards(), batch, self.config.gamma, draws)

    def _noise_draws(self, context: FitContext) -> int:
        """Draws of the noise in the labels of a fit, 0 if the behaviours are kept."""
        kept, draws = self.config.counterfactual, self.config.noise_draws
        if kept == "behaviours" or (kept == "auto" and context.is_first_fit):
            return 0
        return noise_draws(context.worker_slice.total) if draws is None else draws

    def future(self, batch: SessionTensors) -> Tensor:
        """Return the simulated future reward at every step, (B, T)."""
        return simulated_futures(self.nets["environment"], self._rewards(), batch, self.config.gamma)

    @torch.no_grad()
    def baseline(self, batch: SessionTensors) -> Tensor:
        """Return the predicted mean of the masked future in the state before every step, (B, T)."""
        values: Tensor = self.nets["baseline"].values(batch, mask_item=True)
        return values

    @torch.no_grad()
    def label(self, batch: SessionTensors) -> Tensor:
        """Return what the value networks learn together, `labels.mixed_advantage`, (B, T)."""
        advantage = self.advantage(batch)
        if not self.config.mix:
            return advantage
        baseline = torch.where(batch.mask, self.baseline(batch), 0)
        return mixed_advantage(advantage, self.future(batch) - advantage, baseline, float(self.nets["mix"].value))

    def _rewards(self) -> Tensor:
        return self.domain.behaviours.reward_table(self.device)

    @torch.no_grad()
    def value_regression(self, batch: SessionTensors) -> tuple[Tensor, Tensor]:
        predicted: Tensor = self.nets["advantage"].values(batch)
        if self.config.mix:
            predicted = predicted + self.nets["mix"].value * self.nets["residual"].values(batch)
        return self.label(batch), predicted

    def build_scorer(self) -> NetScorer:
        return self._scorer_with(float(self.nets["mix"].value) if self.config.mix else 0.0)

    def _scorer_with(self, mix: float) -> NetScorer:
        terms = {
            "instant": reward_term(self.nets["environment"], self.domain.behaviours),
            "future": value_term(self.nets["advantage"]),
        }
        if mix:
            terms["residual"] = value_term(self.nets["residual"], mix)
        return NetScorer(terms, self.domain.behaviours.start, self.domain.fields)

    def environment(self) -> ModelEnvironment:
        """Return the environment model as an environment, for imagined sessions."""
        domain = self.domain
        return ModelEnvironment(self.nets["environment"], domain.catalog, domain.behaviours)

    def _choose_mix(self, context: FitContext) -> float:
        """The lambda whose policy earns most in the environment model, compared under common random numbers.

        0, the paper's, unless the confidence interval of another's gain lies above 0.
        """
        worker_slice, count = context.worker_slice, min(context.worker_slice.total, MIX_SESSIONS)
        sessions = context.data.tensors[: max(count - worker_slice.begin, 0)]
        candidates = session_candidates(sessions, context.seed, context.data.tensors, worker_slice)
        environment, users = self.environment(), worker_slice.all_gather(sessions.user)[:count].cpu().numpy()

        def rewards(mix: float) -> Tensor:
            if not len(sessions):  # other workers hold all sessions that are compared on
                return sessions.rewards.sum(1)
            served = rollout(
                self._scorer_with(mix),
                environment,
                sessions,
                candidates=candidates,
                seed=context.seed,
                first_index=worker_slice.begin,
                title=f"mix {mix}",
                progress=context.progress,
            )
            return served.rewards.sum(1)

        earned = {mix: worker_slice.all_gather(rewards(mix))[:count].cpu().numpy() for mix in (0.0, *MIXES)}
        gains = {mix: mean_interval(earned[mix] - earned[0.0], users, MIX_LEVEL) for mix in MIXES}
        better = [mix for mix in MIXES if gains[mix].low > 0]
        return max(better, key=lambda mix: gains[mix].mean, default=0.0)


class MBCALWithoutVarianceReduction(MBCAL):
    """The paper's ablation: g_eta learns the simulated future reward itself."""

    name = "mbcal-no-vr"

    def advantage(self, batch: SessionTensors) -> Tensor:
        return self.future(batch)

    def _noise_draws(self, context: FitContext) -> int:  # noqa: ARG002 - there is no masked branch
        return 0


def noise_draws(sessions: int) -> int:
    """Return how many draws of the noise a label should be the mean of: fewer if there are many sessions to learn from."""
    return max(1, min(MAX_NOISE_DRAWS, NOISE_SESSIONS // sessions))


@torch.no_grad()
def counterfactual_labels(net: RecurrentNet, rewards: Tensor, batch: SessionTensors, gamma: float, draws: int = 0) -> Tensor:
    """Compute counterfactual advantages at every step of logged sessions, completed where users left (`completion`).

    Args:
        net: The environment model, a network of K behaviours.
        rewards: (K,) the reward of each behaviour.
        batch: B logged sessions.
        gamma: Discount.
        draws: Draws of the noise that is kept in place of the logged behaviours (`noise_labels`); 0 keeps the behaviours.

    Returns:
        (B, T).
    """
    completed = complete_sessions(batch)
    if draws:
        advantage = noise_counterfactual_advantage(net, rewards, completed, gamma, draws)
    else:
        advantage = counterfactual_future_advantage(net, rewards, completed, gamma)
    return advantage if completed is batch else torch.where(batch.mask, advantage, 0)


@torch.no_grad()
def simulated_futures(net: RecurrentNet, rewards: Tensor, batch: SessionTensors, gamma: float) -> Tensor:
    """Compute the simulated future reward at every step of B sessions, completed where users left, (B, T)."""
    completed = complete_sessions(batch)
    logits = net.forward_batch(completed)
    predicted, stay = expected_reward(logits, rewards), None
    if batch.behaviour_set.terminal:
        stay = 1 - expected_reward(logits, batch.behaviour_set.terminal_table(rewards.device))
    futures = simulated_future_reward(predicted, completed.mask, gamma, stay)
    return futures if completed is batch else torch.where(batch.mask, futures, 0)
