"""Does long-term optimisation pay on this log? A check before a policy is trained.

Three measurements: how much of the remaining reward of a session depends on the item shown now; what a far-sighted policy
earns above a myopic one from simulated users; and whether the log covers the choices well enough to trust both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mbcal.agents import MBCAL, GRU4Rec
from mbcal.agents.config import AgentConfig
from mbcal.agents.mbcal import MBCALConfig
from mbcal.data.log_facts import LogFacts
from mbcal.data.store import Store
from mbcal.environments.base import Environment
from mbcal.environments.simulator import Simulator, SimulatorConfig
from mbcal.evaluation.coverage import WELL_COVERED
from mbcal.evaluation.evaluator import TEST_SEED, evaluate
from mbcal.evaluation.sampling import sample_test_sessions
from mbcal.metrics import Mean, mean_interval
from mbcal.nn.base import expected_reward
from mbcal.nn.config import NetConfig
from mbcal.progress import SILENT, Progress
from mbcal.training.config import TrainingConfig
from mbcal.training.labels import simulated_future_reward
from mbcal.training.selection import ShownEvidence, shown_evidence
from mbcal.types import FIRST_ITEM_ROW, MASK_ROW, Sessions

LabelArrays = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Counterfactual future advantages and residuals, (N, T) each."""
PERMUTATIONS = 20
"""Permutations of the advantages that show how large a share arises at random."""
BLOCK = 1024
"""Sessions labelled at a time."""
ENOUGH_COVERAGE = 0.9
"""Below this share of well-covered steps the verdict comes with a warning."""
FROZEN_LENGTH = 0.5
"""Above this share of the reward's variance that session length explains, the diagnosis warns."""


@dataclass(frozen=True)
class Diagnosis:
    """The measurements, and a verdict."""

    share: float
    """Share of the variance of the remaining reward that the item shown now explains (see `dependence`)."""
    chance_share: float
    """The same with advantages permuted among sessions, so that nothing is left to explain; the largest of 20."""
    myopic: Mean
    """Simulated reward per session of the myopic policy (GRU4Rec)."""
    far_sighted: Mean
    """Simulated reward per session of the far-sighted policy (MBCAL)."""
    gap: Mean
    """far_sighted - myopic, paired: the same users, candidates and noise."""
    coverage: float
    """Share of test steps whose item was shown at least five times in the train part."""
    repeats: float
    """Median number of times an item of the catalogue was shown in the train part."""
    effective: float | None
    """Effective sample size for evaluating a uniform policy, as a share of steps; None without logged propensities."""
    shown_evidence: ShownEvidence
    """How much the mere showing of an item counts as evidence of taste (`training.selection`)."""
    warnings: tuple[str, ...] = ()
    """Warnings about the log (`data.log_facts`), and of the far-sighted agent's fit, such as that of a policy that knew more
    than the log holds."""
    unseen: float = 0.0
    """Share of test steps whose item never occurs in the train part."""
    length_share: float = 0.0
    """Share of the variance of the logged reward per session that the session's length alone explains."""
    length_by_outcome: tuple[Mapping[str, Any], ...] = ()
    """For each behaviour that ends sessions of the log: its name, sessions and their mean length."""
    trusted: float | None = None
    """Smallest `gap` that the simulator's own error does not explain (`environments.trust`); None if that is not known."""
    trust: str = ""
    """For what differences the simulator can be trusted, in a sentence; empty if the truth judges."""

    @property
    def pays(self) -> bool:
        """Whether both the log and the simulation speak for long-term optimisation."""
        return self.gap.low > 0 and self.share > self.chance_share

    @property
    def verdict(self) -> str:
        """The conclusion in words."""
        gain, low, high = (100 * value / abs(self.myopic.mean) for value in (self.gap.mean, self.gap.low, self.gap.high))
        difference = f"{gain:+.1f}% [{low:+.1f}, {high:+.1f}] in simulation (interval of sampling only)"
        warning = f" {self.trust}" if self.trust else ""
        if self.trusted is not None and abs(self.gap.mean) < self.trusted:
            warning += f" The difference, {self.gap.mean:+.3g}, is within that."
        if self.coverage < ENOUGH_COVERAGE:
            warning += (
                f" Only {self.coverage:.0%} of what is shown is well covered by the log: collect more before trusting this."
            )
        if self.pays:
            return f"Long-term optimisation is worth trying: {difference}.{warning}"
        if self.gap.low > 0:
            return (
                f"Undecided: a far-sighted policy earns {difference}, but the log shows no more dependence of the future on "
                f"the present item than arises at random.{warning}"
            )
        if self.gap.high < 0:
            return f"Not worth trying: a far-sighted policy earns less, {difference}.{warning}"
        if self.trust and self.trusted is None:
            return f"Cannot tell: {difference}.{warning}"
        return f"The present item hardly changes the future here: {difference}.{warning}"


