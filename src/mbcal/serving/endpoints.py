"""The routes of the service in one table, `ROUTES`, from which HTTP routing and the OpenAPI document are made."""

from __future__ import annotations

import asyncio
from functools import cache
from importlib.resources import files

import msgspec

from mbcal.serving.messages import (
    AliveAnswer,
    EpsilonAnswer,
    EpsilonRequest,
    FeedbackAnswer,
    FeedbackAnswers,
    FeedbackBatch,
    FeedbackRequest,
    ModelAnswer,
    RankAnswer,
    RankAnswers,
    RankBatch,
    RankRequest,
    ReadyAnswer,
    StatsAnswer,
    UndecodedRankRequest,
)
from mbcal.serving.metrics import RequestMetrics
from mbcal.serving.openapi import document
from mbcal.serving.routes import HTML, PROMETHEUS, Response, Route
from mbcal.serving.service import Service
from mbcal.version import __version__

_encode = msgspec.json.Encoder().encode
_decode_rank = msgspec.json.Decoder(UndecodedRankRequest).decode
_decode_rank_batch = msgspec.json.Decoder(RankBatch).decode
_decode_feedback = msgspec.json.Decoder(FeedbackRequest).decode
_decode_feedback_batch = msgspec.json.Decoder(FeedbackBatch).decode
_decode_epsilon = msgspec.json.Decoder(EpsilonRequest).decode


class Endpoints:
    """Handlers of the routes: from the body of a request to a response. Errors are left to `server.App`."""

    def __init__(self, service: Service, metrics: RequestMetrics) -> None:
        self._service, self._metrics = service, metrics

    async def rank(self, body: bytes) -> Response:
        if _is_batch(body):
            requests = _decode_rank_batch(body).batch
            return _ok(RankAnswers(await asyncio.gather(*map(self._service.rank, requests))))
        return _ok(await self._service.rank(_decode_rank(body)))

    async def feedback(self, body: bytes) -> Response:
        if _is_batch(body):
            requests = _decode_feedback_batch(body).batch
            return _ok(FeedbackAnswers(await asyncio.gather(*map(self._service.feedback, requests))))
        return _ok(await self._service.feedback(_decode_feedback(body)))

    async def model(self, _: bytes) -> Response:
        return _ok(self._service.model())

    async def stats(self, _: bytes) -> Response:
        return _ok(self._service.stats())

    async def health(self, _: bytes) -> Response:
        return _ok(AliveAnswer())

    async def ready(self, _: bytes) -> Response:
        return _ok(ReadyAnswer(self._service.live.version.name))

    async def metrics(self, _: bytes) -> Response:
        return Response(200, self._metrics.to_text(self._service).encode(), PROMETHEUS)

    async def openapi(self, _: bytes) -> Response:
        return Response(200, _openapi_json())

    async def page(self, _: bytes) -> Response:
        return Response(200, _page(), HTML)

    async def reload(self, _: bytes) -> Response:
        self._service.refused.clear()
        await self._service.refresh_version()
        return _ok(self._service.model())

    async def set_epsilon(self, body: bytes) -> Response:
        self._service.epsilon = _decode_epsilon(body).epsilon
        self._service.on_event("epsilon", epsilon=self._service.epsilon)
        return _ok(EpsilonAnswer(self._service.epsilon))


ROUTES = (
    Route(
        "POST",
        "/v1/rank",
        Endpoints.rank,
        "Rank candidates for one user, or for several.",
        request=(RankRequest, RankBatch),
        response=(RankAnswer, RankAnswers),
        needs_version=True,
    ),
    Route(
        "POST",
        "/v1/feedback",
        Endpoints.feedback,
        "Report the behaviour towards one item that was shown, or several. Idempotent.",
        request=(FeedbackRequest, FeedbackBatch),
        response=(FeedbackAnswer, FeedbackAnswers),
        needs_version=True,
    ),
    Route("GET", "/v1/model", Endpoints.model, "Describe the live version.", response=(ModelAnswer,), needs_version=True),
    Route("GET", "/v1/stats", Endpoints.stats, "Traffic and reward per session, by version.", response=(StatsAnswer,)),
    Route("GET", "/healthz", Endpoints.health, "Whether the process answers.", response=(AliveAnswer,)),
    Route("GET", "/readyz", Endpoints.ready, "Whether a version is live.", response=(ReadyAnswer,), needs_version=True),
    Route("GET", "/metrics", Endpoints.metrics, "Metrics in Prometheus' text format.", media_type=PROMETHEUS),
    Route("GET", "/openapi.json", Endpoints.openapi, "This document.", response=(dict,)),
    Route("GET", "/", Endpoints.page, "A page to rank by hand.", media_type=HTML),
    Route(
        "POST",
        "/admin/reload",
        Endpoints.reload,
        "Read the registry now, and try refused versions again.",
        response=(ModelAnswer,),
        needs_version=True,
    ),
    Route(
        "POST",
        "/admin/epsilon",
        Endpoints.set_epsilon,
        "Set the exploration rate.",
        request=(EpsilonRequest,),
        response=(EpsilonAnswer,),
    ),
)
"""All routes of the service."""


def _ok(answer: msgspec.Struct) -> Response:
    return Response(200, _encode(answer))


def _is_batch(body: bytes) -> bool:
    """Whether the first key is `batch`; a single request has no such key."""
    return body[:64].lstrip(b" \t\r\n{").startswith(b'"batch"')


@cache
def _openapi_json() -> bytes:
    return _encode(document(ROUTES, __version__))


@cache
def _page() -> bytes:
    return files("mbcal.serving").joinpath("page/index.html").read_bytes()
