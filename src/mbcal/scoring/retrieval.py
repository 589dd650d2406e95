"""The best k of many candidates for many users, in bounded memory.

Scoring every candidate for every user costs one GRU step each: some 150 million steps for 10,000 users and 15,000 items.
But the scores of a model, as vectors over the items, lie close to a space of few dimensions::

    s(user) ~ mean + coefficients(user) @ basis            basis (D, C) from the exact scores of some users

So for each user the scores of a few anchor items give the coefficients, the coefficients give approximate scores of all
items, and the best of these, the shortlist, are scored exactly. The approximation's largest error on users that were not
used for the basis tells how far an item outside the shortlist could reach: where it could reach the k-th best score, the
shortlist is enlarged, in the end to all candidates. With few users or candidates, or `exact=True`, everything is scored.

All of it is numpy, on top of a scorer's own `score`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbcal.scoring.backend import to_numpy
from mbcal.scoring.scorers import Scorer
from mbcal.types import MASK_ROW

Floats = NDArray[np.float32]
Rows = NDArray[np.int32]

MIN_USERS, MIN_CANDIDATES = 1024, 2048
"""Below either, scoring everything costs no more than finding the basis."""
BASIS_USERS, CHECK_USERS = 192, 64
"""Users whose exact scores give the basis, and users whose exact scores give its error."""
DIMENSIONS, ANCHORS = 32, 64
"""Of the basis; items scored exactly to place a user in it."""
ERROR_MARGIN = 1.5
"""Factor on the largest error seen on the check users."""
FIRST_SHORTLIST, SHORTLIST_GROWTH = 512, 4
BLOCK_SCORES = 1 << 21
"""Scores computed at a time: 8 MiB of float32."""


def top_k(
    scorer: Scorer,
    state: Any,
    candidates: Rows,
    excluded: Rows,
    k: int,
    *,
    exact: bool = False,
    as_rows: Callable[[Rows], Any] = np.asarray,
) -> tuple[Rows, Floats]:
    """Find the best k candidates of N users.

    Args:
        scorer: What scores: on numpy arrays, or on tensors of one device.
        state: Its state for the N users (`Scorer.begin`).
        candidates: Catalogue rows, (C,) for all users or (N, C) for each its own; padding is `MASK_ROW`.
        excluded: (N, E) rows that a user must not get; padding is `MASK_ROW`.
        k: How many.
        exact: Score every candidate of every user.
        as_rows: Makes of catalogue rows what the scorer takes, such as tensors on its device.

    Returns:
        Rows (N, k), best first and equal scores in the order of the candidates, and their scores (N, k). Where a user has
        fewer than k candidates, the rest is `MASK_ROW` and minus infinity.
    """
    users, n_users = _Users(scorer, state, as_rows), len(excluded)
    is_small = n_users < MIN_USERS or candidates.shape[-1] < MIN_CANDIDATES
    if exact or is_small or candidates.ndim == 2:
        return _exact_top_k(users, np.arange(n_users), candidates, excluded, k)
    return _shortlisted_top_k(users, candidates, excluded, k)


@dataclass(frozen=True)
class _Users:
    """N users as a scorer knows them."""

    scorer: Scorer
    state: Any
    as_rows: Callable[[Rows], Any]

    def scores(self, users: NDArray[np.int64], candidates: Rows) -> Floats:
        """Exact scores (B, C) of candidates (B, C), or (C,) for all, for B of the users; minus infinity for padding."""
        if candidates.ndim == 1:
            candidates = np.broadcast_to(candidates, (len(users), len(candidates)))
        rows = np.ascontiguousarray(candidates)
        scores = to_numpy(self.scorer.score(_select(self.state, users), self.as_rows(rows)))
        return np.where(rows == MASK_ROW, -np.inf, scores).astype(np.float32)


def _exact_top_k(users: _Users, wanted: NDArray[np.int64], candidates: Rows, excluded: Rows, k: int) -> tuple[Rows, Floats]:
    """Score all candidates of the wanted users, a block of users at a time."""
    rows, scores = _empty(len(wanted), k)
    block = max(BLOCK_SCORES // candidates.shape[-1], 1)
    for begin in range(0, len(wanted), block):
        some = wanted[begin : begin + block]
        choices = candidates[some] if candidates.ndim == 2 else np.broadcast_to(candidates, (len(some), len(candidates)))
        part = slice(begin, begin + block)
        _put_best(rows[part], scores[part], choices, users.scores(some, choices), excluded[some])
    return rows, scores


def _shortlisted_top_k(users: _Users, candidates: Rows, excluded: Rows, k: int) -> tuple[Rows, Floats]:
    n_users, width = len(excluded), len(candidates)
    basis = _Basis(users, candidates, n_users)
    rows, scores = _empty(n_users, k)
    pending, shortlist = np.arange(n_users), max(FIRST_SHORTLIST, 4 * (k + excluded.shape[1]))
    while len(pending) and shortlist < width:
        unsure = []
        block = max(BLOCK_SCORES // width, 1)
        for begin in range(0, len(pending), block):
            some = pending[begin : begin + block]
            approximate = basis.approximate(users, some)
            places = np.sort(np.argpartition(-approximate, shortlist - 1, axis=1)[:, :shortlist], axis=1)
            cutoff = np.take_along_axis(approximate, places, 1).min(1)
            choices = candidates[places]
            found = _empty(len(some), k)
            _put_best(*found, choices, users.scores(some, choices), excluded[some])
            rows[some], scores[some] = found
            unsure.append(some[found[1][:, -1] < cutoff + basis.error])
        pending, shortlist = np.concatenate(unsure), shortlist * SHORTLIST_GROWTH
    if len(pending):
        rows[pending], scores[pending] = _exact_top_k(users, pending, candidates, excluded, k)
    return rows, scores


class _Basis:
    """A space of few dimensions near which the score vectors of all users lie, and how near."""

    def __init__(self, users: _Users, candidates: Rows, n_users: int) -> None:
        sample = np.random.default_rng(0).choice(n_users, BASIS_USERS + CHECK_USERS, replace=False)
        block = max(BLOCK_SCORES // len(candidates), 1)
        blocks = np.array_split(sample, -(-len(sample) // block))
        exact = np.concatenate([users.scores(some, candidates) for some in blocks])
        known, check = exact[:BASIS_USERS], exact[BASIS_USERS:]
        self.candidates, self.mean = candidates, known.mean(0)
        centred = known - self.mean
        # the right singular vectors by way of the small Gram matrix
        values, vectors = np.linalg.eigh((centred @ centred.T).astype(np.float64))
        strongest = slice(None, -ANCHORS - 1, -1)
        lengths = np.sqrt(np.maximum(values[strongest], 1e-12))
        directions = ((vectors[:, strongest] / lengths).T @ centred).astype(np.float32)  # (ANCHORS, C)
        self.anchors = _pivots(directions)
        self.directions = directions[:DIMENSIONS]
        self.solve = np.linalg.pinv(self.directions[:, self.anchors]).astype(np.float32)  # (ANCHORS, DIMENSIONS)
        self.error = ERROR_MARGIN * float(np.abs(self._from_anchors(check[:, self.anchors]) - check).max())

    def approximate(self, users: _Users, wanted: NDArray[np.int64]) -> Floats:
        """Approximate scores (B, C) of all candidates for B of the users, from their exact scores of the anchors."""
        return self._from_anchors(users.scores(wanted, self.candidates[self.anchors]))

    def _from_anchors(self, scores: Floats) -> Floats:
        approximate: Floats = self.mean + ((scores - self.mean[self.anchors]) @ self.solve) @ self.directions
        return approximate


def _pivots(directions: Floats) -> NDArray[np.int64]:
    """As many columns as there are rows, each the longest in what the ones before leave over (pivoted Gram-Schmidt)."""
    left = directions.astype(np.float64)
    chosen = np.zeros(len(left), np.int64)
    for place in range(len(left)):
        lengths = np.square(left).sum(0)
        chosen[place] = lengths.argmax()
        column = left[:, chosen[place]] / np.sqrt(max(lengths[chosen[place]], 1e-30))
        left -= np.outer(column, column @ left)
    return chosen


def _put_best(rows: Rows, scores: Floats, candidates: Rows, exact: Floats, excluded: Rows) -> None:
    """Fill rows and scores (B, k) with the best of the candidates (B, C) that are not excluded (B, E)."""
    for column in range(excluded.shape[1]):
        gone = excluded[:, column : column + 1]
        exact[(candidates == gone) & (gone != MASK_ROW)] = -np.inf
    k = min(rows.shape[1], candidates.shape[1])
    order = np.argsort(-exact, axis=1, kind="stable")[:, :k] if candidates.shape[1] <= 4 * k else _first(exact, k)
    best = np.take_along_axis(exact, order, 1)
    rows[:, :k] = np.where(np.isneginf(best), MASK_ROW, np.take_along_axis(candidates, order, 1))
    scores[:, :k] = best


def _first(scores: Floats, k: int) -> NDArray[np.int64]:
    """Places (B, k) of the highest scores, highest first; among equals the first place."""
    some = np.sort(np.argpartition(-scores, k - 1, axis=1)[:, :k], axis=1)
    # equals of the k-th that stand before it but were left out are rare; they only change which equal item is shown
    return np.take_along_axis(some, np.argsort(-np.take_along_axis(scores, some, 1), axis=1, kind="stable"), 1)


def _empty(n_users: int, k: int) -> tuple[Rows, Floats]:
    return np.full((n_users, k), MASK_ROW, np.int32), np.full((n_users, k), -np.inf, np.float32)


def _select(state: Any, users: NDArray[np.int64]) -> Any:
    """The state of some users: every array in it indexed along its first axis."""
    if state is None:
        return None
    if isinstance(state, tuple):
        parts = [_select(part, users) for part in state]
        return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)
    if is_dataclass(state) and not isinstance(state, type):
        return type(state)(*(_select(getattr(state, field.name), users) for field in fields(state)))
    return state[users]
