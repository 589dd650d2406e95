"""A server process: the service behind uvicorn on a socket that is bound already, until it is stopped."""

from __future__ import annotations

import asyncio
import errno
import gc
import ipaddress
import logging
import resource
import signal
import socket
import ssl
import sys
import time
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn

from mbcal.decision_log.tail import recent_decisions
from mbcal.decision_log.writer import DecisionLog
from mbcal.errors import OptionError
from mbcal.registry.registry import Registry
from mbcal.serving.access import Access
from mbcal.serving.canary import CanarySettings
from mbcal.serving.connections import ConnectionLimits, Connections
from mbcal.serving.events import print_event
from mbcal.serving.limits import Limits
from mbcal.serving.listener import AT_A_TIME, HANDSHAKES_AT_A_TIME, SHARED_AT_A_TIME, Listener
from mbcal.serving.protocol import bounded_protocol
from mbcal.serving.server import App
from mbcal.serving.service import Service
from mbcal.serving.state import SessionStore, session_store
from mbcal.serving.tls import shake_hands

LINGER = 0.002
"""Seconds a decision waits for others, so that one fsync serves them all."""
DRAIN_SECONDS = 10
"""Seconds that requests in progress have to finish when the server stops."""
RECOVERED_BYTES = 128 << 20
"""Bytes of the decision log from which the latest answers are recovered at the start."""
SPARE_FILES = 256
"""Files a process needs beside its connections."""


@dataclass(frozen=True)
class ServerSettings:
    """All settings of `mbcal serve`, in plain values that can be sent to a worker process."""

    registry: str
    host: str = "127.0.0.1"
    port: int = 8000
    epsilon: float = 0.1
    repeats: bool = False
    log: str | None = None
    state: str = "memory"
    lifetime: float = 1800.0
    limits: Limits = field(default_factory=Limits)
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    token: str | None = None
    admin_token: str | None = None
    hosts: tuple[str, ...] = ()
    """Names of this server, beside loopback names and the address of the connection."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses or networks whose `X-Forwarded-For` counts."""
    tls_cert: str | None = None
    tls_key: str | None = None
    canary: CanarySettings = field(default_factory=CanarySettings)

    @property
    def access(self) -> Access:
        """Who may ask."""
        names = {name.lower() for name in (*self.hosts, self.host) if name not in ("", "0.0.0.0", "::")}  # noqa: S104
        return Access(self.token, self.admin_token, frozenset(names))


def bind(host: str, port: int) -> socket.socket:
    """Bind and listen.

    Args:
        host: A name or an address.
        port: A port; 0 takes a free one.

    Raises:
        OptionError: If that is not possible, such as when another server has the port.
    """
    where = f"{host}:{port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(2048)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
    except socket.gaierror as error:
        raise OptionError(f"host: {host!r} is unknown ({error.strerror}); give an address of this machine") from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise OptionError(f"{where}: another server has this port; stop it or choose another --port") from error
        raise OptionError(f"{where}: cannot be listened on ({error.strerror}); choose another --host or --port") from error
    return listener


def warn_if_open(settings: ServerSettings) -> None:
    """Print a warning if other machines can reach the server and need no token."""
    try:
        is_loopback = settings.host == "localhost" or ipaddress.ip_address(settings.host).is_loopback
    except ValueError:  # a name
        is_loopback = False
    if not is_loopback and settings.token is None:
        problem = f"other machines can reach {settings.host}, and anyone may ask and give feedback"
        print_event("warning", problem=f"{problem}; give --token-file, or see that only a proxy reaches it")


def require_certificate(settings: ServerSettings) -> None:
    """Raise OptionError unless the TLS certificate and its key are absent or can be loaded."""
    if settings.tls_cert is None and settings.tls_key is None:
        return
    if settings.tls_cert is None or settings.tls_key is None:
        raise OptionError("tls: a certificate and its key are needed; give --tls-cert and --tls-key")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.tls_cert, settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror or str(error)
        raise OptionError(
            f"tls: {settings.tls_cert} and {settings.tls_key} cannot be used ({reason}); give PEM files"
        ) from error


