"""`current.json` of a registry: which version is live, and which were live before it. Replaced atomically."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from mbcal.errors import ModelError
from mbcal.storage.atomic import write_atomic

POINTER_NAME = "current.json"
_VERSION_NAME = re.compile(r"v\d{6,}")


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

    def activated(self, name: str) -> Pointer:
        """Return the pointer after this version went live."""
        if self.current == name:
            return self
        before = self.before if self.current is None else (*self.before, self.current)
        return Pointer(name, before, self.newest)


def read_pointer(folder: Path) -> Pointer:
    """Read a registry's pointer; an empty one if there is none.

    Raises:
        ModelError: If the file is damaged or cannot be read.
    """
    file = folder / POINTER_NAME
    try:
        values = json.loads(file.read_bytes())
        pointer = Pointer(values["current"], tuple(values["before"]), values["newest"])
        if not all(is_version_name(name) for name in (*pointer.before, pointer.current or "v000000")):
            raise ValueError("not the names of versions")
        if not isinstance(pointer.newest, int):
            raise TypeError("newest must be a number")
    except (FileNotFoundError, NotADirectoryError):
        return Pointer()
    except OSError as error:
        raise ModelError(f"{file}: cannot be read ({error.strerror}); check its permissions") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelError(
            f"{file}: damaged ({error}); remove it and run 'mbcal registry activate' to choose a version"
        ) from error
    return pointer


def write_pointer(folder: Path, pointer: Pointer) -> None:
    """Replace a registry's pointer atomically.

    Raises:
        OutputError: If it cannot be written.
    """
    values = {"current": pointer.current, "before": pointer.before, "newest": pointer.newest}
    write_atomic(folder / POINTER_NAME, (json.dumps(values, indent=2) + "\n").encode())
