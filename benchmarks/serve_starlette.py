"""The service's HTTP layer on Starlette, with the behaviour of `mbcal.serving.server.App`: the rival of decision 16."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute

from mbcal.errors import InputError, LogFullError, MbcalError, OptionError
from mbcal.serving.endpoints import ROUTES, Endpoints
from mbcal.serving.messages import Problem
from mbcal.serving.metrics import RequestMetrics
from mbcal.serving.routes import Route
from mbcal.serving.service import NotReadyError, Service


# one function, as long as it is: its parts share the service, the token and the metrics
def starlette_app(service: Service, token: str | None = None) -> Starlette:
    """The routes of the service as a Starlette application."""
    metrics = RequestMetrics()
    endpoints, rates = Endpoints(service, metrics), {}

    def admit(route: Route, request: Request) -> None:
        if route.needs_token:
            if token is None:
                raise HTTPException(403, "admin: disabled; start the server with --admin-token to enable it")
            if not hmac.compare_digest(request.headers.get("authorization", "").encode(), f"Bearer {token}".encode()):
                raise HTTPException(401, "admin: wrong or missing token; send 'Authorization: Bearer TOKEN'")
        if not route.limited:
            return
        if metrics.in_progress >= service.limits.max_in_progress:
            raise HTTPException(503, "too many requests are in progress; try again in a second", {"retry-after": "1"})
        if service.limits.rate and not within_rate(request.client.host if request.client else "?"):
            raise HTTPException(429, "too many requests per second; try again in a second", {"retry-after": "1"})

    def within_rate(client: str) -> bool:
        now, rate = time.monotonic(), service.limits.rate
        tokens, last = rates.pop(client, (rate, now))
        tokens = min(rate, tokens + (now - last) * rate)
        rates[client] = (tokens - 1 if tokens >= 1 else tokens, now)
        if len(rates) > 10_000:
            rates.pop(next(iter(rates)))
        return tokens >= 1

    async def read(request: Request) -> bytes:
        parts, size = [], 0
        try:
            async with asyncio.timeout(service.limits.body_seconds):
                async for part in request.stream():
                    size += len(part)
                    if size > service.limits.max_body:
                        raise HTTPException(413, "the body is too large; send fewer candidates", {"connection": "close"})
                    parts.append(part)
        except TimeoutError:
            raise HTTPException(408, "the body was not sent in time", {"connection": "close"}) from None
        except ClientDisconnect:
            raise HTTPException(400, "the client disconnected before the body was complete") from None
        return b"".join(parts)

    def endpoint(route: Route) -> Any:
        handler = partial(route.handler, endpoints)

        async def respond(request: Request) -> Response:
            admit(route, request)
            metrics.in_progress += 1
            try:
                await asyncio.sleep(0)
                status, body, media_type = await handler(await read(request) if route.method == "POST" else b"")
            finally:
                metrics.in_progress -= 1
            return Response(body, status, media_type=media_type)

        return respond

    class Recording:
        """Middleware that counts requests and their duration."""

        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            started, status = time.perf_counter(), 500

            async def recording_send(message: Any) -> None:
                nonlocal status
                status = message.get("status", status)
                await send(message)

            await self.app(scope, receive, recording_send)
            if scope["type"] == "http":
                seconds = time.perf_counter() - started if scope["path"].startswith("/v1/") and status != 404 else None
                metrics.record(scope["path"] if status != 404 else "other", status, seconds)

    async def problem(request: Request, error: Exception) -> Response:
        status, sentence, headers = 500, str(error), {}
        if isinstance(error, HTTPException):
            status, sentence, headers = error.status_code, error.detail, dict(error.headers or {})
        elif isinstance(error, InputError | OptionError | msgspec.ValidationError):
            status = 422
        elif isinstance(error, NotReadyError | LogFullError):
            status, headers = 503, {"retry-after": "1"}
        elif not isinstance(error, MbcalError):
            status, sentence = 400, f"the body is not valid JSON: {error}"
        else:
            service.on_event("failed", path=request.url.path, error=sentence)
        return Response(msgspec.json.encode(Problem(sentence)), status, headers, "application/json")

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await service.refresh_version()
        follower = asyncio.create_task(service.follow_registry())
        yield
        follower.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await follower
        await service.close()

    handled = (HTTPException, MbcalError, msgspec.DecodeError, UnicodeError, RecursionError)
    return Starlette(
        routes=[StarletteRoute(route.path, endpoint(route), methods=[route.method]) for route in ROUTES],
        lifespan=lifespan,
        middleware=[Middleware(Recording)],
        exception_handlers=dict.fromkeys(handled, problem),
    )
