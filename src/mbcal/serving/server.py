"""HTTP for the service: a plain ASGI application, so that a request costs little more than its ranking.

Bodies are read up to the limit on their size, whatever their headers say, and only for a few seconds. When too many
requests are in progress, further ones are refused at once. Every refusal is JSON with one sentence.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import sys
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any

import msgspec

from mbcal.errors import InputError, LogFullError, MbcalError, OptionError
from mbcal.serving.endpoints import PAGE_FILES, ROUTES, Endpoints
from mbcal.serving.messages import Problem
from mbcal.serving.metrics import RequestMetrics
from mbcal.serving.routes import NAME_PART, Response, Route
from mbcal.serving.service import NotReadyError, Service

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Header = tuple[bytes, bytes]

MAX_CLIENTS = 10_000
"""Clients whose rate is tracked; the least recently seen are dropped."""


class RefusedError(Exception):
    """A request is refused with a status other than 200."""

    def __init__(self, status: int, error: str, headers: tuple[Header, ...] = ()) -> None:
        super().__init__(error)
        self.status, self.headers = status, headers


class App:
    """The ASGI application."""

    def __init__(self, service: Service, token: str | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Serve a service over HTTP.

        Args:
            service: The service.
            token: Bearer token of the /admin routes; None refuses them all.
            clock: Seconds, from any start, by which the rate of clients is limited.
        """
        self.service, self._token, self._clock = service, token, clock
        self.metrics = RequestMetrics()
        self._rates: OrderedDict[str, tuple[float, float]] = OrderedDict()
        endpoints = Endpoints(service, self.metrics)
        routes = (*ROUTES, *PAGE_FILES)
        self._routes = {(route.method, route.path): (route, partial(route.handler, endpoints)) for route in routes}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection: a request, or the start and stop of the server."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        """Open the live version before the first request, follow the registry, and close the service at the end."""
        await receive()
        await self.service.refresh_version()
        follower = asyncio.create_task(self.service.follow_registry())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        follower.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await follower
        await self.service.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        started, path = time.perf_counter(), scope["path"]
        headers: list[Header] = []
        try:
            status, body, media_type = await self._respond(scope, receive)
        except (RefusedError, MbcalError, msgspec.DecodeError, UnicodeError, RecursionError) as error:
            status, body, media_type = _refusal(error)
            headers += _refusal_headers(error, status)
            if status == 500:
                self.service.on_event("failed", path=path, error=str(error))
        seconds = time.perf_counter() - started if path.startswith("/v1/") else None
        self.metrics.record(path if status != 404 else "other", status, seconds if status != 404 else None)
        if path in ("/v1/rank", "/v1/feedback"):
            self.service.traffic.request(status, time.perf_counter() - started)
        headers += [(b"content-type", media_type.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _respond(self, scope: Scope, receive: Receive) -> Response:
        method, path = scope["method"], scope["path"]
        folder, _, name = path.rpartition("/")
        if (method, path) not in self._routes and (method, f"{folder}/{NAME_PART}") not in self._routes:
            raise self._no_route(path)
        route, handler = self._routes.get((method, path)) or self._routes[method, f"{folder}/{NAME_PART}"]
        self._admit(route, scope)
        self.metrics.in_progress += 1
        try:
            await asyncio.sleep(0)  # requests that arrived together are all admitted or refused before the first is handled
            return await handler(await self._body(receive) if method == "POST" else name.encode())
        finally:
            self.metrics.in_progress -= 1

    def _no_route(self, path: str) -> RefusedError:
        methods = [method for method, other in self._routes if other == path]
        if not methods:
            return RefusedError(404, f"{path}: no such path; see /openapi.json")
        allowed = ", ".join(methods)
        return RefusedError(405, f"{path}: takes {allowed} only", ((b"allow", allowed.encode()),))

    # ---- admission

    def _admit(self, route: Route, scope: Scope) -> None:
        """Raise RefusedError if the token is missing or a limit is reached."""
        if route.needs_token:
            self._require_token(scope)
        if not route.limited:
            return
        limits = self.service.limits
        if self.metrics.in_progress >= limits.max_in_progress:
            raise RefusedError(503, "too many requests are in progress; try again in a second")
        if limits.rate and not self._within_rate(str((scope.get("client") or ("?",))[0]), limits.rate):
            raise RefusedError(429, f"more than {limits.rate:g} requests per second; try again in a second")

    def _require_token(self, scope: Scope) -> None:
        if self._token is None:
            raise RefusedError(403, "admin: disabled; start the server with --admin-token to enable it")
        authorization = dict(scope["headers"]).get(b"authorization", b"")
        if not hmac.compare_digest(authorization, f"Bearer {self._token}".encode()):
            raise RefusedError(401, "admin: wrong or missing token; send 'Authorization: Bearer TOKEN'")

    def _within_rate(self, client: str, rate: float) -> bool:
        """Take a token from the client's bucket, which holds one second's requests and refills at the rate."""
        now = self._clock()
        tokens, last = self._rates.pop(client, (rate, now))
        tokens = min(rate, tokens + (now - last) * rate)
        allowed = tokens >= 1
        self._rates[client] = (tokens - 1 if allowed else tokens, now)
        if len(self._rates) > MAX_CLIENTS:
            self._rates.popitem(last=False)
        return allowed

    async def _body(self, receive: Receive) -> bytes:
        parts, size, limits = [], 0, self.service.limits
        try:
            async with asyncio.timeout(limits.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise RefusedError(400, "the client disconnected before the body was complete")
                    part = message.get("body", b"")
                    size += len(part)
                    if size > limits.max_body:
                        raise RefusedError(413, f"the body is larger than {limits.max_body} bytes; send fewer candidates")
                    parts.append(part)
                    if not message.get("more_body"):
                        return b"".join(parts)
        except TimeoutError:
            raise RefusedError(408, f"the body was not sent within {limits.body_seconds:g} seconds") from None


def _refusal(error: Exception) -> Response:
    """The response to a request that failed with this error."""
    status, sentence = 500, str(error)
    if isinstance(error, RefusedError):
        status = error.status
    elif isinstance(error, InputError | OptionError | msgspec.ValidationError):
        status = 422
    elif isinstance(error, NotReadyError | LogFullError):
        status = 503
    elif not isinstance(error, MbcalError):  # RecursionError: deeply nested lists
        status, sentence = 400, f"the body is not valid JSON: {error}"
    return Response(status, msgspec.json.encode(Problem(sentence)))


def _refusal_headers(error: Exception, status: int) -> list[Header]:
    headers = list(error.headers) if isinstance(error, RefusedError) else []
    if status in (429, 503):
        headers.append((b"retry-after", b"1"))
    if status in (408, 413):
        headers.append((b"connection", b"close"))
    return headers


def print_event(event: str, **values: Any) -> None:
    """Print an event as one line of JSON on standard error."""
    print(json.dumps({"time": round(time.time(), 3), "event": event, **values}), file=sys.stderr, flush=True)
