"""Windows of joined sessions, up to `horizon` steps each, and the arrays that they become."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mbcal.decision_log.candidate_width import candidate_width, sample_candidates
from mbcal.decision_log.joined import JoinCounts, StepOrigin
from mbcal.types import SessionFields


class Step(NamedTuple):
    """An item that was shown, with the feedback on it."""

    item: int
    """Its row in the catalogue."""
    behaviour: int
    origin: StepOrigin
    propensity: float
    candidates: NDArray[np.int32]
    """Rows of the items that it was chosen from."""
    version: str
    epsilon: float
    context: bytes
    """Encoded fields of the step, float32; empty if there are none."""


class Window(NamedTuple):
    """One row of the result: up to `horizon` steps of a session."""

    user: int
    session: str
    history: list[tuple[int, int]]
    """Items, as rows, and behaviours before the first step."""
    steps: Sequence[Step]
    user_features: bytes
    """Encoded fields of the user, float32; empty if there are none."""

    @property
    def version(self) -> str | None:
        """The version that decided all steps; None if there are several."""
        first, *others = {step.version for step in self.steps}
        return None if others else first


def pad_windows(
    windows: Sequence[Window], horizon: int, history: int, fields: SessionFields, counts: JoinCounts
) -> tuple[dict[str, Any], NDArray[np.float64]]:
    """Return windows as padded arrays.

    Args:
        windows: N of them.
        horizon: T, steps of a row.
        history: Steps of a history.
        fields: Declared fields of users and steps.
        counts: Counts the steps whose candidates are too many and are sampled.

    Returns:
        The arrays of `Sessions` by name, and the exploration of every step, (N, T).
    """
    size = len(windows)
    width = candidate_width([len(step.candidates) for window in windows for step in window.steps], size * horizon)
    arrays: dict[str, Any] = {
        "items": np.zeros((size, horizon), np.int32),
        "behaviours": np.zeros((size, horizon), np.uint8),
        "length": np.asarray([len(window.steps) for window in windows], np.int32),
        "user": np.asarray([window.user for window in windows], np.int32),
        "history_items": np.zeros((size, history), np.int32),
        "history_behaviours": np.zeros((size, history), np.uint8),
        "history_length": np.asarray([len(window.history) for window in windows], np.int32),
        "candidates": np.zeros((size, horizon, width), np.int32),
        "propensities": np.zeros((size, horizon), np.float32),
        "timestamps": np.zeros((size, horizon), np.int64),
    }
    epsilons = np.zeros((size, horizon))
    for row, window in enumerate(windows):
        for column, (item, behaviour) in enumerate(window.history):
            arrays["history_items"][row, column], arrays["history_behaviours"][row, column] = item, behaviour
        latest = min(step.origin.time for step in window.steps)
        for column, step in enumerate(window.steps):
            latest = max(latest, step.origin.time)  # times do not decrease within a row, even if a clock was set back
            arrays["items"][row, column], arrays["behaviours"][row, column] = step.item, step.behaviour
            arrays["propensities"][row, column], arrays["timestamps"][row, column] = step.propensity, latest
            candidates = step.candidates
            if len(candidates) > width:
                candidates = sample_candidates(candidates, step.item, width, f"{step.origin.decision} {step.origin.rank}")
                counts.narrowed += 1
            arrays["candidates"][row, column, : len(candidates)] = candidates
            epsilons[row, column] = step.epsilon
    if len(fields.context):
        arrays["context"] = np.zeros((size, horizon, fields.context.width), np.float32)
        for row, window in enumerate(windows):
            arrays["context"][row, : len(window.steps)] = [np.frombuffer(step.context, np.float32) for step in window.steps]
    if len(fields.user):
        encoded = b"".join(window.user_features for window in windows)
        arrays["user_features"] = np.frombuffer(encoded, np.float32).reshape(size, fields.user.width).copy()
    return arrays, epsilons
