"""The application in this process: answers, refusals, limits, the OpenAPI document."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mbcal.agents import load
from mbcal.decision_log.reader import read_log
from mbcal.decision_log.records import Decision, Feedback
from mbcal.registry.registry import Registry
from mbcal.serving.access import Access
from mbcal.serving.endpoints import ROUTES
from mbcal.serving.limits import Limits
from mbcal.serving.memory_state import MemoryStore
from mbcal.serving.server import App
from mbcal.serving.service import Service
from mbcal.serving.state import DecisionRef
from tests.support.servers import run_app
from tests.support.versions import HISTORY, ITEMS, SHOWN


def test_it_ranks_as_the_library_does(registry: Registry, models: list[Path]) -> None:
    candidates = [item for item in ITEMS if item not in ("item 2", "item 9")]
    ranked = load(models[0], "cpu").rank(HISTORY, candidates, SHOWN)

    async def story(http: httpx.AsyncClient, _: Service) -> None:
        request = {"history": HISTORY, "candidates": candidates, "shown": SHOWN, "k": len(candidates)}
        answer_json = (await http.post("/v1/rank", json=request)).json()
        assert answer_json["version"] == "v000001"
        assert [entry["item"] for entry in answer_json["items"]] == [entry.item for entry in ranked]
        for entry, expected in zip(answer_json["items"], ranked, strict=True):
            assert entry["score"] == pytest.approx(expected.score, abs=1e-5)
            assert sum(entry["parts"].values()) == pytest.approx(entry["score"], abs=1e-6)
            assert entry["propensity"] == 1.0

    run_app(registry, story)


def test_feedback_may_go_to_another_server_than_the_one_that_ranked(registry: Registry) -> None:
    shared = MemoryStore()
    decisions: list[str] = []

    async def rank(http: httpx.AsyncClient, _: Service) -> None:
        request = {"history": HISTORY, "candidates": ITEMS, "k": 2, "session": "s"}
        decisions.append((await http.post("/v1/rank", json=request)).json()["decision"])

    async def tell(http: httpx.AsyncClient, service: Service) -> None:
        feedback = await http.post("/v1/feedback", json={"decision": decisions[0], "behaviour": "click"})
        assert feedback.json() == {"decision": decisions[0], "applied": True}
        known = await service.sessions.get("s")
        assert known is not None
        assert [behaviour for _, behaviour in known.shown] == ["click"]
        assert service.counts["v000001"].feedback == 1

    run_app(registry, rank, sessions=shared)
    run_app(registry, tell, sessions=shared)


def test_requests_with_one_id_are_one_decision(registry: Registry, tmp_path: Path) -> None:
    async def story(http: httpx.AsyncClient, _: Service) -> None:
        request = {"candidates": ITEMS, "id": "mine"}
        answers = await asyncio.gather(*(http.post("/v1/rank", json=request) for _ in range(8)))
        assert len({answer.content for answer in answers}) == 1
        assert answers[0].json()["decision"] == "mine"

    run_app(registry, story, tmp_path / "log", epsilon=0.5)
    assert len(list(read_log(tmp_path / "log"))) == 1


def test_a_trial_ranks_and_leaves_no_trace(registry: Registry, tmp_path: Path) -> None:
    """As the live version ranks without exploration; it has the token, the limits and the checks of a request to rank."""

    async def story(http: httpx.AsyncClient, service: Service) -> None:
        http.headers["authorization"] = f"Bearer {'t' * 32}"
        request = {"candidates": ITEMS, "history": HISTORY, "shown": SHOWN, "k": 3}
        tried = (await http.post("/v1/try", json=request)).json()
        before = (await http.get("/v1/stats")).json()
        assert before["versions"]["v000001"]["decisions"] == before["recent"]["requests"] == before["sessions"] == 0
        service.epsilon = 0.0
        ranked = (await http.post("/v1/rank", json=request)).json()
        assert tried == {"version": "v000001", "items": ranked["items"]}
        for name in ("session", "user", "id"):
            refused = await http.post("/v1/try", json={**request, name: "a"})
            assert (refused.status_code, refused.json()["error"].split(":")[0]) == (422, name)
        batch = await http.post("/v1/try", json={"batch": [request, request]})
        assert batch.status_code == 422
        assert (await http.post("/v1/try", json=request, headers={"authorization": ""})).status_code == 401

    run_app(registry, story, tmp_path / "log", access=Access("t" * 32), epsilon=1.0)
    assert [type(record) for record in read_log(tmp_path / "log")] == [Decision]  # that of /v1/rank
    assert next(route for route in ROUTES if route.path == "/v1/try").limited


def test_several_users_in_one_call(registry: Registry) -> None:
    async def story(http: httpx.AsyncClient, _: Service) -> None:
        users = [{"candidates": ITEMS, "history": HISTORY[:n], "k": 2} for n in range(3)]
        together = (await http.post("/v1/rank", json={"batch": users})).json()["answers"]
        for one, request in zip(together, users, strict=True):
            assert one["items"] == (await http.post("/v1/rank", json=request)).json()["items"]
        feedback = [{"decision": one["decision"], "behaviour": "click"} for one in together]
        assert len((await http.post("/v1/feedback", json={"batch": feedback})).json()["answers"]) == 3

    run_app(registry, story)


def test_unknown_items_are_ranked_and_invalid_requests_refused(registry: Registry) -> None:
    cases: list[tuple[str, Any, int, str]] = [
        ("/v1/rank", {"candidates": ["unknown item"]}, 200, ""),
        ("/v1/rank", {"candidates": []}, 422, "length >= 1"),
        ("/v1/rank", {"candidates": ["a", "a"]}, 422, "twice"),
        ("/v1/rank", {"candidates": ["a"], "k": 0}, 422, ">= 1"),
        ("/v1/rank", {"candidates": ["a"], "colour": 1}, 422, "unknown field"),
        ("/v1/rank", {"candidates": ["a"], "history": [["item 1", "loved"]]}, 422, "'loved' is unknown"),
        ("/v1/rank", {"candidates": ["a"], "history": [["item 1"]]}, 422, ""),
        ("/v1/rank", [], 422, ""),
        ("/v1/feedback", {"decision": "gone", "behaviour": "click"}, 422, "name the item"),
        ("/v1/feedback", {"decision": "gone", "behaviour": "click", "item": "item 1"}, 200, ""),
        ("/v1/feedback", {"decision": "gone", "behaviour": "loved", "item": "item 1"}, 422, "loved"),
    ]

    async def story(http: httpx.AsyncClient, _: Service) -> None:
        for path, request, status, error in cases:
            answer = await http.post(path, json=request)
            assert answer.status_code == status, (path, request, answer.text)
            assert error in (answer.json().get("error", "") if status != 200 else ""), answer.text
        unknown = (await http.post("/v1/rank", json={"candidates": ["unknown item"]})).json()["items"][0]
        assert unknown["known"] is False
        assert (await http.get("/nowhere")).status_code == 404
        wrong = await http.get("/v1/rank")
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
        assert (await http.put("/healthz")).headers["allow"] == "GET, HEAD"
        assert (await http.head("/healthz")).status_code == 200
        assert (await http.head("/v1/rank")).status_code == 405

    run_app(registry, story)


def test_any_body_is_answered_or_refused(registry: Registry) -> None:
    """Any body gets status 200, 400 or 422."""

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
    @given(body=st.one_of(st.binary(max_size=300), st.text(max_size=100).map(lambda text: json.dumps(text).encode())))
    def any_bytes(body: bytes) -> None:
        seen.append(body)

    pairs = st.lists(st.lists(st.text(max_size=4), max_size=3), max_size=3)
    fields = st.fixed_dictionaries(
        {},
        optional={
            "candidates": st.one_of(st.lists(st.text(max_size=5), max_size=4), st.integers(), st.none()),
            "k": st.one_of(st.integers(), st.floats(), st.text(max_size=3)),
            "session": st.one_of(st.text(max_size=4), st.none()),
            "history": pairs,
            "shown": st.one_of(pairs, st.none()),
            "batch": st.lists(st.dictionaries(st.text(max_size=4), st.integers()), max_size=2),
            "decision": st.text(max_size=4),
            "behaviour": st.text(max_size=4),
        },
    )

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
    @given(body=fields)
    def nearly_valid(body: dict[str, Any]) -> None:
        seen.append(json.dumps(body).encode())

    seen: list[bytes] = [
        b"",
        b"{",
        b'"\\ud800"',
        b'{"candidates":["\\ud800"]}',
        b"[" * 5000,
        b'{"candidates":' + b"[" * 5000,
        b'{"candidates":["a"],"k":1e999}',
        b"\xff",
    ]
    any_bytes()
    nearly_valid()

    async def story(http: httpx.AsyncClient, _: Service) -> None:
        for body in seen:
            for path in ("/v1/rank", "/v1/feedback"):
                answer = await http.post(path, content=body, headers={"content-type": "application/json"})
                assert answer.status_code in (200, 400, 422), (path, body, answer.text)

    run_app(registry, story)


def test_admin_routes_require_the_token(registry: Registry) -> None:
    async def story(http: httpx.AsyncClient, service: Service) -> None:
        for headers, status in (
            ({}, 401),
            ({"authorization": "Bearer wrong"}, 401),
            ({"authorization": "Bearer secret"}, 200),
        ):
            answer = await http.post("/admin/epsilon", json={"epsilon": 0.25}, headers=headers)
            assert answer.status_code == status
        assert service.epsilon == 0.25
        assert (await http.post("/admin/epsilon", json={"epsilon": 2}, headers=headers)).status_code == 422

    run_app(registry, story, access=Access(admin_token="secret", wrong_token_seconds=0.0))  # noqa: S106 - of this test

    async def closed(http: httpx.AsyncClient, _: Service) -> None:
        assert (await http.post("/admin/reload", headers={"authorization": "Bearer "})).status_code == 403

    run_app(registry, closed)


def test_the_rate_of_a_client_is_limited(registry: Registry) -> None:
    now = [0.0]

    async def story(http: httpx.AsyncClient, _: Service) -> None:
        answers = [await http.get("/v1/stats") for _ in range(6)]
        assert [answer.status_code for answer in answers] == [200] * 5 + [429]
        assert answers[-1].headers["retry-after"] == "1"
        now[0] += 0.5  # two and a half more
        assert [(await http.get("/v1/stats")).status_code for _ in range(3)] == [200, 200, 429]

    run_app(registry, story, limits=Limits(rate=5.0), clock=lambda: now[0])


def test_requests_beyond_the_limit_are_refused_before_any_is_ranked(registry: Registry, tmp_path: Path) -> None:
    async def story(http: httpx.AsyncClient, _: Service) -> None:
        answered: list[int] = []

        async def ask() -> httpx.Response:
            answer = await http.post("/v1/rank", json={"candidates": ITEMS})
            answered.append(answer.status_code)
            return answer

        answers = await asyncio.gather(*(ask() for _ in range(40)))
        assert sorted(answered) == [200] * 10 + [503] * 30
        assert answered[:30] == [503] * 30  # refusals come first
        assert all(answer.headers["retry-after"] == "1" for answer in answers if answer.status_code == 503)
        assert (await ask()).status_code == 200

    run_app(registry, story, tmp_path / "log", limits=Limits(max_in_progress=10))


def test_a_session_counts_once_however_late_its_first_feedback_comes(registry: Registry) -> None:
    async def story(http: httpx.AsyncClient, _: Service) -> None:
        for number in range(9):
            await http.post("/v1/rank", json={"candidates": ITEMS, "session": f"s{number % 3}"})
        stats = (await http.get("/v1/stats")).json()["versions"]["v000001"]
        assert (stats["decisions"], stats["sessions"]) == (9, 3)
        await http.post("/v1/rank", json={"candidates": ITEMS})
        await http.post("/v1/rank", json={"candidates": ITEMS, "shown": [[ITEMS[0], "click"]]})
        assert 'mbcal_sessions{version="v000001"} 4\n' in (await http.get("/metrics")).text

    run_app(registry, story)


def test_a_clock_that_is_set_does_not_change_for_how_long_the_server_has_run(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()

    async def story(http: httpx.AsyncClient, _: Service) -> None:
        for change in (-3600.0, 86_400.0):
            monkeypatch.setattr(time, "time", lambda: now + change)  # noqa: B023 - it is called before the next turn
            assert 0 <= (await http.get("/v1/stats")).json()["seconds"] < 60

    run_app(registry, story)


def test_stats_metrics_model_and_page(registry: Registry) -> None:
    async def story(http: httpx.AsyncClient, _: Service) -> None:
        for behaviour in ("click", "like"):
            answer_json = (await http.post("/v1/rank", json={"candidates": ITEMS, "session": "s"})).json()
            await http.post("/v1/feedback", json={"decision": answer_json["decision"], "behaviour": behaviour})
        stats = (await http.get("/v1/stats")).json()["versions"]["v000001"]
        assert stats == {"decisions": 2, "sessions": 1, "feedback": 2, "reward_per_session": 6.0, "low": None, "high": None}
        text = (await http.get("/metrics")).text
        assert 'mbcal_requests_total{path="/v1/rank",status="200"} 2' in text
        assert 'mbcal_reward{version="v000001"} 6.0' in text
        assert "mbcal_request_seconds_count 5" in text
        assert f"mbcal_candidates_total {2 * len(ITEMS)}\n" in text
        assert "mbcal_unknown_candidates_total 0\n" in text
        assert "mbcal_decisions_with_feedback_total 2\n" in text
        assert "mbcal_feedback_delay_seconds_count 2\n" in text
        model = (await http.get("/v1/model")).json()
        assert (model["agent"], model["rewards"]) == ("mbcal", [0.0, 1.0, 5.0])
        ready = (await http.get("/readyz")).json()
        assert (ready["version"], ready["problems"]) == ("v000001", [])
        assert "Rank by hand" in (await http.get("/")).text
        assert model["examples"] == ITEMS[:12]

    run_app(registry, story)


def test_without_a_version_it_is_not_ready(tmp_path: Path) -> None:
    async def story(http: httpx.AsyncClient, _: Service) -> None:
        assert (await http.get("/healthz")).status_code == 200
        for answer in (await http.get("/readyz"), await http.post("/v1/rank", json={"candidates": ["a"]})):
            assert answer.status_code == 503
            assert "publish one" in answer.json()["error"]

    run_app(Registry(tmp_path / "empty"), story)


def test_feedback_on_a_stored_decision_without_items_is_refused(registry: Registry) -> None:
    async def story(http: httpx.AsyncClient, service: Service) -> None:
        await service.sessions.remember_decision("d", DecisionRef("s", 7, [], "v000001"))
        answer = await http.post("/v1/feedback", json={"decision": "d", "behaviour": "click"})
        assert answer.status_code == 422
        assert "name the item" in answer.json()["error"]

    run_app(registry, story)


def test_feedback_that_came_before_its_decision_is_applied_when_it_is_sent_again(registry: Registry) -> None:
    async def story(http: httpx.AsyncClient, _: Service) -> None:
        feedback = {"decision": "d1", "item": ITEMS[0], "behaviour": "like"}
        for _ in range(2):
            assert (await http.post("/v1/feedback", json=feedback)).json()["applied"] is False
        asked = {"candidates": ITEMS[:2], "session": "s", "k": 2}
        await http.post("/v1/rank", json=asked | {"id": "d1"})
        assert (await http.post("/v1/feedback", json=feedback)).json()["applied"] is True
        answer = (await http.post("/v1/rank", json=asked)).json()
        assert [entry["item"] for entry in answer["items"]] == [ITEMS[1]]

    run_app(registry, story)


def test_another_behaviour_on_an_item_is_logged_and_the_first_counts(registry: Registry, tmp_path: Path) -> None:
    shared, said = MemoryStore(), {}

    async def click_then_like(http: httpx.AsyncClient, service: Service) -> None:
        ranked = (await http.post("/v1/rank", json={"candidates": ITEMS, "session": "s"})).json()
        said["decision"] = decision = ranked["decision"]
        for behaviour in ("click", "like", "like", "click"):
            answer = (await http.post("/v1/feedback", json={"decision": decision, "behaviour": behaviour})).json()
            assert answer == {"decision": decision, "applied": True} | (
                {"applied": False, "first": "click"} if behaviour == "like" else {}
            )
        assert service.counts["v000001"].feedback == 1
        assert service.counts["v000001"].reward == 1.0

    async def like_again(http: httpx.AsyncClient, _: Service) -> None:  # of another server, which knows the session alone
        answer = await http.post("/v1/feedback", json={"decision": said["decision"], "behaviour": "like"})
        assert answer.json() == {"decision": said["decision"], "applied": False, "first": "click"}

    run_app(registry, click_then_like, tmp_path / "log", sessions=shared)
    run_app(registry, like_again, tmp_path / "other", sessions=shared)
    for folder, behaviours in (("log", ["click", "like"]), ("other", ["like"])):
        records = read_log(tmp_path / folder)
        assert [record.behaviour for record in records if isinstance(record, Feedback)] == behaviours


def damage(registry: Registry, version: str) -> None:
    scorer = registry.path / "versions" / version / "scorer.safetensors"
    scorer.write_bytes(scorer.read_bytes()[:-1])


def test_a_fresh_server_falls_back_to_the_version_that_was_live_before(registry: Registry) -> None:
    """As a worker that is started again, after the live version was damaged."""
    damage(registry, "v000001")  # live before it: first v000001, then v000002

    async def story(http: httpx.AsyncClient, service: Service) -> None:
        assert (await http.post("/v1/rank", json={"candidates": ITEMS})).json()["version"] == "v000002"
        (problem,) = (await http.get("/readyz")).json()["problems"]
        assert problem.startswith("registry: the live version v000001 was refused (")
        assert problem.endswith("); v000002 goes on serving")
        damage(registry, "v000002")
        await service.refresh_version()
        assert (await http.post("/v1/rank", json={"candidates": ITEMS})).json()["version"] == "v000002"

    run_app(registry, story)


def test_a_fresh_server_says_that_the_live_version_is_damaged(registry: Registry) -> None:
    for version in registry.versions():
        damage(registry, version)

    async def story(http: httpx.AsyncClient, _: Service) -> None:
        for answer in (await http.get("/readyz"), await http.post("/v1/rank", json={"candidates": ["a"]})):
            assert answer.status_code == 503
            assert answer.json()["error"].startswith("version v000001 cannot be used (")
            assert str(registry.path) not in answer.text

    run_app(registry, story)


def test_a_damaged_version_is_refused_and_the_old_one_goes_on_serving(registry: Registry) -> None:
    async def story(http: httpx.AsyncClient, service: Service) -> None:
        scorer = registry.open("v000002").path / "scorer.safetensors"
        data = bytearray(scorer.read_bytes())
        data[len(data) // 2] ^= 1
        scorer.write_bytes(bytes(data))
        pointer = registry.path / "current.json"
        pointer.write_text(pointer.read_text().replace('"v000001"', '"v000002"', 1))
        await service.refresh_version()
        assert (await http.post("/v1/rank", json={"candidates": ITEMS})).json()["version"] == "v000001"
        assert "v000002" in (await http.get("/v1/model")).json()["refused"]

    run_app(registry, story)


def test_a_request_that_the_end_of_the_server_interrupts_is_refused_and_no_failure(registry: Registry) -> None:
    sent: list[Any] = []

    async def cancelled(*_: Any) -> Any:
        raise asyncio.CancelledError

    async def send(message: Any) -> None:
        sent.append(message)

    async def story(app: App) -> None:
        app._respond = cancelled  # type: ignore[method-assign]
        await app._http({"path": "/v1/rank"}, None, send)

    asyncio.run(story(App(Service(registry, MemoryStore(60.0), None, 0.0), Access())))
    assert sent[0]["status"] == 503
    assert (b"retry-after", b"1") in sent[0]["headers"]
    assert b"the server stops" in sent[1]["body"]
