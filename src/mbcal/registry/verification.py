"""Verification cases: sessions stored with a version together with their scores, to check that it still ranks the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbcal.errors import InputError
from mbcal.scoring.scorers import UNKNOWN_USER, Scorer
from mbcal.types import MASK_ROW, NO_FIELDS, UNKNOWN_ROW, Fields, SessionFields

Arrays = dict[str, NDArray[Any]]

SESSIONS, CANDIDATES, STEPS = 8, 24, 3
"""Size of the cases. 24 candidates are enough for the compiled scorer to be used where it is available."""
TOLERANCE = 1e-5
"""Largest difference of two scores, relative to the largest score of the array or to 1, whichever is larger."""
SCORES_PREFIX = "answers/"
"""Before the names of stored scores, which share a file with the cases."""

_AXES = {
    "user": 1,
    "history_items": 2,
    "history_behaviours": 2,
    "history_length": 1,
    "items": 2,
    "behaviours": 2,
    "candidates": 2,
}
"""Number of axes of every array of the cases."""


def verification_cases(rows: int, behaviours: int, users: int, history: int, fields: SessionFields = NO_FIELDS) -> Arrays:
    """Generate sessions over a catalogue: empty to full histories, known and unknown users, known and unknown items.

    Args:
        rows: Catalogue rows.
        behaviours: Number of behaviours.
        users: Number of users the model knows.
        history: Steps of history, H.
        fields: Fields of users and steps that the scorer reads.

    Returns:
        With B = SESSIONS: `user` (B,), `history_items` and `history_behaviours` (B, H), `history_length` (B,), `items` and
        `behaviours` (B, STEPS), `candidates` (B, CANDIDATES); and `user_features` (B, U) and `context` (B, STEPS + 1, K), if
        there are such fields. The same for the same arguments.
    """
    rng = np.random.default_rng(0)
    length = np.linspace(0, history, SESSIONS).astype(np.int32)
    is_step = np.arange(history) < length[:, None]
    user = np.where(np.arange(SESSIONS) % 2, rng.integers(0, max(users, 1), SESSIONS), UNKNOWN_USER)
    candidates = rng.integers(UNKNOWN_ROW, rows, (SESSIONS, CANDIDATES))
    candidates[:, 0] = UNKNOWN_ROW
    described: Arrays = {}
    if len(fields.user):
        described["user_features"] = _random_rows(fields.user, (SESSIONS,))
    if len(fields.context):
        described["context"] = _random_rows(fields.context, (SESSIONS, STEPS + 1))
    return {
        **described,
        "user": user.astype(np.int32),
        "history_items": np.where(is_step, rng.integers(UNKNOWN_ROW, rows, is_step.shape), MASK_ROW).astype(np.int32),
        "history_behaviours": np.where(is_step, rng.integers(0, behaviours, is_step.shape), 0).astype(np.uint8),
        "history_length": length,
        "items": rng.integers(UNKNOWN_ROW, rows, (SESSIONS, STEPS)).astype(np.int32),
        "behaviours": rng.integers(0, behaviours, (SESSIONS, STEPS)).astype(np.uint8),
        "candidates": candidates.astype(np.int32),
    }


def _random_rows(fields: Fields, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Encoded rows (*shape, W) with random values, some of them missing."""
    rng = np.random.default_rng(1)
    rows = np.zeros((*shape, fields.width), np.float32)
    for field in fields:
        columns, present = fields.columns[field.name], rng.random(shape) < 0.8
        if field.kind == "category":
            rows[..., columns.start] = rng.integers(0, len(field.vocabulary) + 1, shape)
        else:
            rows[..., columns] = rng.normal(size=(*shape, field.width)) * present[..., None]
            rows[..., columns.stop - 1] = present
    return rows


