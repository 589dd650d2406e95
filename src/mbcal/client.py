"""The ranking service from Python, typed: `Client` for threads, `AsyncClient` for asyncio.

Every ranking carries an id chosen by the client, so that a repeated request after a broken connection gets the first
answer and is logged once; feedback is idempotent anyway. Requests the server refuses raise `ServiceError`.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from mbcal.errors import InputError, OptionError, ServiceError, printable
from mbcal.received import LATE, ReceivedAnswer
from mbcal.types import Name, Steps, to_name, to_names, to_steps
from mbcal.types.fields import Values

if TYPE_CHECKING:
    from mbcal.serving.messages import FeedbackAnswer, ModelAnswer, RankAnswer

RETRY_STATUSES = (429, 502, 503, 504)
"""Statuses after which a request is sent again."""
FIRST_WAIT, LONGEST_WAIT = 0.05, 2.0
"""Seconds between two attempts: doubled after each, up to the longest."""
DEFAULT_ADDRESS = "http://127.0.0.1:8000"

Candidate = Name | Mapping[str, Any]
"""An item's name, or `{"item": name, "features": {...}}`."""

_HEADERS = {"content-type": "application/json", "accept-encoding": "identity"}


class _BaseClient:
    """What both clients share: encoding, decoding, retries and errors."""

    def __init__(
        self, address: str, timeout: float, retries: int, token: str | None, certificate: str | Path | None
    ) -> None:
        try:
            import httpx
            import msgspec  # noqa: F401 - reported together with httpx if it is missing
        except ImportError as error:
            raise OptionError("client: needs httpx and msgspec; pip install 'mbcal[serve]'") from error
        self._httpx = httpx
        self._address, self._retries, self._timeout = address.rstrip("/"), retries, timeout
        self._shown = _without_password(self._address)
        try:
            httpx.URL(self._address)
        except httpx.InvalidURL as error:
            raise OptionError(f"address: {self._shown!r} is none ({error}); write http://HOST:PORT") from error
        token = (token or os.environ.get("MBCAL_TOKEN") or "").strip()
        if not (token.isascii() and token.isprintable()):
            raise OptionError("token: has a character that no server takes; give the token that the server was started with")
        self._headers = _HEADERS | ({"authorization": f"Bearer {token}"} if token else {})
        self._verify = _tls_context(certificate)

    def _waits(self) -> Iterator[float | None]:
        """Seconds to wait after each failed attempt; None after the last."""
        wait = FIRST_WAIT
        for _ in range(self._retries):
            yield wait
            wait = min(2 * wait, LONGEST_WAIT)
        yield None

    def _unreachable(self, error: Exception) -> ServiceError:
        reason = LATE if isinstance(error, TimeoutError) else str(error) or type(error).__name__
        return ServiceError(f"{self._shown}: no answer ({printable(reason)}); is 'mbcal serve' running there?", 0)


