"""Drives that do not answer: who asks what is on them gets what is known, others are served, and the server can end."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from mbcal.registry.registry import Registry
from mbcal.serving import endpoints
from mbcal.serving.limits import Limits
from mbcal.serving.service import Service
from mbcal.serving.stats import Shared
from mbcal.serving.threads import in_thread
from tests.support.servers import run_app
from tests.support.versions import ITEMS


def test_drives_that_hang_hold_up_neither_answers_nor_the_end(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging, began, threads = threading.Event(), 0.0, threading.active_count()

    def hang(*_: Any) -> None:
        hanging.wait(30)
        raise OSError("stale file handle")

    async def story(http: httpx.AsyncClient, service: Service) -> None:
        nonlocal began
        known = (await http.get("/v1/registry")).json()
        await asyncio.sleep(0.02)
        for name in ("log_stats", "registry_answer", "read_update_page"):
            monkeypatch.setattr(endpoints, name, hang)
        monkeypatch.setattr(registry, "pointer", hang)
        looking = asyncio.create_task(service.follower.look())
        began = time.monotonic()
        for _ in range(3):
            registries = await asyncio.gather(*(http.get("/v1/registry") for _ in range(8)))
            assert {answer.status_code for answer in registries} == {200}
            assert "does not answer" in registries[0].json()["problem"]
            assert registries[0].json() == {**known, "problem": registries[0].json()["problem"]}
            stats = (await http.get("/v1/stats")).json()
            assert (stats["log"]["bytes"], stats["log"]["waiting"]) == (None, 0)
        pages = await asyncio.gather(*(http.get("/updates/000001.html") for _ in range(endpoints.MAX_PAGES + 1)))
        assert {answer.status_code for answer in pages} == {503}
        assert (await http.post("/v1/rank", json={"candidates": ITEMS})).status_code == 200
        assert threading.active_count() - threads <= endpoints.MAX_PAGES + 4  # a statistic, a registry, a look, the log
        looking.cancel()

    for name, seconds in (("FOLDER_SECONDS", 0.01), ("DRIVE_SECONDS", 0.1)):
        monkeypatch.setattr(endpoints, name, seconds)
    try:
        run_app(registry, story, tmp_path / "log", limits=Limits(max_in_progress=8))
        assert time.monotonic() - began < 10
    finally:
        hanging.set()


def test_a_look_that_hangs_is_not_begun_again(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mbcal.serving.follower.LOOK_SECONDS", 0.05)
    hanging, reads, pointer = threading.Event(), 0, registry.pointer

    def hang() -> Any:
        nonlocal reads
        reads += 1
        hanging.wait(30)
        return pointer()

    async def story(_: httpx.AsyncClient, service: Service) -> None:
        monkeypatch.setattr(registry, "pointer", hang)
        for _ in range(3):
            await service.follower.look()
        assert (reads, service.follower.failures) == (1, 3)
        hanging.set()
        await asyncio.sleep(0.1)
        await service.follower.look()
        assert (reads, service.follower.failures_in_a_row) == (2, 0)

    try:
        run_app(registry, story)
    finally:
        hanging.set()


def test_a_thread_gives_its_result_or_its_error() -> None:
    async def story() -> None:
        assert await in_thread(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await in_thread(divmod, 7, 0)

    asyncio.run(story())


def test_who_asks_for_what_hangs_is_told_at_once() -> None:
    async def story() -> None:
        shared = Shared(asyncio.Event().wait, 0.0, 0.1)
        began = time.monotonic()
        for _ in range(20):
            with pytest.raises(TimeoutError):
                await shared()
        assert time.monotonic() - began < 1

    asyncio.run(story())
