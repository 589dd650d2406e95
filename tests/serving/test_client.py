"""The typed clients: retries, errors, names."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mbcal.agents import load
from mbcal.client import AsyncClient, Client
from mbcal.decision_log.reader import read_log
from mbcal.decision_log.records import Decision, Feedback
from mbcal.errors import InputError, OptionError, ServiceError
from mbcal.received import ReceivedAnswer
from mbcal.registry.registry import Registry
from tests.support.servers import CuttingProxy, serving
from tests.support.versions import HISTORY, ITEMS, SHOWN


def test_the_client_retries_and_is_logged_once(registry: Registry, tmp_path: Path) -> None:
    """Behind a proxy that cuts off every other answer, each call is logged once."""
    with serving(registry, "--log", str(tmp_path / "log")) as (_, port):
        proxy = CuttingProxy(port)
        with Client(f"http://127.0.0.1:{proxy.port}") as client:
            first = client.rank([], ITEMS, session="s")
            assert client.feedback(first.decision, "like").applied

        async def asynchronously() -> None:
            async with AsyncClient(f"http://127.0.0.1:{proxy.port}") as client:
                assert (await client.rank([], ITEMS, k=2)).version == "v000001"
                assert (await client.model()).agent == "mbcal"

        asyncio.run(asynchronously())
        proxy.close()
        assert proxy.cut >= 3
    records = list(read_log(tmp_path / "log"))
    assert [type(record) for record in records] == [Decision, Feedback, Decision]


def test_refusals_are_one_sentence(registry: Registry) -> None:
    twice = r"/v1/rank: candidates: an item is there twice.*\(HTTP 422\)"
    with (
        serving(registry) as (_, port),
        Client(f"http://127.0.0.1:{port}") as client,
        pytest.raises(ServiceError, match=twice),
    ):
        client.rank([], ["a", "a"])
    running = "'mbcal serve' running there"
    with Client("http://127.0.0.1:9", retries=1) as unreachable, pytest.raises(ServiceError, match=running):
        unreachable.rank([], ["a"])


def _answers_of(answer: Callable[[socket.socket], None], timeout: float = 5.0) -> list[str]:
    """What both clients say of a server that answers every request so."""

    def listen(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection, contextlib.suppress(OSError):
                    connection.recv(65_536)
                    answer(connection)

    async def asynchronously(address: str) -> None:
        async with AsyncClient(address, timeout=timeout, retries=0) as client:
            await client.rank([], ["a"])

    said = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=listen, args=(listener,), daemon=True).start()
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with Client(address, timeout=timeout, retries=0) as client, pytest.raises(ServiceError) as error:
            client.rank([], ["a"])
        said.append(str(error.value))
        with pytest.raises(ServiceError) as error:
            asyncio.run(asynchronously(address))
        said.append(str(error.value))
    return said


@pytest.mark.parametrize("body", [b"", b"<html>log in</html>", b"[]", b"{}", b'{"decision": 1}', b'"\xff"', b"[" * 100_000])
def test_what_is_no_answer_of_the_service_is_one_sentence(body: bytes) -> None:
    """A proxy's page, for one: callers catch ServiceError alone."""
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
    for said in _answers_of(lambda connection: connection.sendall(head + body)):
        assert said.startswith("/v1/rank: not an answer of 'mbcal serve' (")


