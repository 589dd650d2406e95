"""Does looking ahead pay here? Asked before anybody trains a policy for it.

Three questions to a log: how much of what a session still earns depends on the item shown now, what a far-sighted policy
earns above a myopic one with simulated users, and whether the log covers the choices well enough to believe the answers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from mbcal.agents import MBCAL, GRU4Rec
from mbcal.agents.base import AgentConfig
from mbcal.agents.mbcal import MBCALConfig
from mbcal.data.store import Store
from mbcal.environments.base import Environment
from mbcal.environments.candidates import session_candidates
from mbcal.environments.simulator import Simulator, SimulatorConfig
from mbcal.evaluation.evaluator import evaluate
from mbcal.evaluation.experiment.batch_rl import TEST_SEED
from mbcal.metrics import Mean, mean_interval
from mbcal.nn.base import expected_reward
from mbcal.nn.config import NetConfig
from mbcal.progress import SILENT, Progress
from mbcal.training.config import TrainingConfig
from mbcal.training.targets import simulated_future_reward
from mbcal.types import Sessions

Labels = tuple[NDArray[np.float64], NDArray[np.float64]]
PERMUTATIONS = 20
AT_ONCE = 1024


@dataclass(frozen=True)
class Diagnosis:
    """What was found; shares are of variances."""

    share: float
    """Of the variance of the reward still to come, what the item shown now explains (see `dependence`)."""
    chance_share: float
    """The same when advantages are dealt out anew among sessions, so that nothing is left to find; the most of 20 deals."""
    myopic: Mean
    far_sighted: Mean
    gap: Mean
    """Reward per session in simulation: far-sighted minus myopic, on the same users, candidates and luck."""
    coverage: float
    """Share of test steps whose item was shown at least five times in the train part."""
    repeats: float
    """Median times an item of the catalogue was shown in the train part."""
    effective: float | None
    """With logged propensities: effective sample size of evaluating a uniform policy, as a share of steps."""

    @property
    def pays(self) -> bool:
        """Both the log and the simulation say so."""
        return self.gap.low > 0 and self.share > self.chance_share

    @property
    def verdict(self) -> str:
        """In words."""
        gain, low, high = (100 * value / abs(self.myopic.mean) for value in (self.gap.mean, self.gap.low, self.gap.high))
        told = f"{gain:+.1f}% [{low:+.1f}, {high:+.1f}] in simulation"
        doubt = ""
        if self.coverage < 0.9:
            doubt = (
                f" Only {self.coverage:.0%} of what is shown is well covered by the log: collect more before trusting this."
            )
        if self.pays:
            return f"Long-term optimisation is worth trying: {told}.{doubt}"
        if self.gap.low > 0:
            return (
                f"Undecided: a far-sighted policy earns {told}, but the log shows no more dependence of the future on the "
                f"present item than chance.{doubt}"
            )
        if self.gap.high < 0:
            return f"Do not: a far-sighted policy earns less, {told}.{doubt}"
        return f"The present item hardly moves the future here: {told}.{doubt}"


def diagnose(
    store: Store,
    *,
    training: TrainingConfig | None = None,
    environment: Environment | None = None,
    sessions: int = 4_000,
    seed: int = 0,
    device: str = "auto",
    progress: Progress = SILENT,
) -> Diagnosis:
    """Fit a simulator (unless users are given), a myopic and a far-sighted agent, and ask the three questions."""
    training = training or TrainingConfig()
    if environment is None:
        config = SimulatorConfig(training=training, seed=seed)
        environment = Simulator(config, device).fit(store, progress=progress)
    train, test = store.sessions("train"), store.sessions("test")
    test = replace(test, candidates=session_candidates(test, TEST_SEED))[:sessions]
    net = NetConfig(features=store.agent_features)
    far = MBCAL(MBCALConfig(net=net, training=training, seed=seed), device).fit(train, progress=progress)
    near = GRU4Rec(AgentConfig(net=net, training=training, seed=seed), device).fit(train, progress=progress)
    outcomes = {
        name: evaluate(agent, environment, test, seed=TEST_SEED, title=f"{name} policy", progress=progress)
        for name, agent in (("myopic", near), ("far-sighted", far))
    }
    progress.phase("dependence of the future on the item", PERMUTATIONS + 1)
    share, chance = dependence(far, test, seed, progress)
    shown = np.bincount(train.items[train.mask], minlength=train.catalog.n_rows)
    return Diagnosis(
        share=share,
        chance_share=chance,
        myopic=outcomes["myopic"].mean,
        far_sighted=outcomes["far-sighted"].mean,
        gap=mean_interval(outcomes["far-sighted"].rewards - outcomes["myopic"].rewards, test.user),
        coverage=float((shown[test.items[test.mask]] >= 5).mean()),
        repeats=float(np.median(shown[2:])),
        effective=_effective(test),
    )


def dependence(
    agent: MBCAL, sessions: Sessions, seed: int, progress: Progress = SILENT, labels: Labels | None = None
) -> tuple[float, float]:
    """Share of the variance of the reward still to come that the item shown now explains, and what chance would find.

    What came of the rest of each session, minus what the model expects of it without knowing the item, is correlated with
    the counterfactual future advantage, around the mean of each step; the share is the correlation squared (0 where it is
    negative). Chance is the largest such share when advantages are dealt out anew among the sessions. `labels` are those of
    `advantage_and_residual`, where somebody has them already.
    """
    advantage, surprise = labels or advantage_and_residual(agent, sessions)
    inner = np.arange(sessions.horizon) < sessions.length[:, None] - 1  # the last step has no future
    found = _explained(advantage, surprise, inner)
    progress.advance(1)
    draw, dealt = np.random.default_rng(seed), []
    for _ in range(PERMUTATIONS):
        other = advantage.copy()
        for step in range(sessions.horizon):
            rows = np.flatnonzero(inner[:, step])
            other[rows, step] = advantage[draw.permutation(rows), step]
        dealt.append(_explained(other, surprise, inner))
        progress.advance(1)
    return found, max(dealt)


@torch.no_grad()
def advantage_and_residual(agent: MBCAL, sessions: Sessions) -> Labels:
    """(N, T) CFA, and the future reward that came minus what was expected of it with the item masked (SFR - CFA)."""
    table = torch.tensor(agent.domain.behaviours.rewards, device=agent.device)
    kept: tuple[list[NDArray[np.float64]], list[NDArray[np.float64]]] = ([], [])
    for begin in range(0, len(sessions), AT_ONCE):
        part = sessions[begin : begin + AT_ONCE]
        batch = part.tensors(agent.device, without=("candidates", "propensities", "timestamps"))
        expected = expected_reward(agent.nets["environment"].forward_batch(batch), table)
        earned = torch.where(batch.mask, table[batch.behaviours.long()], 0)
        advantage, gamma = agent.label(batch), agent.config.gamma
        masked = simulated_future_reward(expected, batch.mask, gamma) - advantage
        surprise = simulated_future_reward(earned, batch.mask, gamma) - masked
        for values, place in ((advantage, kept[0]), (surprise, kept[1])):
            place.append(values.cpu().numpy().astype(np.float64))
    return np.concatenate(kept[0]), np.concatenate(kept[1])


def _explained(first: NDArray[np.float64], second: NDArray[np.float64], mask: NDArray[np.bool_]) -> float:
    """Squared correlation around the mean of each step; 0 where it is negative."""
    count = np.maximum(mask.sum(0), 1)
    a, b = (np.where(mask, values - np.where(mask, values, 0).sum(0) / count, 0) for values in (first, second))
    scale = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return max(float((a * b).sum()) / scale, 0.0) ** 2 if scale else 0.0


def _effective(sessions: Sessions) -> float | None:
    """(sum w)² / (n sum w²) with w = uniform chance / logged propensity, step by step."""
    if sessions.propensities is None or sessions.candidates is None:
        return None
    left = (sessions.candidates != 0).sum(-1)[:, None] - np.arange(sessions.horizon)
    weights = (1 / np.maximum(left, 1) / np.where(sessions.mask, sessions.propensities, 1))[sessions.mask]
    return float(weights.sum() ** 2 / (len(weights) * np.square(weights).sum()))
