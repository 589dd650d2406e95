"""`mbcal serve`: the ranking server."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Annotated, Any

import typer

from mbcal.errors import OptionError

LINGER = 0.002
"""Seconds a decision waits for others to be synced with."""


def serve(
    registry: Annotated[Path, typer.Option(help="The registry whose current version ranks.", show_default=False)],
    host: Annotated[str, typer.Option(help="Address to listen on; anything but loopback lets others in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one and prints it.")] = 8000,
    epsilon: Annotated[
        float, typer.Option(min=0, max=1, help="Share of choices made at random, so that there is to learn.")
    ] = 0.1,
    log: Annotated[Path | None, typer.Option(help="Folder of the decision log; without it nothing is logged.")] = None,
    state: Annotated[
        str, typer.Option(help="Where sessions are remembered: memory, or redis://… for several servers.")
    ] = "memory",
    lifetime: Annotated[float, typer.Option(min=1, help="Seconds after which a silent session is forgotten.")] = 1800.0,
    max_candidates: Annotated[int, typer.Option(min=1, max=10_000, help="Candidates of one request.")] = 1000,
    max_body: Annotated[int, typer.Option(min=1024, help="Bytes of one request.")] = 512 * 1024,
    at_once: Annotated[int, typer.Option(min=1, help="Requests in work; more are told to come again.")] = 64,
    rate: Annotated[float, typer.Option(min=0, help="Requests a second and client; 0 is no limit.")] = 0.0,
    admin_token: Annotated[
        str | None,
        typer.Option(envvar="MBCAL_ADMIN_TOKEN", help="Who sends it may reload and set epsilon.", show_default=False),
    ] = None,
) -> None:
    """Rank over HTTP: POST /v1/rank and /v1/feedback, a page for people at /, the API at /openapi.json.

    A version that is published or rolled back in the registry takes over within a second, without a request lost. Every
    decision is on disk, with its true propensities, before it is answered.
    """
    try:
        import msgspec  # noqa: F401 - told together with uvicorn if it is missing
        import uvicorn
    except ImportError as error:
        raise OptionError("serve: needs uvicorn and msgspec; pip install 'mbcal[serve]'") from error
    from mbcal.decision_log.writer import DecisionLog
    from mbcal.registry.registry import Registry
    from mbcal.serving.server import App, json_lines
    from mbcal.serving.service import Limits, Service
    from mbcal.serving.state import session_store

    kept = DecisionLog(log, linger=LINGER) if log is not None else None
    service = Service(
        Registry(registry),
        session_store(state, lifetime),
        kept,
        epsilon,
        Limits(max_candidates, max_body, at_once=at_once, rate=rate),
        json_lines,
    )
    settings = uvicorn.Config(
        App(service, admin_token),
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        lifespan="on",
        timeout_keep_alive=5,
        timeout_graceful_shutdown=10,
        server_header=False,
    )

    class Server(uvicorn.Server):
        """Says where it listens, once it does."""

        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            gc.freeze()  # what is here now stays: no need to look through it again and again
            gc.set_threshold(20_000)  # what requests in work hold is no garbage either, and soon gone by itself
            for place in [socket.getsockname() for server in self.servers for socket in server.sockets]:
                json_lines("listening", address=f"http://{place[0]}:{place[1]}")

    Server(settings).run()
