"""Learning from the log of a policy that knew more than the log holds.

Let such a policy choose a_t with probability p_t = mu(a_t | o_<t, u), where u is a state of the user that is not logged.
What was shown then tells what the user likes, and a network of P(b_t | o_<t, a_t) learns that from the items shown now and
before. A policy of our own chooses without u, so for its sessions the network is wrong.

Logged propensities repair it by resampling. With a reference pi_bar that does not know u (uniform over the candidates), the
ratio w_t = pi_bar(a_t) / p_t and a bound M >= w_t, every item is *kept* with probability w_t / M and masked otherwise:

    P(a_t shown and kept | o_<t, u) = mu(a_t | o_<t, u) · w_t / M = pi_bar(a_t) / M

does not depend on u. So neither a kept item nor the masking of one tells anything about u; only behaviours do. The loss
counts kept steps. For one step this is the likelihood weighted by w_t; for the steps before it stands in for the product
w_1 · … · w_{t-1}, whose variance grows exponentially with t: instead of a weight near zero, a history gets a masked step.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mbcal.distributed.group import SINGLE_WORKER, Group
from mbcal.errors import InputError
from mbcal.nn.base import SessionNet, expected_reward
from mbcal.training.config import PropensityWeights
from mbcal.training.device_data import DeviceSessions
from mbcal.training.state import load_state_arrays, state_to_arrays
from mbcal.types import MASK_ROW, SessionTensors

CLIP = 10.0
"""Largest bound M, as a multiple of the mean ratio: at least about a tenth of all steps is kept."""
CLIPPED_SHARE = 0.02
"""M is the smallest bound that cuts off at most this share of the sum of all ratios."""
LARGE_CORRELATION = 0.05
"""Propensities matter if their correlation with the rewards, beyond the network, is at least this ..."""
STANDARD_ERRORS = 4.0
"""... and this many standard errors."""
BLOCK = 1024
"""Sessions that `propensity_correlation` takes at a time."""
BOUNDS = 128
"""Bounds compared, from 1 to `CLIP` times the mean ratio."""


def train_with_propensities(
    net: SessionNet,
    optimiser: torch.optim.Adam,
    data: DeviceSessions,
    rows: Tensor,
    ratios: Tensor | None,
    setting: PropensityWeights,
    train: Callable[[Tensor | None], None],
    group: Group = SINGLE_WORKER,
) -> Tensor | None:
    """Train a network of behaviours, with logged propensities where they are asked for or matter.

    With `auto` the network is trained without them first. If they then tell more about the rewards than the network does
    (`propensity_correlation`), it is trained again from where it began.

    Args:
        net: The network.
        optimiser: Its optimiser.
        data: The sessions of this worker.
        rows: Its rows that `auto` measures on, preferably of held-out users.
        ratios: (N, T) from `exploration_ratios`, for all of `data`; None without logged propensities.
        setting: When to use them.
        train: Trains the network, given `keep` of `losses.behaviour_nll`.
        group: Workers that share the fit.

    Returns:
        (N, T) the probability with which each item was kept; None if propensities were not used.

    Raises:
        InputError: If propensities are asked for and were not logged.
    """
    if setting == "on" and ratios is None:
        raise InputError("propensity_weights: 'on', but these sessions have no propensities; log them, or choose 'auto'")
    if setting == "off" or ratios is None:
        train(None)
        return None
    if setting == "auto":
        begin = state_to_arrays(net, optimiser)
        train(None)
        correlation, steps = propensity_correlation(net, data, rows, ratios, group)
        if abs(correlation) < LARGE_CORRELATION or correlation**2 * steps < STANDARD_ERRORS**2:
            return None
        optimiser.state.clear()
        load_state_arrays(net, optimiser, begin)
    keep = keep_probabilities(ratios, data.mask, group)
    train(keep)
    return keep


def exploration_ratios(sessions: SessionTensors) -> Tensor | None:
    """Return w_t = pi_bar(a_t) / p_t, with pi_bar uniform over the candidates of the step, or over the catalogue.

    Args:
        sessions: N sessions. Of one set of candidates per session, shown items are gone.

    Returns:
        (N, T) float32, 0 in the padding; None without logged propensities.
    """
    if sessions.propensities is None:
        return None
    mask, candidates = sessions.mask, sessions.candidates
    if candidates is None:
        count = torch.full_like(sessions.propensities, len(sessions.catalog))
    else:
        count = (candidates != MASK_ROW).sum(-1).float()
        if candidates.dim() == 2:
            count = count.unsqueeze(1) - torch.arange(sessions.horizon, device=mask.device)
    return torch.where(mask, 1 / (count.clamp(min=1) * sessions.propensities.clamp(min=1e-12)), 0)


def keep_probabilities(ratios: Tensor, mask: Tensor, group: Group = SINGLE_WORKER) -> Tensor:
    """Return min(1, w_t / M), the probability with which each item is kept, for a bound M chosen from the data.

    M is the smallest bound that cuts off at most `CLIPPED_SHARE` of the sum of all ratios, but at most `CLIP` times their
    mean.
    Equal ratios keep everything: for the log of a uniformly random policy the loss is the usual one.

    Args:
        ratios: (N, T) from `exploration_ratios`.
        mask: (N, T) bool, steps that count.
        group: Workers that hold the other sessions.

    Returns:
        (N, T) float32 in [0, 1].
    """
    values = ratios[mask].double()
    sums = torch.stack([values.sum(), torch.tensor(float(len(values)), dtype=torch.float64, device=values.device)])
    group.all_reduce_sum(sums)
    bounds = sums[0] / sums[1].clamp(min=1) * torch.logspace(0, 1, BOUNDS, CLIP, dtype=torch.float64, device=values.device)
    below = torch.stack([values.clamp(max=float(bound)).sum() for bound in bounds])
    group.all_reduce_sum(below)
    enough = (below >= (1 - CLIPPED_SHARE) * sums[0]).nonzero()
    bound = bounds[enough[0, 0]] if len(enough) else bounds[-1]
    return (ratios / bound.float()).clamp(max=1)


@torch.no_grad()
def propensity_correlation(
    net: SessionNet, data: DeviceSessions, rows: Tensor, ratios: Tensor, group: Group = SINGLE_WORKER
) -> tuple[float, int]:
    """Measure whether propensities tell more about the rewards than a fitted network does.

    The propensity of a policy that knows no more than the log is a function of o_<t and a_t, and predicts nothing beyond a
    network that has learned from both. That of a policy that knows u does.

    Args:
        net: A network of behaviours, fitted without propensities.
        data: The sessions of this worker.
        rows: Its rows to measure on, preferably of held-out users.
        ratios: (N, T) from `exploration_ratios`, for all of `data`.
        group: Workers that hold the other rows.

    Returns:
        Partial correlation of reward and log propensity given the reward that the network expects, and the number of steps.
    """
    gram = torch.zeros(4, 4, dtype=torch.float64, device=data.device)
    for begin in range(0, len(rows), BLOCK):
        part = rows[begin : begin + BLOCK]
        batch = data[part]
        rewards = batch.behaviour_set.reward_table(data.device)
        expected = expected_reward(net.forward_batch(batch), rewards)[batch.mask]
        propensity = -ratios[part.to(ratios.device)].to(data.device)[batch.mask].clamp(min=1e-12).log()
        columns = torch.stack([torch.ones_like(expected), expected, propensity, batch.rewards[batch.mask]], 1).double()
        gram += columns.T @ columns
    group.all_reduce_sum(gram)
    return partial_correlation(gram), int(gram[0, 0])


def partial_correlation(gram: Tensor) -> float:
    """Return the correlation of the last two variables given all others, from X^T X (V, V) of a design with a constant."""
    size = len(gram) - 2
    given, both, rest = gram[:size, :size], gram[:size, size:], gram[size:, size:]
    residual = rest - both.T @ torch.linalg.pinv(given, hermitian=True) @ both
    scale = (residual[0, 0] * residual[1, 1]).clamp(min=0).sqrt()
    tiny = 1e-9 * (rest[0, 0] * rest[1, 1]).sqrt()
    return float(residual[0, 1] / scale) if scale > tiny else 0.0
