"""Who may ask: Host names, JSON bodies, tokens, TLS; headers for browsers; no path in an answer."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from mbcal.client import AsyncClient, Client
from mbcal.errors import ModelError, OptionError, ServiceError
from mbcal.registry.registry import Registry
from mbcal.serving.access import Access, page_headers, read_token
from mbcal.serving.events import flush_events
from mbcal.serving.run import ServerSettings, warn_if_open
from mbcal.serving.sentences import without_paths
from mbcal.serving.service import Service
from tests.support.command_line import mbcal
from tests.support.servers import run_app, serving
from tests.support.versions import ITEMS

TOKEN, ADMIN = "0123456789abcdef-token", "0123456789abcdef-admin"


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def test_the_host_must_be_a_name_of_the_server(registry: Registry) -> None:
    allowed = [
        "localhost",
        "localhost:8000",
        "LOCALHOST",
        "127.0.0.1:1",
        "[::1]:8000",
        "ranker.example",
        "Ranker.Example:443",
    ]
    refused = [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example:8000",
        "",
        "10.0.0.1",
        "[::1].evil.example",
        "localhost:80@evil.example",
        "localhost:x",
        "localhost/",
        "[::1",
    ]

    async def story(http: httpx.AsyncClient, _: Service) -> None:
        for host in allowed:
            assert (await http.get("/healthz", headers={"host": host})).status_code == 200, host
        for host in refused:
            answer = await http.get("/healthz", headers={"host": host})
            assert answer.status_code == 421, host
            assert answer.headers["connection"] == "close", host  # it does not count as served
            assert "--allow-host" in answer.json()["error"]
        for name in ("host", "authorization", "content-type"):
            twice = await http.get("/healthz", headers=[("host", "localhost"), (name, "localhost"), (name, "localhost")])
            assert (twice.status_code, twice.json()["error"].partition(":")[0]) == (400, name)

    run_app(registry, story, access=Access(hosts=frozenset({"ranker.example"})))


def test_bodies_must_be_declared_as_json(registry: Registry) -> None:
    body = b'{"candidates": ["item 1"]}'

    async def story(http: httpx.AsyncClient, service: Service) -> None:
        for kind in (None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
            headers = {} if kind is None else {"content-type": kind}
            assert (await http.post("/v1/rank", content=body, headers=headers)).status_code == 415, kind
        for kind in ("application/json", "Application/JSON; charset=utf-8"):
            assert (await http.post("/v1/rank", content=body, headers={"content-type": kind})).status_code == 200, kind
        for kind, status in (("text/plain", 415), ("application/json", 200)):
            headers = {"content-type": kind, **bearer(ADMIN)}
            assert (await http.post("/admin/reload", headers=headers)).status_code == status
        preflight = {"origin": "http://evil.example", "access-control-request-method": "POST"}
        answer = await http.options("/v1/rank", headers=preflight)
        assert answer.status_code == 405
        assert not [name for name in answer.headers if name.startswith("access-control")]
        assert service.counts["v000001"].decisions == 2

    run_app(registry, story, access=Access(admin_token=ADMIN))


def test_pages_are_told_to_load_nothing_from_elsewhere_and_not_to_be_framed(registry: Registry) -> None:
    async def story(http: httpx.AsyncClient, _: Service) -> None:
        page = await http.get("/")
        assert page.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
        assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
        assert page.headers["x-frame-options"] == "DENY"
        assert page.headers["referrer-policy"] == "no-referrer"
        for path in ("/", "/healthz", "/nowhere"):
            assert (await http.get(path)).headers["x-content-type-options"] == "nosniff"

    run_app(registry, story)
    policy = dict(page_headers(b"<script src=x></script><script>alert(1)</script>"))[b"content-security-policy"]
    assert b"script-src 'self' 'sha256-bhHHL3z2vDgxUt0W3dWQOrprscmda2Y5pLsLg4GF+pI=';" in policy


def test_with_a_token_every_route_needs_it(registry: Registry) -> None:
    async def story(http: httpx.AsyncClient, service: Service) -> None:
        routes = (
            "/",
            "/page/base.js",
            "/healthz",
            "/readyz",
            "/metrics",
            "/v1/model",
            "/v1/stats",
            "/openapi.json",
            "/nowhere",
        )
        for path in routes:
            missing = await http.get(path)
            assert missing.status_code == 401, path
            assert missing.headers["www-authenticate"].startswith("Basic" if path == "/" else "Bearer")
            status = 404 if path == "/nowhere" else 200
            assert (await http.get(path, headers=bearer(TOKEN))).status_code == status, path
            assert (await http.get(path, headers=bearer(ADMIN))).status_code == status, path
        assert (await http.get("/", auth=("anyone", TOKEN))).status_code == 200  # what a browser sends
        for path in ("/v1/rank", "/v1/feedback"):
            assert (await http.post(path, json={})).status_code == 401
        for token, status in ((TOKEN, 401), (ADMIN, 200)):
            answer = await http.post("/admin/epsilon", json={"epsilon": 0.5}, headers=bearer(token))
            assert answer.status_code == status
        assert service.epsilon == 0.5

    run_app(registry, story, access=Access(TOKEN, ADMIN, wrong_token_seconds=0.0))


def test_wrong_tokens_are_slow_and_counted_and_do_not_slow_others(registry: Registry) -> None:
    async def story(http: httpx.AsyncClient, _: Service) -> None:
        began = time.monotonic()
        guesses = [asyncio.create_task(http.get("/healthz", headers=bearer(f"guess {n}"))) for n in range(20)]
        await asyncio.sleep(0.05)
        assert (await http.get("/healthz", headers=bearer(TOKEN))).status_code == 200
        assert time.monotonic() - began < 0.4
        answers = await asyncio.gather(*guesses)
        assert time.monotonic() - began >= 0.5
        assert {(answer.status_code, answer.headers["connection"]) for answer in answers} == {(401, "close")}
        text = (await http.get("/metrics", headers=bearer(TOKEN))).text
        assert "mbcal_wrong_tokens_total 20" in text

    run_app(registry, story, access=Access(TOKEN, wrong_token_seconds=0.5))


def test_tokens_come_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MBCAL_TOKEN", raising=False)
    assert read_token(None, "MBCAL_TOKEN") is None
    monkeypatch.setenv("MBCAL_TOKEN", TOKEN)
    assert read_token(None, "MBCAL_TOKEN") == TOKEN
    (tmp_path / "token").write_text(f"{ADMIN}\n")
    assert read_token(tmp_path / "token", "MBCAL_TOKEN") == ADMIN
    for content in ("", "short\n", "with space in the middle"):
        (tmp_path / "token").write_text(content)
        with pytest.raises(OptionError, match="at least 16 characters"):
            read_token(tmp_path / "token", "MBCAL_TOKEN")
    with pytest.raises(OptionError, match=r"absent: the token cannot be read \(No such file"):
        read_token(tmp_path / "absent", "MBCAL_TOKEN")


def test_no_answer_names_a_path_of_the_machine(registry: Registry, tmp_path: Path) -> None:
    async def story(http: httpx.AsyncClient, service: Service) -> None:
        problems = [ModelError(f"{registry.path}/versions/v1/x.json: damaged"), RuntimeError(f"{tmp_path}/secret")]

        async def fail(*_: object) -> None:
            raise problems.pop()

        service.rank = fail  # type: ignore[assignment,method-assign]
        for sentence in ("the server failed; its log has the reason", "x.json: damaged"):
            answer = await http.post("/v1/rank", json={"candidates": ITEMS})
            assert (answer.status_code, answer.json()["error"]) == (500, sentence)

    run_app(registry, story)
    assert without_paths("/a b/c/d.x: gone, see rel/e", [Path("/a b")]) == "d.x: gone, see e"


def test_tls_with_a_token(
    shared_registry: Registry, certificate: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = certificate
    (tmp_path / "token").write_text(TOKEN)
    monkeypatch.setenv("MBCAL_ADMIN_TOKEN", ADMIN)
    options = ("--tls-cert", str(cert), "--tls-key", str(key), "--token-file", str(tmp_path / "token"))
    with serving(shared_registry, *options) as (process, port):
        address = f"https://localhost:{port}"
        with Client(address, token=TOKEN, certificate=cert) as client:
            assert client.rank([], ITEMS, k=1).version == "v000001"

        async def asynchronously() -> str:
            async with AsyncClient(address, token=TOKEN, certificate=cert) as client:
                return (await client.model()).version

        assert asyncio.run(asynchronously()) == "v000001"
        with Client(address, certificate=cert, retries=0) as client, pytest.raises(ServiceError, match=r"token.*401"):
            client.model()
        with (
            Client(address, token=TOKEN, retries=0) as client,
            pytest.raises(ServiceError, match="CERTIFICATE_VERIFY_FAILED"),
        ):
            client.model()
        cmdline = Path(f"/proc/{process.pid}/cmdline")
        if cmdline.exists():
            assert TOKEN not in cmdline.read_text()
            assert ADMIN not in cmdline.read_text()


def test_settings_that_cannot_work_are_one_sentence(shared_registry: Registry, tmp_path: Path) -> None:
    def refused(*options: str) -> str:
        command = [sys.executable, "-m", "mbcal", "serve", "--registry", str(shared_registry.path), *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 2
        assert len(done.stderr.strip().splitlines()) == 1
        return done.stderr

    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "another server has this port" in refused("--port", str(taken.getsockname()[1]))
    (tmp_path / "not.pem").write_text("no certificate")
    assert "cannot be used" in refused("--tls-cert", str(tmp_path / "not.pem"), "--tls-key", str(tmp_path / "not.pem"))
    assert "neither an address nor a network" in refused("--trusted-proxy", "proxy")


@pytest.mark.parametrize("lifetime", ["inf", "nan", "1e300", "0"])
def test_a_lifetime_is_a_number_of_seconds(shared_registry: Registry, tmp_path: Path, lifetime: str) -> None:
    options = (
        "--registry",
        str(shared_registry.path),
        "--log",
        str(tmp_path / "log"),
        "--lifetime",
        lifetime,
        "--port",
        "0",
    )
    assert "--lifetime" in mbcal("serve", *options, code=2).stderr


def test_a_server_that_anyone_can_reach_warns(capfd: pytest.CaptureFixture[str]) -> None:
    for host, token, warns in (
        ("127.0.0.1", None, False),
        ("localhost", None, False),
        ("::1", None, False),
        ("0.0.0.0", TOKEN, False),  # noqa: S104 - nothing listens
        ("0.0.0.0", None, True),  # noqa: S104
        ("ranker.example", None, True),
    ):
        warn_if_open(ServerSettings("registry", host=host, token=token))
        flush_events()
        assert ("--token-file" in capfd.readouterr().err) == warns, host
