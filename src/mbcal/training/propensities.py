"""Weights of logged steps, for the log of a policy that knew more than the log holds.

Let such a policy choose a_t with probability p_t = mu(a_t | o_<t, u), where u is a state of the user that is not logged.
Users who like an item are then over-represented among those it was shown to, and a network of P(b_t | o_<t, a_t) learns
that users who are shown a like such items. A policy of our own chooses without u, so for its sessions the network is wrong.

Logged propensities repair the present step: weighted by w_t = uniform(a_t) / p_t, the steps of an item have the users that
a uniformly random policy would have shown it to. Weights are divided by a bound M and clipped to 1, since a few very large
ones would decide everything. What earlier items tell about u is not corrected: that would take the product of all earlier
weights, whose variance grows exponentially. Measurements: docs/coverage.md.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mbcal.distributed.group import SINGLE_WORKER, Group
from mbcal.types import MASK_ROW, SessionTensors

CLIP = 10.0
"""Largest bound M, as a multiple of the mean ratio."""
CLIPPED_SHARE = 0.02
"""M is the smallest bound that cuts off at most this share of the sum of all ratios."""
BOUNDS = 128
"""Bounds compared, from 1 to `CLIP` times the mean ratio."""


def exploration_ratios(sessions: SessionTensors) -> Tensor | None:
    """Return w_t = uniform(a_t) / p_t, uniform over the candidates of the step, or over the catalogue.

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


def step_weights(ratios: Tensor, mask: Tensor, group: Group = SINGLE_WORKER) -> Tensor:
    """Return min(1, w_t / M), the weight of each step, for a bound M chosen from the data.

    M is the smallest bound that cuts off at most `CLIPPED_SHARE` of the sum of all ratios, but at most `CLIP` times their
    mean. Equal ratios give equal weights: for the log of a uniformly random policy the fit is the usual one.

    Args:
        ratios: (N, T) from `exploration_ratios`.
        mask: (N, T) bool, steps that count.
        group: Workers that hold the other sessions.

    Returns:
        (N, T) float32 in [0, 1], 0 where the ratio is 0, as in the padding.
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
