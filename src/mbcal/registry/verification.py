"""Golden cases: a few sessions whose scores travel with a model, so that whoever opens it can see it ranks the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbcal.scoring.scorers import UNKNOWN_USER, Scorer
from mbcal.types import MASK_ROW, UNKNOWN_ROW

Arrays = dict[str, NDArray[Any]]

SESSIONS, CANDIDATES, STEPS = 8, 24, 3
"""How many; enough candidates that the compiled scores are taken where there are any."""
TOLERANCE = 1e-5
"""How far scores may lie apart, as a share of the largest of their kind or of 1."""

_INPUTS = {"user": 1, "history_items": 2, "history_behaviours": 2, "history_length": 1, "items": 2, "behaviours": 2}


def verification_cases(rows: int, behaviours: int, users: int, history: int) -> Arrays:
    """Sessions over a catalogue: histories from none to full, users known and unknown, items in and out of the catalogue."""
    draw = np.random.default_rng(0)
    length = np.linspace(0, history, SESSIONS).astype(np.int32)
    counts = np.arange(history) < length[:, None]
    user = np.where(np.arange(SESSIONS) % 2, draw.integers(0, max(users, 1), SESSIONS), UNKNOWN_USER)
    candidates = draw.integers(UNKNOWN_ROW, rows, (SESSIONS, CANDIDATES))
    candidates[:, 0] = UNKNOWN_ROW
    return {
        "user": user.astype(np.int32),
        "history_items": np.where(counts, draw.integers(UNKNOWN_ROW, rows, counts.shape), MASK_ROW).astype(np.int32),
        "history_behaviours": np.where(counts, draw.integers(0, behaviours, counts.shape), 0).astype(np.uint8),
        "history_length": length,
        "items": draw.integers(UNKNOWN_ROW, rows, (SESSIONS, STEPS)).astype(np.int32),
        "behaviours": draw.integers(0, behaviours, (SESSIONS, STEPS)).astype(np.uint8),
        "candidates": candidates.astype(np.int32),
    }


def verification_scores(
    scorer: Scorer, cases: Mapping[str, NDArray[Any]], given: Callable[[Any], Any] = np.asarray
) -> Arrays:
    """`score` and `parts/NAME` (B, steps + 1, C) of cases, before every step and after the last.

    `given` makes of an array what the scorer takes; what comes back is numpy.
    """
    state = scorer.begin(*(given(cases[name]) for name in ("user", "history_items", "history_behaviours", "history_length")))
    candidates, steps = given(cases["candidates"]), cases["items"].shape[1]
    said: dict[str, list[NDArray[Any]]] = {}
    for step in range(steps + 1):
        parts = {f"parts/{name}": part for name, part in scorer.score_parts(state, candidates).items()}
        for name, values in {"score": scorer.score(state, candidates), **parts}.items():
            said.setdefault(name, []).append(np.asarray(values))
        if step < steps:
            items, behaviours = (given(np.ascontiguousarray(cases[name][:, step])) for name in ("items", "behaviours"))
            state = scorer.observe(state, items, behaviours)
    return {name: np.stack(values, 1) for name, values in said.items()}


def score_difference(wanted: Mapping[str, NDArray[Any]], got: Mapping[str, NDArray[Any]]) -> str:
    """Where two sets of answers differ, in words; empty where they do not."""
    if set(wanted) != set(got):
        return f"parts are {', '.join(sorted(got))} instead of {', '.join(sorted(wanted))}"
    for name, values in wanted.items():
        if values.shape != got[name].shape:
            return f"{name} has shape {got[name].shape} instead of {values.shape}"
        if not (np.isfinite(values).all() and np.isfinite(got[name]).all()):
            return f"{name} is not finite everywhere"
        apart = float(np.abs(values.astype(np.float64) - got[name]).max(initial=0.0))
        if apart > TOLERANCE * max(1.0, float(np.abs(values).max(initial=0.0))):
            return f"{name} is off by {apart:.2g}"
    return ""


def case_problem(cases: Mapping[str, NDArray[Any]], rows: int, behaviours: int) -> str:
    """What makes these no cases for a catalogue of this many rows, in words; empty if nothing does."""
    for name, axes in {**_INPUTS, "candidates": 2}.items():
        array = cases.get(name)
        if array is None:
            return f"{name} is missing"
        if array.ndim != axes or array.dtype.kind not in "iu" or len(array) != len(cases["user"]) or not len(array):
            return f"{name} has shape {array.shape} of {array.dtype}"
        top = (
            rows if name.endswith("items") or name == "candidates" else behaviours if name.endswith("behaviours") else 2**31
        )
        if array.size and not 0 <= int(array.min()) <= int(array.max()) < top:
            return f"{name} must lie in 0..{top - 1}"
    for one, other in (("history_items", "history_behaviours"), ("items", "behaviours")):
        if cases[one].shape != cases[other].shape:
            return f"{one} and {other} have different shapes"
    return ""
