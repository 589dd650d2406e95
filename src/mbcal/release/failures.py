"""Errors of work that is repeated: they are told, and the work goes on, unless it fails in the same way again and again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from mbcal.errors import MbcalError, OptionError

MOST_UNEXPECTED = 10
"""Failures in a row that are no MbcalError and so may be due to this process, as memory that is not given back; the last one
ends it, for a supervisor to start it again."""


class Failures:
    """Tells the error of each block and goes on: `with failures: ...`, again and again.

    An MbcalError may be cured from outside however often it occurs: a disk that is full, a log that is away. An OptionError
    is not caught, since it would occur every time.

    Args:
        on_error: Is given every error.
    """

    def __init__(self, on_error: Callable[[Exception], None]) -> None:
        self._on_error, self._unexpected = on_error, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        self._unexpected = self._unexpected + 1 if error is not None and not isinstance(error, MbcalError) else 0
        if error is None or isinstance(error, OptionError) or not isinstance(error, Exception):
            return False
        with suppress(OSError):  # nobody can be told, as where standard error is on a full disk
            self._on_error(error)
        return self._unexpected < MOST_UNEXPECTED
