"""The service from Python, typed, for threads (`Client`) and for asyncio (`AsyncClient`).

Every ranking carries an id of the client's own, so that asking again after a broken connection gives the first answer and
logs no second decision; feedback may be repeated anyhow. What the server refuses is raised as `ServiceError`.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Self

from mbcal.errors import OptionError, ServiceError

RETRY_STATUSES = (429, 502, 503, 504)
"""Answers after which it is worth asking again."""
FIRST_WAIT, LONGEST_WAIT = 0.05, 2.0


class _BaseClient:
    """What both clients say and understand; how bytes travel is theirs."""

    def __init__(self, address: str, timeout: float, retries: int) -> None:
        try:
            import httpx
            import msgspec  # noqa: F401 - told together with httpx if it is missing
        except ImportError as error:
            raise OptionError("client: needs httpx and msgspec; pip install 'mbcal[serve]'") from error
        self._httpx = httpx
        self._address, self._timeout, self._retries = address.rstrip("/"), timeout, retries

    def _ranking(self, candidates: Sequence[str], more: dict[str, Any]) -> bytes:
        from mbcal.serving.messages import RankRequest

        return _encoded(RankRequest(list(candidates), **more, id=uuid.uuid4().hex))

    def _telling(self, decision: str, behaviour: str, item: str | None) -> bytes:
        from mbcal.serving.messages import FeedbackRequest

        return _encoded(FeedbackRequest(decision, behaviour, item))

    def _waits(self) -> Iterator[float | None]:
        """Seconds to wait after each attempt that failed; None after the last."""
        wait = FIRST_WAIT
        for _ in range(self._retries):
            yield wait
            wait = min(2 * wait, LONGEST_WAIT)
        yield None

    def _understood(self, response: Any, kind: Any) -> Any:
        """The answer as a value of its kind; a refusal as an error."""
        import msgspec

        if response.status_code == 200:
            return msgspec.json.decode(response.content, type=kind)
        try:
            said = msgspec.json.decode(response.content)["error"]
        except (msgspec.DecodeError, KeyError, TypeError):
            said = response.text[:200]
        raise ServiceError(f"{response.request.url.path}: {said} (HTTP {response.status_code})", response.status_code)

    def _unreachable(self, error: Exception) -> ServiceError:
        return ServiceError(
            f"{self._address}: no answer ({error or type(error).__name__}); is 'mbcal serve' running there?", 0
        )


class Client(_BaseClient):
    """`Client("http://127.0.0.1:8000").rank([...], session="s1")`; close it, or use it in a `with`."""

    def __init__(self, address: str = "http://127.0.0.1:8000", *, timeout: float = 5.0, retries: int = 4) -> None:
        super().__init__(address, timeout, retries)
        self._http = self._httpx.Client(base_url=self._address, timeout=timeout)

    def rank(self, candidates: Sequence[str], **more: Any) -> Any:
        """A `RankAnswer`; options are those of `messages.RankRequest`: k, session, user, history, shown."""
        from mbcal.serving.messages import RankAnswer

        return self._understood(self._send("/v1/rank", self._ranking(candidates, more)), RankAnswer)

    def feedback(self, decision: str, behaviour: str, item: str | None = None) -> Any:
        """A `FeedbackAnswer`."""
        from mbcal.serving.messages import FeedbackAnswer

        return self._understood(self._send("/v1/feedback", self._telling(decision, behaviour, item)), FeedbackAnswer)

    def model(self) -> dict[str, Any]:
        """The live version."""
        made: dict[str, Any] = self._understood(self._send("/v1/model"), dict[str, Any])
        return made

    def _send(self, path: str, body: bytes | None = None) -> Any:
        for wait in self._waits():
            try:
                response = self._http.request(_VERBS[body is None], path, content=body, headers=_HEADERS)
                if wait is None or response.status_code not in RETRY_STATUSES:
                    return response
            except self._httpx.TransportError as error:
                if wait is None:
                    raise self._unreachable(error) from error
            time.sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient(_BaseClient):
    """The same for asyncio: `await client.rank([...])`, `async with AsyncClient(...)`."""

    def __init__(self, address: str = "http://127.0.0.1:8000", *, timeout: float = 5.0, retries: int = 4) -> None:
        super().__init__(address, timeout, retries)
        self._http = self._httpx.AsyncClient(base_url=self._address, timeout=timeout)

    async def rank(self, candidates: Sequence[str], **more: Any) -> Any:
        """A `RankAnswer`."""
        from mbcal.serving.messages import RankAnswer

        return self._understood(await self._send("/v1/rank", self._ranking(candidates, more)), RankAnswer)

    async def feedback(self, decision: str, behaviour: str, item: str | None = None) -> Any:
        """A `FeedbackAnswer`."""
        from mbcal.serving.messages import FeedbackAnswer

        return self._understood(await self._send("/v1/feedback", self._telling(decision, behaviour, item)), FeedbackAnswer)

    async def model(self) -> dict[str, Any]:
        """The live version."""
        made: dict[str, Any] = self._understood(await self._send("/v1/model"), dict[str, Any])
        return made

    async def _send(self, path: str, body: bytes | None = None) -> Any:
        for wait in self._waits():
            try:
                response = await self._http.request(_VERBS[body is None], path, content=body, headers=_HEADERS)
                if wait is None or response.status_code not in RETRY_STATUSES:
                    return response
            except self._httpx.TransportError as error:
                if wait is None:
                    raise self._unreachable(error) from error
            await asyncio.sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


_HEADERS = {"content-type": "application/json"}
_VERBS = ("POST", "GET")


def _encoded(message: Any) -> bytes:
    import msgspec

    return msgspec.json.encode(message)
