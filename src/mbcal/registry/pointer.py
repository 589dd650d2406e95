"""`current.json` of a registry: which version is live, which is the canary, which were live before. Replaced atomically."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from mbcal.errors import ModelError
from mbcal.storage.atomic import write_atomic
from mbcal.storage.json_text import parse_json
from mbcal.storage.plain_file import read_plain

POINTER_NAME = "current.json"
MAX_POINTER = 16 << 20
"""Bytes of a pointer; a larger one is not read."""
_VERSION_NAME = re.compile(r"v[0-9]{6,}")
_SALT = re.compile(r"[0-9a-f]*")


def is_version_name(name: str) -> bool:
    """Whether this could be the name of a version: `v` and at least six digits."""
    return _VERSION_NAME.fullmatch(name) is not None


def version_number(name: str | None) -> int:
    """Return the number of a version; 0 for None."""
    return int(name[1:]) if name else 0


@dataclass(frozen=True)
class Pointer:
    """The content of `current.json`."""

    current: str | None = None
    """The live version."""
    before: tuple[str, ...] = ()
    """Versions that were live before it, oldest first. `rollback` goes back to the last."""
    newest: int = 0
    """Highest number when versions were last removed, so that no number is used twice."""
    canary: str | None = None
    """The version that gets a share of users (of sessions, where requests name no user) beside the live one, until it is
    promoted or withdrawn."""
    canary_began: int = 0
    """When it became the canary, in microseconds since 1970; 0 without a canary."""
    canary_salt: str = ""
    """Random, made anew for every trial: which users get the canary depends on it, so nobody can foresee it."""
    withdrawn: Mapping[str, str] = field(default_factory=dict)
    """Versions that were withdrawn as canaries, with the reason."""
    activations: int = 0
    """How often a version went live, so that one that left and came back is noticed."""

    def activated(self, name: str) -> Pointer:
        """Return the pointer after this version went live. A canary ends: it was compared with another live version."""
        before = self.before if self.current in (None, name) else (*self.before, str(self.current))
        ended = self._ended_by(name)
        withdrawn = {other: reason for other, reason in ended.withdrawn.items() if other != name}
        return replace(ended, current=name, before=before, withdrawn=withdrawn, activations=self.activations + 1)

    def rolled_back(self) -> Pointer:
        """Return the pointer after the version live before went live again. A canary ends."""
        ended = self._ended_by(self.before[-1])
        return replace(ended, current=self.before[-1], before=self.before[:-1], activations=self.activations + 1)

    def with_canary(self, name: str, began: int) -> Pointer:
        """Return the pointer after this version became the canary, with a salt of its own."""
        withdrawn = {other: reason for other, reason in self.withdrawn.items() if other != name}
        return replace(self, canary=name, canary_began=began, canary_salt=secrets.token_hex(16), withdrawn=withdrawn)

    def without_canary(self, reason: str) -> Pointer:
        """Return the pointer after the canary was withdrawn."""
        withdrawn = {**self.withdrawn, str(self.canary): reason}
        return replace(self, canary=None, canary_began=0, canary_salt="", withdrawn=withdrawn)

    def change_since(self, expected: Pointer) -> str | None:
        """Return in words whether a version went live, or a canary began or ended, since another pointer; None if not."""
        if self.current != expected.current:
            problem = f"{self.current or 'no version'} is live instead of {expected.current or 'none'}"
            return f"{problem}; it was activated in the meantime and stays"
        if self.activations != expected.activations:
            return f"{self.current} was activated again in the meantime and stays"
        if (self.canary, self.canary_began) == (expected.canary, expected.canary_began):
            return None
        if self.canary is None:
            return f"the trial of {expected.canary} has ended in the meantime"
        return f"{self.canary} became the canary in the meantime; its trial goes on"

    def _ended_by(self, name: str) -> Pointer:
        """The pointer without a canary, whose trial ended because a version went live."""
        return self if self.canary is None else self.without_canary(f"{name} went live")


def read_pointer(folder: Path) -> Pointer:
    """Read a registry's pointer; an empty one if there is none.

    Raises:
        ModelError: If the file is damaged or cannot be read.
    """
    file = folder / POINTER_NAME
    try:
        values = parse_json(read_plain(file, MAX_POINTER)[0])
        pointer = Pointer(**{**values, "before": tuple(values["before"]), "withdrawn": dict(values["withdrawn"])})
        optional = [name for name in (pointer.current, pointer.canary) if name is not None]
        if not all(map(is_version_name, (*pointer.before, *pointer.withdrawn, *optional))):
            raise ValueError("not the names of versions")
        if not all(isinstance(count, int) for count in (pointer.newest, pointer.canary_began, pointer.activations)):
            raise TypeError("newest, canary_began and activations must be numbers")
        if not isinstance(pointer.canary_salt, str) or _SALT.fullmatch(pointer.canary_salt) is None:
            raise ValueError("canary_salt must be a text of hexadecimal digits")
    except (FileNotFoundError, NotADirectoryError):
        return Pointer()
    except OSError as error:
        raise ModelError(f"{file}: cannot be read ({error.strerror}); check its permissions") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"{file}: damaged ({error}); remove it and run 'mbcal registry activate' to choose a version"
        ) from error
    return pointer


def write_pointer(folder: Path, pointer: Pointer) -> None:
    """Replace a registry's pointer atomically.

    Raises:
        OutputError: If it cannot be written.
    """
    write_atomic(folder / POINTER_NAME, (json.dumps(asdict(pointer), indent=2) + "\n").encode())
