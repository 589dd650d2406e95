"""A fitted scorer as a policy: begin, score and observe, on tensors or numpy arrays, for B sessions at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from mbcal.errors import InputError
from mbcal.scoring.scorers import Scorer
from mbcal.types import NO_FIELDS, SessionFields


class ScorerPolicy:
    """The part of an agent that roll-outs and evaluations use."""

    device: torch.device

    @property
    def fitted_scorer(self) -> Scorer:
        """The scorer of the last fit."""
        raise NotImplementedError

    @property
    def fields(self) -> SessionFields:
        """Fields of users and steps that it reads."""
        fields: SessionFields = getattr(self.fitted_scorer, "fields", NO_FIELDS)
        return fields

    def begin(self, user: Any, history_items: Any, history_behaviours: Any, history_length: Any) -> Any:
        """Return the state before the first step of B sessions.

        Args:
            user: User numbers, (B,); `scoring.scorers.UNKNOWN_USER` for users without one.
            history_items: Catalogue rows of the steps before the session, oldest first, (B, H).
            history_behaviours: Their behaviour numbers, (B, H).
            history_length: Steps that count, (B,).

        Returns:
            An opaque, immutable state. All arguments may be tensors or numpy arrays.
        """
        arguments = (user, history_items, history_behaviours, history_length)
        return self.fitted_scorer.begin(*(self._tensor("begin", argument) for argument in arguments))

    def with_user(self, state: Any, user_features: Any) -> Any:
        """Return the state before the first step of users with these features (B, U), encoded by `fields.user`."""
        return self._reader.with_user(state, self._tensor("with_user", user_features))

    def with_context(self, state: Any, context: Any) -> Any:
        """Return the state with the context (B, K) of the next step, encoded by `fields.context`."""
        return self._reader.with_context(state, self._tensor("with_context", context))

    @property
    def _reader(self) -> Any:
        """The scorer, which reads fields: `fields` of others are empty."""
        return self.fitted_scorer

    def score(self, state: Any, candidates: Any) -> Any:
        """Score candidates (B, C), given as catalogue rows.

        Returns:
            Scores (B, C): a tensor, or a numpy array if the candidates were one.
        """
        scores = self.fitted_scorer.score(state, self._tensor("score", candidates))
        return scores.cpu().numpy() if isinstance(candidates, np.ndarray) else scores

    def observe(self, state: Any, item: Any, behaviour: Any) -> Any:
        """Return the state after item (B,) was shown and behaviour (B,) was observed."""
        return self.fitted_scorer.observe(state, self._tensor("observe", item), self._tensor("observe", behaviour))

    def _tensor(self, verb: str, values: Any) -> torch.Tensor:
        if isinstance(values, torch.Tensor):
            return values
        try:
            return torch.as_tensor(values, device=self.device)
        except (TypeError, ValueError, RuntimeError):
            kind = type(values).__name__
            raise InputError(f"{verb}: takes tensors or arrays of numbers, got {kind}; rank() takes names") from None