def verification_scores(
    scorer: Scorer, cases: Mapping[str, NDArray[Any]], convert: Callable[[Any], Any] = np.asarray
) -> Arrays:
    """Score the candidates of the cases before every step and after the last.

    Args:
        scorer: The scorer.
        cases: The cases.
        convert: Converts a numpy array to the scorer's type, e.g. `torch.from_numpy`.

    Returns:
        `score` and one `parts/NAME` per part of the score, each (B, STEPS + 1, CANDIDATES).
    """
    state = scorer.begin(
        *(convert(cases[name]) for name in ("user", "history_items", "history_behaviours", "history_length"))
    )
    reader: Any = scorer  # scorers that read fields have `with_user` and `with_context`
    if "user_features" in cases:
        state = reader.with_user(state, convert(cases["user_features"]))
    candidates, steps = convert(cases["candidates"]), cases["items"].shape[1]
    scores: dict[str, list[NDArray[Any]]] = {}
    for step in range(steps + 1):
        if "context" in cases:
            state = reader.with_context(state, convert(np.ascontiguousarray(cases["context"][:, step])))
        parts = {f"parts/{name}": part for name, part in scorer.score_parts(state, candidates).items()}
        for name, values in {"score": scorer.score(state, candidates), **parts}.items():
            scores.setdefault(name, []).append(np.asarray(values))
        if step < steps:
            items, behaviours = (convert(np.ascontiguousarray(cases[name][:, step])) for name in ("items", "behaviours"))
            state = scorer.observe(state, items, behaviours)
    return {name: np.stack(values, 1) for name, values in scores.items()}


def score_difference(expected: Mapping[str, NDArray[Any]], actual: Mapping[str, NDArray[Any]]) -> str:
    """Describe the first difference between two sets of scores; an empty string if they agree within TOLERANCE."""
    if set(expected) != set(actual):
        return f"parts are {', '.join(sorted(actual))} instead of {', '.join(sorted(expected))}"
    for name, values in expected.items():
        if values.shape != actual[name].shape:
            return f"{name} has shape {actual[name].shape} instead of {values.shape}"
        if not (np.isfinite(values).all() and np.isfinite(actual[name]).all()):
            return f"{name} holds NaN or infinity"
        difference = float(np.abs(values.astype(np.float64) - actual[name]).max(initial=0.0))
        if difference > TOLERANCE * max(1.0, float(np.abs(values).max(initial=0.0))):
            return f"{name} is off by {difference:.2g}"
    return ""


def case_problem(cases: Mapping[str, NDArray[Any]], rows: int, behaviours: int, fields: SessionFields = NO_FIELDS) -> str:
    """Describe why these are not cases for a catalogue of this size and these fields; an empty string if they are."""
    for name, declared, shape in (("user_features", fields.user, (1,)), ("context", fields.context, (1, STEPS + 1))):
        if (name in cases) != bool(len(declared)):
            return f"{name} and its fields do not belong together"
        if name in cases:
            described = cases[name]
            if described.dtype != np.float32 or described.shape[1:-1] != shape[1:] or len(described) != len(cases["user"]):
                return f"{name} has shape {described.shape} of {described.dtype}"
            try:
                declared.require_valid(name, described)
            except InputError as error:
                return str(error)
    for name, axes in _AXES.items():
        array = cases.get(name)
        if array is None:
            return f"{name} is missing"
        if array.ndim != axes or array.dtype.kind not in "iu" or len(array) != len(cases["user"]) or not len(array):
            return f"{name} has shape {array.shape} of {array.dtype}"
        limit = 2**31
        if name.endswith("items") or name == "candidates":
            limit = rows
        elif name.endswith("behaviours"):
            limit = behaviours
        if array.size and not 0 <= int(array.min()) <= int(array.max()) < limit:
            return f"{name} must be in 0..{limit - 1}"
    for first, second in (("history_items", "history_behaviours"), ("items", "behaviours")):
        if cases[first].shape != cases[second].shape:
            return f"{first} and {second} have different shapes"
    return ""