def test_an_answer_without_end_takes_neither_memory_nor_time() -> None:
    def endless(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n")
        for _ in range(200):
            connection.sendall(bytes(1 << 20))

    def drop_by_drop(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        for _ in range(100):
            connection.sendall(b" ")
            time.sleep(0.1)

    for said in _answers_of(endless, timeout=60.0):
        assert said == "/v1/rank: the answer is longer than 32 MiB; is this 'mbcal serve'? (HTTP 200)"
    began = time.monotonic()
    for said in _answers_of(drop_by_drop, timeout=0.5):
        assert "no answer (the answer was not complete in time)" in said
    assert time.monotonic() - began < 5


def test_headers_without_end_do_not_hold_the_asynchronous_client() -> None:
    def header_by_header(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\n")
            for number in range(30):
                connection.sendall(b"X-%d: y\r\n" % number)
                time.sleep(0.1)

    async def ask(address: str) -> None:
        async with AsyncClient(address, timeout=0.5, retries=0) as client:
            await client.model()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=header_by_header, args=(listener,))
        server.start()
        began = time.monotonic()
        with pytest.raises(ServiceError, match=r"no answer \(the answer was not complete in time\)"):
            asyncio.run(ask(f"http://127.0.0.1:{listener.getsockname()[1]}"))
        assert 0.4 < time.monotonic() - began < 2
        server.join()


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_an_address_or_a_token_that_cannot_be_one_is_one_sentence(kind: type[Client] | type[AsyncClient]) -> None:
    for address in ("http://[::1", "http://\ud800"):
        with pytest.raises(OptionError, match=r"address: .* is none .*; write http://HOST:PORT"):
            kind(address)
    for token in ("é", "\ud800", "a\r\nX: y"):
        with pytest.raises(OptionError, match="token: has a character that no server takes"):
            kind(token=token)


def test_errors_hold_no_password_and_no_control_characters() -> None:
    with (
        pytest.raises(ServiceError, match=r"^http://127.0.0.1:1/a: no answer"),
        Client("http://ada:secret@127.0.0.1:1/a", retries=0) as client,
    ):
        client.model()
    with pytest.raises(OptionError) as refused:
        Client("http://ada:secret@127.0.0.1:port")
    assert "secret" not in str(refused.value)
    answer = ReceivedAnswer("/v1/model", 422, time.monotonic() + 5)
    answer.add(json.dumps({"error": "\x1b[2J\x9b2J\u202e!\n"}).encode())
    with pytest.raises(ServiceError, match=r"^/v1/model: \\u001b\[2J\\u009b2J\\u202e!\\n \(HTTP 422\)$"):
        answer.decode(dict)


def test_a_long_error_is_cut() -> None:
    body = b'{"error": "%s"}' % (b"x" * 100_000)
    head = b"HTTP/1.1 500 No\r\nContent-Length: %d\r\n\r\n" % len(body)
    for said in _answers_of(lambda connection: connection.sendall(head + body)):
        assert len(said) < 1_100


def test_the_client_ranks_as_the_library_does(registry: Registry, models: list[Path]) -> None:
    candidates = [item for item in ITEMS if item not in ("item 2", "item 9")]
    ranked = load(models[0], "cpu").rank(HISTORY, candidates, SHOWN)
    with serving(registry, "--epsilon", "0") as (_, port), Client(f"http://127.0.0.1:{port}") as client:
        answer = client.rank(HISTORY, candidates, SHOWN, k=len(candidates))
    assert [entry.item for entry in answer.items] == [entry.item for entry in ranked]
    assert [entry.score for entry in answer.items] == pytest.approx([entry.score for entry in ranked], abs=1e-5)


def test_whole_numbers_stand_for_their_text(registry: Registry, tmp_path: Path) -> None:
    with (
        serving(registry, "--epsilon", "0", "--log", str(tmp_path / "log")) as (_, port),
        Client(f"http://127.0.0.1:{port}") as client,
    ):
        answer = client.rank([(160974, "click")], [np.int64(7)], [(3, "like")], session=5, user=np.int32(42))
        assert [entry.item for entry in answer.items] == ["7"]
        assert client.feedback(answer.decision, "click", 7).applied
    decision, feedback = read_log(tmp_path / "log")
    assert isinstance(decision, Decision)
    assert (decision.history, decision.candidates) == ([("160974", "click")], ["7"])
    assert (decision.shown, decision.session, decision.user) == ([("3", "like")], "5", "42")
    assert isinstance(feedback, Feedback)
    assert feedback.item == "7"


@pytest.mark.parametrize("value", [True, 1.0, None])
def test_other_values_are_refused_before_they_are_sent(value: Any) -> None:
    with Client("http://127.0.0.1:9", retries=0) as client:
        for call in (
            lambda: client.rank([(value, "click")], ["a"]),
            lambda: client.rank([], [value]),
            lambda: client.rank([], ["a"], [(value, "click")]),
            lambda: client.feedback(value, "click", "a"),
        ):
            with pytest.raises(InputError, match="names are text or whole numbers, got"):
                call()
