"""Refused requests: which status and sentence an error becomes. No sentence names a path of this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import msgspec

from mbcal.errors import InputError, LogError, LogFullError, LogUnavailableError, MbcalError, OptionError, shortened
from mbcal.serving.messages import Problem
from mbcal.serving.repeats import IdConflictError
from mbcal.serving.routes import Response
from mbcal.serving.sentences import without_paths
from mbcal.serving.service import NotReadyError
from mbcal.serving.state import OtherUserError, StateAwayError

Header = tuple[bytes, bytes]

MAX_SENTENCE = 1000
"""Characters of a sentence: the names of unknown fields, which decoders repeat, may be as long as a body."""


class RefusedError(Exception):
    """A request is refused with a status other than 200."""

    def __init__(self, status: int, error: str, headers: tuple[Header, ...] = ()) -> None:
        super().__init__(error)
        self.status, self.headers = status, headers


def refusal(error: BaseException, folders: Iterable[Path] = ()) -> Response:
    """Return the response to a request that failed with this error.

    Args:
        error: The error.
        folders: Folders of the server, whose names must not appear in the sentence.
    """
    status, sentence = 500, str(error)
    if isinstance(error, asyncio.CancelledError):  # it took longer than the server waits when it stops
        status, sentence = 503, "the server stops; try again in a second"
    elif isinstance(error, RefusedError):
        status = error.status
    elif isinstance(error, InputError | OptionError | msgspec.ValidationError):
        status = 422
    elif isinstance(error, IdConflictError | OtherUserError):
        status = 409
    elif isinstance(error, LogUnavailableError):
        status, sentence = 503, f"the decision log cannot be written ({error.reason}); try again in a second"
    elif isinstance(error, LogError):
        problem = "cannot keep up" if isinstance(error, LogFullError) else "is closed"
        status, sentence = 503, f"the decision log {problem}; try again in a second"
    elif isinstance(error, NotReadyError | StateAwayError):
        status, sentence = 503, without_paths(sentence, folders)
    elif isinstance(error, MbcalError):
        sentence = without_paths(sentence, folders)
    elif isinstance(error, msgspec.DecodeError | UnicodeError | RecursionError):  # RecursionError: deeply nested lists
        status, sentence = 400, f"the body is not valid JSON: {error}"
    else:
        sentence = "the server failed; its log has the reason"
    return Response(status, msgspec.json.encode(Problem(shortened(sentence, MAX_SENTENCE))))


def refusal_headers(error: BaseException, status: int) -> list[Header]:
    """Return the headers that tell the client what to do next."""
    headers = list(error.headers) if isinstance(error, RefusedError) else []
    if status in (429, 503):
        headers.append((b"retry-after", b"1"))
    if status in (400, 401, 403, 408, 413, 421):  # most of them need no token: such a connection shall not count as served
        headers.append((b"connection", b"close"))
    return headers
