"""A canary beside the live version: its share of users, sticky, with its own epsilon; and what happens if it fails."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from mbcal.cli.canary import canary_config, watch_options
from mbcal.data.user_split import stable_hash
from mbcal.decision_log import Decision, read_log
from mbcal.decision_log.writer import DecisionLog
from mbcal.errors import InputError, OutputError
from mbcal.registry.lock import locked
from mbcal.registry.registry import Registry
from mbcal.serving.canary import Canary, CanarySettings
from mbcal.serving.memory_state import MemoryStore
from mbcal.serving.messages import RankRequest
from mbcal.serving.ranked import RankingFailedError
from mbcal.serving.server import App
from mbcal.serving.service import Service
from tests.support.command_line import refused
from tests.support.versions import ITEMS

LIVE, CANARY = "v000001", "v000002"


def service_of(registry: Registry, log: Path | None = None, share: float = 0.3, epsilon: float | None = None) -> Service:
    events: list[tuple[str, dict[str, Any]]] = []
    service = Service(
        registry,
        MemoryStore(),
        DecisionLog(log) if log else None,
        0.2,
        on_event=lambda name, **values: events.append((name, values)),
        canary_settings=CanarySettings(share, epsilon),
    )
    service.events = events  # type: ignore[attr-defined]
    return service


async def version_of(service: Service, session: str | None, user: str | None = None) -> str:
    return (await service.rank(RankRequest(candidates=ITEMS, k=1, session=session, user=user))).version


def test_a_share_of_sessions_gets_the_canary_and_keeps_it(registry: Registry, tmp_path: Path) -> None:
    registry.start_canary(CANARY)
    names = [f"s{number}" for number in range(600)]

    async def story() -> None:
        first, second = service_of(registry, tmp_path / "log", epsilon=0.4), service_of(registry)
        for service in (first, second):
            await service.refresh_version()
        versions = {name: await version_of(first, name) for name in names}
        share = Counter(versions.values())[CANARY] / len(names)
        assert share == pytest.approx(0.3, abs=0.06)
        assert [await version_of(second, name) for name in names[:200]] == list(versions.values())[:200]  # servers agree
        assert [await version_of(first, name) for name in names[:200]] == list(versions.values())[:200]
        by_user = [await version_of(first, None, user="ann") for _ in range(5)]
        assert len(set(by_user)) == 1  # without a session, by user
        assert {await version_of(first, None) for _ in range(60)} == {
            LIVE
        }  # with neither, nothing would keep its visit together
        await first.close()

    asyncio.run(story())
    decisions = [record for record in read_log(tmp_path / "log") if isinstance(record, Decision)]
    assert {(decision.version, decision.epsilon) for decision in decisions} == {(LIVE, 0.2), (CANARY, 0.4)}


def test_a_visit_has_one_version_whichever_requests_carry_a_session(registry: Registry) -> None:
    registry.start_canary(CANARY)

    async def story() -> None:
        service = service_of(registry, share=0.5)
        await service.refresh_version()
        found = Counter()
        for number in range(60):
            user = f"user {number}"
            names = [None, f"s{number}", f"s{number}", f"t{number}"]  # a landing page without a session, then two sessions
            (version,) = {await version_of(service, session, user) for session in names}
            found[version] += 1
        assert 15 <= found[CANARY] <= 45
        for number in range(60):  # a user who logs in keeps the version of the session
            before = await version_of(service, f"a{number}")
            assert await version_of(service, f"a{number}", f"user {number}") == before

    asyncio.run(story())


def test_sessions_keep_the_version_they_began_with(registry: Registry) -> None:
    names = [f"s{number}" for number in range(40)]

    async def story() -> None:
        service = service_of(registry, share=0.6)
        await service.refresh_version()
        assert {await version_of(service, name) for name in names} == {LIVE}
        registry.start_canary(CANARY)
        await service.refresh_version()
        assert {await version_of(service, name) for name in names} == {LIVE}  # they began before the canary
        later = [f"t{number}" for number in range(40)]
        assert {await version_of(service, name) for name in later} == {LIVE, CANARY}
        registry.withdraw_canary()
        await service.refresh_version()
        assert {await version_of(service, name) for name in later} == {LIVE}
        registry.start_canary(CANARY)
        await service.refresh_version()
        ranker = service.canary.ranker
        registry.promote_canary()
        await service.refresh_version()
        assert service.ranker is ranker  # it is not opened again
        assert {await version_of(service, name) for name in (*names, *later)} == {CANARY}
        assert service.canary.name is None

    asyncio.run(story())


def test_a_damaged_canary_is_refused_and_withdrawn(registry: Registry) -> None:
    registry.start_canary(CANARY)
    weights = registry.path / "versions" / CANARY / "scorer.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])

    async def story() -> None:
        service = service_of(registry, share=0.9)
        await service.refresh_version()
        assert {await version_of(service, f"s{number}") for number in range(20)} == {LIVE}
        assert CANARY in service.refused
        assert registry.canary() is None
        assert registry.pointer().withdrawn[CANARY] == "it is damaged, a server refused it"

    asyncio.run(story())


def test_a_damaged_canary_is_withdrawn_later_if_another_process_changes_the_registry(registry: Registry) -> None:
    registry.start_canary(CANARY)
    weights = registry.path / "versions" / CANARY / "scorer.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])

    async def story() -> None:
        service = service_of(registry, share=0.9)
        with locked(registry.path):
            for _ in range(3):
                await asyncio.wait_for(service.refresh_version(), 10)
            assert await version_of(service, "s") == LIVE
        assert registry.canary() == CANARY
        await service.refresh_version()
        assert registry.canary() is None
        assert registry.pointer().withdrawn[CANARY] == "it is damaged, a server refused it"
        names = [name for name, _ in service.events]  # type: ignore[attr-defined]
        assert names == ["swapped", "refused", "canary failed", "canary not withdrawn"]

    asyncio.run(story())


def test_a_damaged_canary_is_withdrawn_later_if_the_registry_cannot_be_written(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.start_canary(CANARY)
    weights = registry.path / "versions" / CANARY / "scorer.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])

    def full(*_: Any, **__: Any) -> None:
        raise OutputError("no space left")

    async def story() -> None:
        service = service_of(registry, share=0.9)
        with monkeypatch.context() as patch:
            patch.setattr(Registry, "withdraw_canary", full)
            await service.refresh_version()
        assert registry.canary() == CANARY
        await service.refresh_version()
        assert registry.canary() is None

    asyncio.run(story())


def test_a_canary_that_fails_is_replaced_at_once(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.start_canary(CANARY)

    async def story() -> None:
        service = service_of(registry, share=0.9)
        await service.refresh_version()
        assert service.canary.ranker is not None

        def fail(*_: Any, **__: Any) -> None:
            raise FloatingPointError("overflow")

        monkeypatch.setattr(service.canary.ranker, "rank", fail)
        assert {await version_of(service, f"s{number}") for number in range(20)} == {LIVE}  # no request failed
        assert registry.canary() is None
        assert "it failed while ranking (FloatingPointError: overflow)" in registry.pointer().withdrawn[CANARY]
        names = [name for name, _ in service.events]  # type: ignore[attr-defined]
        assert names == ["swapped", "canary", "canary failed"]

    asyncio.run(story())


def test_a_canary_that_failed_is_served_in_another_trial_at_once(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server never sees the registry without a canary: it is started again between two polls."""
    registry.start_canary(CANARY)

    async def story() -> None:
        service = service_of(registry, share=0.9)
        await service.refresh_version()
        monkeypatch.setattr(registry, "withdraw_canary", lambda *_, **__: None)  # as if the registry could not be written
        await service.canary.fail(ValueError("overflow"))
        await service.refresh_version()
        assert service.canary.name is None  # not in the same trial
        monkeypatch.undo()
        registry.withdraw_canary()
        registry.start_canary(CANARY)
        await service.refresh_version()
        assert service.canary.name == CANARY

    asyncio.run(story())


