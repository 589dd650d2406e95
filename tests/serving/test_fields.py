"""Context and user features in requests: ranked as the library does, remembered, logged, refused, and learned from."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from mbcal import NetConfig, TrainingConfig
from mbcal.agents import AGENTS
from mbcal.decision_log import Decision, Feedback, join_sessions, read_log
from mbcal.decision_log.archive import read_parquet, to_parquet
from mbcal.decision_log.segments import parquet_paths
from mbcal.kernels import native
from mbcal.registry.registry import Registry
from mbcal.release.served_choices import served_choices
from mbcal.serving.fields import GivenFields, as_text
from mbcal.serving.ranker import Ranker
from mbcal.serving.service import Service
from tests.serving.test_ranker import options, version
from tests.support.fields import FIELDS, with_fields
from tests.support.servers import run_app
from tests.support.versions import HISTORY, ITEMS

CONTEXT = {"device": "tv", "hour": 20, "text": [0.5, -1.0, 2.0]}
USER = {"country": "de", "age": 31.5}
SHOWN = [("item 2", "click"), ("item 9", "skip")]
SHOWN_CONTEXT = ({"device": "phone", "referrer": "mail"}, {"hour": 3})


def fitted(name: str = "mbcal") -> Any:
    kind = AGENTS[name]
    settings = {"gamma": 0.9} if name == "mbcal" else {}
    training = TrainingConfig(epochs=3, batch=32, learning_rate=0.02)
    config = kind.Config(net=NetConfig(hidden=8, embedding=8), training=training, **settings)
    return kind(config, "cpu").fit(with_fields(count=60))


@pytest.fixture(scope="module")
def agent() -> Any:
    return fitted()


@pytest.mark.parametrize("in_c", [True, False])
@pytest.mark.parametrize("name", ["mbcal", "gru4rec", "ddpg"])
def test_it_ranks_as_the_library_does(name: str, in_c: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not in_c:
        monkeypatch.setenv("MBCAL_NATIVE", "0")
    elif not native.available():
        pytest.skip("the C kernel was not compiled")
    fitted_agent = fitted(name)
    candidates = [item for item in ITEMS if item not in ("item 2", "item 9")]
    ranker = Ranker(version(fitted_agent))
    given = GivenFields(as_text(CONTEXT), as_text(USER), tuple(map(as_text, SHOWN_CONTEXT)))
    plain = fitted_agent.rank(HISTORY, candidates, SHOWN)
    for shown, contexts in ((SHOWN, SHOWN_CONTEXT), (SHOWN[:1], SHOWN_CONTEXT[:1]), ([], ())):
        wanted = fitted_agent.rank(HISTORY, candidates, shown, context=CONTEXT, user_features=USER, shown_context=contexts)
        with_contexts = given._replace(shown_context=tuple(map(as_text, contexts)))
        for session in (None, "s"):
            found = ranker.rank(HISTORY, candidates, shown, **options(len(candidates)), session=session, given=with_contexts)
            assert [entry.score for entry in found] == pytest.approx([entry.score for entry in wanted], abs=1e-5)
        assert {entry.item: entry.score for entry in wanted} != {entry.item: entry.score for entry in plain}
    # after requests in context one without is as before
    found = ranker.rank(HISTORY, candidates, SHOWN, **options(len(candidates)))
    assert [entry.score for entry in found] == pytest.approx([entry.score for entry in plain], abs=1e-5)


def test_a_cached_state_is_not_used_for_other_fields(agent: Any) -> None:
    ranker = Ranker(version(agent))
    told = GivenFields("", as_text(USER), tuple(map(as_text, SHOWN_CONTEXT)))
    for given in (told, told._replace(user_features=""), told._replace(shown_context=("", "")), told):
        cached = ranker.rank(HISTORY, ITEMS[5:], SHOWN, **options(4), session="s", given=given)
        assert cached == ranker.rank(HISTORY, ITEMS[5:], SHOWN, **options(4), given=given)


def test_what_another_version_was_told_is_read_as_far_as_it_is_known(agent: Any) -> None:
    ranker = Ranker(version(agent))
    mixed = GivenFields(as_text({**CONTEXT, "weather": "rain", "referrer": [1.0]}))
    known = GivenFields(as_text(CONTEXT))
    assert ranker.rank([], ITEMS, [], **options(5), given=mixed) == ranker.rank([], ITEMS, [], **options(5), given=known)


def test_the_service_remembers_logs_and_teaches(agent: Any, tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry")
    registry.publish(agent)
    contexts = [CONTEXT, {"device": "phone"}, {}]

    async def story(http: httpx.AsyncClient, _: Service) -> None:
        model = (await http.get("/v1/model")).json()
        assert model["context"] == {"device": "category", "referrer": "category", "hour": "number", "text": "vector"}
        assert model["user_features"] == {"country": "category", "age": "number"}
        shown: list[tuple[str, str]] = []
        for step, context in enumerate(contexts):
            body = {"session": "s", "user": "u", "candidates": ITEMS[:8], "k": 1, "context": context}
            if step == 0:
                body["user_features"] = USER
            answer = (await http.post("/v1/rank", json=body)).json()
            candidates = [item for item in ITEMS[:8] if item not in [name for name, _ in shown]]
            told = {"context": context, "user_features": USER, "shown_context": contexts[:step]}
            wanted = agent.rank([], candidates, shown, **told)[0]
            assert answer["items"][0]["item"] == wanted.item
            assert answer["items"][0]["score"] == pytest.approx(wanted.score, abs=1e-5)
            # the same without a session
            alone = {"candidates": candidates, "k": 1, "context": context, "user_features": USER, "shown": shown}
            alone["shown_context"] = contexts[:step]
            same = (await http.post("/v1/rank", json=alone)).json()
            assert same["items"][0]["score"] == pytest.approx(wanted.score, abs=1e-5)
            await http.post("/v1/feedback", json={"decision": answer["decision"], "behaviour": "click"})
            shown.append((wanted.item, "click"))

    run_app(registry, story, tmp_path / "log")
    records = list(read_log(tmp_path / "log"))
    decisions = [record for record in records if isinstance(record, Decision) and record.session]
    assert [record.context for record in decisions] == contexts
    assert [record.user_features for record in decisions] == [USER] * 3
    assert [len(record.shown_context) for record in decisions] == [0, 1, 2]
    joined = join_sessions(records, agent.domain.catalog, agent.domain.behaviours, horizon=6, history=4, fields=FIELDS)
    sessions = joined.sessions
    assert sessions.context[0, :3].tolist() == [FIELDS.context.encode(context, "context").tolist() for context in contexts]
    assert sessions.user_features[0].tolist() == FIELDS.user.encode(USER, "user_features").tolist()
    assert fitted("gru4rec").fit(sessions).n_fits == 2  # learns from them
    # the gate asks a version again as the service did
    row = np.array([joined.session_names.index("s")])
    choices = served_choices([version(agent)], records, joined, row).choices[0]
    assert choices.best[0, :3].tolist() == choices.logged[0, :3].tolist()
    for path, content in zip(parquet_paths(tmp_path, 1), to_parquet(list(enumerate(records, 1))), strict=True):
        path.write_bytes(content)
    assert [record for _, record in read_parquet(tmp_path, 1)] == records


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"context": {"divice": "tv"}},
            "context: 'divice' was never declared; the model knows device, referrer",
        ),
        ({"context": {"text": [1.0]}}, "context: 'text' must have 3 numbers, got 1"),
        ({"context": {"hour": "late"}}, "context: 'hour' takes numbers, got 'late'"),
        ({"context": {"hour": 1e39}}, "context: 'hour' must be finite, got 1e+39"),
        ({"context": {"hour": 10**30}}, "context: 'hour' has a whole number beyond 64 bits; send a smaller one, or text"),
        ({"context": {"text": [0, 2**64, 0]}}, "context: 'text' has a whole number beyond 64 bits"),
        ({"user_features": {"country": -(2**63) - 1}}, "user_features: 'country' has a whole number beyond 64 bits"),
        ({"context": [1]}, "context"),
        ({"user_features": {"colour": "red"}}, "user_features: 'colour' was never declared; the model knows country, age"),
        ({"shown": [["item 1", "click"]], "shown_context": [{}, {}]}, "shown_context: 2 for 1 steps in shown"),
    ],
)
def test_wrong_fields_are_refused_with_a_sentence(agent: Any, fields: Any, message: str, tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry")
    registry.publish(agent)

    async def story(http: httpx.AsyncClient, service: Service) -> None:
        answer = await http.post("/v1/rank", json={"session": "s", "candidates": ITEMS, **fields})
        assert answer.status_code == 422
        assert message in answer.json()["error"]
        assert "\n" not in answer.json()["error"]
        assert await service.sessions.get("s") is None  # nothing of it is remembered

    run_app(registry, story)


@pytest.mark.parametrize("number", [2**64, -(2**65), 10**400])
def test_whole_numbers_beyond_64_bits_are_refused_with_and_without_an_id(agent: Any, number: int, tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry")
    registry.publish(agent)
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("context: 'hour'", {"context": {"hour": number}}),
        ("context: 'device'", {"context": {"device": number}}),
        ("user_features: 'age'", {"user_features": {"age": number}}),
        ("context: 'hour'", {"shown": [["item 1", "click"]], "shown_context": [{"hour": number}]}),
    ]

    async def story(http: httpx.AsyncClient, _: Service) -> None:
        for beginning, fields in bodies:
            for identity in ({}, {"id": "r1"}, {"session": "s"}):
                answer = await http.post("/v1/rank", json={"candidates": ITEMS, **fields, **identity})
                assert answer.status_code == 422
                assert f"{beginning} has a whole number beyond 64 bits" in answer.json()["error"]

    run_app(registry, story)


def test_refusals_do_not_repeat_long_inputs(agent: Any, tmp_path: Path) -> None:
    registry, long = Registry(tmp_path / "registry"), "z" * 300_000
    registry.publish(agent)
    bodies: list[dict[str, Any]] = [
        {"context": {long: 1}},
        {"user_features": {long: 1}},
        {"candidates": [{"item": "new", "features": {long: 1}}]},
        {"context": {"hour": [1] * 8000}},
        {long: 1},
        {"candidates": [{"item": "new", long: 1}]},
    ]

    async def story(http: httpx.AsyncClient, _: Service) -> None:
        for body in bodies:
            answer = await http.post("/v1/rank", json={"candidates": ITEMS, **body})
            assert answer.status_code == 422
            assert 20 < len(answer.json()["error"]) <= 1000
        answer = await http.post("/v1/rank", json={"candidates": ITEMS, **bodies[0]})
        assert f"context: '{long[:99]}…' was never declared; the model knows device" in answer.json()["error"]

    run_app(registry, story)


def test_a_repeated_id_with_another_context_is_another_request(agent: Any, tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry")
    registry.publish(agent)

    async def story(http: httpx.AsyncClient, _: Service) -> None:
        body = {"id": "r1", "candidates": ITEMS, "context": CONTEXT}
        first, again = [(await http.post("/v1/rank", json=body)).json() for _ in range(2)]
        assert first == again
        other = await http.post("/v1/rank", json={**body, "context": {"device": "phone"}})
        assert other.status_code == 409

    run_app(registry, story)


def test_joined_sessions_do_not_depend_on_the_order_of_records() -> None:
    records: list[Any] = []
    for step, context in enumerate((CONTEXT, {"device": "phone", "unknown": 1}, {})):
        values = {"id": f"d{step}", "time": step, "session": "s", "user": "u", "step": step, "version": "v1", "epsilon": 0.1}
        values |= {"history": [], "shown": [], "candidates": ITEMS, "items": ITEMS[:1], "propensities": [0.5]}
        records.append(Decision(**values, context=context, user_features=USER))  # type: ignore[arg-type]
        records.append(Feedback(f"d{step}", ITEMS[0], "click", step, f"f{step}"))
    arguments = (with_fields().catalog, with_fields().behaviour_set)
    wanted = join_sessions(records, *arguments, fields=FIELDS).sessions
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(records))
        found = join_sessions([records[index] for index in order], *arguments, fields=FIELDS).sessions
        assert np.array_equal(found.context, wanted.context)
    assert wanted.context[0, 1].tolist() == FIELDS.context.encode({"device": "phone"}, "context").tolist()
    assert join_sessions(records, *arguments).sessions.context is None


def test_clients_send_fields(agent: Any, tmp_path: Path) -> None:
    from mbcal import AsyncClient, Client
    from tests.support.servers import serving

    registry = Registry(tmp_path / "registry")
    registry.publish(agent)
    wanted = agent.rank([], ITEMS, context=CONTEXT, user_features=USER)[0]
    with serving(registry, "--epsilon", "0") as (_, port):
        with Client(f"http://127.0.0.1:{port}") as client:
            answer = client.rank([], ITEMS, k=1, context=CONTEXT, user_features=USER)
        assert answer.items[0].score == pytest.approx(wanted.score, abs=1e-5)

        async def ask() -> float:
            async with AsyncClient(f"http://127.0.0.1:{port}") as other:
                return (await other.rank([], ITEMS, k=1, context=CONTEXT, user_features=USER)).items[0].score

        assert asyncio.run(ask()) == pytest.approx(wanted.score, abs=1e-5)
