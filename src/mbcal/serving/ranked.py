"""One request ranked by one version: what is answered, what is logged, and what is counted."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mbcal.decision_log.records import Decision
from mbcal.errors import MbcalError
from mbcal.serving.fields import GivenFields, from_text
from mbcal.serving.messages import RankedItem, RankRequest, steps_as_text
from mbcal.serving.ranker import Ranker, TextSteps
from mbcal.serving.repeats import answer_fields
from mbcal.serving.state import Session
from mbcal.types import UNKNOWN_ROW


class RankingFailedError(Exception):
    """A version failed to rank candidates that it could read. The cause says why; the request may be at fault."""


class RankedRequest(NamedTuple):
    """The ranked items of a request. It stays valid while other requests are read, unlike the candidates themselves."""

    version: str
    epsilon: float
    session: Session
    """All that is remembered of it, also behaviours that the version does not know."""
    shown: TextSteps
    given: GivenFields
    items: list[RankedItem]
    candidates: list[str]
    """All candidates, in the form the decision log encodes."""
    features: dict[str, Any]
    """Features of unknown candidates, likewise."""
    n_candidates: int
    n_unknown: int
    """Candidates that are not in the catalogue."""

    def decision(
        self, decision: str, now: int, session: str | None, request: RankRequest, hashed: str, repeats: bool
    ) -> Decision:
        """Return the record for the decision log.

        Args:
            decision: Id of the decision.
            now: Time of the decision, in microseconds since 1970.
            session: The session's name.
            request: The request.
            hashed: The request's hash; empty if it had no id.
            repeats: Whether items that were shown may be ranked again.
        """
        return Decision(
            id=decision,
            time=now,
            session=session or "",
            user=self.session.user,
            step=len(self.shown),
            version=self.version,
            epsilon=self.epsilon,
            history=list(self.session.history),
            shown=list(self.shown),
            candidates=self.candidates,
            items=[entry.item for entry in self.items],
            propensities=[entry.propensity for entry in self.items],
            repeats=repeats,
            features=self.features,
            context=request.context,
            user_features=from_text(self.session.user_features),
            shown_context=list(self.given.shown_context),
            **answer_fields(hashed, self.items),
        )


def rank_request(
    ranker: Ranker,
    request: RankRequest,
    session: Session,
    given: GivenFields,
    *,
    name: str | None,
    epsilon: float,
    most: int,
    generator: np.random.Generator,
) -> RankedRequest:
    """Rank the candidates of a request by one version.

    Args:
        ranker: The version.
        request: The request.
        session: The session, with its history, its user, and what was shown if the request does not say it.
        given: The fields of the request; those of the session count where it has its own.
        name: The session's name; None if it has none.
        epsilon: Probability of a uniformly random item at each rank.
        most: Maximum number of candidates.
        generator: Source of exploration.

    Raises:
        InputError: If candidates repeat or are too many, or a behaviour or a feature is unknown.
        msgspec.MsgspecError: If the candidates cannot be decoded.
        RankingFailedError: If the version fails for any other reason.
    """
    shown = session.shown if request.shown is None else steps_as_text(request.shown, "shown")
    if request.shown is None:
        given = given._replace(shown_context=session.shown_context)
    given = given._replace(user_features=session.user_features)
    candidates = ranker.reader.read(request.candidates, request.k, most)
    count, unknown = len(candidates.rows), int(np.count_nonzero(candidates.rows == UNKNOWN_ROW))
    uniform = generator.random((min(request.k, count), 2))
    arguments: dict[str, Any] = {"k": request.k, "epsilon": epsilon, "uniform": uniform, "session": name, "given": given}
    try:
        items = ranker.rank(session.history, candidates, shown, **arguments)
    except MbcalError:
        raise
    except Exception as error:
        raise RankingFailedError(f"{type(error).__name__}: {error}") from error
    logged = candidates.logged(), candidates.logged_features()
    return RankedRequest(ranker.version.name, epsilon, session, shown, given, items, *logged, count, unknown)
