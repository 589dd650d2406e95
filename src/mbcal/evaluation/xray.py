"""A session step by step: what each item was expected to bring now and to change later, and the alternatives to it.

For every step the environment model predicts the rest of the session as it was served, and the same rest with this item
masked. The difference at each later step is the change attributed to the item; its discounted sum is the label that the
future advantage model is trained on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mbcal.agents.base import Agent
from mbcal.agents.mbcal import MBCAL
from mbcal.nn.base import expected_reward
from mbcal.nn.recurrent import RecurrentNet
from mbcal.scoring.fields import FieldReader
from mbcal.types import MASK_ROW, Catalog, Sessions, SessionTensors

RIVALS = 3
"""Alternatives listed beside the chosen item: the available candidates with the highest instant reward."""


@torch.no_grad()
def xray(agent: Agent, served: Sessions) -> list[dict[str, Any]] | None:
    """Explain served sessions step by step, as plain values for the report.

    Args:
        agent: The agent that served them.
        served: N sessions, with or without candidates.

    Returns:
        One entry per session, with the user's number and the steps. None without sessions, or for agents that have no
        environment model and advantage model.
    """
    if not isinstance(agent, MBCAL) or not len(served):
        return None
    batch = served.tensors(agent.device, without=("propensities", "timestamps"))
    changes, rewards = change_by_step(agent, batch).cpu(), served.rewards
    entries: list[dict[str, Any]] = [{"user": int(user), "steps": []} for user in served.user]
    scorer = agent.fitted_scorer
    reader = FieldReader(scorer, batch)
    state = reader.begin()
    available = torch.ones_like(batch.candidates, dtype=torch.bool) if batch.candidates is not None else None
    for step in range(served.horizon):
        items, state = batch.items[:, step : step + 1], reader.at(state, step)
        candidates = items if batch.candidates is None else batch.candidates
        parts = {name: part.cpu() for name, part in scorer.score_parts(state, candidates).items()}
        can_be_shown = torch.ones_like(candidates, dtype=torch.bool) if available is None else available
        for row, entry in enumerate(entries):
            if step < served.length[row]:
                scores = {name: part[row] for name, part in parts.items()}
                item, row_candidates = int(served.items[row, step]), candidates[row].cpu()
                entry["steps"].append(
                    {
                        **_chosen_and_rivals(item, row_candidates, can_be_shown[row].cpu(), scores, served.catalog),
                        "behaviour": served.behaviour_set.names[served.behaviours[row, step]],
                        "reward": float(rewards[row, step]),
                        "changed": [round(float(v), 4) for v in changes[row, step, step + 1 : served.length[row]]],
                    }
                )
        state = scorer.observe(state, batch.items[:, step], batch.behaviours[:, step])
        if available is not None:
            available &= candidates != items
    return entries


def _chosen_and_rivals(
    item: int, candidates: Tensor, available: Tensor, scores: Mapping[str, Tensor], catalog: Catalog
) -> dict[str, Any]:
    """Names and score parts of the shown item and of its best alternatives, from candidates (C,) and scores (C,)."""

    def describe(index: int) -> dict[str, Any]:
        title = catalog.title_of(int(candidates[index]))
        return {"item": title, "instant": float(scores["instant"][index]), "future": float(scores["future"][index])}

    chosen = int((candidates == item).int().argmax())
    instant = scores["instant"].masked_fill(~available | (candidates == MASK_ROW), -torch.inf)
    best = instant.topk(min(RIVALS + 1, int(available.sum()))).indices
    rivals = [int(index) for index in best if int(index) != chosen][:RIVALS]
    return {**describe(chosen), "item": catalog.title_of(item), "rivals": [describe(index) for index in rivals]}


def change_by_step(agent: MBCAL, batch: SessionTensors) -> Tensor:
    """Return how the item of each step changes the expected reward of each later step.

    Args:
        agent: A fitted MBCAL agent.
        batch: B sessions on its device.

    Returns:
        (B, T, T): the second axis is the step whose item is masked, the third the step whose expected reward changes.
    """
    net: RecurrentNet = agent.nets["environment"]
    rewards = torch.tensor(agent.domain.behaviours.rewards, device=agent.device)
    logged = expected_reward(net.forward_batch(batch), rewards)
    changes = []
    for step in range(batch.items.shape[1]):
        items = batch.items.clone()
        items[:, step] = MASK_ROW
        changes.append(logged - expected_reward(net.forward_batch(replace(batch, items=items)), rewards))
    return torch.stack(changes, 1)
