"""Errors that a caller's input or environment can cause, in one small hierarchy.

Every message names its subject first (file, field, option), then the problem and what to do about it, in one sentence. The
command line prints the message and exits with code 2. Any other exception that reaches a user is a bug.
"""

from __future__ import annotations

import difflib
import json
import traceback
from collections.abc import Iterable
from pathlib import Path


class MbcalError(Exception):
    """Base class: catch this to catch every error that `mbcal` raises on purpose."""


class OptionError(MbcalError, ValueError):
    """An option or argument is missing, unknown or out of range."""


class InputError(MbcalError, ValueError):
    """A file, row or array given to `mbcal` is not valid."""


class MissingColumnError(InputError):
    """A table lacks a column.

    Args:
        message: Names the table, the column, and the columns that there are.
        column: The column; empty where it no longer matters, as in an error that is told in other words.
    """

    def __init__(self, message: str, column: str = "") -> None:
        super().__init__(message)
        self.column = column


class StoreError(MbcalError):
    """A folder is not a store, or the store is damaged or of another schema."""


class ModelError(MbcalError):
    """A folder is not a model, or the model is damaged, of another schema, or was fitted on other data."""


class ConflictError(MbcalError):
    """A registry was changed in the meantime: another version is live, or another one is the canary."""


class TrainingError(MbcalError):
    """A fit failed: a loss became NaN, or the checkpoints belong to other settings."""


class DivergenceWarning(UserWarning):
    """The predictions of a network grew beyond all limits; training ended with the weights of the last good epoch."""


class EngineError(MbcalError):
    """Jobs cannot run: there is no cluster, no worker is available, or workers are lost again and again."""


class OutputError(MbcalError):
    """Output cannot be written: the disk is full, or the folder exists or is read-only."""


class LogError(MbcalError):
    """A decision log is damaged, locked or closed, or the folder is not one."""


class LogFullError(LogError):
    """The queue of records waiting to be written to a decision log is full; try again later."""


class LogUnavailableError(OutputError):
    """A decision log cannot be written at the moment: the disk is full or read-only, or its files have vanished.

    Args:
        message: One sentence.
        reason: The cause alone, without paths.
    """

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class ServiceError(MbcalError):
    """The ranking service refused a request or cannot be reached.

    Args:
        message: The reason, in one sentence.
        status: The HTTP status code; 0 if there was no response.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ` Did you mean 'x'?` if a known name is close to `name`, else an empty string.

    The text starts with a space, to be appended to a message that ends with a full stop.
    """
    matches = difflib.get_close_matches(shortened(name), list(known), n=1)
    return f" Did you mean {matches[0]!r}?" if matches else ""


def shortened(text: str, most: int = 100) -> str:
    """Return a text, or its beginning if it is longer than `most` characters: a message need not repeat all of an input."""
    return text if len(text) <= most else text[: most - 1] + "…"


def printable(text: str) -> str:
    """Return a text whose control characters and changes of direction, which a terminal obeys, are escaped as in JSON."""
    return "".join(character if character.isprintable() else json.dumps(character)[1:-1] for character in text)


def described(error: Exception) -> str:
    """Return the message of an error; of one that is no MbcalError, also its kind and where it was raised."""
    if isinstance(error, MbcalError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    where = f" (in {Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"
