"""Cross-fitting: policies learned from some users serve other users, as models of those other users imagine them.

A policy cannot be judged in the environment model it was made with, which shares its errors. So the users are split::

    half A   policies are fitted                    ──▶  one per candidate
                                                          │ serve, in common noise
    half B   models of behaviours, the judges       ──▶  the users of B

and the same with the halves exchanged: two folds. Each has several judges, fitted on users drawn with replacement, so that
judges differ as much as chance in their users would make them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mbcal.agents.config import AgentConfig
from mbcal.agents.fit_context import FitContext
from mbcal.agents.gru4rec import GRU4Rec
from mbcal.distributed.worker_slice import WorkerSlice
from mbcal.environments.candidates import session_candidates
from mbcal.environments.model import ModelEnvironment
from mbcal.environments.rollout import Policy, rollout
from mbcal.metrics import Floats, Mean, mean_interval, t_quantile
from mbcal.progress import Progress
from mbcal.scoring.scorers import UNKNOWN_USER
from mbcal.training.random import derive_seed, hash_fractions, hash_order, random_integers
from mbcal.types import SessionTensors

MAX_SESSIONS = 100_000
"""Sessions of both halves together; no further user is added once this number is reached. Policies of few sessions say
little about those of many."""

PolicyFit = Callable[[SessionTensors, AgentConfig, Progress], Sequence[Policy]]
"""(sessions of half A, settings, progress) -> the policies to compare."""


@dataclass(frozen=True)
class Fold:
    """What P policies earned from the users of one half, as J judges imagine them; J is at least 2."""

    rewards: Floats
    """(P, J, n) reward of every session, under common random numbers."""
    users: NDArray[np.int32]
    """(n,) the user of every session; at least two differ."""


@dataclass(frozen=True)
class Trial:
    """What the policy of one candidate earned."""

    reward: float
    """Mean reward of a session, over all judges."""
    gain: float = 0.0
    """Mean gain over the best candidate before it; 0 for the first."""
    low: float = 0.0
    """Lower end of the confidence interval of the gain."""
    high: float = 0.0
    """Upper end."""


def choose_best(folds: Sequence[Fold], level: float) -> tuple[int, list[Trial]]:
    """Choose by rewards: in order, a candidate replaces the best before it if the interval of its gain lies above 0.

    So ties, and gains that may be chance, leave the earlier candidate.

    Args:
        folds: Rewards of every candidate.
        level: Level of the confidence interval.

    Returns:
        The number of the chosen candidate, and the trials of all.
    """
    mean_rewards = np.mean([fold.rewards.mean((1, 2), dtype=np.float64) for fold in folds], 0)
    best, trials = 0, [Trial(float(mean_rewards[0]))]
    for number in range(1, len(mean_rewards)):
        gain = mean_gain([(fold.rewards[number] - fold.rewards[best], fold.users) for fold in folds], level)
        trials.append(Trial(float(mean_rewards[number]), gain.mean, gain.low, gain.high))
        if gain.low > 0:
            best = number
    return best, trials


def mean_gain(folds: Sequence[tuple[Floats, NDArray[Any]]], level: float) -> Mean:
    """Return the mean gain over F folds, with an interval that covers chance in the served sessions and in the judges.

    The variance in a fold is that of the mean over sessions, clustered by user, plus the variance of the gain between
    judges: judges on resampled users differ as much as another log would make one judge differ. With few judges that
    variance is itself uncertain, hence a t interval, with the degrees of freedom of all judges together.

    Args:
        folds: By fold, the gain of every session by judge (J, n), and the user of every session (n,).
        level: Level of the confidence interval.
    """
    by_session = [mean_interval(gains.mean(0), users, level) for gains, users in folds]
    between = [float(np.var(gains.mean(1, dtype=np.float64), ddof=1)) for gains, _ in folds]
    variances = [part.stderr**2 + variance for part, variance in zip(by_session, between, strict=True)]
    mean = float(np.mean([part.mean for part in by_session]))
    stderr = float(np.sqrt(sum(variances))) / len(folds)
    width = t_quantile(0.5 + level / 2, sum(len(gains) - 1 for gains, _ in folds)) * stderr
    return Mean(mean, mean - width, mean + width, sum(part.count for part in by_session), stderr)


def cross_fit(context: FitContext, config: AgentConfig, name: str, fit_policies: PolicyFit, judges: int) -> list[Fold]:
    """Compare policies by cross-fitting.

    Workers that share the fit all compute the same on the same sessions, so the result does not depend on their number; the
    rewards of the first worker count.

    Args:
        context: The fit that has to choose.
        config: Networks, training settings and seed of the agent.
        name: What is chosen; names the random draws and the phases that progress reports.
        fit_policies: Fits the policies.
        judges: J.

    Returns:
        Two folds; none if a half would have fewer than two users.
    """
    stage = f"{name} choice"
    users = context.worker_slice.all_gather(context.data.tensors.user).cpu().numpy()
    row_indices = sample_users(users, config.seed, name)
    users = users[row_indices]
    in_first = hash_fractions(users, config.seed, f"halves of the {stage}") < 0.5
    if min(len(np.unique(users[half])) for half in (in_first, ~in_first)) < 2:
        return []
    sessions = _gather_sessions(context, row_indices)
    progress = _ChoiceProgress(context.progress, name)
    training = replace(context.config, propensity_weights=False)  # the gathered sessions have no propensities
    folds = []
    for number, fitted in enumerate((in_first, ~in_first)):
        settings = AgentConfig(config.net, training, derive_seed(config.seed, stage, number))
        policies = fit_policies(_rows(sessions, np.flatnonzero(fitted)), settings, progress)
        served, served_users = _rows(sessions, np.flatnonzero(~fitted)), users[~fitted]
        folds.append(Fold(_judge(context, policies, served, served_users, settings, judges, progress), served_users))
    return folds


def _judge(
    context: FitContext,
    policies: Sequence[Policy],
    sessions: SessionTensors,
    users: NDArray[np.int32],
    settings: AgentConfig,
    judges: int,
    progress: Progress,
) -> Floats:
    """Rewards (P, J, n) of policies that serve n sessions of users (n,), as judges fitted on these users imagine them."""
    served = replace(sessions, user=torch.full_like(sessions.user, UNKNOWN_USER))
    candidates, rewards = session_candidates(served, context.seed), []
    for number in range(judges):
        config = replace(settings, seed=derive_seed(settings.seed, "judge", number))
        judge = GRU4Rec(config, context.data.device.type)
        judge.fit(_rows(sessions, resample_users(users, config.seed)), progress=progress)
        environment = ModelEnvironment(judge.nets["behaviour"], sessions.catalog, sessions.behaviour_set)
        for place, policy in enumerate(policies):
            title = f"serving by policy {place + 1} of {len(policies)}"
            shared: dict[str, Any] = {"candidates": candidates, "seed": context.seed, "title": title, "progress": progress}
            rewards.append(rollout(policy, environment, served, **shared).rewards.sum(1))
    stacked = torch.stack(rewards).view(judges, len(policies), -1).transpose(0, 1).contiguous()
    if context.worker_slice.group.rank:
        stacked.zero_()
    context.worker_slice.group.all_reduce_sum(stacked)
    return stacked.cpu().numpy()


def should_choose_again(n_last: int, n_now: int) -> bool:
    """Whether a choice should be made again for a log that has grown.

    Args:
        n_last: Sessions of the last choice.
        n_now: Sessions of the log.

    Returns:
        Whether about twice as many sessions can now take part.
    """
    return min(n_now, MAX_SESSIONS) >= 1.75 * n_last


def sample_users(users: NDArray[np.int32], seed: int, name: str) -> NDArray[np.int64]:
    """Choose whose sessions take part: those of about `MAX_SESSIONS` sessions' users.

    Args:
        users: (N,) the user of every session.
        seed: Decides the order in which users are taken.
        name: What is chosen.

    Returns:
        Indices of the sessions in rising order. Sessions of unknown users are left out: they belong to no half.
    """
    distinct, counts = np.unique(users[users != UNKNOWN_USER], return_counts=True)
    order = hash_order(distinct, seed, f"users of the {name} choice")
    sessions_before = np.cumsum(counts[order]) - counts[order]
    return np.flatnonzero(np.isin(users, distinct[order[sessions_before < MAX_SESSIONS]]))


def resample_users(users: NDArray[np.int32], seed: int) -> NDArray[np.int64]:
    """Draw as many users as there are, with replacement.

    Args:
        users: (N,) the user of every session.
        seed: Seed of the draw.

    Returns:
        Indices of the drawn users' sessions, in rising order; those of a user drawn twice occur twice.
    """
    distinct, of_user = np.unique(users, return_inverse=True)
    drawn = random_integers(seed, torch.arange(len(distinct)), len(distinct)).numpy()
    return np.repeat(np.arange(len(users)), np.bincount(drawn, minlength=len(distinct))[of_user])


def _rows(sessions: SessionTensors, rows: NDArray[np.int64]) -> SessionTensors:
    return sessions[torch.from_numpy(rows).to(sessions.device)]


def _gather_sessions(context: FitContext, row_indices: NDArray[np.int64]) -> SessionTensors:
    """The sessions with these indices (n,), in rising order, from all workers to every worker."""
    worker_slice = context.worker_slice
    local = context.data[worker_slice.local_rows(torch.from_numpy(row_indices))]
    begin = int(np.searchsorted(row_indices, worker_slice.begin))
    part = WorkerSlice(begin, len(local), len(row_indices), worker_slice.group)
    gathered: dict[str, Tensor] = {name: part.all_gather(tensor) for name, tensor in local.tensors()}
    return replace(local, **gathered)  # type: ignore[arg-type]  # mypy does not know the fields


class _ChoiceProgress:
    """Reports the phases of a choice under its name."""

    def __init__(self, progress: Progress, name: str) -> None:
        self._progress, self._name = progress, name

    def phase(self, title: str, total: int | None = None) -> None:
        self._progress.phase(f"choosing {self._name}: {title}", total)

    def advance(self, amount: int) -> None:
        self._progress.advance(amount)
