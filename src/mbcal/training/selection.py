"""Does a log's policy know more than the log holds? An estimate from a fitted network of behaviours, without propensities.

Before an item is shown and after it, averaged over the behaviours that may follow, the belief about every other item should
be the same: only a response tells something about the user. For a network that was fitted to the log of a policy that knew
the user's taste it is not, since there an item is shown *because* the user likes such items. With R(j | o) the expected
reward of item j,

    drift    D(i, j) = sum_b f(b | o, i) R(j | o, (i, b)) - R(j | o)           what showing i does to the belief about j
    evidence E(i, j) = the change of R(j | o, (i, b)) from the worst to the best response b, by linear regression

and the estimate is the slope of D on E over many states, items i and items j, both centred over j. 0: being shown tells
nothing. 0.3: being shown i counts for 30% of what the best response to i (a like, say) counts for. Effects that showing an
item really has on the future are in D too: satiation makes the slope negative, fatigue is the same for all j and drops out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mbcal.distributed.group import SINGLE_WORKER, Group
from mbcal.nn.base import SessionNet, State, expected_reward
from mbcal.training.random import derive_seed, uniform
from mbcal.types import SessionTensors

EVIDENCE_SESSIONS = 2_048
"""Sessions that the estimate is made on, at most, per worker."""
OTHER_ITEMS = 16
"""Items j per state."""
LARGE = 0.1
"""A slope above this is worth a warning, if ..."""
STANDARD_ERRORS = 3.0
"""... it is this many standard errors above 0, and ..."""
LARGE_DRIFT = 0.004
"""... showing an item moves expected rewards in that direction by this share of the range of rewards: the slope of a network
that has learned nothing about users yet is a ratio of two small errors."""


@dataclass(frozen=True)
class ShownEvidence:
    """How much the mere showing of an item counts as evidence of taste, in units of the best response to it."""

    slope: float
    stderr: float
    """Standard error over sessions; infinite if there is nothing to measure."""
    drift: float = 0.0
    """The slope times the root mean square of the evidence, as a share of the range of rewards."""

    @property
    def is_large(self) -> bool:
        """Whether the logged choices seem to know more than the log holds."""
        return self.slope > max(LARGE, STANDARD_ERRORS * self.stderr) and self.drift > LARGE_DRIFT

    def warning(self) -> str:
        """What a large value means and what to do, in words."""
        return (
            "The log's choices seem to know more about users than the log holds: to the fitted model, that an item was "
            f"shown counts for {self.slope:.0%} of what the best response to it counts for. A policy of your own lacks that "
            "knowledge and may earn far less than the model promises. Log some random choices, or what the policy knew. If "
            "propensities are logged, compare with a fit that has propensity_weights (docs/coverage.md)."
        )


@torch.no_grad()
def shown_evidence(net: SessionNet, sessions: SessionTensors, seed: int, group: Group = SINGLE_WORKER) -> ShownEvidence:
    """Estimate how much the mere showing of an item counts as evidence of taste.

    Args:
        net: A network of behaviours, fitted to sessions of the same log.
        sessions: This worker's sessions on the network's device; at most `EVIDENCE_SESSIONS` are used.
        seed: Seed of the steps and items that are compared.
        group: Workers that hold other sessions.

    Returns:
        The slope over all workers' sessions.
    """
    sums = torch.zeros(6, dtype=torch.float64, device=sessions.device)
    rewards = sessions.behaviour_set.rewards
    if len(sessions):
        drift, evidence = drift_and_evidence(net, sessions[:EVIDENCE_SESSIONS], seed)
        x, y = (drift * evidence).sum(1).double(), evidence.square().sum(1).double()
        sums = torch.stack([x.sum(), y.sum(), x.square().sum(), (x * y).sum(), y.square().sum(), (y > 0).double().sum()])
    group.all_reduce_sum(sums)
    slope, stderr = ratio_of_sums(*sums.tolist())
    evidence_size = math.sqrt(float(sums[1]) / max(float(sums[5]) * OTHER_ITEMS, 1.0))
    return ShownEvidence(slope, stderr, slope * evidence_size / ((max(rewards) - min(rewards)) or 1.0))


def ratio_of_sums(x: float, y: float, xx: float, xy: float, yy: float, count: float) -> tuple[float, float]:
    """The ratio sum x / sum y and its standard error, by linearisation, from sums of x, y, x², xy and y² over sessions."""
    if count < 2 or y <= 0:
        return 0.0, math.inf
    ratio = x / y
    variance = max(xx - 2 * ratio * xy + ratio**2 * yy, 0.0) * count / (count - 1)
    return ratio, math.sqrt(variance) / y


def drift_and_evidence(net: SessionNet, sessions: SessionTensors, seed: int) -> tuple[Tensor, Tensor]:
    """Compute D and E at one random step of every session, for its logged item i and random items j of the log.

    Args:
        net: A network of behaviours.
        sessions: B sessions on its device.
        seed: Seed of steps and items.

    Returns:
        D and E, (B, J) each in reward units, centred over j; 0 where j is i.
    """
    rewards, device = sessions.behaviour_set.reward_table(sessions.device), sessions.device
    size = len(sessions)
    step = (uniform(derive_seed(seed, "step"), (size,), device) * sessions.length).long()
    item = sessions.items.gather(1, step.unsqueeze(1)).squeeze(1)
    pool = sessions.items[sessions.mask]
    others = pool[(uniform(derive_seed(seed, "items"), (size, OTHER_ITEMS), device) * len(pool)).long()]
    sessions = sessions.encoded_by(net.fields)
    state, previous = _state_before(net, sessions, step)
    context = sessions.context_at(step)

    def believed(state: State, previous: Tensor) -> Tensor:
        """R(j | state), (B, J)."""
        repeated = tuple(part.repeat_interleave(OTHER_ITEMS, 0) for part in state)
        step_context = None if context is None else context.repeat_interleave(OTHER_ITEMS, 0)
        logits, _ = net.forward_step(repeated, others.flatten(), previous.repeat_interleave(OTHER_ITEMS), step_context)
        return expected_reward(logits, rewards).view(size, OTHER_ITEMS)

    logits, after = net.forward_step(state, item, previous, context)
    probability = torch.softmax(logits, -1)  # (B, K)
    beliefs = torch.stack([believed(after, torch.full_like(previous, k)) for k in range(len(rewards))], -1)  # (B, J, K)
    drift = (beliefs * probability.unsqueeze(1)).sum(-1) - believed(state, previous)
    surprise = rewards - (probability @ rewards).unsqueeze(1)  # (B, K)
    variance = (probability * surprise.square()).sum(1, keepdim=True)
    covariance = (beliefs * (probability * surprise).unsqueeze(1)).sum(-1)
    evidence = covariance / variance.clamp(min=1e-6) * (rewards.max() - rewards.min())
    other = others != item.unsqueeze(1)
    return _centred(drift, other), _centred(evidence, other)


def _state_before(net: SessionNet, sessions: SessionTensors, step: Tensor) -> tuple[State, Tensor]:
    """The network's state before step (B,) of every session, and the behaviour (B,) at the step before."""
    state = net.begin_batch(sessions)
    previous = torch.full_like(sessions.user, net.start)
    wanted, wanted_previous = state, previous
    for now in range(int(step.max())):
        _, state = net.forward_step(state, sessions.items[:, now], previous, sessions.context_at(now))
        previous = sessions.behaviours[:, now].to(previous.dtype)
        reached = step > now
        wanted = net.merge(reached, state, wanted)
        wanted_previous = torch.where(reached, previous, wanted_previous)
    return wanted, wanted_previous


def _centred(values: Tensor, mask: Tensor) -> Tensor:
    """Values (B, J) less their mean over j where the mask is true, else 0."""
    mean = (values * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
    return (values - mean) * mask