def make_service(settings: ServerSettings, sessions: SessionStore | None = None, worker: int | None = None) -> Service:
    """Make the service of a process; opens its decision log.

    Args:
        settings: The settings.
        sessions: Where sessions are remembered; by default as the settings say.
        worker: Number of this process among several, which have logs of their own, in folders that the supervisor made; None
            if there is only one.

    Raises:
        OptionError: If the address of the session store is not valid.
        LogError: If another process writes this log.
        OutputError: If the log cannot be written.
    """
    folder = None if settings.log is None else log_folder(settings.log, worker)
    on_event = print_event if worker is None else partial(print_event, worker=worker)
    store = sessions or session_store(settings.state, settings.lifetime, settings.limits.max_memory // 2, on_event)
    service = Service(
        Registry(settings.registry),
        store,
        None if folder is None else DecisionLog(folder, linger=LINGER, on_event=on_event, create=worker is None),
        settings.epsilon,
        settings.limits,
        on_event,
        repeats=settings.repeats,
        lifetime=settings.lifetime,
        canary_settings=settings.canary,
    )
    if settings.log is not None:  # the logs of all workers: a repeated request may come to another one
        since = time.time_ns() // 1000 - int(settings.lifetime * 1e6)
        service.repeated.recover(recent_decisions(Path(settings.log), since, RECOVERED_BYTES))
    return service


def log_folder(log: str, worker: int | None) -> Path:
    """Return the folder to which a process logs.

    Args:
        log: The folder of the whole log.
        worker: Number of the process among several; None if there is only one.
    """
    return Path(log) / ("" if worker is None else f"worker-{worker}")


class Server(uvicorn.Server):
    """uvicorn with bounded connections, which says when it listens, drains and stops."""

    def __init__(self, config: uvicorn.Config, app: App, connections: Connections, announce: Any) -> None:
        super().__init__(config)
        self._app, self._connections, self._announce = app, connections, announce
        self.early_signals: list[int] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(1)
        loop, config = asyncio.get_running_loop(), self.config
        make: Any = config.http_protocol_class
        protocol = partial(make, config=config, server_state=self.server_state, app_state=self.lifespan.state)
        begin = (
            partial(loop.connect_accepted_socket, protocol)
            if config.ssl is None
            else partial(shake_hands, self._connections, config.ssl, protocol)
        )
        at_a_time = AT_A_TIME if self._app.service.workers is None else SHARED_AT_A_TIME
        if config.ssl is not None:
            at_a_time = HANDSHAKES_AT_A_TIME
        self.servers = [Listener(one, begin, at_a_time, self._refused) for one in sockets or []]  # type: ignore[misc]
        self._sweeper = loop.create_task(self._connections.sweep_forever())
        gc.freeze()  # what is loaded now stays for good: the collector need not scan it
        gc.set_threshold(20_000)  # objects of requests in progress are freed by reference counting
        self.started = True
        await self._announce(sockets or [])
        for number in self.early_signals:
            loop.call_soon(signal.raise_signal, number)  # now there is somebody to stop

    def _refused(self, error: OSError) -> None:
        self._connections.report_once("connections wait", problem=f"the system lets none be accepted ({error.strerror})")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        on_event = self._app.service.on_event
        on_event("draining", requests=self._app.metrics.in_progress, connections=len(self._connections.open))
        for listener in self.servers:
            listener.close()
            await listener.wait_closed()  # uvicorn shuts down the connections that it knows now
        await super().shutdown(sockets)
        self._sweeper.cancel()
        on_event("stopped")


def run_server(settings: ServerSettings, service: Service, listener: socket.socket, announce: Any = None) -> None:
    """Serve until SIGTERM or SIGINT; requests in progress finish.

    Args:
        settings: The settings.
        service: The service; it is closed at the end.
        listener: The socket to accept connections from.
        announce: Coroutine function called with the sockets once the server listens; by default it prints the address.
    """
    early_signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn raises the signal again when it has stopped; the exit code is 0
        signal.signal(number, lambda signal_number, _: early_signals.append(signal_number))
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # one warning per invalid request would flood the log
    wanted = settings.connections.max_connections
    allowed = allow_files(wanted)
    if allowed < wanted:
        problem = f"this process may open too few files for {wanted:,} connections, so {allowed:,} are accepted at a time"
        service.on_event("warning", problem=f"{problem}; raise its limit (ulimit -Hn) or lower --max-connections")
    protocol = bounded_protocol(replace(settings.connections, max_connections=allowed))
    app = App(service, settings.access)
    app.metrics.connections = protocol.shared
    protocol.shared.on_event = service.on_event
    config = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        log_config=None,
        access_log=False,
        lifespan="on",
        timeout_keep_alive=5,
        timeout_graceful_shutdown=DRAIN_SECONDS,
        server_header=False,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=list(settings.trusted_proxies),
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )
    if announce is None:
        announce = partial(_print_address, settings)
    server = Server(config, app, protocol.shared, announce)
    server.early_signals = early_signals
    server.run([listener])


def allow_files(connections: int) -> int:
    """Raise this process's limit on open files to what so many connections need, as far as the system allows.

    Args:
        connections: Number of connections that are wanted.

    Returns:
        How many of them leave `SPARE_FILES` to the rest of the process, or half of a limit that is very low.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + SPARE_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return connections
    limit = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return min(connections, max(limit - SPARE_FILES, limit // 2))


def address_of(settings: ServerSettings, listener: socket.socket) -> str:
    """Return the address of a listening socket as a URL."""
    host, port = listener.getsockname()[:2]
    scheme = "http" if settings.tls_cert is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


async def _print_address(settings: ServerSettings, sockets: list[socket.socket]) -> None:
    for listener in sockets:
        print_event("listening", address=address_of(settings, listener))
