"""The follower of the registry survives every failure, says how old its last good look is, and retries refused versions."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest

from mbcal.registry.registry import Registry
from mbcal.serving import follower
from mbcal.serving.follower import Follower
from mbcal.serving.service import Service
from tests.support.servers import run_app
from tests.support.versions import ITEMS


def test_any_failure_is_counted_logged_once_and_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "POLL_SECONDS", 0.001)
    outcomes: list[Exception | None] = [None, OSError("gone"), OSError("gone"), MemoryError(), RuntimeError("odd"), None]
    events: list[tuple[str, dict[str, Any]]] = []
    now = [0.0]

    async def look() -> None:
        now[0] += 1
        outcome = outcomes.pop(0) if outcomes else None
        if outcome is not None:
            raise outcome

    async def story() -> None:
        following = Follower(look, lambda event, **values: events.append((event, values)), lambda: now[0])
        await following.look()
        assert following.age == 0
        for _ in range(4):
            await following.look()
        assert (following.failures, following.age) == (4, 4)
        running = asyncio.create_task(following.run())
        while outcomes:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        assert not running.done()
        running.cancel()
        assert (following.failures, following.failures_in_a_row, following.age) == (4, 0, 0)

    asyncio.run(story())
    errors = [values["error"] for event, values in events if event == "registry unreadable"]
    assert errors == ["OSError: gone", "MemoryError: ", "RuntimeError: odd"]
    assert events[-1] == ("registry readable", {"failures": 4})


def test_a_damaged_pointer_is_survived_and_visible(registry: Registry) -> None:
    async def story(http: httpx.AsyncClient, service: Service) -> None:
        pointer = registry.path / "current.json"
        content = pointer.read_text()
        pointer.write_text("{")
        await service.follower.look()
        assert service.follower.failures == 1
        ready = (await http.get("/readyz")).json()
        assert ready["version"] == "v000001"
        assert ready["problems"] == ["registry: the last look failed; see the server's log"]
        assert "mbcal_registry_look_failures_total 1" in (await http.get("/metrics")).text
        pointer.write_text(content.replace('"v000001"', '"v000002"', 1))
        await service.follower.look()
        ready = (await http.get("/readyz")).json()
        assert (ready["version"], ready["problems"]) == ("v000002", [])
        assert 0 <= ready["registry_age"] < 5
        text = (await http.get("/metrics")).text
        assert float(text.split("\nmbcal_registry_look_age_seconds ")[1].split()[0]) < 5

    run_app(registry, story)


def test_a_registry_that_has_vanished_is_visible_and_its_version_serves_on(registry: Registry) -> None:
    async def story(http: httpx.AsyncClient, service: Service) -> None:
        folder, away = registry.path, registry.path.with_name("away")
        folder.rename(away)
        for make in (lambda: None, folder.mkdir, lambda: (folder.rmdir(), folder.touch())):  # nothing, a folder, a file
            make()
            failures = service.follower.failures
            await service.follower.look()
            assert service.follower.failures == failures + 1
            ready = (await http.get("/readyz")).json()
            assert (ready["version"], len(ready["problems"])) == ("v000001", 1)
            assert (await http.post("/v1/rank", json={"candidates": ITEMS})).status_code == 200
        folder.unlink()
        away.rename(folder)
        await service.follower.look()
        assert (await http.get("/readyz")).json()["problems"] == []

    run_app(registry, story)


def test_a_refused_version_is_tried_again_when_its_files_change(registry: Registry, tmp_path: Path) -> None:
    async def story(http: httpx.AsyncClient, service: Service) -> None:
        folder = registry.path / "versions" / "v000002"
        shutil.copytree(folder, tmp_path / "good")
        scorer = folder / "scorer.safetensors"
        data = bytearray(scorer.read_bytes())
        data[len(data) // 2] ^= 1
        scorer.write_bytes(bytes(data))
        pointer = registry.path / "current.json"
        pointer.write_text(pointer.read_text().replace('"v000001"', '"v000002"', 1))
        opened: list[str] = []
        original = registry.open
        service.registry.open = lambda name=None: opened.append(str(name)) or original(name)  # type: ignore[method-assign,func-returns-value]
        for _ in range(3):
            await service.follower.look()
        assert opened == ["v000002"]  # refused once, and not read again
        model = (await http.get("/v1/model")).json()
        assert model["version"] == "v000001"
        assert "scorer.safetensors: damaged" in model["refused"]["v000002"]
        assert str(tmp_path) not in str(model)
        ready = (await http.get("/readyz")).json()
        reason = model["refused"]["v000002"]
        said = f"registry: the live version v000002 was refused ({reason}); v000001 goes on serving"
        assert (ready["version"], ready["problems"]) == ("v000001", [said])
        shutil.copy(tmp_path / "good" / "scorer.safetensors", scorer)
        await service.follower.look()
        assert (await http.post("/v1/rank", json={"candidates": ITEMS})).json()["version"] == "v000002"
        assert (await http.get("/v1/model")).json()["refused"] == {}
        assert (await http.get("/readyz")).json()["problems"] == []

    run_app(registry, story)
