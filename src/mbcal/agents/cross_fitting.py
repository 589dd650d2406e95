"""Cross-fitting: policies learned from some users serve other users, as models of those other users imagine them.

A policy cannot be judged in the environment model it was made with, which shares its errors. So the users are split::

    half A   policies are fitted                    ──▶  one per candidate
                                                          │ serve, in common noise
    half B   models of behaviours, the judges       ──▶  the users of B
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

MAX_SESSIONS = 20_000
"""Sessions of both halves together; no further user is added once this number is reached."""

PolicyFit = Callable[[SessionTensors, AgentConfig, Progress], Sequence[Policy]]
"""(sessions of half A, settings, progress) -> the policies to compare."""


@dataclass(frozen=True)
class CrossFit:
    """What P policies earned from the users of half B, as J judges imagine them."""

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


def last_better(rewards: Floats, users: NDArray[Any], level: float) -> tuple[int, list[Trial]]:
    """Choose by rewards: in order, a candidate replaces the best before it if the interval of its gain lies above 0.

    So ties, and gains that may be chance, leave the earlier candidate.

    Args:
        rewards: (P, J, n) reward of every session by candidate and judge, under common random numbers.
        users: (n,) the user of every session; at least two differ.
        level: Level of the confidence interval.

    Returns:
        The number of the chosen candidate, and the trials of all.
    """
    best, trials = 0, [Trial(float(rewards[0].mean()))]
    for number in range(1, len(rewards)):
        gain = judged_gain(rewards[number] - rewards[best], users, level)
        trials.append(Trial(float(rewards[number].mean()), gain.mean, gain.low, gain.high))
        if gain.low > 0:
            best = number
    return best, trials


def judged_gain(gains: Floats, users: NDArray[Any], level: float) -> Mean:
    """Return the mean gain with an interval that covers chance in the served sessions and in the judges.

    The variance is that of the mean over sessions, clustered by user, plus the variance of the gain between judges: judges
    on resampled users differ as much as another log would make one judge differ. With few judges that variance is itself
    uncertain, hence a t interval.

    Args:
        gains: (J, n) gain of every session by judge.
        users: (n,) the user of every session.
        level: Level of the confidence interval.
    """
    n_judges = len(gains)
    by_session = mean_interval(gains.mean(0), users, level)
    if n_judges == 1:
        return by_session
    between = float(np.var(gains.mean(1, dtype=np.float64), ddof=1))
    stderr = float(np.sqrt(by_session.stderr**2 + between))
    width = t_quantile(0.5 + level / 2, n_judges - 1) * stderr
    return Mean(by_session.mean, by_session.mean - width, by_session.mean + width, by_session.count, stderr)


def cross_fit(
    context: FitContext, config: AgentConfig, name: str, fit_policies: PolicyFit, judges: int = 1
) -> CrossFit | None:
    """Compare policies by cross-fitting.

    Workers that share the fit all compute the same on the same sessions, so the result does not depend on their number; the
    rewards of the first worker count.

    Args:
        context: The fit that has to choose.
        config: Networks, training settings and seed of the agent.
        name: What is chosen; names the random draws and the phases that progress reports.
        fit_policies: Fits the policies.
        judges: J. With several, each is fitted on users of half B drawn with replacement, so that judges differ as much as
            chance in their users would make them.

    Returns:
        The rewards; None if a half would have fewer than two users.
    """
    stage, group = f"{name} choice", context.worker_slice.group
    users = context.worker_slice.all_gather(context.data.tensors.user).cpu().numpy()
    row_indices = sample_users(users, config.seed, name)
    users = users[row_indices]
    in_first = hash_fractions(users, config.seed, f"halves of the {stage}") < 0.5
    if min(len(np.unique(users[half])) for half in (in_first, ~in_first)) < 2:
        return None
    sessions = _gather_sessions(context, row_indices)
    first, second = (_rows(sessions, np.flatnonzero(half)) for half in (in_first, ~in_first))
    progress = _ChoiceProgress(context.progress, name)
    training = replace(context.config, propensity_weights=False)  # the gathered sessions have no propensities
    settings, judge_settings = (
        AgentConfig(config.net, training, derive_seed(config.seed, stage, role)) for role in ("planner", "judge")
    )
    policies = fit_policies(first, settings, progress)
    served = replace(second, user=torch.full_like(second.user, UNKNOWN_USER))
    candidates = session_candidates(served, context.seed)
    rewards = []
    for number in range(judges):
        judge_config = replace(judge_settings, seed=derive_seed(judge_settings.seed, number)) if number else judge_settings
        resampled = second if judges == 1 else _rows(second, resample_users(users[~in_first], judge_config.seed))
        judge = GRU4Rec(judge_config, context.data.device.type).fit(resampled, progress=progress)
        environment = ModelEnvironment(judge.nets["behaviour"], first.catalog, first.behaviour_set)
        for place, policy in enumerate(policies):
            title = f"serving by policy {place + 1} of {len(policies)}"
            shared: dict[str, Any] = {"candidates": candidates, "seed": context.seed, "title": title, "progress": progress}
            rewards.append(rollout(policy, environment, served, **shared).rewards.sum(1))
    stacked = torch.stack(rewards).view(judges, len(policies), -1).transpose(0, 1).contiguous()
    if group.rank:
        stacked.zero_()
    group.all_reduce_sum(stacked)
    return CrossFit(stacked.cpu().numpy(), users[~in_first])


def has_outgrown(served: int, sessions: int) -> bool:
    """Whether a choice should be made again for a log that has grown.

    Args:
        served: Sessions that the policies of the last choice served, about half of those it was made on.
        sessions: Sessions of the log.

    Returns:
        Whether about twice as many sessions can now take part.
    """
    return min(sessions, MAX_SESSIONS) >= 3.5 * served


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
        seed: Names the draw.

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
