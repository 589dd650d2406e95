"""What clients say and what the service answers, as types; limits of texts and lists are part of them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

Text = Annotated[str, Meta(min_length=1, max_length=256)]
"""A name: of an item, a user, a session, a decision."""
Pair = tuple[Text, Text]
"""(item, behaviour)."""
PAST = 1000
"""Steps of history, and of a session, that may be sent."""


class RankRequest(msgspec.Struct, forbid_unknown_fields=True):
    """One user's request.

    With `session` the service remembers what was shown and what came of it; the history is taken from the first request.
    Without, the client sends history and session whole, every time.
    """

    candidates: Annotated[list[Text], Meta(min_length=1, max_length=10_000)]
    k: Annotated[int, Meta(ge=1, le=1000)] = 10
    session: Text | None = None
    user: Text | None = None
    history: Annotated[list[Pair], Meta(max_length=PAST)] = []
    shown: Annotated[list[Pair], Meta(max_length=PAST)] | None = None
    id: Text | None = None
    """Chosen by the client: a repetition with the same id gets the same answer and is not logged again."""


class QuickRankRequest(RankRequest):
    """The same with the candidates as they stand in the body, to be read by whoever knows the items."""

    candidates: msgspec.Raw  # type: ignore[assignment]


class RankBatch(msgspec.Struct, forbid_unknown_fields=True):
    """Several users in one call."""

    batch: Annotated[list[RankRequest], Meta(min_length=1, max_length=256)]


class RankedItem(msgspec.Struct):
    """One item of an answer; `parts` add up to `score`."""

    item: str
    score: float
    parts: dict[str, float]
    propensity: float
    known: bool


class RankAnswer(msgspec.Struct):
    """The items in order; whoever shows them tells by `decision` what came of it."""

    decision: str
    version: str
    epsilon: float
    items: list[RankedItem]


class FeedbackRequest(msgspec.Struct, forbid_unknown_fields=True):
    """What came of an item shown: the first of the decision unless named."""

    decision: Text
    behaviour: Text
    item: Text | None = None


class FeedbackBatch(msgspec.Struct, forbid_unknown_fields=True):
    """Several in one call."""

    batch: Annotated[list[FeedbackRequest], Meta(min_length=1, max_length=1024)]


class FeedbackAnswer(msgspec.Struct):
    """`applied` is false where the session is no longer remembered; the feedback is in the log all the same."""

    decision: str
    applied: bool


class Problem(msgspec.Struct):
    """Why there is no answer."""

    error: str


class EpsilonRequest(msgspec.Struct, forbid_unknown_fields=True):
    """How often to explore from now on."""

    epsilon: Annotated[float, Meta(ge=0, le=1)]


def openapi(version: str) -> dict[str, Any]:
    """The OpenAPI document of the service."""
    kinds = (RankRequest, RankBatch, RankAnswer, FeedbackRequest, FeedbackBatch, FeedbackAnswer, Problem, EpsilonRequest)
    _, schemas = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")

    def body(*names: str) -> dict[str, Any]:
        refs = [{"$ref": f"#/components/schemas/{name}"} for name in names]
        schema = refs[0] if len(refs) == 1 else {"anyOf": refs}
        return {"content": {"application/json": {"schema": schema}}}

    def answers(said: dict[str, Any], *problems: str) -> dict[str, Any]:
        known = {"200": {"description": "done", **said}}
        return known | {code: {"description": "no answer", **body("Problem")} for code in problems}

    refused = ("400", "408", "413", "415", "422", "429", "503")
    answer_rank = {"oneOf": [{"$ref": "#/components/schemas/RankAnswer"}, _many("answers", "RankAnswer")]}
    answer_feedback = {"oneOf": [{"$ref": "#/components/schemas/FeedbackAnswer"}, _many("answers", "FeedbackAnswer")]}
    paths: dict[str, Any] = {
        "/v1/rank": {
            "post": {
                "operationId": "rank",
                "summary": "Rank candidates for one user, or several.",
                "requestBody": {"required": True, **body("RankRequest", "RankBatch")},
                "responses": answers({"content": {"application/json": {"schema": answer_rank}}}, *refused),
            }
        },
        "/v1/feedback": {
            "post": {
                "operationId": "feedback",
                "summary": "Tell what came of items shown; twice is as good as once.",
                "requestBody": {"required": True, **body("FeedbackRequest", "FeedbackBatch")},
                "responses": answers({"content": {"application/json": {"schema": answer_feedback}}}, *refused),
            }
        },
        "/v1/model": {"get": _plain("model", "The live version.", "503")},
        "/v1/stats": {"get": _plain("stats", "Traffic and reward per session, by version.", "503")},
        "/healthz": {"get": _plain("healthz", "Whether the process lives.")},
        "/readyz": {"get": _plain("readyz", "Whether it ranks.", "503")},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "mbcal", "version": version},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _many(name: str, of: str) -> dict[str, Any]:
    items = {"type": "array", "items": {"$ref": f"#/components/schemas/{of}"}}
    return {"type": "object", "properties": {name: items}, "required": [name]}


def _plain(name: str, summary: str, *problems: str) -> dict[str, Any]:
    said = {"200": {"description": "done", "content": {"application/json": {"schema": {"type": "object"}}}}}
    said |= {code: {"description": "not now"} for code in problems}
    return {"operationId": name, "summary": summary, "responses": said}
