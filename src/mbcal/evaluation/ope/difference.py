"""How much better or worse than the log is a policy, with bounds that hold however little the log shows of it.

::

    candidate's choice        a  a  b            seen: the log shows the candidate's choice there
    logged choice             a  a  c            not seen: its reward counts as the least possible in the lower bound,
    weight of the step        1  1  0                      and as the greatest possible in the upper one

With w_t the cumulative importance weight of a step (unclipped; constant after the end of a session) and rewards in
[least, most], 0 included,

    V(policy) - V(log) = E sum_t (w_t - 1) (r_t - c)        for every constant c, since E w_t = 1.

The weight of a reward is that of all choices that were served before it: a user sees all items of a list before the feedback
on the first, and feedback may come late.

With c = least the summands are at least -(r_t - least): a lower bound needs no upper bound of the weights, and a choice that
the log never shows (w_t = 0) counts as if it earned the least possible. With c = most the same holds for the upper bound.
Users are the independent units. The bounds hold for the mean over users of their mean per session and, given how many
sessions users have, for the mean over sessions: a few users with many sessions may not lose what many users with few gain.
Weights whose mean is below 1 make both bounds wider than they need be; a mean that is surely above 1 shows that the log
cannot be trusted. The policy explores as the log did, so the difference is that of the choices that were not random
(`LogDifference.greedy_share`): with epsilon 1 there is none between any two policies. Sessions that explored more than
others count more, by the same factor by which exploration made their differences smaller: a loss where much was explored
cannot hide behind a gain where little was.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from mbcal.errors import InputError
from mbcal.evaluation.ope.estimators import Floats
from mbcal.evaluation.ope.intervals import betting_lower_bound, user_means, user_sums
from mbcal.evaluation.ope.propensity import PolicyChoices
from mbcal.evaluation.sequential import boundary
from mbcal.types import Sessions

LARGEST_SCALE = 2.0
"""How much more than others the sessions count, at most, that explored more. Those that should count still more hide what
the policy costs in them (`LogDifference.hidden`)."""
POWER = 0.8
"""Probability with which a difference is to be seen, where numbers of sessions are given."""


@dataclass(frozen=True)
class LogDifference:
    """The reward per session of a policy minus that of the log, and what the log has to say about it."""

    value: float
    """Unbiased estimate, moved into the bounds."""
    low: float
    high: float
    level: float
    """Coverage of the bounds together."""
    reward: float
    """Reward per session of the log: the mean over users or that over sessions, whichever is nearer to 0."""
    sessions: int
    users: int
    differing: int
    """Logged steps at which the policy would choose another item than the live version."""
    n_observed: int
    """Those of them at which the log shows the policy's choice."""
    steps: int
    """All logged steps."""
    weight_variance: float
    """Variance that sessions of the live version have as evidence on a policy that earns as much, by the weights that its
    choices lead to."""
    counted: float
    """What counts of a session as evidence, as a root mean square over the sessions."""
    width: float
    """The most that can count of a session."""
    affected: float
    """Share of sessions with a differing step."""
    reward_variance: float
    """Variance of the logged reward per session."""
    range: float
    """Largest possible difference of what all sessions of a user earn, of the user with most of them."""
    least_weight: float
    """Lower bound of the mean weight, which is 1 if the log is right. Above 1 the bounds do not hold: the propensities are
    not those with which items were chosen, or whether feedback came depended on the item."""
    greedy_share: float
    """Mean probability of a choice that is not random, 1 - epsilon, at the differing steps; 1 without any. Served without
    exploration, the policies differ by 1 / greedy_share times as much, about."""
    hidden: float
    """Rewards, without their signs, of sessions with a differing step that explored too much for it to show, or more or less
    at that step than at the first; as a share of the whole reward."""

    @property
    def is_contradicted(self) -> bool:
        """Whether the weights show that the log is not what the bounds take it for."""
        return self.least_weight > 1 + 1e-6  # propensities are float32

    @property
    def support(self) -> str:
        """What the log shows of the policy, in words."""
        if not self.differing:
            return f"the candidate chooses as the live version does at all {self.steps:,} logged steps"
        return (
            f"the candidate chooses another item than the live version at {self.differing / self.steps:.1%} of the logged "
            f"steps, and the log shows that item at {self.n_observed:,} of these {self.differing:,}"
        )

    def log_sessions_needed(self, share: float) -> float:
        """Return about how many sessions such as these show a difference of this share of the reward, without exploration.

        It is seen with probability 0.8: by a normal approximation, with the width that betting bounds have, plus what they
        need to exclude a rare loss of the whole range. The difference is made in the sessions with a differing step, whose
        weights are the large ones: what they earn less, or more, counts so much more.
        """
        if not share * self.greedy_share * self.reward:
            return math.inf
        counted = self.counted
        if self.affected:
            counted = min(counted + share * abs(self.reward) / self.affected, self.width)
        variance = self.weight_variance * (counted / self.counted) ** 2
        share *= self.greedy_share
        evidence = 2 - math.log((1 - self.level) / 2)
        rare_loss = evidence * self.range / (share * abs(self.reward))
        return self._sessions(variance, math.sqrt(2 * evidence), share) + rare_loss

    def canary_sessions_needed(self, share: float) -> float:
        """Return about how many sessions served by the policy show it at any look, beside many more of the live version.

        Sessions of a user count as independent. Where they are alike, it takes more.
        """
        needed = 1.0
        for _ in range(8):  # the boundary grows slowly with the sessions, so this settles
            limit = float(boundary(np.asarray(needed), (1 - self.level) / 2))
            needed = max(self._sessions(self.reward_variance, limit, share), 1.0)
            if math.isinf(needed):
                break
        return needed

    def _sessions(self, variance: float, deviations: float, share: float) -> float:
        deviations += NormalDist().inv_cdf(POWER)
        return deviations**2 * variance / (share * abs(self.reward)) ** 2 if self.reward else math.inf


