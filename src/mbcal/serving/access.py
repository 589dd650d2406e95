"""Who may ask: Host names, bearer tokens, JSON bodies, and the headers that restrict pages in browsers.

Browsers send requests to this server on behalf of any page they show. Three rules keep such pages out: a body must be
declared as JSON, which a browser sends to another origin only after a preflight that is never granted; the Host must be a
name of this server, which stops names that were rebound to its address; and no answer allows another origin to read it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from mbcal.errors import OptionError
from mbcal.serving.refusals import Header, RefusedError
from mbcal.serving.routes import HTML, Route

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
"""Host names that are always allowed."""
SHORTEST_TOKEN = 16
"""Characters of a token; shorter ones can be guessed."""
MAX_KNOWN_HOSTS = 1000
"""Host headers that are remembered as allowed."""
MAX_DELAYED = 100
"""Answers to wrong tokens that wait at a time; further ones are sent at once and their connections closed."""

Headers = Mapping[bytes, bytes]

_SCRIPT = re.compile(rb"<script(?:\s[^>]*)?>(.*?)</script>", re.DOTALL | re.IGNORECASE)
_HOST = re.compile(r"(?:\[(?P<address>[0-9a-f:.]+)\]|(?P<name>[a-z0-9._-]+))(?::[0-9]{1,5})?")
NO_SNIFFING: Header = (b"x-content-type-options", b"nosniff")


@dataclass
class Access:
    """Rules on who may ask."""

    token: str | None = None
    """Bearer token of all routes; None leaves them open."""
    admin_token: str | None = None
    """Bearer token of the /admin routes, also good for the others; None refuses the /admin routes."""
    hosts: frozenset[str] = frozenset()
    """Host names, in lower case, beside loopback names and the address of the connection; `*` allows all."""
    wrong_token_seconds: float = 1.0
    """Seconds for which the answer to a wrong token is held back."""
    wrong_tokens: int = field(default=0, init=False)
    """Requests with a wrong token so far."""
    _delayed: int = field(default=0, init=False)
    _known_hosts: set[bytes] = field(default_factory=set, init=False)  # headers that were found to be allowed

    def single_headers(self, headers: Sequence[Header]) -> Headers:
        """Return the headers by name; raise RefusedError if one that decides who may ask was sent twice."""
        single = dict(headers)
        if len(single) < len(headers):
            names = [name for name, _ in headers]
            for name in (b"host", b"authorization", b"content-type"):
                if names.count(name) > 1:
                    raise RefusedError(400, f"{name.decode()}: was sent several times; send this header once")
        return single

    def require_host(self, headers: Headers, address: str | None) -> None:
        """Raise RefusedError unless the Host header names this server.

        Args:
            headers: The headers of the request.
            address: Address of this server's end of the connection.
        """
        header = headers.get(b"host", b"")
        if header in self._known_hosts:
            return
        host = _host_name(header)
        if host in LOOPBACK or host in self.hosts or "*" in self.hosts:
            if len(self._known_hosts) < MAX_KNOWN_HOSTS:
                self._known_hosts.add(header)
            return
        if host and host == address:
            return
        name = header[:100].decode("latin1")
        raise RefusedError(421, f"host: {name!r} is not a name of this server; start it with --allow-host to allow it")

    def require_json(self, headers: Headers) -> None:
        """Raise RefusedError unless the body is declared as JSON."""
        if headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != b"application/json":
            raise RefusedError(415, "the body must be JSON; send the header 'Content-Type: application/json'")

    async def require_token(self, headers: Headers, route: Route | None) -> None:
        """Raise RefusedError unless the request carries the token it needs; wrong tokens are answered slowly.

        Args:
            headers: The headers of the request.
            route: What is asked for; None if there is no such route.
        """
        admin = route is not None and route.needs_token
        if admin and self.admin_token is None:
            raise RefusedError(403, "admin: disabled; start the server with --admin-token-file to enable it")
        accepted = [token for token in (self.admin_token, None if admin else self.token) if token is not None]
        if not admin and self.token is None:
            return
        offered = _offered_token(headers.get(b"authorization", b""))
        if sum(hmac.compare_digest(offered, token.encode()) for token in accepted):  # `any` would stop at the first
            return
        if offered:
            await self._slow_down()
        scheme = (
            b'Basic realm="mbcal", charset="UTF-8"'
            if route is not None and route.media_type is HTML
            else b'Bearer realm="mbcal"'
        )
        sentence = f"{'admin: ' if admin else ''}wrong or missing token; send 'Authorization: Bearer TOKEN'"
        raise RefusedError(401, sentence, ((b"www-authenticate", scheme),))

    async def _slow_down(self) -> None:
        self.wrong_tokens += 1
        if self._delayed >= MAX_DELAYED:
            return
        self._delayed += 1
        try:
            await asyncio.sleep(self.wrong_token_seconds)
        finally:
            self._delayed -= 1


def read_token(file: Path | None, variable: str) -> str | None:
    """Read a token from a file or, without one, from an environment variable.

    Args:
        file: A file that holds nothing else.
        variable: Name of the environment variable.

    Returns:
        The token; None if neither is given.

    Raises:
        OptionError: If the file cannot be read, or the token is too short or has other than printable ASCII characters.
    """
    source = variable if file is None else str(file)
    try:
        token = os.environ.get(variable) if file is None else file.read_text("utf-8")
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise OptionError(f"{source}: the token cannot be read ({reason}); give a file that holds nothing else") from error
    if token is None:
        return None
    token = token.strip()
    if len(token) < SHORTEST_TOKEN or not all("!" <= character <= "~" for character in token):
        rule = f"must have at least {SHORTEST_TOKEN} characters, letters, digits or signs without spaces"
        raise OptionError(f"{source}: the token {rule}; make one with 'openssl rand -hex 32'")
    return token


@lru_cache(maxsize=16)
def page_headers(page: bytes) -> tuple[Header, ...]:
    """Return the headers of an HTML page: it runs its own scripts, loads from here only, and cannot be framed.

    Args:
        page: The page, whose inline scripts are allowed by their hashes.
    """
    hashes = {base64.b64encode(hashlib.sha256(script).digest()).decode() for script in _SCRIPT.findall(page) if script}
    scripts = " ".join(["'self'", *(f"'sha256-{digest}'" for digest in sorted(hashes))])
    policy = (
        f"default-src 'none'; script-src {scripts}; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return (
        (b"content-security-policy", policy.encode()),
        (b"x-frame-options", b"DENY"),
        (b"referrer-policy", b"no-referrer"),
        (b"cache-control", b"no-store"),
    )


def _host_name(host: bytes) -> str:
    """Host header without the port and brackets, in lower case; empty if there is more in it than a name and a port."""
    found = _HOST.fullmatch(host.decode("latin1").strip().lower())
    return "" if found is None else found["address"] or found["name"].rstrip(".")


def _offered_token(authorization: bytes) -> bytes:
    """The token of a Bearer header, or the password of a Basic one, which browsers send; empty if there is none."""
    scheme, _, value = authorization.partition(b" ")
    if scheme.lower() == b"bearer":
        return value.strip()
    if scheme.lower() == b"basic":
        try:
            return base64.b64decode(value.strip(), validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return value
    return authorization
