"""`mbcal serve`: the ranking server."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mbcal.errors import OptionError

if TYPE_CHECKING:
    from mbcal.serving.server import App

LINGER = 0.002
"""Seconds a decision waits for others, so that one fsync serves them all."""


def serve(
    registry: Annotated[Path, typer.Option(help="The registry whose live version ranks.", show_default=False)],
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but a loopback address is reachable from other machines.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one and prints it.")] = 8000,
    epsilon: Annotated[
        float, typer.Option(min=0, max=1, help="Probability of a random item at each rank, so that the log explores.")
    ] = 0.1,
    repeats: Annotated[
        bool, typer.Option("--repeats", help="Let items that were shown in a session be ranked again in it.")
    ] = False,
    log: Annotated[Path | None, typer.Option(help="Folder of the decision log.", show_default="nothing is logged")] = None,
    state: Annotated[
        str, typer.Option(help="Where sessions are remembered: 'memory', or 'redis://…' for several servers.")
    ] = "memory",
    lifetime: Annotated[
        float, typer.Option(min=1, help="Seconds without a request after which a session expires.")
    ] = 1800.0,
    max_candidates: Annotated[int, typer.Option(min=1, max=10_000, help="Candidates of one request.")] = 1000,
    max_body: Annotated[int, typer.Option(min=1024, help="Bytes of one request.")] = 512 * 1024,
    max_in_progress: Annotated[int, typer.Option(min=1, help="Requests in progress; more are refused with 503.")] = 64,
    rate: Annotated[
        float, typer.Option(min=0, help="Requests per second of one client; more are refused with 429. 0 is no limit.")
    ] = 0.0,
    admin_token: Annotated[
        str | None,
        typer.Option(
            envvar="MBCAL_ADMIN_TOKEN", help="Token of the /admin routes.", show_default="the /admin routes are disabled"
        ),
    ] = None,
) -> None:
    """Rank over HTTP: POST /v1/rank and /v1/feedback, a page to rank by hand at /, the API at /openapi.json.

    When a version is published or rolled back in the registry, the server switches to it within a second and loses no
    request. Every decision is on disk, with its true propensities, before it is answered.
    """
    try:
        import msgspec  # noqa: F401 - reported together with uvicorn if it is missing
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise OptionError("serve: needs uvicorn and msgspec; pip install 'mbcal[serve]'") from error
    from mbcal.decision_log.writer import DecisionLog
    from mbcal.registry.registry import Registry
    from mbcal.serving.server import App, print_event
    from mbcal.serving.service import Limits, Service
    from mbcal.serving.state import session_store

    service = Service(
        Registry(registry),
        session_store(state, lifetime),
        DecisionLog(log, linger=LINGER) if log is not None else None,
        epsilon,
        Limits(max_candidates, max_body, max_in_progress=max_in_progress, rate=rate),
        print_event,
        repeats=repeats,
    )
    _run(App(service, admin_token), host, port)


def _run(app: App, host: str, port: int) -> None:
    """Run the application on uvicorn until the process is stopped; print the address once it listens."""
    import uvicorn

    from mbcal.serving.server import print_event

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            gc.freeze()  # what is loaded now stays for good: the collector need not scan it
            gc.set_threshold(20_000)  # objects of requests in progress are freed by reference counting
            for address in [socket.getsockname() for server in self.servers for socket in server.sockets]:
                print_event("listening", address=f"http://{address[0]}:{address[1]}")

    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        lifespan="on",
        timeout_keep_alive=5,
        timeout_graceful_shutdown=10,
        server_header=False,
    )
    Server(config).run()