def bound_difference(
    sessions: Sessions,
    policy: PolicyChoices,
    live: PolicyChoices,
    *,
    epsilon: float | Floats,
    level: float = 0.95,
    last_served: NDArray[np.int64] | None = None,
) -> LogDifference:
    """Bound the difference of a policy to the log.

    Args:
        sessions: N logged sessions with propensities, of users that the policy did not learn from.
        policy: The policy's choices along the sessions.
        live: The choices of the policy that was logged, along the sessions.
        epsilon: Exploration with which the policy would be served: one number, or one per step (N, T).
        level: Coverage of the bounds together; each side misses with at most half of the rest.
        last_served: (N, T) the last step that was served before the reward of each step (`Joined.last_served`); by default
            the step itself.

    Returns:
        Bounds that hold for any number of users and any weights.

    Raises:
        InputError: If there are no sessions, or they have no propensities.
    """
    if not len(sessions):
        raise InputError("off-policy: there are no sessions to compare policies by")
    mask, rewards = sessions.mask, np.where(sessions.mask, sessions.rewards, 0.0).astype(np.float64)
    excess = cumulative_weights(sessions, policy, epsilon) - 1
    if last_served is not None:
        excess = np.take_along_axis(excess, last_served, 1)
    differing, explored = mask & (policy.best != live.best), np.broadcast_to(epsilon, mask.shape)
    greedy, scale = greedy_share(differing, explored), np.ones(len(sessions))
    if differing.any() and greedy:
        scale = greedy / np.maximum(1 - explored[:, 0], greedy / LARGEST_SCALE)
    table = sessions.behaviour_set.rewards
    least, most = min(0.0, *table), max(0.0, *table)
    width, tail = sessions.horizon * (most - least), (1 + level) / 2

    lowest = -width * float(scale.max())
    low = _lower_bound(scale * (excess * (rewards - least)).sum(1), sessions.user, lowest, tail)
    high = -_lower_bound(-scale * (excess * (rewards - most)).sum(1), sessions.user, lowest, tail)
    value = float(user_means(scale * (excess * (rewards - rewards[mask].mean())).sum(1), sessions.user).mean())
    least_weight = betting_lower_bound(user_means(1 + excess.mean(1), sessions.user), 0.0, level=tail)
    earned = rewards.sum(1)
    counted = math.sqrt(np.square(np.stack([rewards - least, most - rewards]).sum(2)).mean(1).max())
    changes = np.abs(explored - explored[:, :1]) > 1e-9  # inside a session, which then has no weight that fits all steps
    is_hidden = (differing & ((1 - explored[:, :1] < greedy / LARGEST_SCALE) | changes)).any(1)
    return LogDifference(
        value=min(max(value, low), high),
        low=low,
        high=high,
        level=level,
        reward=min(float(user_means(earned, sessions.user).mean()), float(earned.mean()), key=abs),
        sessions=len(sessions),
        users=len(np.unique(sessions.user)),
        differing=int(differing.sum()),
        n_observed=int((differing & (policy.best == policy.logged)).sum()),
        steps=int(mask.sum()),
        weight_variance=_weight_variance(policy, live, epsilon, mask) * counted**2,
        counted=counted,
        width=width,
        affected=float(differing.any(1).mean()),
        reward_variance=float(earned.var()),
        range=width * int(np.bincount(sessions.user).max()),
        least_weight=least_weight,
        greedy_share=greedy,
        hidden=float(np.abs(rewards[is_hidden]).sum() / max(abs(rewards.sum()), 1e-12)),
    )


