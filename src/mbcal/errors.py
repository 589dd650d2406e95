"""Everything that can go wrong by a user's doing, as one small tree.

Each message names the thing (file, field, option), the rule it broke and what to do about it. The command line prints
the message as one line and exits with code 2; a traceback that reaches a user is a bug.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class MbcalError(Exception):
    """The root: catch this to catch every mistake `mbcal` blames on its input."""


class OptionError(MbcalError):
    """An option or argument has a value it cannot have."""


class InputError(MbcalError):
    """A file or a row given to `mbcal` is not what it should be."""


class StoreError(MbcalError):
    """A folder is not a store, or a store is damaged or from another schema."""


class ModelError(MbcalError):
    """A folder is not a model, or a model is damaged, from another schema, or made for other data."""


class TrainingError(MbcalError):
    """A fit went wrong: a loss that is no number, a checkpoint of other settings."""


class EngineError(MbcalError):
    """Where jobs were to run, they cannot: no cluster, no worker to be had, workers lost again and again."""


class OutputError(MbcalError):
    """Something could not be written: the disk is full, the folder exists or is read-only."""


class LogError(MbcalError):
    """A decision log is damaged, locked, closed or no log."""


class LogFullError(LogError):
    """More records wait to be written than a decision log may keep; try again a little later."""


class ServiceError(MbcalError):
    """The ranking service refused a request, or cannot be reached; `status` is HTTP's, 0 where there was no answer."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def nearest(name: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?` when a known name is close, else an empty string; made to follow a full stop."""
    matches = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {matches[0]!r}?" if matches else ""
