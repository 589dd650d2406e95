"""A session step by step: what each item was expected to bring now and to change later, and how that is known.

For every step the environment model is asked for the rest of the session as it was, and for the same rest with this item
masked. The difference, later step by later step, is what the item is held to have changed; its discounted sum is the label
the future advantage model learns from.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from mbcal.agents.base import Agent
from mbcal.agents.mbcal import MBCAL
from mbcal.nn.base import expected_reward
from mbcal.nn.recurrent import RecurrentNet
from mbcal.types import MASK_ROW, Sessions, SessionTensors

RIVALS = 3
"""Candidates shown beside the one chosen: those that would please most now."""


@torch.no_grad()
def xray(agent: Agent, served: Sessions) -> list[dict[str, Any]] | None:
    """Sessions as plain values for the report; None for agents without an environment model and an advantage model."""
    if not isinstance(agent, MBCAL) or not len(served):
        return None
    batch = served.tensors(agent.device, without=("propensities", "timestamps"))
    changes = change_by_step(agent, batch).cpu()
    rewards = served.rewards
    catalog, names = served.catalog, served.behaviour_set.names
    sessions: list[dict[str, Any]] = [{"user": int(user), "steps": []} for user in served.user]
    scorer = agent.fitted_scorer
    state = scorer.begin(*batch.history)
    available = torch.ones_like(batch.candidates, dtype=torch.bool) if batch.candidates is not None else None
    for step in range(served.horizon):
        offered = batch.candidates if batch.candidates is not None else batch.items[:, step : step + 1]
        parts = {name: part.cpu() for name, part in scorer.score_parts(state, offered).items()}
        for row in range(len(served)):
            if step >= served.length[row]:
                continue
            item = int(served.items[row, step])
            place = int((offered[row] == item).int().argmax())
            left = torch.ones(offered.shape[1], dtype=torch.bool) if available is None else available[row].cpu()
            liked = parts["instant"][row].masked_fill(~left | (offered[row].cpu() == MASK_ROW), -torch.inf)
            rivals = [int(other) for other in liked.topk(min(RIVALS + 1, int(left.sum()))).indices if int(other) != place]
            sessions[row]["steps"].append(
                {
                    "item": catalog.title_of(item),
                    "behaviour": names[served.behaviours[row, step]],
                    "reward": float(rewards[row, step]),
                    "instant": float(parts["instant"][row, place]),
                    "future": float(parts["future"][row, place]),
                    "changed": [round(float(value), 4) for value in changes[row, step, step + 1 : served.length[row]]],
                    "rivals": [
                        {
                            "item": catalog.title_of(int(offered[row, other])),
                            "instant": float(parts["instant"][row, other]),
                            "future": float(parts["future"][row, other]),
                        }
                        for other in rivals[:RIVALS]
                    ],
                }
            )
        state = scorer.observe(state, batch.items[:, step], batch.behaviours[:, step])
        if available is not None and batch.candidates is not None:
            available &= batch.candidates != batch.items[:, step : step + 1]
    return sessions


def change_by_step(agent: MBCAL, batch: SessionTensors) -> Tensor:
    """(B, T, T): what the item of one step (second axis) changes in the expected reward of each later one (third)."""
    net: RecurrentNet = agent.nets["environment"]
    rewards = torch.tensor(agent.domain.behaviours.rewards, device=agent.device)
    logged = expected_reward(net.forward_batch(batch), rewards)
    changes = []
    for step in range(batch.items.shape[1]):
        items = batch.items.clone()
        items[:, step] = MASK_ROW
        changes.append(logged - expected_reward(net.forward_batch(dataclasses.replace(batch, items=items)), rewards))
    return torch.stack(changes, 1)