def diagnose(
    store: Store | str | Path,
    *,
    training: TrainingConfig | None = None,
    environment: Environment | str | Path | None = None,
    sessions: int = 4_000,
    seed: int = 0,
    device: str = "auto",
    progress: Progress = SILENT,
) -> Diagnosis:
    """Measure whether long-term optimisation pays on a store.

    Args:
        store: The data, or its folder. A simulator is fitted on its `simulator` users, a myopic and a far-sighted agent on
            its `train` users; everything is measured on its `test` users.
        training: Training settings of every network.
        environment: Who responds: an environment, or the folder of a simulator. By default a simulator is fitted.
        sessions: Most test sessions to serve.
        seed: Seed of initial weights and permutations.
        device: Where to compute.
        progress: Notified of epochs and sessions.

    Returns:
        The measurements, with a verdict in words.

    Raises:
        StoreError: If the folder is not a store.
        ModelError: If the simulator is damaged, or knows other items or behaviours.
        InputError: If the simulator was fitted on some of the test users.
    """
    store = store if isinstance(store, Store) else Store.open(store)
    training = training or TrainingConfig()
    if environment is None:
        config = SimulatorConfig(training=training, seed=seed)
        environment = Simulator(config, device).fit(store, progress=progress)
    elif isinstance(environment, str | Path):
        environment = Simulator.load(environment, device)
    train, test = store.sessions("train"), sample_test_sessions(store.sessions("test"), sessions, TEST_SEED)
    net = NetConfig(features=store.agent_features)
    far_sighted = MBCAL(MBCALConfig(net=net, training=training, seed=seed), device).fit(train, progress=progress)
    myopic = GRU4Rec(AgentConfig(net=net, training=training, seed=seed), device).fit(train, progress=progress)
    results = {
        name: evaluate(agent, environment, test, seed=TEST_SEED, title=f"{name} policy", progress=progress)
        for name, agent in (("myopic", myopic), ("far-sighted", far_sighted))
    }
    if isinstance(environment, Simulator) and environment.card is None:
        environment.evaluate(test, progress=progress)
    trust = environment.trust if isinstance(environment, Simulator) else None
    progress.phase("dependence of the future on the item", PERMUTATIONS + 1)
    share, chance_share = dependence(far_sighted, test, seed, progress)
    facts, share_of_length = LogFacts.of(store), length_share(test)
    times_shown = np.bincount(train.items[train.mask], minlength=train.catalog.n_rows)
    return Diagnosis(
        share=share,
        chance_share=chance_share,
        myopic=results["myopic"].reward,
        far_sighted=results["far-sighted"].reward,
        gap=mean_interval(results["far-sighted"].rewards - results["myopic"].rewards, test.user),
        coverage=float((times_shown[test.items[test.mask]] >= WELL_COVERED).mean()),
        repeats=float(np.median(times_shown[FIRST_ITEM_ROW:])),
        effective=effective_share(test),
        shown_evidence=shown_evidence(far_sighted.nets["environment"], test.tensors(far_sighted.device), seed),
        warnings=(*facts.warnings(store), *_length_warning(share_of_length, store), *far_sighted.warnings),
        unseen=float((times_shown[test.items[test.mask]] == 0).mean()),
        length_share=share_of_length,
        length_by_outcome=tuple(facts.outcomes()),
        trusted=None if trust is None or trust.problem else trust.difference,
        trust="" if trust is None else trust.problem or f"The simulator c{trust.sentence[1:]}",
    )


def length_share(sessions: Sessions) -> float:
    """Return the squared correlation of length and logged reward over sessions; 0 if either is the same for all."""
    length, reward = sessions.length.astype(np.float64), sessions.rewards.sum(1, dtype=np.float64)
    scale = length.std() * reward.std()
    return float(np.mean((length - length.mean()) * (reward - reward.mean())) / scale) ** 2 if scale > 0 else 0.0