def test_requests_that_are_refused_are_no_fault_of_the_canary(registry: Registry) -> None:
    registry.start_canary(CANARY)
    bodies = [b'{"candidates": [1.5], "session": "s%d"}', b'{"candidates": ["a", }], "session": "s%d"}']
    bodies.append(b'{"candidates": ["a", "a"], "session": "s%d"}')

    async def story() -> None:
        service = service_of(registry, share=0.9)
        await service.refresh_version()
        headers = {"content-type": "application/json"}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(App(service)), base_url="http://localhost") as http:
            for body, status in zip(bodies, (422, 400, 422), strict=True):
                answers = [await http.post("/v1/rank", content=body % n, headers=headers) for n in range(10)]
                assert {answer.status_code for answer in answers} == {status}
        assert registry.canary() == service.canary.name == CANARY
        assert CANARY in {await version_of(service, f"t{number}") for number in range(20)}

    asyncio.run(story())


def test_a_behaviour_that_no_version_knows_does_not_withdraw_a_canary_that_reads_more_history(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The live version does not read the step with that behaviour; the canary would."""
    registry.start_canary(CANARY)

    async def story() -> None:
        service = service_of(registry, share=0.9)
        await service.refresh_version()
        canary = service.canary.ranker
        assert canary is not None
        monkeypatch.setattr(canary, "version", replace(canary.version, history=50))  # type: ignore[type-var]
        history = [("item 1", "loved")] + [("item 1", "click")] * service.live.version.history
        for steps in ({"history": history}, {"shown": history}):
            for number in range(10):
                with pytest.raises(
                    InputError, match=f"'loved' is unknown to version {LIVE}; its behaviours are skip, click"
                ):
                    await service.rank(RankRequest(candidates=ITEMS, k=1, user=f"u{number}", **steps))
        assert registry.canary() == service.canary.name == CANARY

    asyncio.run(story())


def test_a_canary_that_refuses_what_the_live_version_ranks_is_withdrawn(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.start_canary(CANARY)

    async def story() -> None:
        service = service_of(registry, share=1.0)
        await service.refresh_version()

        def refuse(*_: Any, **__: Any) -> None:
            raise InputError("feature 'words' is unknown")

        assert service.canary.ranker is not None
        monkeypatch.setattr(service.canary.ranker.reader, "read", refuse)
        assert await version_of(service, "s1") == LIVE
        assert (registry.canary(), service.canary.name) == (None, None)
        assert registry.pointer().withdrawn[CANARY] == "it failed while ranking (feature 'words' is unknown)"

    asyncio.run(story())


def test_a_request_at_which_both_versions_fail_does_not_withdraw_the_canary(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.start_canary(CANARY)

    async def story() -> None:
        service = service_of(registry, share=0.9)
        await service.refresh_version()

        def fail(*_: Any, **__: Any) -> None:
            raise OverflowError("int too large to convert to float")

        for ranker in (service.ranker, service.canary.ranker):
            monkeypatch.setattr(ranker, "rank", fail)
        for number in range(10):
            with pytest.raises(RankingFailedError, match="OverflowError: int too large"):
                await version_of(service, f"s{number}")
        assert registry.canary() == service.canary.name == CANARY

    asyncio.run(story())


def test_without_a_share_there_is_no_canary(registry: Registry) -> None:
    registry.start_canary(CANARY)

    async def story() -> None:
        service = service_of(registry, share=0.0)
        for _ in range(3):
            await service.refresh_version()
        assert {await version_of(service, f"s{number}") for number in range(20)} == {LIVE}
        assert registry.canary() == CANARY
        told = ("canary gets no sessions here", {"version": CANARY, "hint": "start the server with --canary 0.1 to try it"})
        assert service.events[1:] == [told]  # type: ignore[attr-defined]

    asyncio.run(story())


def test_the_canary_is_shown_to_operators(registry: Registry) -> None:
    registry.start_canary(CANARY)

    async def story() -> None:
        service = service_of(registry)
        await service.refresh_version()
        async with httpx.AsyncClient(transport=httpx.ASGITransport(App(service)), base_url="http://localhost") as http:
            stats = (await http.get("/v1/stats")).json()
            assert (stats["live"], stats["canary"], stats["canary_share"]) == (LIVE, CANARY, 0.3)
            assert f'mbcal_canary_share{{version="{CANARY}"}} 0.3' in (await http.get("/metrics")).text

    asyncio.run(story())


def test_a_canary_never_explores_less_than_the_live_version(
    registry: Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What exploration costs would count for the canary; also if the server's epsilon is raised while it serves."""
    registry.start_canary(CANARY)

    async def story() -> set[tuple[str, float]]:
        service = service_of(registry, share=0.99, epsilon=0.25)
        await service.refresh_version()
        found = set()
        for epsilon in (0.2, 0.5):
            service.epsilon = epsilon
            answer = await service.rank(RankRequest(candidates=ITEMS, k=1, session="s"))
            found.add((answer.version, answer.epsilon))
        await service.close()
        return found

    assert asyncio.run(story()) == {(CANARY, 0.25), (CANARY, 0.5)}
    options = ["--log", str(tmp_path / "log"), "--canary", "0.1", "--epsilon", "0.2", "--canary-epsilon", "0.1"]
    words = refused("serve", "--registry", str(registry.path), *options, cwd=tmp_path, capsys=capsys)
    assert "canary-epsilon: 0.1 is below --epsilon" in words


def test_a_watched_canary_needs_a_log(registry: Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = refused("serve", "--registry", str(registry.path), "--canary", "0.1", cwd=tmp_path, capsys=capsys)
    assert "canary: sessions are compared by the decision log; give --log" in words


def test_a_watcher_gets_the_limits_of_its_server(
    registry: Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = watch_options(canary_config(40, 0.1, 5.0, 2.0, 0.2, "wait", 20.0))
    given = "--promote-after 40 --withdraw-below 0.1 --canary-max-days 5.0 --canary-min-days 2.0 --user-loss 0.2"
    assert " ".join(options) == f"{given} --undecided wait --idle 20.0 --every 5.0"
    impossible = ["--log", str(tmp_path / "log"), "--canary", "0.1", "--canary-max-days", "0.5"]
    words = refused("serve", "--registry", str(registry.path), *impossible, cwd=tmp_path, capsys=capsys)
    assert "at least and at most 3 (--canary-min-days) and 0.5 (--canary-max-days) days" in words


def test_the_hash_is_uniform_and_differs_by_canary_and_trial() -> None:
    class Named:
        def __init__(self, name: str) -> None:
            self.version = type("Version", (), {"name": name})

    async def opened(name: str) -> Any:
        return Named(name)

    def chosen(name: str, salt: str) -> Any:
        canary = Canary(CanarySettings(0.1), Registry("nowhere"), lambda *_, **__: None)
        asyncio.run(canary.follow(name, 1, opened, salt))
        return np.asarray([canary.version_for(f"session {number}") == name for number in range(20_000)])

    shares = [chosen(*trial) for trial in ((CANARY, ""), ("v000003", ""), (CANARY, "one"), (CANARY, "another"))]
    assert [one.mean() for one in shares] == pytest.approx([0.1] * 4, abs=0.01)
    for one, other in itertools.combinations(shares, 2):
        assert (one & other).mean() == pytest.approx(0.01, abs=0.005)
    unsalted = [stable_hash(f"session {number}", 0, f"canary {CANARY}") < 0.1 * 2**64 for number in range(20_000)]
    assert list(shares[0]) == unsalted  # trials that began before there were salts


def test_a_server_takes_the_salt_from_the_registry(registry: Registry) -> None:
    service = Service(registry, MemoryStore(), None, 0.0, canary_settings=CanarySettings(0.5))
    given = []
    for _ in range(2):
        registry.start_canary(CANARY)
        asyncio.run(service.refresh_version())
        given.append([service.canary.version_for(f"u{number}") for number in range(200)])
        registry.withdraw_canary()
    assert given[0] != given[1]
