"""One worker of `mbcal serve --workers N`: `python -m mbcal.serving.worker`, started by the supervisor.

Its settings come on standard input, not on the command line, which other users of the machine can read.
"""

from __future__ import annotations

import os
import signal
import socket
import sys

import msgspec

from mbcal.errors import MbcalError
from mbcal.serving.events import print_event
from mbcal.serving.hub import HubStore, Notice
from mbcal.serving.run import ServerSettings, make_service, run_server


class WorkerTask(msgspec.Struct):
    """What a worker needs to know."""

    settings: ServerSettings
    number: int
    """Its number, from 0."""
    listener: int
    """File descriptor of the listening socket, shared by all workers."""
    hub: int
    """File descriptor of its socket to the supervisor."""


def main() -> int:
    """Serve until stopped; returns the exit code."""
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=WorkerTask)
    settings, number = task.settings, task.number
    listener, connection = socket.socket(fileno=task.listener), socket.socket(fileno=task.hub)
    hub = HubStore(connection, lambda: os.kill(os.getpid(), signal.SIGTERM))
    try:
        service = make_service(settings, hub if settings.state == "memory" else None, number)
    except MbcalError as error:
        print_event("failed", worker=number, error=str(error))
        return 2
    service.workers = hub
    if settings.state != "memory":
        service.repeated.supervisor = hub
    service.traffic.outbox = []

    def apply(notice: Notice) -> None:
        if notice.epsilon is not None:
            service.epsilon = notice.epsilon
        if notice.reload:
            service.refused.clear()  # the next look at the registry tries them again

    hub.on_notice = apply

    async def announce(_: list[socket.socket]) -> None:
        await hub.listening()

    run_server(settings, service, listener, announce)
    return 0


if __name__ == "__main__":
    sys.exit(main())
