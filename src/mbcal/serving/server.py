"""HTTP around the service: plain ASGI, so that a request costs little more than its ranking.

Bodies are read no further than the limit, whatever their headers say, and no longer than a few seconds; whoever comes when
too many are being served is told at once to come again. Every answer is JSON; a mistake is one sentence.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import sys
import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from importlib.resources import files
from typing import Any

import msgspec

from mbcal.errors import InputError, LogFullError, MbcalError, OptionError
from mbcal.serving.messages import (
    EpsilonRequest,
    FeedbackBatch,
    FeedbackRequest,
    Problem,
    QuickRankRequest,
    RankBatch,
    openapi,
)
from mbcal.serving.service import NotReadyError, Service
from mbcal.version import __version__

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Answer = tuple[int, bytes, str]
"""Status, body, content type."""

JSON, TEXT, HTML = "application/json", "text/plain; version=0.0.4; charset=utf-8", "text/html; charset=utf-8"
BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)
"""Of the histogram of seconds a request took."""

_encode = msgspec.json.Encoder().encode
_rank_one, _rank_many = msgspec.json.Decoder(QuickRankRequest), msgspec.json.Decoder(RankBatch)
_feedback_one, _feedback_many = msgspec.json.Decoder(FeedbackRequest), msgspec.json.Decoder(FeedbackBatch)
_epsilon = msgspec.json.Decoder(EpsilonRequest)


class RefusedError(Exception):
    """An answer that is not the one asked for."""

    def __init__(self, status: int, error: str) -> None:
        super().__init__(error)
        self.status, self.error = status, error


class App:
    """The ASGI application."""

    def __init__(self, service: Service, token: str | None = None) -> None:
        self.service, self._token = service, token
        self._at_work = 0
        self._counts: dict[tuple[str, int], int] = {}
        self._seconds = [0] * (len(BUCKETS) + 1)
        self._total = 0.0
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._page = files("mbcal.serving").joinpath("page/index.html").read_bytes()
        self._openapi = _encode(openapi(__version__))
        self._follower: asyncio.Task[None] | None = None
        self._routes: dict[tuple[str, str], Callable[[bytes], Awaitable[Answer]]] = {
            ("POST", "/v1/rank"): self._rank,
            ("POST", "/v1/feedback"): self._feedback,
            ("GET", "/v1/model"): self._model,
            ("GET", "/v1/stats"): self._stats,
            ("GET", "/healthz"): self._health,
            ("GET", "/readyz"): self._ready,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/openapi.json"): self._document,
            ("GET", "/"): self._human,
            ("POST", "/admin/reload"): self._reload,
            ("POST", "/admin/epsilon"): self._set_epsilon,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        """Start and stop: the first version is opened before the first request is taken."""
        await receive()
        await self.service.refresh_version()
        self._follower = asyncio.create_task(self.service.follow_registry())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self._follower.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._follower
        await self.service.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        began, path, method = time.perf_counter(), scope["path"], scope["method"]
        headers: list[tuple[bytes, bytes]] = []
        try:
            work = self._routes.get((method, path))
            if work is None:
                known = [verb for verb, place in self._routes if place == path]
                if not known:
                    raise RefusedError(404, f"there is no {path}; see /openapi.json")
                headers.append((b"allow", ", ".join(known).encode()))
                raise RefusedError(405, f"{path} takes {' or '.join(known)}")
            self._admit(scope, path)
            self._at_work += 1
            try:
                await asyncio.sleep(0)  # all who came just now are counted, or refused, before the first of them is served
                body = await self._body(receive) if method == "POST" else b""
                status, content, kind = await work(body)
            finally:
                self._at_work -= 1
        except RefusedError as refused:
            status, content, kind = refused.status, _encode(Problem(refused.error)), JSON
        except (InputError, OptionError) as error:
            status, content, kind = 422, _encode(Problem(str(error))), JSON
        except (NotReadyError, LogFullError) as error:
            status, content, kind = 503, _encode(Problem(str(error))), JSON
        except msgspec.ValidationError as error:
            status, content, kind = 422, _encode(Problem(str(error))), JSON
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:  # the last: lists in lists in lists
            status, content, kind = 400, _encode(Problem(f"the body is no JSON of ours: {error}")), JSON
        except MbcalError as error:
            status, content, kind = 500, _encode(Problem(str(error))), JSON
            self.service.on_event("failed", path=path, error=str(error))
        if status in (429, 503):
            headers.append((b"retry-after", b"1"))
        if status in (408, 413):
            headers.append((b"connection", b"close"))
        seconds = time.perf_counter() - began
        self._note(path if status != 404 else "other", status, seconds)
        headers += [(b"content-type", kind.encode()), (b"content-length", str(len(content)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    # ---- who may come in

    def _admit(self, scope: Scope, path: str) -> None:
        if path.startswith("/admin/"):
            self._require_token(scope)
        if not path.startswith("/v1/"):
            return
        if self._at_work >= self.service.limits.at_once:
            raise RefusedError(503, "too many requests are being served; come again in a second")
        rate = self.service.limits.rate
        if rate and not self._may(str((scope.get("client") or ("?",))[0]), rate):
            raise RefusedError(429, f"more than {rate:g} requests a second; come again in a second")

    def _require_token(self, scope: Scope) -> None:
        given = dict(scope["headers"]).get(b"authorization", b"")
        if self._token is None:
            raise RefusedError(403, "admin: the server was started without --admin-token, so nobody may")
        if not hmac.compare_digest(given, f"Bearer {self._token}".encode()):
            raise RefusedError(401, "admin: send the token as 'Authorization: Bearer TOKEN'")

    def _may(self, client: str, rate: float) -> bool:
        """A bucket a client, filled at the rate, a second's worth deep."""
        now = time.monotonic()
        full, last = self._buckets.pop(client, (rate, now))
        full = min(rate, full + (now - last) * rate)
        self._buckets[client] = (full - 1 if full >= 1 else full, now)
        if len(self._buckets) > 10_000:
            self._buckets.popitem(last=False)
        return full >= 1

    async def _body(self, receive: Receive) -> bytes:
        parts, size, limits = [], 0, self.service.limits
        try:
            async with asyncio.timeout(limits.seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise RefusedError(400, "the client went away")
                    part = message.get("body", b"")
                    size += len(part)
                    if size > limits.body:
                        raise RefusedError(413, f"the body is larger than {limits.body} bytes")
                    parts.append(part)
                    if not message.get("more_body"):
                        return b"".join(parts)
        except TimeoutError:
            raise RefusedError(408, f"the body was not sent within {limits.seconds:g} seconds") from None

    # ---- what can be asked

    async def _rank(self, body: bytes) -> Answer:
        if _is_batch(body):
            asked = _rank_many.decode(body).batch
            return 200, _encode({"answers": await asyncio.gather(*map(self.service.rank, asked))}), JSON
        return 200, _encode(await self.service.rank(_rank_one.decode(body))), JSON

    async def _feedback(self, body: bytes) -> Answer:
        if _is_batch(body):
            told = _feedback_many.decode(body).batch
            return 200, _encode({"answers": await asyncio.gather(*map(self.service.feedback, told))}), JSON
        return 200, _encode(await self.service.feedback(_feedback_one.decode(body))), JSON

    async def _model(self, _: bytes) -> Answer:
        return 200, _encode(self.service.model()), JSON

    async def _stats(self, _: bytes) -> Answer:
        return 200, _encode(self.service.stats()), JSON

    async def _health(self, _: bytes) -> Answer:
        return 200, b'{"alive":true}', JSON

    async def _ready(self, _: bytes) -> Answer:
        return 200, _encode({"version": self.service.live.version.name}), JSON

    async def _document(self, _: bytes) -> Answer:
        return 200, self._openapi, JSON

    async def _human(self, _: bytes) -> Answer:
        return 200, self._page, HTML

    async def _reload(self, _: bytes) -> Answer:
        self.service.refused.clear()
        await self.service.refresh_version()
        return 200, _encode(self.service.model()), JSON

    async def _set_epsilon(self, body: bytes) -> Answer:
        self.service.epsilon = _epsilon.decode(body).epsilon
        self.service.on_event("epsilon", epsilon=self.service.epsilon)
        return 200, _encode({"epsilon": self.service.epsilon}), JSON

    # ---- numbers

    def _note(self, path: str, status: int, seconds: float) -> None:
        self._counts[path, status] = self._counts.get((path, status), 0) + 1
        if path.startswith("/v1/"):
            self._total += seconds
            self._seconds[bisect_left(BUCKETS, seconds)] += 1

    async def _metrics(self, _: bytes) -> Answer:
        """Prometheus' text format."""
        lines = ["# TYPE mbcal_requests_total counter"]
        for (path, status), count in sorted(self._counts.items()):
            lines.append(f'mbcal_requests_total{{path="{path}",status="{status}"}} {count}')
        lines.append("# TYPE mbcal_request_seconds histogram")
        reached = 0
        for top, count in zip((*BUCKETS, "+Inf"), self._seconds, strict=True):
            reached += count
            lines.append(f'mbcal_request_seconds_bucket{{le="{top}"}} {reached}')
        lines += [f"mbcal_request_seconds_sum {self._total:.6f}", f"mbcal_request_seconds_count {reached}"]
        for name, kind in (("decisions", "counter"), ("sessions", "counter"), ("feedback", "counter"), ("reward", "gauge")):
            lines.append(f"# TYPE mbcal_{name} {kind}")
            lines += [
                f'mbcal_{name}{{version="{version}"}} {getattr(tally, name)}'
                for version, tally in self.service.tallies.items()
            ]
        live = self.service.ranker
        lines += ["# TYPE mbcal_at_work gauge", f"mbcal_at_work {self._at_work}"]
        lines += ["# TYPE mbcal_ready gauge", f"mbcal_ready {int(live is not None)}"]
        return 200, ("\n".join(lines) + "\n").encode(), TEXT


def _is_batch(body: bytes) -> bool:
    """Whether the first key is `batch`; a request has no such key."""
    return body[:64].lstrip(b" \t\r\n{").startswith(b'"batch"')


def json_lines(event: str, **more: Any) -> None:
    """One event a line, for machines."""
    said = {"time": round(time.time(), 3), "event": event, **more}
    print(json.dumps(said), file=sys.stderr, flush=True)
