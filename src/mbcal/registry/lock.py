"""The lock of a registry: its writers take turns."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from mbcal.errors import OutputError
from mbcal.storage.atomic import to_output_error


class RegistryBusyError(OutputError):
    """Another process holds the lock, and the caller does not wait."""


@contextlib.contextmanager
def locked(registry: Path, wait: bool = True) -> Iterator[None]:
    """Exclude other writers; creates the folders of a registry, if absent. The lock ends with its process.

    Args:
        registry: The registry.
        wait: Whether to wait for a process that holds the lock, however long it does.

    Raises:
        RegistryBusyError: If another process holds the lock and `wait` is False.
        OutputError: If the registry cannot be written, instead of an OSError here or in the body.
    """
    try:
        (registry / "versions").mkdir(parents=True, exist_ok=True)
        descriptor = os.open(registry / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(descriptor, registry, wait)
            yield
        finally:
            os.close(descriptor)
    except OSError as error:
        raise to_output_error(str(registry), error) from error


def _lock(descriptor: int, registry: Path, wait: bool) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise RegistryBusyError(f"{registry}: another process changes this registry; try again when it has ended") from error
