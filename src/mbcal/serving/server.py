"""HTTP for the service: a plain ASGI application, so that a request costs little more than its ranking.

::

    Host and token ──▶ route ──▶ body read, up to its limits ──▶ slots taken (`admission`) ──▶ its turn (`turns`) ──▶ handler

Bodies are read up to the limit on their size, whatever their headers say, and only for a few seconds; a client that sends
slowly holds no slot. When too many requests are in progress, further ones are refused at once. Every refusal is JSON with
one sentence.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import traceback
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any

from mbcal.serving.access import NO_SNIFFING, Access, page_headers
from mbcal.serving.admission import Admission
from mbcal.serving.batches import is_batch, members_of
from mbcal.serving.clients import client_of, current_client
from mbcal.serving.endpoints import PAGE_FILES, ROUTES, Endpoints
from mbcal.serving.metrics import RequestMetrics
from mbcal.serving.refusals import Header, RefusedError, refusal, refusal_headers
from mbcal.serving.routes import HTML, NAME_PART, Response
from mbcal.serving.service import Service
from mbcal.serving.state import StateAwayError
from mbcal.serving.turns import LITTLE_WORK, Turns, work_of

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

LINGER_SECONDS = 1.0
"""Seconds for which the rest of a refused body is taken in."""
LINGER_BYTES = 8 << 20
"""Bytes of it."""
REPORT_SECONDS = 2.0
"""Seconds between two reports of a worker's metrics to the others."""


class App:
    """The ASGI application."""

    def __init__(self, service: Service, access: Access | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Serve a service over HTTP.

        Args:
            service: The service.
            access: Who may ask; by default anyone who uses a loopback name, without the /admin routes.
            clock: Seconds, from any start, by which the rate of clients is limited.
        """
        self.service, self.access = service, access or Access()
        self.metrics = RequestMetrics(self.access)
        self._admission = Admission(service.limits, self.metrics, clock)
        self._turns = Turns()
        self._logged_failures: set[str] = set()
        self._endpoints = endpoints = Endpoints(service, self.metrics)
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
        await self.service.follower.look()
        tasks = [asyncio.create_task(self.service.follower.run()), asyncio.create_task(self._report_metrics())]
        await send({"type": "lifespan.startup.complete"})
        await receive()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.service.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _report_metrics(self) -> None:
        """Report to the other workers, if there are any, until cancelled."""
        workers = self.service.workers
        while workers is not None:
            try:
                await workers.report(self.metrics.to_text(self.service))
                await workers.exchange(await self._endpoints.snapshot())
            except StateAwayError:
                pass
            except Exception as error:  # such as no memory, or no thread, left for the moment
                self._log_failure("report to the other workers", error)
            await asyncio.sleep(REPORT_SECONDS)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        started, path = time.perf_counter(), scope["path"]
        headers: list[Header] = [NO_SNIFFING]
        client = client_of((scope.get("client") or ("?",))[0])
        try:
            status, body, media_type = await self._respond(scope, receive, client)
        except (Exception, asyncio.CancelledError) as error:
            status, body, media_type = refusal(error, self.service.folders)
            headers += refusal_headers(error, status)
            if status == 500:
                self._log_failure(path, error)
        if media_type is HTML:
            headers += page_headers(body)
        seconds = time.perf_counter() - started
        self.metrics.record(scope.get("route", "other"), status, seconds if path.startswith("/v1/") else None)
        if path in ("/v1/rank", "/v1/feedback"):
            self.service.traffic.request(status, seconds)
        headers += [(b"content-type", media_type.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        closes_unread = scope.get("is_unread", False) and any(name == b"connection" for name, _ in headers)
        await send({"type": "http.response.body", "body": body, "more_body": closes_unread})
        if closes_unread:
            await self._discard(receive)
            await send({"type": "http.response.body"})

    async def _respond(self, scope: Scope, receive: Receive, client: str) -> Response:
        """Return the response to a request; raises what `refusal` makes one of."""
        try:
            return await self._handle(scope, receive, client)
        except RefusedError:  # it may have taken no turn yet, and whoever sends many such requests must not delay others
            await self._turns.take(f"{client} refused", LITTLE_WORK)
            raise

    async def _handle(self, scope: Scope, receive: Receive, client: str) -> Response:
        method: Any = "GET" if scope["method"] == "HEAD" else scope["method"]  # its answer is sent without the body
        scope["is_unread"] = method == "POST"  # its body
        path, headers = scope["path"], self.access.single_headers(scope["headers"])
        self.access.require_host(headers, (scope.get("server") or (None,))[0])
        folder, _, name = path.rpartition("/")
        found = self._routes.get((method, path)) or self._routes.get((method, f"{folder}/{NAME_PART}"))
        if self.access.token is not None or (found is not None and found[0].needs_token):
            await self.access.require_token(headers, None if found is None else found[0])
        if found is None:
            raise self._no_route(path)
        route, handler = found
        scope["route"] = route.path
        if method == "POST":
            self.access.require_json(headers)
        body = await self._body(scope, receive) if method == "POST" else name.encode()
        current_client.set(client)
        if route.is_probe:
            await self._turns.take(f"{client} probes", LITTLE_WORK)  # not behind what else the client asks
            return await handler(body)
        if not route.limited:
            await self._turns.take(client, work_of(body))
            return await handler(body)
        if method == "POST" and is_batch(body):
            await self._turns.take(client, work_of(body))  # to count its members is work, too
        members = members_of(body) if method == "POST" else 1
        slots = self._admission.take(members, client)
        try:
            turn = partial(self._turns.take, client, work_of(body) / members)
            await turn()  # requests that arrived together are all admitted or refused before the first is handled
            return await (handler(body, turn) if members > 1 else handler(body))
        finally:
            self._admission.release(slots, members, client)

    def _no_route(self, path: str) -> RefusedError:
        methods = [method for method, other in self._routes if other == path]
        if not methods:
            return RefusedError(404, f"{path[:200]}: no such path; see /openapi.json")
        allowed = ", ".join("GET, HEAD" if method == "GET" else method for method in methods)
        return RefusedError(405, f"{path}: takes {allowed} only", ((b"allow", allowed.encode()),))

    def _log_failure(self, path: str, error: BaseException) -> None:
        """Log a failure of the server, with its traceback the first time."""
        kind = f"{type(error).__name__}: {error}"[:200]
        details = {}
        if kind not in self._logged_failures and len(self._logged_failures) < 100:
            self._logged_failures.add(kind)
            details = {"traceback": "".join(traceback.format_exception(error))}
        self.service.on_event("failed", path=path[:200], error=kind, **details)

    async def _discard(self, receive: Receive) -> None:
        """Take in the rest of a body for a moment: a connection that is closed with bytes unread loses its answer."""
        size = 0
        with contextlib.suppress(TimeoutError, asyncio.CancelledError):
            async with asyncio.timeout(LINGER_SECONDS):
                while size < LINGER_BYTES and (message := await receive()).get("more_body"):
                    size += len(message["body"])

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        parts, size, limits = [], 0, self.service.limits
        try:
            async with asyncio.timeout(limits.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise RefusedError(400, "the client disconnected before the body was complete")
                    scope["is_unread"] = message.get("more_body", False)
                    part = message.get("body", b"")
                    size += len(part)
                    if size > limits.max_body:
                        raise RefusedError(413, f"the body is larger than {limits.max_body} bytes; send fewer candidates")
                    parts.append(part)
                    if not scope["is_unread"]:
                        return b"".join(parts)
        except TimeoutError:
            raise RefusedError(408, f"the body was not sent within {limits.body_seconds:g} seconds") from None