class Client(_BaseClient):
    """A connection to the service: `with Client("http://127.0.0.1:8000") as client: client.rank(history, candidates)`."""

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        timeout: float = 5.0,
        retries: int = 4,
        token: str | None = None,
        certificate: str | Path | None = None,
    ) -> None:
        """Prepare a connection; it is opened by the first request.

        Args:
            address: Where `mbcal serve` listens.
            timeout: Seconds in which an attempt must have its whole answer, and the longest pause within the answer's head.
            retries: How often a request is sent again after a broken connection or a status in `RETRY_STATUSES`.
            token: Token of a server that asks for one; by default that in the environment variable MBCAL_TOKEN.
            certificate: PEM file of the server's certificate, or of the authority that signed it; by default the
                authorities of the system are trusted.

        Raises:
            OptionError: If httpx or msgspec is not installed, the address or the token cannot be one, or the certificate
                cannot be read.
        """
        super().__init__(address, timeout, retries, token, certificate)
        self._http = self._httpx.Client(base_url=self._address, timeout=timeout, headers=self._headers, verify=self._verify)

    def rank(
        self,
        history: Steps,
        candidates: Sequence[Candidate],
        shown: Steps | None = None,
        *,
        k: int = 10,
        session: Name | None = None,
        user: Name | None = None,
        context: Values | None = None,
        user_features: Values | None = None,
    ) -> RankAnswer:
        """Rank candidates for one user.

        Args:
            history: What the user did before the session: (item, behaviour) pairs, oldest first. With a session, that of its
                first request counts.
            candidates: Items to rank, each once: names, or `{"item": name, "features": {...}}` for items that the service
                may not know yet.
            shown: What was shown in the session so far, likewise; None for what the service remembers of the session.
            k: Maximum number of items to return.
            session: Name of the session, if the service is to remember it.
            user: Name of the user, for the decision log.
            context: What is known about the step to come, such as `{"device": "tv"}`; see `ModelAnswer.context`.
            user_features: What is known about the user. With a session, those of its first request count.

        Returns:
            The ranked items, their propensities, the version that ranked them, and the decision's id for feedback.

        Raises:
            InputError: If a name is neither text nor a whole number.
            ServiceError: If the server refuses the request or cannot be reached.
        """
        from mbcal.serving.messages import RankAnswer

        body = _rank_body(history, candidates, shown, k, session, user, context, user_features)
        return self._send("/v1/rank", body).decode(RankAnswer)

    def feedback(self, decision: Name, behaviour: Name, item: Name | None = None) -> FeedbackAnswer:
        """Report the behaviour towards an item that was shown. Idempotent.

        Args:
            decision: Id of the decision, `RankAnswer.decision`.
            behaviour: What the user did.
            item: The item; None for the first of the decision.

        Returns:
            Whether the session was updated; feedback is logged in any case.

        Raises:
            InputError: If a name is neither text nor a whole number.
            ServiceError: If the server refuses the request or cannot be reached.
        """
        from mbcal.serving.messages import FeedbackAnswer

        return self._send("/v1/feedback", _feedback_body(decision, behaviour, item)).decode(FeedbackAnswer)

    def model(self) -> ModelAnswer:
        """Describe the live version; raises ServiceError if none is published."""
        from mbcal.serving.messages import ModelAnswer

        return self._send("/v1/model").decode(ModelAnswer)

    def _send(self, path: str, body: bytes | None = None) -> ReceivedAnswer:
        method = "GET" if body is None else "POST"
        for wait in self._waits():
            ends = time.monotonic() + self._timeout
            try:
                with self._http.stream(method, path, content=body) as response:
                    answer = ReceivedAnswer(path, response.status_code, ends)
                    for part in response.iter_raw():
                        answer.add(part)
                if wait is None or answer.status not in RETRY_STATUSES:
                    return answer
            except (self._httpx.TransportError, TimeoutError) as error:
                if wait is None:
                    raise self._unreachable(error) from error
            time.sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient(_BaseClient):
    """`Client` for asyncio: `async with AsyncClient(...) as client: await client.rank(history, candidates)`."""

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        timeout: float = 5.0,
        retries: int = 4,
        token: str | None = None,
        certificate: str | Path | None = None,
    ) -> None:
        """Prepare a connection; see `Client`. Here the timeout bounds the whole attempt, the answer's head included."""
        super().__init__(address, timeout, retries, token, certificate)
        self._http = self._httpx.AsyncClient(
            base_url=self._address, timeout=timeout, headers=self._headers, verify=self._verify
        )

    async def rank(
        self,
        history: Steps,
        candidates: Sequence[Candidate],
        shown: Steps | None = None,
        *,
        k: int = 10,
        session: Name | None = None,
        user: Name | None = None,
        context: Values | None = None,
        user_features: Values | None = None,
    ) -> RankAnswer:
        """Rank candidates for one user; see `Client.rank`."""
        from mbcal.serving.messages import RankAnswer

        body = _rank_body(history, candidates, shown, k, session, user, context, user_features)
        return (await self._send("/v1/rank", body)).decode(RankAnswer)

    async def feedback(self, decision: Name, behaviour: Name, item: Name | None = None) -> FeedbackAnswer:
        """Report the behaviour towards an item that was shown; see `Client.feedback`."""
        from mbcal.serving.messages import FeedbackAnswer

        return (await self._send("/v1/feedback", _feedback_body(decision, behaviour, item))).decode(FeedbackAnswer)

    async def model(self) -> ModelAnswer:
        """Describe the live version; raises ServiceError if none is published."""
        from mbcal.serving.messages import ModelAnswer

        return (await self._send("/v1/model")).decode(ModelAnswer)

    async def _send(self, path: str, body: bytes | None = None) -> ReceivedAnswer:
        method = "GET" if body is None else "POST"
        for wait in self._waits():
            ends = time.monotonic() + self._timeout
            try:
                async with asyncio.timeout(self._timeout), self._http.stream(method, path, content=body) as response:
                    answer = ReceivedAnswer(path, response.status_code, ends)
                    async for part in response.aiter_raw():
                        answer.add(part)
                if wait is None or answer.status not in RETRY_STATUSES:
                    return answer
            except (self._httpx.TransportError, TimeoutError) as error:
                if wait is None:
                    raise self._unreachable(error) from error
            await asyncio.sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    async def close(self) -> None:
        """Close the connection."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _tls_context(certificate: str | Path | None) -> ssl.SSLContext | bool:
    """Who is trusted over TLS: the given certificate, or the authorities of the system."""
    if certificate is None:
        return True
    try:
        return ssl.create_default_context(cafile=str(certificate))
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror or str(error)
        raise OptionError(f"{certificate}: not a certificate ({reason}); give a PEM file") from error


def _candidates(candidates: Sequence[Candidate]) -> list[Any]:
    """Names as text, and items with features, of which the service checks the values."""
    from mbcal.serving.messages import CandidateItem

    if isinstance(candidates, str | bytes) or not any(isinstance(candidate, Mapping) for candidate in candidates):
        return list(to_names(candidates))  # type: ignore[arg-type]  # names alone
    listed: list[Any] = []
    for candidate in candidates:
        if not isinstance(candidate, Mapping):
            listed.append(to_name(candidate, "candidates"))
        elif "item" not in candidate or not candidate.keys() <= {"item", "features"}:
            raise InputError(f"candidates: an item with features is {{'item': …, 'features': …}}, got {sorted(candidate)}")
        else:
            listed.append(CandidateItem(to_name(candidate["item"]), dict(candidate.get("features", {}))))
    return listed


def _rank_body(
    history: Steps,
    candidates: Sequence[Candidate],
    shown: Steps | None,
    k: int,
    session: Name | None,
    user: Name | None,
    context: Values | None,
    user_features: Values | None,
) -> bytes:
    import msgspec

    from mbcal.serving.messages import RankRequest

    request = RankRequest(
        history=list(to_steps(history)),
        candidates=_candidates(candidates),
        shown=None if shown is None else list(to_steps(shown, "shown")),
        k=k,
        session=None if session is None else to_name(session, "session"),
        user=None if user is None else to_name(user, "user"),
        context=dict(context or {}),
        user_features=dict(user_features or {}),
        id=uuid.uuid4().hex,
    )
    return msgspec.json.encode(request)


def _feedback_body(decision: Name, behaviour: Name, item: Name | None) -> bytes:
    import msgspec

    from mbcal.serving.messages import FeedbackRequest

    named_item = None if item is None else to_name(item)
    return msgspec.json.encode(FeedbackRequest(to_name(decision, "decision"), to_name(behaviour, "behaviour"), named_item))


def _without_password(address: str) -> str:
    """An address without the user and the password that it may hold, for messages."""
    return re.sub(r"//[^/?#]*@", "//", address)
