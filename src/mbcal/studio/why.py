"""Why this item: a session of a store, step by step, with the parts of every candidate's score. Imports torch."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from mbcal.agents import Agent, load
from mbcal.data import Store
from mbcal.data.store_format import Part
from mbcal.environments.candidates import session_candidates
from mbcal.errors import InputError
from mbcal.evaluation.evaluator import TEST_SEED
from mbcal.evaluation.xray import xray
from mbcal.scoring.fields import FieldReader
from mbcal.types import MASK_ROW, Sessions

MOST = 30
"""Candidates listed per step, the best ones and the one that was shown."""


@torch.no_grad()
def why_view(model: Path, store: Path, part: Part, number: int) -> dict[str, Any]:
    """Explain how a model ranks the candidates at every step of a logged session.

    Args:
        model: The model's folder.
        store: The store's folder.
        part: `simulator`, `train` or `test`.
        number: Which of its sessions, from 0.

    Returns:
        The user's history; for each step the item that was shown with behaviour and reward, and the candidates, best first,
        with the parts of their scores. For MBCAL also how the shown item changed the expected reward of each later step.

    Raises:
        InputError: If there is no such session.
        MbcalError: If model or store is damaged, or they do not fit.
    """
    opened = Store.open(store)
    total = opened.n_sessions(part)
    if not 0 <= number < total:
        raise InputError(f"session: part {part!r} has {total:,} sessions, numbered from 0; got {number}")
    agent = _load(model, (model / "manifest.json").stat().st_mtime_ns)
    sessions = opened.sessions(part, number, number + 1)
    agent.domain.require_compatible(sessions, "the model")
    others = opened.sessions(part, 0, 2000) if sessions.candidates is None else sessions
    candidates = session_candidates(sessions, TEST_SEED, others)
    sessions = replace(sessions, candidates=candidates)
    traced = xray(agent, sessions) if candidates.ndim == 2 else None
    return {
        "sessions": total,
        "user": opened.users[int(sessions.user[0])],
        "agent": agent.name,
        "sampled": others is not sessions,
        "history": _history(sessions),
        "steps": _steps(agent, sessions, None if traced is None else traced[0]["steps"]),
    }


def _steps(agent: Agent, sessions: Sessions, traced: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    batch = sessions.tensors(agent.device, without=("propensities", "timestamps"))
    scorer, catalog, seen = agent.fitted_scorer, sessions.catalog, agent.seen()
    reader = FieldReader(scorer, batch)
    state, steps, shown = reader.begin(), [], set()
    candidates = batch.candidates
    assert candidates is not None  # noqa: S101 - `why_view` sets them
    for step in range(int(sessions.length[0])):
        rows, state = candidates[:, step] if candidates.ndim == 3 else candidates, reader.at(state, step)
        parts = {name: part[0].tolist() for name, part in scorer.score_parts(state, rows).items()}
        scores = [sum(values) for values in zip(*parts.values(), strict=True)]
        item = int(sessions.items[0, step])
        names = rows[0].tolist()
        usable = [index for index, row in enumerate(names) if row != MASK_ROW and (row not in shown or row == item)]
        order = sorted(usable, key=lambda index: (-scores[index], index))
        rank = next((place for place, index in enumerate(order) if names[index] == item), None)
        listed = [place for place in range(len(order)) if place < MOST or place == rank]
        steps.append(
            {
                "item": catalog.title_of(item),
                "behaviour": sessions.behaviour_set.names[sessions.behaviours[0, step]],
                "reward": float(sessions.rewards[0, step]),
                "rank": None if rank is None else rank + 1,
                "of": len(order),
                "candidates": [
                    {
                        "rank": place + 1,
                        "item": catalog.title_of(names[order[place]]),
                        "parts": {name: values[order[place]] for name, values in parts.items()},
                        "score": scores[order[place]],
                        "shown": place == rank,
                        "seen": bool(seen[names[order[place]]]),
                    }
                    for place in listed
                ],
                "changed": traced[step]["changed"] if traced is not None else None,
            }
        )
        state = scorer.observe(state, batch.items[:, step], batch.behaviours[:, step])
        shown.add(item)
    return steps


def _history(sessions: Sessions) -> list[dict[str, str]]:
    _, items, behaviours, length = sessions.history
    names = sessions.behaviour_set.names
    return [
        {"item": sessions.catalog.title_of(int(items[0, k])), "behaviour": names[behaviours[0, k]]}
        for k in range(int(length[0]))
    ]


@lru_cache(maxsize=2)
def _load(model: Path, _: int) -> Agent:
    """Load a model; the second argument is when it was written, so that another one at this path is loaded anew."""
    return load(model, "cpu")
