"""Sessions that ended early, completed by the rest of other sessions.

A user who left at step L shows no later items, so the logged session alone cannot say what leaving has cost. The labels of
MBCAL therefore take the rest from a donor, a session that went on at that step::

    session    a1 b1   a2 left                        donor    c1 d1   c2 d2   c3 d3   c4 d4
    completed  a1 b1   a2 d2     c3 d3   c4 d4

Both branches of a counterfactual difference see the same rest, weighted by the probability of being there (`labels`): the
completed steps count as much as the environment model believes in them. Sessions that were cut for another reason before the
horizon are completed likewise, and keep their last behaviour.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from mbcal.training.random import derive_seed, random_integers
from mbcal.types import SessionTensors

SEED = derive_seed(0, "donors")
"""Seed of the choice of donors, which needs no other: it depends on the position of a session in the batch."""


@torch.no_grad()
def complete_sessions(batch: SessionTensors) -> SessionTensors:
    """Complete the sessions of a batch that end before the horizon. Without terminal behaviours, nothing is changed.

    Args:
        batch: B sessions. Donors are among them.

    Returns:
        The sessions with items, behaviours and lengths completed. A session is left as it is if no other goes on at the
        step at which it ended; donors of donors count, so most sessions reach the longest length of the batch.
    """
    if not batch.behaviour_set.terminal:
        return batch
    items, behaviours, length = batch.items.clone(), batch.behaviours.clone(), batch.length.clone()
    is_terminal = batch.behaviour_set.terminal_table(batch.device).bool()
    for step in range(batch.horizon - 2, -1, -1):  # descending: donors have been completed before
        ended = (batch.length == step + 1).nonzero().squeeze(1)
        donors = (length > step + 1).nonzero().squeeze(1)
        if not len(ended) or not len(donors):
            continue
        donor = donors[random_integers(derive_seed(SEED, step), ended, len(donors))]
        left = is_terminal[behaviours[ended, step].long()]
        behaviours[ended, step] = torch.where(left, behaviours[donor, step], behaviours[ended, step])
        items[ended, step + 1 :], behaviours[ended, step + 1 :] = items[donor, step + 1 :], behaviours[donor, step + 1 :]
        length[ended] = length[donor]
    context = batch.context
    if context is not None:  # as in roll-outs, the context of the last step stays
        last = torch.minimum(torch.arange(batch.horizon, device=batch.device), batch.length.unsqueeze(1) - 1).long()
        context = context.gather(1, last.unsqueeze(2).expand_as(context))
    return replace(batch, items=items, behaviours=behaviours, length=length, context=context)
