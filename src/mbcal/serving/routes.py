"""What a route of the service is; the table of routes is `endpoints.ROUTES`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

JSON = "application/json"
HTML = "text/html; charset=utf-8"
CSS = "text/css; charset=utf-8"
JAVASCRIPT = "text/javascript; charset=utf-8"
NAME_PART = "{name}"
"""The last part of a path that stands for any name: `/updates/{name}`."""
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class Response(NamedTuple):
    """An answer, ready to be sent."""

    status: int
    body: bytes
    media_type: str = JSON


@dataclass(frozen=True)
class Route:
    """One path and method: what handles it and what the OpenAPI document says about it."""

    method: Literal["GET", "POST"]
    path: str
    handler: Callable[..., Awaitable[Response]]
    """A method of `endpoints.Endpoints`, called with the request's body, or with what stands for NAME_PART in its path, and
    for a batch with the turns that its members take; its name is the OpenAPI operation id."""
    summary: str
    request: tuple[type, ...] = ()
    """Types of the body, one of which it must be; none if there is no body."""
    response: tuple[type, ...] = ()
    """Types of the answer, one of which it is; none if it is not JSON."""
    media_type: str = JSON
    needs_version: bool = False
    """Whether it answers 503 if no version is live."""

    @property
    def needs_token(self) -> bool:
        """Whether the admin token is required."""
        return self.path.startswith("/admin/")

    @property
    def has_name(self) -> bool:
        """Whether the last part of the path is any name."""
        return self.path.endswith(NAME_PART)

    @property
    def limited(self) -> bool:
        """Whether the limits on requests in progress and on the rate of a client apply."""
        return self.path.startswith("/v1/")

    @property
    def is_probe(self) -> bool:
        """Whether a request waits only for other probes of its client: a busy server is alive."""
        return self.path in ("/healthz", "/readyz")

    @property
    def problems(self) -> tuple[int, ...]:
        """Statuses with which a request may be refused."""
        statuses = {400, 401, 421} | ({408, 413, 415} if self.method == "POST" else set())
        if self.request:
            statuses |= {422}
        if self.path == "/v1/rank":  # another request had its id, or another user its session
            statuses |= {409}
        if self.has_name:
            statuses |= {404, 503}
        if self.needs_token:
            statuses |= {403}
        if self.limited:
            statuses |= {429, 503}
        if self.needs_version:
            statuses |= {503}
        return tuple(sorted(statuses))