def cumulative_weights(sessions: Sessions, policy: PolicyChoices, epsilon: float | Floats) -> Floats:
    """Return the importance weight of each step (N, T): of its choice and all before it, constant after the end.

    Args:
        sessions: N logged sessions with propensities.
        policy: The policy's choices along them.
        epsilon: Exploration with which it would be served: one number, or one per step (N, T).

    Raises:
        InputError: If they have no propensities.
    """
    if sessions.propensities is None:
        raise InputError("off-policy: the sessions have no propensities")
    logged = np.where(sessions.mask, sessions.propensities, 1.0).astype(np.float64)
    return np.multiply.accumulate(np.where(sessions.mask, policy.propensities(epsilon), 1.0) / logged, 1)


def greedy_share(differing: NDArray[np.bool_], epsilon: float | Floats) -> float:
    """Return the mean of 1 - epsilon at the differing steps (N, T); 1 if there are none."""
    return float((1 - np.broadcast_to(epsilon, differing.shape)[differing]).mean()) if differing.any() else 1.0


def _lower_bound(contributions: Floats, user: NDArray[np.int32], least: float, level: float) -> float:
    """Lower bound of the mean per session, whether users or sessions count alike: the smaller one if they differ."""
    sums, counts = user_sums(contributions, user)
    usual = float(counts.mean())
    by_session = betting_lower_bound(sums / usual, least * float(counts.max()) / usual, level=level)
    return min(betting_lower_bound(sums / counts, least, level=level), by_session)


def _weight_variance(policy: PolicyChoices, live: PolicyChoices, epsilon: float | Floats, mask: NDArray[np.bool_]) -> float:
    """The variance of w_T if the live version is served.

    E w_T² is the product of sum_a pi(a)² / mu(a) over the steps. It is taken along the logged states, so it is an
    approximation.
    """
    other = epsilon / policy.count
    best = other + 1 - epsilon
    with np.errstate(divide="ignore", over="ignore"):  # infinite where nothing was explored, or over very many steps
        square = best**2 / other + other**2 / best + (policy.count - 2) * other
        product = np.multiply.reduce(np.where(mask & (policy.best != live.best), square, 1.0), 1)
        return float((product - 1).mean())
