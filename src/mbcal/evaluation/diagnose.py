"""Does looking ahead pay here? Asked before anybody trains a policy for it.

Three questions to a log: how much of what a session still earns depends on the item shown now, what a far-sighted policy
earns above a myopic one with simulated users, and whether the log covers the choices well enough to believe the answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from mbcal.agents import MBCAL, GRU4Rec
from mbcal.agents.agent import AgentConfig
from mbcal.agents.mbcal import MBCALConfig
from mbcal.data.store import Store
from mbcal.environment import Environment
from mbcal.evaluation import evaluate
from mbcal.evaluation.batch_rl import TEST_SEED
from mbcal.labels import simulated_future_reward
from mbcal.metrics import Mean, mean_interval
from mbcal.nets import NetConfig, expected_reward
from mbcal.progress import SILENT, Progress
from mbcal.rollout import candidates_of
from mbcal.simulator import Simulator, SimulatorConfig
from mbcal.training import Training
from mbcal.types import Sessions

PERMUTATIONS = 20
AT_ONCE = 1024


@dataclass(frozen=True)
class Diagnosis:
    """What was found; shares are of variances."""

    share: float
    """Variance of the counterfactual future advantage against that of the future reward the model expects."""
    chance_share: float
    """The same when items are dealt out anew among sessions, so that nothing is left to find; the largest of some deals."""
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
    training: Training | None = None,
    environment: Environment | None = None,
    sessions: int = 4_000,
    seed: int = 0,
    device: str = "auto",
    progress: Progress = SILENT,
) -> Diagnosis:
    """Fit a simulator (unless users are given), a myopic and a far-sighted agent, and ask the three questions."""
    training = training or Training()
    if environment is None:
        config = SimulatorConfig(training=training, seed=seed)
        environment = Simulator.fit(store.sessions("simulator"), config, device=device, progress=progress)
    train, test = store.sessions("train"), store.sessions("test")
    test = replace(test, candidates=candidates_of(test, TEST_SEED))[:sessions]
    net = NetConfig(features=store.agent_features)
    far = MBCAL(MBCALConfig(net=net, training=training, seed=seed), device).fit(train, progress=progress)
    near = GRU4Rec(AgentConfig(net=net, training=training, seed=seed), device).fit(train, progress=progress)
    outcomes = {
        name: evaluate(agent, environment, test, seed=TEST_SEED, title=f"{name} policy", progress=progress)
        for name, agent in (("myopic", near), ("far-sighted", far))
    }
    progress.phase("dependence of the future on the item", PERMUTATIONS + 1)
    share, chance = dependence(far, test, seed, progress)
    shown = np.bincount(train.items[train.mask], minlength=train.catalog.rows)
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


def dependence(agent: MBCAL, sessions: Sessions, seed: int, progress: Progress = SILENT) -> tuple[float, float]:
    """Var(CFA) / Var(SFR) on these sessions, and the largest such share over deals of the items among the sessions.

    A deal keeps every session's behaviours and how often each item occurs, and gives each step the item of another session
    at the same step: what the model then finds is its own noise.
    """
    found = _share(agent, sessions)
    progress.advance(1)
    draw, dealt = np.random.default_rng(seed), []
    for _ in range(PERMUTATIONS):
        items = sessions.items.copy()
        for step in range(sessions.horizon):
            rows = np.flatnonzero(sessions.length > step)
            items[rows, step] = items[draw.permutation(rows), step]
        dealt.append(_share(agent, replace(sessions, items=items)))
        progress.advance(1)
    return found, max(dealt)


@torch.no_grad()
def _share(agent: MBCAL, sessions: Sessions) -> float:
    rewards = torch.tensor(agent.domain.behaviours.rewards, device=agent.device)
    kept: Mapping[str, list[NDArray[np.float64]]] = {"advantage": [], "future": []}
    for begin in range(0, len(sessions), AT_ONCE):
        part = sessions[begin : begin + AT_ONCE]
        batch = part.tensors(agent.device, without=("candidates", "propensities", "timestamps"))
        predicted = expected_reward(agent.nets["environment"].run(batch), rewards)
        future = simulated_future_reward(predicted, batch.mask, agent.config.gamma)
        for name, values in (("advantage", agent.label(batch)), ("future", future)):
            kept[name].append(values.cpu().numpy().astype(np.float64))
    advantage, future_reward = (np.concatenate(kept[name]) for name in ("advantage", "future"))
    mask = sessions.mask
    inner = mask & (np.arange(sessions.horizon) < sessions.length[:, None] - 1)  # the last step has no future
    return _within(advantage, inner) / max(_within(future_reward, inner), 1e-12)


def _within(values: NDArray[np.float64], mask: NDArray[np.bool_]) -> float:
    """Variance around the mean of each step: how late it is in a session is not the item's doing."""
    count = np.maximum(mask.sum(0), 1)
    mean = np.where(mask, values, 0).sum(0) / count
    return float((np.where(mask, values - mean, 0) ** 2).sum() / max(int(mask.sum()), 1))


def _effective(sessions: Sessions) -> float | None:
    """(sum w)² / (n sum w²) with w = uniform chance / logged propensity, step by step."""
    if sessions.propensities is None or sessions.candidates is None:
        return None
    left = (sessions.candidates != 0).sum(-1)[:, None] - np.arange(sessions.horizon)
    weights = (1 / np.maximum(left, 1) / np.where(sessions.mask, sessions.propensities, 1))[sessions.mask]
    return float(weights.sum() ** 2 / (len(weights) * np.square(weights).sum()))
