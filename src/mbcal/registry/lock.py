"""The lock of a registry: its writers take turns."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from mbcal.storage.atomic import to_output_error


@contextlib.contextmanager
def locked(registry: Path) -> Iterator[None]:
    """Exclude other writers; creates the folders of a registry, if absent. The lock ends with its process.

    Raises:
        OutputError: If the registry cannot be written, instead of an OSError here or in the body.
    """
    try:
        (registry / "versions").mkdir(parents=True, exist_ok=True)
        descriptor = os.open(registry / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)
    except OSError as error:
        raise to_output_error(str(registry), error) from error