def _length_warning(share: float, store: Store) -> list[str]:
    if share < FROZEN_LENGTH or store.behaviours.terminal:
        return []
    return [
        f"The length of a session explains {share:.0%} of the variance of its reward, and a policy cannot change it in "
        "simulation unless a behaviour that ends sessions is declared: prepare again with --ends."
    ]


def dependence(
    agent: MBCAL, sessions: Sessions, seed: int, progress: Progress = SILENT, labels: LabelArrays | None = None
) -> tuple[float, float]:
    """Measure how much of the remaining reward the item shown now explains.

    The residual of each step (logged future reward minus what the model expects with the item masked) is correlated with the
    counterfactual future advantage, both centred at each step's mean. The share is the squared correlation, 0 if it is
    negative.

    Args:
        agent: A fitted MBCAL agent.
        sessions: N logged sessions of users it did not learn from.
        seed: Seed of the permutations.
        progress: Notified of permutations.
        labels: The arrays of `advantage_and_residual` for these sessions; computed if None.

    Returns:
        The share, and the largest share found after permuting the advantages of each step among sessions.
    """
    advantage, residual = labels or advantage_and_residual(agent, sessions)
    has_future = np.arange(sessions.horizon) < sessions.length[:, None] - 1
    share = _explained(advantage, residual, has_future)
    progress.advance(1)
    generator, permuted_shares = np.random.default_rng(seed), []
    for _ in range(PERMUTATIONS):
        permuted = advantage.copy()
        for step in range(sessions.horizon):
            rows = np.flatnonzero(has_future[:, step])
            permuted[rows, step] = advantage[generator.permutation(rows), step]
        permuted_shares.append(_explained(permuted, residual, has_future))
        progress.advance(1)
    return share, max(permuted_shares)


@torch.no_grad()
def advantage_and_residual(agent: MBCAL, sessions: Sessions) -> LabelArrays:
    """Compute the label of every logged step, and the future reward that the model does not explain without the item.

    Args:
        agent: A fitted MBCAL agent.
        sessions: N logged sessions.

    Returns:
        The counterfactual future advantage (CFA), and the logged future reward minus the one expected with the item masked,
        which is SFR - CFA; (N, T) each, in reward units.
    """
    table = torch.tensor(agent.domain.behaviours.rewards, device=agent.device)
    advantages: list[NDArray[np.float64]] = []
    residuals: list[NDArray[np.float64]] = []
    for begin in range(0, len(sessions), BLOCK):
        block = sessions[begin : begin + BLOCK]
        batch = block.tensors(agent.device, without=("candidates", "propensities", "timestamps"))
        expected = expected_reward(agent.nets["environment"].forward_batch(batch), table)
        logged = torch.where(batch.mask, table[batch.behaviours.long()], 0)
        advantage, gamma = agent.label(batch), agent.config.gamma
        masked = simulated_future_reward(expected, batch.mask, gamma) - advantage
        residual = simulated_future_reward(logged, batch.mask, gamma) - masked
        for parts, values in ((advantages, advantage), (residuals, residual)):
            parts.append(values.cpu().numpy().astype(np.float64))
    return np.concatenate(advantages), np.concatenate(residuals)


def _explained(first: NDArray[np.float64], second: NDArray[np.float64], mask: NDArray[np.bool_]) -> float:
    """Squared correlation of (N, T) values, centred at each step's mean; 0 if the correlation is negative."""
    count = np.maximum(mask.sum(0), 1)
    a, b = (np.where(mask, values - np.where(mask, values, 0).sum(0) / count, 0) for values in (first, second))
    scale = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return max(float((a * b).sum()) / scale, 0.0) ** 2 if scale else 0.0


def effective_share(sessions: Sessions) -> float | None:
    """Return the effective sample size for evaluating a uniform policy, as a share of steps.

    It is (sum w)² / (n sum w²) over the n steps, with w = uniform propensity / logged propensity.

    Args:
        sessions: N logged sessions.

    Returns:
        The share in (0, 1]; None without logged propensities or candidates.
    """
    if sessions.propensities is None or sessions.candidates is None:
        return None
    available = (sessions.candidates != MASK_ROW).sum(-1)[:, None] - np.arange(sessions.horizon)
    weights = (1 / np.maximum(available, 1) / np.where(sessions.mask, sessions.propensities, 1))[sessions.mask]
    return float(weights.sum() ** 2 / (len(weights) * np.square(weights).sum()))
