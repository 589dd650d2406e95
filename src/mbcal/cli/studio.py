"""`mbcal studio`: a local page on what is in a folder."""

from __future__ import annotations

import asyncio
import webbrowser
from pathlib import Path
from typing import Annotated, Any

import typer

from mbcal.errors import OptionError

MAX_CONNECTIONS = 100
"""Open connections; a browser needs a few, and the rest of this machine none."""


def studio_command(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="The folder to look into; folders in it are searched, links are not followed."),
    ] = Path("."),
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on, on this machine only; 0 takes a free one.")
    ] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
) -> None:
    """Look at the stores, models, simulators, runs and registries in a folder, on a local page.

    What is here and whether it is damaged; what a store holds; how runs compare, with intervals; how a model was trained;
    the versions and updates of a registry; and why a model ranks an item where it does, at any step of a logged session.
    The page is read-only. Only this machine can reach it, and only with the token of the printed address.
    """
    if not folder.is_dir():
        raise OptionError(
            f"{folder}: {'not a folder' if folder.exists() else 'no such folder'}; give the folder to look into"
        )
    try:
        import msgspec  # noqa: F401 - reported together with uvicorn if it is missing
        import uvicorn
    except ImportError as error:
        raise OptionError("studio: needs uvicorn and msgspec; pip install 'mbcal[serve]'") from error
    from mbcal.serving.connections import ConnectionLimits
    from mbcal.serving.protocol import bounded_protocol
    from mbcal.studio.server import Studio

    studio = Studio(folder)
    protocol = bounded_protocol(ConnectionLimits(MAX_CONNECTIONS))  # requests are read before the token is looked at

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            self.sweeper = asyncio.create_task(protocol.shared.sweep_forever())
            listening = self.servers[0].sockets[0].getsockname()[1]
            address = f"http://127.0.0.1:{listening}/?token={studio.token}"
            typer.echo(f"{address}\nStop with Ctrl-C.")
            if browser:
                webbrowser.open(address)

    config = uvicorn.Config(
        studio,
        host="127.0.0.1",
        port=port,
        http=protocol,
        ws="none",
        log_config=None,
        access_log=False,
        lifespan="off",
    )
    Server(config).run()
