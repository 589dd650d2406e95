"""Sessions that the application remembers: what is kept of them, and of requests that were refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx

from mbcal.decision_log.reader import read_log
from mbcal.decision_log.records import Decision, Feedback
from mbcal.errors import LogUnavailableError
from mbcal.registry.registry import Registry
from mbcal.serving.memory_state import MemoryStore
from mbcal.serving.service import Service
from mbcal.serving.state import Session, StateAwayError, Step
from tests.support.servers import run_app
from tests.support.versions import HISTORY, ITEMS


class Slow(MemoryStore):
    """A store that several requests read before one of them begins the session."""

    async def get(self, name: str) -> Session | None:
        found = await super().get(name)
        await asyncio.sleep(0.01)
        return found


def test_a_remembered_session_equals_one_sent_in_full(registry: Registry, tmp_path: Path) -> None:
    async def story(http: httpx.AsyncClient, _: Service) -> None:
        shown: list[list[str]] = []
        for behaviour in ("click", "skip", "like"):
            remembered = (
                await http.post("/v1/rank", json={"history": HISTORY, "candidates": ITEMS, "k": 3, "session": "s"})
            ).json()
            in_full = (
                await http.post("/v1/rank", json={"history": HISTORY, "candidates": ITEMS, "shown": shown, "k": 3})
            ).json()
            assert remembered["items"] == in_full["items"]
            for _ in range(2):  # feedback is idempotent
                feedback = await http.post("/v1/feedback", json={"decision": remembered["decision"], "behaviour": behaviour})
                assert feedback.json() == {"decision": remembered["decision"], "applied": True}
            shown.append([remembered["items"][0]["item"], behaviour])

    run_app(registry, story, tmp_path / "log")
    records = list(read_log(tmp_path / "log"))
    assert sum(isinstance(record, Decision) for record in records) == 6
    assert sum(isinstance(record, Feedback) for record in records) == 3
    last = [record for record in records if isinstance(record, Decision) and record.session][-1]
    assert [behaviour for _, behaviour in last.shown] == ["click", "skip"]
    assert last.history == HISTORY
    assert (last.step, last.version, last.candidates) == (2, "v000001", ITEMS)


def test_steps_that_the_live_version_does_not_know_are_not_read_but_were_shown(registry: Registry, tmp_path: Path) -> None:
    """As after a version with fewer behaviours went live."""
    steps = (Step(1, 0, "d", "item 1", "gone"), Step(2, 0, "e", "item 2", "click"))
    of_before = Session("ann", (("item 3", "gone"), ("item 4", "like")), steps)

    async def story(http: httpx.AsyncClient, service: Service) -> None:
        await service.sessions.begin("s", of_before)
        remembered = await http.post("/v1/rank", json={"candidates": ITEMS, "session": "s", "user": "ann"})
        known = {"history": [["item 4", "like"]], "shown": [["item 2", "click"]]}
        others = [item for item in ITEMS if item != "item 1"]
        in_full = await http.post("/v1/rank", json={"candidates": others, **known})
        assert (remembered.status_code, remembered.json()["items"]) == (200, in_full.json()["items"])
        assert await service.sessions.get("s") == of_before  # another version may know them
        given = await http.post("/v1/rank", json={"candidates": ITEMS, "session": "s", "shown": [["item 1", "gone"]]})
        assert given.status_code == 422

    run_app(registry, story, tmp_path / "log")
    first = next(record for record in read_log(tmp_path / "log") if isinstance(record, Decision))
    assert (first.history, first.shown, first.step) == (list(of_before.history), list(of_before.shown), 2)


def test_a_refused_request_leaves_nothing_of_its_session(registry: Registry) -> None:
    refused: list[dict[str, Any]] = [
        {"history": [["item 1", "nope"]]},
        {"candidates": ["item 1", "item 1"], "user": "mallory"},
        {"candidates": [1.5]},
        {"shown": [["item 1", "nope"]]},
    ]

    async def story(http: httpx.AsyncClient, service: Service) -> None:
        for number, fields in enumerate(refused):
            session = {"candidates": ITEMS, "session": f"s{number}"}
            assert (await http.post("/v1/rank", json=session | fields)).status_code == 422
            assert await service.sessions.get(f"s{number}") is None
            later = await http.post("/v1/rank", json={**session, "history": [["item 3", "click"]], "user": "ann"})
            assert later.status_code == 200
            known = await service.sessions.get(f"s{number}")
            assert known is not None
            assert (known.user, known.history) == ("ann", (("item 3", "click"),))

    run_app(registry, story)


def test_feedback_that_the_memory_could_not_take_is_applied_when_it_comes_again(registry: Registry, tmp_path: Path) -> None:
    async def story(http: httpx.AsyncClient, service: Service) -> None:
        answer = (await http.post("/v1/rank", json={"candidates": ITEMS, "session": "s", "k": 1})).json()
        feedback = {"decision": answer["decision"], "behaviour": "click"}
        add = service.sessions.add

        async def fail(*_: object) -> None:
            raise StateAwayError("state: away")

        service.sessions.add = fail  # type: ignore[method-assign, assignment]
        assert (await http.post("/v1/feedback", json=feedback)).json()["applied"] is False
        service.sessions.add = add  # type: ignore[method-assign]
        for _ in range(2):
            assert (await http.post("/v1/feedback", json=feedback)).json()["applied"] is True
            known = await service.sessions.get("s")
            assert known is not None
            assert known.shown == ((answer["items"][0]["item"], "click"),)
        assert sum(counts.feedback for counts in service.counts.values()) == 1

    run_app(registry, story, tmp_path / "log")
    assert [type(record) for record in read_log(tmp_path / "log")] == [Decision, Feedback]


def test_a_request_whose_decision_cannot_be_logged_leaves_nothing_of_its_session(registry: Registry, tmp_path: Path) -> None:
    async def story(http: httpx.AsyncClient, service: Service) -> None:
        assert service.log is not None
        body = {"candidates": ITEMS, "history": [["item 3", "click"]]}
        check = service.log.require_writable

        def refuse() -> None:
            raise LogUnavailableError("the log", "the disk is full")

        service.log.require_writable = refuse  # type: ignore[method-assign]
        for session in ({}, {"session": "s", "user": "mallory"}):
            assert (await http.post("/v1/rank", json=body | session)).status_code == 503
        assert sum(counts.sessions for counts in service.counts.values()) == 0
        service.log.require_writable = check  # type: ignore[method-assign]
        assert await service.sessions.get("s") is None
        assert (await http.post("/v1/rank", json=body | {"session": "s", "user": "ann"})).status_code == 200
        assert sum(counts.sessions for counts in service.counts.values()) == 1

    run_app(registry, story, tmp_path / "log")


def test_of_two_equal_first_requests_one_begins_the_session(registry: Registry) -> None:
    async def story(http: httpx.AsyncClient, service: Service) -> None:
        body = {"candidates": ITEMS, "session": "s", "user": "ann"}
        await asyncio.gather(*(http.post("/v1/rank", json=body) for _ in range(2)))
        await http.post("/v1/rank", json=body)  # nothing was shown yet
        assert service.counts["v000001"].sessions == 1
        assert service.traffic.rewards.totals["v000001"].sessions == 1

    run_app(registry, story, sessions=Slow())


def test_of_two_first_requests_the_first_history_counts_for_both(registry: Registry, tmp_path: Path) -> None:
    async def story(http: httpx.AsyncClient, _: Service) -> None:
        bodies = [
            {"candidates": ITEMS, "session": "s", "user": "ann", "history": [[item, "click"]], "id": item}
            for item in ("item 1", "item 2")
        ]
        answers = await asyncio.gather(*(http.post("/v1/rank", json=body) for body in bodies))
        assert [answer.status_code for answer in answers] == [200, 200]
        assert answers[0].json()["items"] == answers[1].json()["items"]

    run_app(registry, story, tmp_path / "log", sessions=Slow())
    logged = [(record.user, record.history) for record in read_log(tmp_path / "log") if isinstance(record, Decision)]
    assert len(logged) == 2
    assert logged[0] == logged[1]


def test_a_long_history_is_not_logged_with_every_short_request(registry: Registry, tmp_path: Path) -> None:
    history = [["x" * 250, "click"]] * 980 + [["item 1", "click"]] * 20

    async def story(http: httpx.AsyncClient, service: Service) -> None:
        length = service.live.version.history
        assert 0 < length <= 20
        for fields in ({"history": history, "session": "s"}, {"session": "s"}, {"history": history}):
            assert (await http.post("/v1/rank", json={"candidates": ITEMS, **fields})).status_code == 200
        session = await service.sessions.get("s")
        assert session is not None
        assert session.history == (("item 1", "click"),) * length

    run_app(registry, story, tmp_path / "log")
    logged = [record.history for record in read_log(tmp_path / "log") if isinstance(record, Decision)]
    assert logged[0] == logged[1] == logged[2]
    assert set(logged[0]) == {("item 1", "click")}


def test_a_session_of_another_user_is_refused(registry: Registry, tmp_path: Path) -> None:
    async def story(http: httpx.AsyncClient, service: Service) -> None:
        async def rank(session: str, **fields: Any) -> httpx.Response:
            return await http.post("/v1/rank", json={"candidates": ITEMS, "k": 1, "session": session, **fields})

        begun = (await rank("1", user="ada", history=HISTORY)).json()
        await http.post("/v1/feedback", json={"decision": begun["decision"], "behaviour": "click"})
        refused = await rank("1", user="bob")
        assert refused.status_code == 409
        assert refused.json() == {
            "error": "session: '1' is a session of another user; give every user sessions of their own"
        }
        assert (await rank("1")).status_code == (await rank("1", user="ada")).status_code == 200
        both = await asyncio.gather(rank("2", user="ada"), rank("2", user="bob"))  # at the same moment
        assert sorted(answer.status_code for answer in both) == [200, 409]
        assert [(await rank("3", **user)).status_code for user in ({}, {"user": "ada"})] == [200, 200]  # logs in

    run_app(registry, story, tmp_path / "log")
    decisions = [record for record in read_log(tmp_path / "log") if isinstance(record, Decision)]
    assert [decision.user for decision in decisions if decision.session == "1"] == ["ada"] * 3
    assert len({decision.user for decision in decisions if decision.session == "2"}) == 1
