"""`mbcal serve`: the ranking server."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated

import typer

from mbcal.cli.canary import (
    MaxDaysOption,
    MinDaysOption,
    PromoteAfterOption,
    UndecidedOption,
    UserLossOption,
    WithdrawBelowOption,
    canary_config,
    canary_watcher,
    watch_options,
)
from mbcal.errors import OptionError


def serve(  # long, since every option has its help here
    registry: Annotated[Path, typer.Option(help="The registry whose live version ranks.", show_default=False)],
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but a loopback address is reachable from other machines.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one and prints it.")] = 8000,
    workers: Annotated[
        int,
        typer.Option(min=1, max=256, help="Processes that serve the port together, each with its own log LOG/worker-K."),
    ] = 1,
    epsilon: Annotated[
        float, typer.Option(min=0, max=1, help="Probability of a random item at each rank, so that the log explores.")
    ] = 0.1,
    repeats: Annotated[
        bool, typer.Option("--repeats", help="Let items that were shown in a session be ranked again in it.")
    ] = False,
    log: Annotated[Path | None, typer.Option(help="Folder of the decision log.", show_default="nothing is logged")] = None,
    state: Annotated[
        str,
        typer.Option(
            help="Where sessions are remembered: 'memory' of this command, or 'redis://…' to share them with others."
        ),
    ] = "memory",
    lifetime: Annotated[
        float, typer.Option(min=1, max=1e9, help="Seconds without a request after which a session expires.")
    ] = 1800.0,
    max_candidates: Annotated[int, typer.Option(min=1, max=10_000, help="Candidates of one request.")] = 1000,
    max_body: Annotated[int, typer.Option(min=1024, help="Bytes of one request's body.")] = 512 * 1024,
    max_in_progress: Annotated[
        int,
        typer.Option(min=1, help="Requests in progress; more are refused with 503. A batch takes a quarter at a time."),
    ] = 64,
    max_connections: Annotated[
        int, typer.Option(min=1, help="Open connections; beyond, the address that has most of them loses some.")
    ] = 1000,
    max_memory: Annotated[
        int,
        typer.Option(min=8, help="MiB of remembered sessions, decisions and answers; beyond, the oldest are forgotten."),
    ] = 512,
    rate: Annotated[
        float,
        typer.Option(
            min=0, help="Requests per second of one client, members of batches counted; more get 429. 0 is no limit."
        ),
    ] = 0.0,
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option(help="Address or network of a proxy whose X-Forwarded-For names the client. Repeatable."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Name under which clients reach this server, beside loopback names and its address. Repeatable."),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help="File with the token all clients must send; or set MBCAL_TOKEN.", show_default="no token needed"),
    ] = None,
    admin_token_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the token of the /admin routes; or set MBCAL_ADMIN_TOKEN.",
            show_default="the /admin routes are disabled",
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="PEM file of the TLS certificate.", show_default="plain HTTP")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file of the certificate's key.", show_default=False)] = None,
    canary: Annotated[
        float,
        typer.Option(
            min=0, max=0.99, help="Share of users for the registry's canary, if it has one ('mbcal registry canary')."
        ),
    ] = 0.0,
    canary_epsilon: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="The canary's probability of a random item, at least --epsilon.",
            show_default="that of --epsilon",
        ),
    ] = None,
    promote_after: PromoteAfterOption = 200,
    withdraw_below: WithdrawBelowOption = 0.0,
    canary_max_days: MaxDaysOption = 7.0,
    canary_min_days: MinDaysOption = 3.0,
    user_loss: UserLossOption = 0.1,
    undecided: UndecidedOption = "withdraw",
    watch: Annotated[
        bool, typer.Option(help="Promote or withdraw canaries by this server's log; see 'mbcal watch-canary'.")
    ] = True,
) -> None:
    """Rank over HTTP: POST /v1/rank and /v1/feedback, a page for people at /, the API at /openapi.json.

    When a version is published or rolled back in the registry, the server switches to it within a second and loses no
    request. Every decision is on disk, with its true propensities, before it is answered.
    """
    try:
        import httptools  # noqa: F401 - reported together with uvicorn if it is missing
        import msgspec  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise OptionError("serve: needs uvicorn, httptools and msgspec; pip install 'mbcal[serve]'") from error
    from mbcal.serving.access import read_token
    from mbcal.serving.canary import CanarySettings
    from mbcal.serving.connections import ConnectionLimits
    from mbcal.serving.limits import Limits
    from mbcal.serving.run import ServerSettings, bind, make_service, require_certificate, run_server, warn_if_open
    from mbcal.serving.supervisor import supervise

    settings = ServerSettings(
        registry=str(registry),
        host=host,
        port=port,
        epsilon=epsilon,
        repeats=repeats,
        log=None if log is None else str(log),
        state=state,
        lifetime=lifetime,
        limits=Limits(max_candidates, max_body, max_in_progress=max_in_progress, rate=rate, max_memory=max_memory << 20),
        connections=ConnectionLimits(max_connections),
        token=read_token(token_file, "MBCAL_TOKEN"),
        admin_token=read_token(admin_token_file, "MBCAL_ADMIN_TOKEN"),
        hosts=tuple(allow_host or ()),
        trusted_proxies=tuple(_network(address) for address in trusted_proxy or ()),
        tls_cert=None if tls_cert is None else str(tls_cert),
        tls_key=None if tls_key is None else str(tls_key),
        canary=CanarySettings(canary, canary_epsilon),
    )
    require_certificate(settings)
    if canary_epsilon is not None and canary_epsilon < epsilon:
        problem = f"canary-epsilon: {canary_epsilon:g} is below --epsilon, and a canary that explores less earns more"
        raise OptionError(f"{problem} without being better; give at least {epsilon:g}")
    if canary and watch and log is None:
        raise OptionError("canary: sessions are compared by the decision log; give --log, or --no-watch to decide by hand")
    limits = canary_config(promote_after, withdraw_below, canary_max_days, canary_min_days, user_loss, undecided, lifetime)
    warn_if_open(settings)
    with canary_watcher(registry, log if canary and watch else None, watch_options(limits)):
        if workers > 1:
            raise typer.Exit(supervise(settings, workers))
        listener = bind(host, port)
        run_server(settings, make_service(settings), listener)


def _network(address: str) -> str:
    """Return an address or network in its usual form; raises OptionError if it is neither."""
    try:
        return str(ipaddress.ip_network(address)) if "/" in address else str(ipaddress.ip_address(address))
    except ValueError as error:
        raise OptionError(
            f"trusted-proxy: {address!r} is neither an address nor a network; write 10.0.0.1 or 10.0.0.0/8"
        ) from error
