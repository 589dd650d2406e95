"""Jobs for tests of engines: functions of a module, as engines require."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from mbcal.distributed.engines import emit
from mbcal.errors import StoreError


def square(number: int) -> int:
    emit(f"squaring {number}")
    return number * number


def refuse(number: int) -> int:
    if number == 3:
        raise StoreError("shard 3: damaged; prepare the store again")
    time.sleep(0.2)
    return number


def stumble(number: int) -> int:
    raise ZeroDivisionError(f"{number} by nothing")


def die_once(task: tuple[str, int]) -> int:
    """Kill the worker at the first attempt of task 1; the second succeeds."""
    folder, number = task
    attempt = Path(folder) / str(number)
    if number == 1 and not attempt.exists():
        attempt.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def die_always(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def sleep(seconds: float) -> int:
    emit(os.getpid())
    time.sleep(seconds)
    return os.getpid()
