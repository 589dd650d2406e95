"""The routes of the service in one table, `ROUTES`, from which HTTP routing and the OpenAPI document are made."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache

import msgspec

from mbcal.errors import InputError
from mbcal.pages import page_file
from mbcal.registry.updates import read_update_page
from mbcal.serving.batches import Turn, handle_members, is_batch, no_turn
from mbcal.serving.hub import Notice
from mbcal.serving.messages import (
    AliveAnswer,
    EpsilonAnswer,
    EpsilonRequest,
    FeedbackAnswer,
    FeedbackAnswers,
    FeedbackBatch,
    FeedbackRequest,
    ModelAnswer,
    Problem,
    RankAnswer,
    RankAnswers,
    RankBatch,
    RankRequest,
    ReadyAnswer,
    TryAnswer,
    UndecodedRankRequest,
)
from mbcal.serving.metrics import RequestMetrics, merge_metrics
from mbcal.serving.openapi import document
from mbcal.serving.pool import LogStats, Snapshot, pool_of_one, snapshot_of
from mbcal.serving.readiness import ready_answer
from mbcal.serving.refusals import RefusedError
from mbcal.serving.routes import CSS, HTML, JAVASCRIPT, NAME_PART, PROMETHEUS, Response, Route
from mbcal.serving.service import Service
from mbcal.serving.stats import RegistryAnswer, Shared, StatsAnswer, log_stats, registry_answer, stats_answer
from mbcal.serving.threads import in_thread
from mbcal.version import __version__

_encode = msgspec.json.Encoder().encode
_decode_rank = msgspec.json.Decoder(UndecodedRankRequest).decode
_decode_rank_batch = msgspec.json.Decoder(RankBatch).decode
_decode_feedback = msgspec.json.Decoder(FeedbackRequest).decode
_decode_feedback_batch = msgspec.json.Decoder(FeedbackBatch).decode
_decode_epsilon = msgspec.json.Decoder(EpsilonRequest).decode

STATS_SECONDS = 1.0
"""Seconds for which a worker gives the same `/v1/stats`: the supervisor, whom all requests need, works for each new one."""
DRIVE_SECONDS = 1.0
"""Longest wait for the drive of the registry, or of the log, by whoever asks what is on it."""
FOLDER_SECONDS = 2.0
"""Seconds for which what was read of a folder is given again."""
MAX_PAGES = 16
"""Pages of updates that are read at a time."""


class Endpoints:
    """Handlers of the routes: from the body of a request to a response. Errors are left to `server.App`."""

    def __init__(self, service: Service, metrics: RequestMetrics) -> None:
        self._service, self._metrics = service, metrics
        log = service.log
        self._log_stats = (
            None
            if log is None
            else Shared(lambda: in_thread(log_stats, log.folder, log.waiting), FOLDER_SECONDS, DRIVE_SECONDS)
        )
        self._read_registry = Shared(lambda: in_thread(registry_answer, service.registry), FOLDER_SECONDS, DRIVE_SECONDS)
        self._registry = RegistryAnswer(None, None, None, [], [], [])  # as it was read last
        self._pages: set[asyncio.Future[bytes]] = set()  # that are being read
        self._stats_of_workers = Shared(self._exchange_stats, STATS_SECONDS)

    async def rank(self, body: bytes, turn: Turn = no_turn) -> Response:
        if is_batch(body):
            requests, at_a_time = _decode_rank_batch(body).batch, self._service.limits.batch_slots
            return _ok(RankAnswers(await handle_members(self._service.rank, requests, at_a_time, turn)))
        return _ok(await self._service.rank(_decode_rank(body)))

    async def try_rank(self, body: bytes, _: Turn = no_turn) -> Response:
        return _ok(self._service.try_rank(_decode_rank(body)))

    async def feedback(self, body: bytes, turn: Turn = no_turn) -> Response:
        if is_batch(body):
            requests, at_a_time = _decode_feedback_batch(body).batch, self._service.limits.batch_slots
            return _ok(FeedbackAnswers(await handle_members(self._service.feedback, requests, at_a_time, turn)))
        return _ok(await self._service.feedback(_decode_feedback(body)))

    async def model(self, _: bytes) -> Response:
        return _ok(self._service.model())

    async def stats(self, _: bytes) -> Response:
        service = self._service
        if service.workers is not None:
            return await self._stats_of_workers()
        return _ok(stats_answer(service, pool_of_one(await self.snapshot(), service.traffic.rewards)))

    async def _exchange_stats(self) -> Response:
        assert self._service.workers is not None  # noqa: S101 - `stats` has looked
        return _ok(stats_answer(self._service, await self._service.workers.exchange(await self.snapshot())))

    async def snapshot(self) -> Snapshot:
        """Return what this process has counted, for the other workers."""
        log = None
        if self._log_stats is not None and self._service.log is not None:
            try:
                log = await self._log_stats()
            except TimeoutError:
                log = LogStats(None, None, None, self._service.log.waiting)
        return snapshot_of(self._service, log)

    async def registry(self, _: bytes) -> Response:
        try:
            answer = self._registry = await self._read_registry()
        except TimeoutError:
            problem = "the drive of the registry does not answer; this is what was read of it before"
            answer = msgspec.structs.replace(self._registry, problem=problem)
        return _ok(answer)

    async def update_page(self, name: bytes) -> Response:
        if len(self._pages) < MAX_PAGES:
            page = asyncio.ensure_future(in_thread(read_update_page, self._service.registry.path, name.decode()))
            self._pages.add(page)
            page.add_done_callback(self._pages.discard)
            await asyncio.wait([page], timeout=DRIVE_SECONDS)
            if page.done():
                try:
                    return Response(200, page.result(), HTML)
                except InputError as error:
                    return Response(404, _encode(Problem(str(error))))
        raise RefusedError(503, "the pages of updates cannot be read at the moment; try again in a second")

    async def health(self, _: bytes) -> Response:
        return _ok(AliveAnswer())

    async def ready(self, _: bytes) -> Response:
        return _ok(ready_answer(self._service))

    async def metrics(self, _: bytes) -> Response:
        text = self._metrics.to_text(self._service)
        if self._service.workers is not None:
            reported = await self._service.workers.report(text)
            text = merge_metrics(reported.texts, reported.restarts)
        return Response(200, text.encode(), PROMETHEUS)

    async def openapi(self, _: bytes) -> Response:
        return Response(200, _openapi_json())

    async def reload(self, _: bytes) -> Response:
        self._service.refused.clear()
        if self._service.workers is not None:
            await self._service.workers.notify(Notice(reload=True))
        await self._service.follower.look()
        return _ok(self._service.model())

    async def set_epsilon(self, body: bytes) -> Response:
        epsilon = _decode_epsilon(body).epsilon
        if self._service.workers is not None:
            await self._service.workers.notify(Notice(epsilon))
        self._service.epsilon = epsilon
        self._service.on_event("epsilon", epsilon=self._service.epsilon)
        return _ok(EpsilonAnswer(self._service.epsilon))


def _static(operation: str, package: str, name: str, media_type: str) -> Callable[[Endpoints, bytes], Awaitable[Response]]:
    """Return the handler of a file that is part of the package."""

    async def handler(_: Endpoints, __: bytes) -> Response:
        return Response(200, page_file(package, name), media_type)

    handler.__name__ = operation
    return handler


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
        "/v1/try",
        Endpoints.try_rank,
        "Rank candidates by the live version, without exploration. Nothing is logged, remembered or counted as traffic.",
        request=(RankRequest,),
        response=(TryAnswer,),
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
    Route(
        "GET",
        "/v1/registry",
        Endpoints.registry,
        "Versions of the registry, and the last updates.",
        response=(RegistryAnswer,),
    ),
    Route("GET", f"/updates/{NAME_PART}", Endpoints.update_page, "The page of an update: NNNNNN.html.", media_type=HTML),
    Route("GET", "/", _static("page", "mbcal.serving", "page.html", HTML), "A page for the operator.", media_type=HTML),
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
"""The routes of the service."""

PAGE_FILES = tuple(
    Route("GET", f"/page/{name}", _static(name, package, name, kind), "A file of the page.", media_type=kind)
    for package, name, kind in (
        ("mbcal.pages", "base.css", CSS),
        ("mbcal.pages", "base.js", JAVASCRIPT),
        ("mbcal.pages", "charts.js", JAVASCRIPT),
        ("mbcal.serving", "page.css", CSS),
        ("mbcal.serving", "page.js", JAVASCRIPT),
        ("mbcal.serving", "rank.js", JAVASCRIPT),
    )
)
"""Routes of files that the page loads; they hold no data and are not in the OpenAPI document."""


def _ok(answer: msgspec.Struct) -> Response:
    return Response(200, _encode(answer))


@cache
def _openapi_json() -> bytes:
    return _encode(document(ROUTES, __version__))
