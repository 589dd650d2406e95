"""Requests and answers of the service as types, with the limits on lengths and values.

Names of items, behaviours, users, sessions and decisions are text or whole numbers; a number stands for its text. Request
types hold names as they were sent; the service converts them with `steps_as_text` and `mbcal.types.to_name`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from mbcal.types import Name, to_steps

Text = Annotated[str, Meta(min_length=1, max_length=256)]
WholeNumber = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
RequestName = Text | WholeNumber
"""A name in a request: 1 to 256 characters of text, or a 64-bit integer."""
FeatureText = Annotated[str, Meta(max_length=256)]
"""A value of a category."""
FeatureList = Annotated[list[float | int | FeatureText | bool | None], Meta(max_length=8192)]
FeatureValue = FeatureText | float | int | bool | FeatureList | None
"""A feature in a request: a value of a category or a list of them, a number, or a vector."""
RequestStep = tuple[RequestName, RequestName]
"""(item, behaviour)."""
MAX_STEPS = 1000
"""Maximum number of steps of a history, and of a session, in a request."""


class CandidateItem(msgspec.Struct, forbid_unknown_fields=True):
    """A candidate with its features, by which it is scored if the version does not know the item."""

    item: RequestName
    features: Annotated[dict[str, FeatureValue], Meta(max_length=256)] = {}
    """Feature -> value: text or a list of texts for a category, a number, or a list of numbers for a vector."""


RequestCandidate = RequestName | CandidateItem
"""A candidate in a request: the name of an item, or an item with its features."""


RequestFields = Annotated[dict[str, FeatureValue], Meta(max_length=256)]
"""Fields of a user or of a step: name -> text or a whole number for a category, a number, a list of numbers for a vector."""


class RankRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One user's request, with the arguments of `Agent.rank` in their order.

    With `session`, the service remembers what was shown and the feedback on it; history and user are taken from the
    session's first request. Without it, the client sends history and shown in every request.
    """

    history: Annotated[list[RequestStep], Meta(max_length=MAX_STEPS)] = []
    """What the user did before the session, oldest first."""
    candidates: Annotated[list[RequestCandidate], Meta(min_length=1, max_length=10_000)]
    """Items to rank, each once: names, or objects with the features of items that the service may not know."""
    shown: Annotated[list[RequestStep], Meta(max_length=MAX_STEPS)] | None = None
    """What was shown in the session so far, oldest first; null for what the service remembers of the session."""
    k: Annotated[int, Meta(ge=1, le=1000)] = 10
    """Maximum number of items in the answer."""
    session: RequestName | None = None
    user: RequestName | None = None
    """Recorded in the decision log; ranking does not depend on it."""
    context: RequestFields = {}
    """What is known about the step to come, such as `{"device": "tv", "hour": 20}`: fields that the model declares."""
    user_features: RequestFields = {}
    """What is known about the user, likewise. With a session, those of its first request count."""
    shown_context: Annotated[list[RequestFields], Meta(max_length=MAX_STEPS)] = []
    """The context of each step in `shown`; empty if it is not known. The service remembers it for its sessions."""
    id: RequestName | None = None
    """Chosen by the client: a repeated request with the same id gets the same answer and is logged once."""


class UndecodedRankRequest(RankRequest, kw_only=True):
    """A `RankRequest` whose candidates are left as JSON, for `candidates.CandidateReader`."""

    candidates: msgspec.Raw  # type: ignore[assignment]


class RankBatch(msgspec.Struct, forbid_unknown_fields=True):
    """Requests of several users in one call."""

    batch: Annotated[list[RankRequest], Meta(min_length=1, max_length=256)]


class RankedItem(msgspec.Struct):
    """One item of an answer."""

    item: str
    score: float
    parts: dict[str, float]
    """Terms that add up to the score, such as instant and future."""
    propensity: float
    """Probability of this item at this rank, given the items before it."""
    known: bool
    """Whether the item occurred in training."""


class RankAnswer(msgspec.Struct):
    """The ranked items of one request."""

    decision: str
    """Id of the decision, to be sent with feedback."""
    version: str
    epsilon: float
    items: list[RankedItem]
    """At most k items, in the order in which they are to be shown."""
    remembered: bool = True
    """False if sessions cannot be remembered at the moment: send history and shown with the next request, and the item with
    feedback."""


class TryAnswer(msgspec.Struct):
    """The items of a request that was only tried."""

    version: str
    items: list[RankedItem]
    """At most k items, best first."""


class RankAnswers(msgspec.Struct):
    """Answers to a `RankBatch`, in its order."""

    answers: list[RankAnswer]


class FeedbackRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The behaviour of a user towards an item that was shown."""

    decision: RequestName
    behaviour: RequestName
    item: RequestName | None = None
    """An item of the decision; null for its first."""


class FeedbackBatch(msgspec.Struct, forbid_unknown_fields=True):
    """Feedback on several items in one call."""

    batch: Annotated[list[FeedbackRequest], Meta(min_length=1, max_length=1024)]


class FeedbackAnswer(msgspec.Struct, omit_defaults=True):
    """Confirms that feedback was logged."""

    decision: str
    applied: bool
    """Whether the session has this behaviour; false if the decision or its session has expired, or another came first."""
    first: str | None = None
    """The behaviour that was reported on the item before, if it was another one: that one counts."""


class FeedbackAnswers(msgspec.Struct):
    """Answers to a `FeedbackBatch`, in its order."""

    answers: list[FeedbackAnswer]


class EpsilonRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The exploration rate from now on."""

    epsilon: Annotated[float, Meta(ge=0, le=1)]


class EpsilonAnswer(msgspec.Struct):
    """The exploration rate in force."""

    epsilon: float


class ModelAnswer(msgspec.Struct):
    """The live version."""

    version: str
    agent: str
    items: int
    """Number of items in the catalogue."""
    behaviours: list[str]
    rewards: list[float]
    """Reward of every behaviour."""
    metrics: dict[str, Any]
    """Metrics given when the version was published."""
    parent: str | None
    """The version that was live when this one was published."""
    epsilon: float
    refused: dict[str, str]
    """Versions that could not be opened, with the reason."""
    context: dict[str, str] = {}
    """Fields of steps that requests may carry, with their kinds."""
    user_features: dict[str, str] = {}
    """Fields of users that requests may carry, with their kinds."""
    examples: list[str] = []
    """A few items of the catalogue, to try the service by hand."""


class AliveAnswer(msgspec.Struct):
    """The process answers requests."""

    alive: bool = True


class ReadyAnswer(msgspec.Struct):
    """The service ranks with this version."""

    version: str
    registry_age: float
    """Seconds since the registry was last read without an error."""
    problems: list[str]
    """What does not work at the moment, in sentences; requests are served all the same."""


class Problem(msgspec.Struct):
    """Why a request was refused, in one sentence."""

    error: str


def steps_as_text(steps: Sequence[tuple[Name, Name]], what: str) -> tuple[tuple[str, str], ...]:
    """Return (item, behaviour) pairs with numbers as their text.

    Args:
        steps: Pairs, as in a request.
        what: The field they are from, for the error.

    Raises:
        InputError: If a name is neither text nor a whole number.
    """
    if all(type(item) is str and type(behaviour) is str for item, behaviour in steps):  # the usual case, and fast
        return tuple(steps)  # type: ignore[arg-type]
    return tuple(to_steps(steps, what))  # type: ignore[arg-type]
