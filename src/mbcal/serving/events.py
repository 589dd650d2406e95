"""The server's log: events as lines of JSON on standard error."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from typing import Any


def print_event(event: str, **values: Any) -> None:
    """Print an event as one line of JSON on standard error.

    Nothing is raised if that cannot be written, because its reader has ended or its disk is full: the line is lost, but what
    has happened is still dealt with.
    """
    line = json.dumps({"time": round(time.time(), 3), "event": event, **values})
    with contextlib.suppress(OSError, ValueError):  # ValueError: it was closed
        print(line, file=sys.stderr, flush=True)
