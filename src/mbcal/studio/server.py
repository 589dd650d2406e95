"""HTTP for the studio: GET only, for one person on this machine.

The address that is printed holds a random token; the first visit exchanges it for a cookie, and everything else wants the
cookie. The Host header must be a loopback name with this port, so that no other site's page can reach it by a name of its
own. Reports are served in a sandbox: whatever is in them cannot read the rest.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import math
import os
import secrets
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from mbcal.data.store_format import PARTS
from mbcal.errors import InputError, MbcalError
from mbcal.pages import page_file
from mbcal.registry.updates import read_update_page
from mbcal.serving.routes import CSS, HTML, JAVASCRIPT, JSON
from mbcal.studio import views
from mbcal.studio.finder import find, resolve

MAX_REPORT = 64 << 20
"""Larger reports are not served."""
MAX_FIELDS = 50
"""Fields of an address."""
MAX_RUNS = 12
"""Runs compared at a time."""
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; frame-ancestors 'none'"
)
REPORT_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
)
_FILES = {
    "/": ("mbcal.studio", "studio.html", HTML),
    "/page/base.css": ("mbcal.pages", "base.css", CSS),
    "/page/base.js": ("mbcal.pages", "base.js", JAVASCRIPT),
    "/page/charts.js": ("mbcal.pages", "charts.js", JAVASCRIPT),
    **{
        f"/page/{name}": ("mbcal.studio", name, JAVASCRIPT)
        for name in ("studio.js", "stores.js", "models.js", "runs.js", "why.js")
    },
    "/page/studio.css": ("mbcal.studio", "studio.css", CSS),
}

Query = Mapping[str, list[str]]
Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class NotFoundError(InputError):
    """There is no such page."""


class Studio:
    """The ASGI application.

    Args:
        root: The folder to show.
        token: The token of the address; by default a random one.
    """

    def __init__(self, root: Path, token: str | None = None) -> None:
        self.root = root.resolve()
        self.token = token or secrets.token_urlsafe(24)
        self._cookie = f"mbcal-studio-{secrets.token_hex(4)}"
        self._views: dict[str, Callable[[Query], dict[str, Any]]] = {
            "/api/list": self._list,
            "/api/store": partial(self._artifact, "store", views.store_view),
            "/api/model": partial(self._artifact, "model", views.model_view),
            "/api/simulator": partial(self._artifact, "simulator", views.simulator_view),
            "/api/registry": partial(self._artifact, "registry", views.registry_view),
            "/api/log": partial(self._artifact, "decision log", views.log_view),
            "/api/run": self._run,
            "/api/compare": self._compare,
            "/api/why": self._why,
        }

    async def __call__(self, scope: Scope, _: Any, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        status, body, headers = await self._respond(scope)
        headers = {
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            "cache-control": "no-store",
            "content-security-policy": PAGE_POLICY,
            "cross-origin-resource-policy": "same-origin",
            "content-length": str(len(body)),
            **headers,
        }
        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": encoded})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    async def _respond(self, scope: Scope) -> tuple[int, bytes, dict[str, str]]:
        """Return status, body and headers."""
        path, headers = scope["path"], {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        query = _query(scope["query_string"])
        port = scope["server"][1]
        if headers.get("host") not in (f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}"):
            return _problem(421, "the Host header is not an address of this machine")
        if scope["method"] not in ("GET", "HEAD"):
            return _problem(405, "the studio is read-only")
        given = (query or {}).get("token", [""])[0]
        if path == "/" and given and hmac.compare_digest(given.encode(), self.token.encode()):
            cookie = f"{self._cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict"
            return 303, b"", {"location": "/", "set-cookie": cookie}
        held = _cookie(headers.get("cookie", ""), self._cookie)
        if not hmac.compare_digest(held.encode(), self.token.encode()):
            return _problem(403, "open the address that 'mbcal studio' printed: it has the token")
        if query is None:
            return _problem(400, f"the address has more than {MAX_FIELDS} fields; ask for less at a time")
        try:
            return await asyncio.to_thread(self._answer, path, query)
        except NotFoundError as error:
            return _problem(404, str(error))
        except MbcalError as error:
            return _problem(422, str(error).replace(f"{self.root}{os.sep}", ""))
        except (LookupError, TypeError, ValueError, AttributeError, OSError, RecursionError) as error:
            return _problem(
                422, f"damaged: its hashes are right, its content is not ({type(error).__name__}: {error})"[:500]
            )

    def _answer(self, path: str, query: Query) -> tuple[int, bytes, dict[str, str]]:
        if path in _FILES:
            package, name, media_type = _FILES[path]
            return 200, page_file(package, name), {"content-type": media_type}
        if path in ("/report", "/update"):
            policy = {"content-type": HTML, "content-security-policy": REPORT_POLICY}
            return 200, self._report(query) if path == "/report" else self._update(query), policy
        if path not in self._views:
            raise NotFoundError(f"{path}: no such page")
        answer = json.dumps(_finite(self._views[path](query)), ensure_ascii=False, default=float, allow_nan=False)
        return 200, answer.encode("utf-8", "replace"), {"content-type": JSON}

    # ---- what is asked for

    def _list(self, _: Query) -> dict[str, Any]:
        return {"folder": str(self.root), **find(self.root).to_dict()}

    def _artifact(self, kind: str, view: Callable[[Path], dict[str, Any]], query: Query) -> dict[str, Any]:
        return view(resolve(self.root, _one(query, "path"), kind))

    def _run(self, query: Query) -> dict[str, Any]:
        from mbcal.studio.runs import run_view

        return run_view(self.root, resolve(self.root, _one(query, "path"), "run"))

    def _compare(self, query: Query) -> dict[str, Any]:
        from mbcal.studio.runs import compare_view

        paths = query.get("path", [])
        if not 1 <= len(paths) <= MAX_RUNS:
            raise InputError(f"path: choose 1 to {MAX_RUNS} runs, got {len(paths)}")
        return compare_view(self.root, [resolve(self.root, path, "run") for path in paths])

    def _why(self, query: Query) -> dict[str, Any]:
        from mbcal.studio.why import why_view

        part, number = _one(query, "part"), _one(query, "session")
        if part not in PARTS or not number.isascii() or not number.isdigit() or len(number) > 12:
            raise InputError(f"part and session: must be one of {', '.join(PARTS)}, and a number from 0")
        model, store = resolve(self.root, _one(query, "model"), "model"), resolve(self.root, _one(query, "store"), "store")
        return why_view(model, store, part, int(number))

    def _report(self, query: Query) -> bytes:
        page = resolve(self.root, _one(query, "path"), "run") / "report.html"
        if page.is_symlink() or not page.is_file() or page.stat().st_size > MAX_REPORT:
            raise NotFoundError("this run has no report; write one with 'mbcal report'")
        return page.read_bytes()

    def _update(self, query: Query) -> bytes:
        return read_update_page(resolve(self.root, _one(query, "path"), "registry"), _one(query, "name"))


def _finite(value: Any) -> Any:
    """The same with None for numbers that are not finite, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _query(text: bytes) -> Query | None:
    """The fields of an address; None if they are too many."""
    try:
        return parse_qs(text.decode("latin-1"), max_num_fields=MAX_FIELDS)
    except ValueError:
        return None


def _cookie(text: str, name: str) -> str:
    """The value of one cookie; empty if there is none. The others, of any program on this machine, may be any text."""
    pairs = (pair.strip().partition("=") for pair in text.split(";"))
    return next((value for key, _, value in pairs if key == name), "")


def _one(query: Query, name: str) -> str:
    values = query.get(name, [])
    if len(values) != 1:
        raise InputError(f"{name}: must be given once")
    return values[0]


def _problem(status: int, sentence: str) -> tuple[int, bytes, dict[str, str]]:
    return status, json.dumps({"error": sentence}).encode(), {"content-type": JSON}
