"""Candidates with features: scored by them if the item is unknown, logged, and known after the next update."""

from __future__ import annotations

import asyncio
import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mbcal import Catalog
from mbcal.agents import AGENTS, Agent
from mbcal.client import _candidates
from mbcal.decision_log.new_items import extend_by_log
from mbcal.decision_log.reader import read_log
from mbcal.decision_log.records import Decision
from mbcal.errors import InputError
from mbcal.kernels import native
from mbcal.registry.registry import Registry
from mbcal.serving.canary import CanarySettings
from mbcal.serving.candidates import CandidateReader
from mbcal.serving.limits import Limits
from mbcal.serving.memory_state import MemoryStore
from mbcal.serving.messages import CandidateItem, RankRequest
from mbcal.serving.service import Service
from mbcal.types.feature_values import FeatureDeclaration, catalog_of_values, declarations
from tests.agents.test_growth import NAMES, fitted, sessions
from tests.support.servers import run_app

HISTORY = [["item 1", "click"], ["item 4", "skip"]]
FEATURES: dict[str, Any] = {"kind": "kind 2", "tags": ["tag 1", "tag 2"], "words": 55, "embedding": [0.25, -0.5]}
UNKNOWN = {
    "x1": FEATURES,
    "x2": {"embedding": [0.5, 0.5]},  # all else is missing
    "x3": {"kind": "kind 1", "tags": ["tag 0", "never seen"], "words": 1e9},
    "x4": {"tags": [], "kind": None},
}
CANDIDATES: list[Any] = [
    "item 3",
    *({"item": name, "features": values} for name, values in UNKNOWN.items()),
    "plain",
    "item 7",
]
BAD: list[tuple[dict[str, Any], str]] = [
    ({"embedding": [1.0, 2.0, 3.0]}, "must be a vector of 2 numbers, got 3 numbers"),
    ({"embedding": "far"}, "must be a vector of 2 numbers, got 'far'"),
    ({"embedding": [1.0, "a"]}, "must be a finite number, got 'a'"),
    ({"embedding": [1.0, None]}, "must be a finite number, got 'None'"),
    ({"words": "many"}, "must be a finite number, got 'many'"),
    ({"words": 1e39}, "must be a finite number"),
    ({"words": [1.0]}, "must be a finite number"),
    ({"colour": "red"}, "feature 'colour' is unknown; known are kind, tags, words, embedding"),
    ({"kind": ["a", "b"]}, "takes one value, got 2"),
    ({"kind": 0.5}, "names are text or whole numbers"),
]


@pytest.fixture(scope="module")
def agents() -> dict[str, Agent]:
    return {name: fitted(name) for name in ("mbcal", "popular")}


@pytest.fixture
def featured(agents: dict[str, Agent], tmp_path: Path) -> Registry:
    registry = Registry(tmp_path / "registry")
    registry.publish(agents["mbcal"])
    return registry


def expected_scores(agent: Agent, tmp_path: Path) -> dict[str, float]:
    """The scores of an agent that was grown by the unknown items."""
    grown = AGENTS[agent.name].load(agent.save(tmp_path / "grown"), "cpu")
    declared = declarations(grown.domain.catalog.features)
    known = {name: {key: value for key, value in values.items() if value is not None} for name, values in UNKNOWN.items()}
    known["x3"]["tags"] = ["tag 0"]  # a value never seen is scored otherwise once it has an embedding of its own
    grown.extend_catalog(catalog_of_values(known, declared))
    steps = [tuple(step) for step in HISTORY]
    return {entry.item: entry.score for entry in grown.rank(steps, ["item 3", *UNKNOWN, "plain", "item 7"])}


@pytest.mark.parametrize("c", [True, False])
def test_they_are_scored_by_their_features_alone(
    featured: Registry, agents: dict[str, Agent], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, c: bool
) -> None:
    if not c:
        monkeypatch.setenv("MBCAL_NATIVE", "0")
    elif not native.available():
        pytest.skip("the C kernel was not compiled")
    expected = expected_scores(agents["mbcal"], tmp_path)

    async def story(http: httpx.AsyncClient, service: Service) -> None:
        request = {"history": HISTORY, "candidates": CANDIDATES, "k": 10}
        answer = (await http.post("/v1/rank", json=request)).json()
        scores = {entry["item"]: entry["score"] for entry in answer["items"]}
        assert scores.keys() == expected.keys()
        for name in scores.keys() - {"x3", "x4"}:
            assert scores[name] == pytest.approx(expected[name], abs=1e-5), name
        assert {entry["item"]: entry["known"] for entry in answer["items"]} == {
            name: name.startswith("item") for name in expected
        }
        assert scores["x4"] == scores["plain"]  # nothing is known of either
        assert len({scores[name] for name in (*UNKNOWN, "plain")}) == 4  # not one score for all
        shuffled = random.Random(0).sample(CANDIDATES, len(CANDIDATES))
        shuffled = [
            entry
            if isinstance(entry, str)
            else {"features": dict(reversed(entry["features"].items())), "item": entry["item"]}
            for entry in shuffled
        ]
        again = (await http.post("/v1/rank", json=request | {"candidates": shuffled})).json()
        assert {entry["item"]: entry["score"] for entry in again["items"]} == pytest.approx(scores, abs=1e-6)
        plain = [entry if isinstance(entry, str) else entry["item"] for entry in CANDIDATES]
        names = (await http.post("/v1/rank", json=request | {"candidates": plain})).json()["items"]
        assert len({entry["score"] for entry in names if entry["item"] in (*UNKNOWN, "plain")}) == 1  # nothing stays behind
        assert service.traffic.unknown == 15  # five in each request

    run_app(featured, story)


def test_agents_score_them_as_the_service_does(featured: Registry, agents: dict[str, Agent]) -> None:
    agent, names = agents["mbcal"], ["item 3", *UNKNOWN, "plain", "item 7"]
    steps = [(item, behaviour) for item, behaviour in HISTORY]
    ranked = agent.rank(steps, names, features={**UNKNOWN, "item 3": {"words": 1}})
    own = {entry.item: (entry.score, entry.known, entry.title) for entry in ranked}

    async def story(http: httpx.AsyncClient, _: Service) -> None:
        request = {"history": HISTORY, "candidates": CANDIDATES, "k": 10}
        for entry in (await http.post("/v1/rank", json=request)).json()["items"]:
            score, known, title = own[entry["item"]]
            assert (score, known) == (pytest.approx(entry["score"], abs=1e-5), entry["known"])
            assert known or title == entry["item"]

    run_app(featured, story)
    assert own["x1"][0] != own["plain"][0] == own["x4"][0]
    assert [entry.score for entry in agent.rank(steps, names)] != [entry.score for entry in ranked]
    assert len({entry.score for entry in agents["popular"].rank(steps, [*UNKNOWN, "plain"], features=UNKNOWN)}) == 1


@pytest.mark.parametrize(("features", "message"), [*BAD, (None, "features: 'far' is not among the candidates")])
def test_wrong_features_of_a_ranking_are_one_sentence(
    agents: dict[str, Agent], features: dict[str, Any] | None, message: str
) -> None:
    given = {"far": {"words": 1}} if features is None else {"x1": features}
    with pytest.raises(InputError, match=re.escape(message)):
        agents["mbcal"].rank([], ["x1", "item 3"], features=given)


def test_what_a_request_said_is_logged_and_learned(featured: Registry, tmp_path: Path) -> None:
    async def story(http: httpx.AsyncClient, service: Service) -> None:
        known = {"item": "item 5", "features": {"words": 3}}  # checked, but the model knows better
        request = {"history": HISTORY, "candidates": [*CANDIDATES, known], "k": 10, "session": "s", "id": "one"}
        first = (await http.post("/v1/rank", json=request)).json()
        assert (await http.post("/v1/rank", json=request)).json() == first
        changed = request | {"candidates": [{"item": "x1", "features": {"words": 56}}, *CANDIDATES[2:], "item 5", "item 3"]}
        assert (await http.post("/v1/rank", json=changed)).status_code == 409
        feedback = {"decision": first["decision"], "behaviour": "click", "item": "x1"}
        assert (await http.post("/v1/feedback", json=feedback)).status_code == 200
        following = (await http.post("/v1/rank", json={"candidates": CANDIDATES, "session": "s"})).json()
        assert "x1" not in {entry["item"] for entry in following["items"]}  # it was shown

    log = tmp_path / "log"
    run_app(featured, story, log=log)
    records = list(read_log(log))
    decision = next(record for record in records if isinstance(record, Decision))
    assert decision.features == {
        "x1": {"kind": ["kind 2"], "tags": ["tag 1", "tag 2"], "words": 55.0, "embedding": [0.25, -0.5]},
        "x2": {"embedding": [0.5, 0.5]},
        "x3": {"kind": ["kind 1"], "tags": ["tag 0", "never seen"], "words": 1e9},
    }
    catalog = fitted_catalog(featured)
    grown = extend_by_log(catalog, records)
    assert grown.items == (*catalog.items, "x1")
    row = grown.n_rows - 1
    assert [grown.features[name].values(row) for name in NAMES] == [
        ("kind 2",),
        ("tag 1", "tag 2"),
        ("55",),
        ("0.25", "-0.5"),
    ]


def fitted_catalog(registry: Registry) -> Catalog:
    from mbcal import load

    return load(registry.open("v000001").path, "cpu").domain.catalog


def test_wrong_features_are_refused_in_one_sentence(featured: Registry) -> None:
    async def story(http: httpx.AsyncClient, _: Service) -> None:
        for features, message in BAD:
            answer = await http.post("/v1/rank", json={"candidates": ["item 1", {"item": "new", "features": features}]})
            assert answer.status_code == 422, features
            assert message in answer.json()["error"], (features, answer.json())
            assert "\n" not in answer.json()["error"]
        body = b'{"candidates": ["item 1", {"item": "new", "features": {"words": NaN}}]}'
        answer = await http.post("/v1/rank", content=body, headers={"content-type": "application/json"})
        assert answer.status_code in (400, 422)
        batch = {"batch": [{"candidates": CANDIDATES}, {"candidates": ["item 1"]}]}
        assert len((await http.post("/v1/rank", json=batch)).json()["answers"]) == 2
        twice = await http.post("/v1/rank", json={"candidates": ["new", {"item": "new", "features": {}}]})
        assert twice.status_code == 422
        many = [{"item": f"n{k}", "features": {"words": k}} for k in range(999)]
        assert (await http.post("/v1/rank", json={"candidates": many})).status_code == 200

    run_app(featured, story)


def test_agents_that_read_no_features_rank_and_log_them(agents: dict[str, Agent], tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry")
    registry.publish(agents["popular"])

    async def story(http: httpx.AsyncClient, _: Service) -> None:
        answer = (await http.post("/v1/rank", json={"candidates": CANDIDATES, "k": 10})).json()
        assert {entry["score"] for entry in answer["items"] if entry["item"] in UNKNOWN} == {0.0}

    run_app(registry, story)


@pytest.mark.parametrize(("live", "canary"), [("popular", "mbcal"), ("mbcal", "popular")])
def test_too_many_are_refused_by_every_version(live: str, canary: str, agents: dict[str, Agent], tmp_path: Path) -> None:
    """Else one request would withdraw a canary that reads features beside a live version that does not."""
    registry = Registry(tmp_path / "registry")
    registry.publish(agents[live])
    registry.start_canary(registry.publish(agents[canary], activate=False))
    settings = {"limits": Limits(max_candidates=2000), "canary_settings": CanarySettings(0.5)}
    service = Service(registry, MemoryStore(), None, 0.0, **settings)  # type: ignore[arg-type]
    many = [CandidateItem(f"n{number}", {"words": number}) for number in range(1001)]

    async def story() -> None:
        await service.refresh_version()
        for number in range(10):
            with pytest.raises(InputError, match="1001 unknown items have features, at most 1000 may; send fewer"):
                await service.rank(RankRequest(candidates=many, k=1, user=f"u{number}"))
            await service.rank(RankRequest(candidates=many[1:], k=1, user=f"u{number}"))

    asyncio.run(story())
    assert registry.canary() == service.canary.name == "v000002"


def test_the_client_takes_items_with_features() -> None:
    listed = _candidates(["a", 7, {"item": "b", "features": {"words": 3}}])
    assert [getattr(entry, "item", entry) for entry in listed] == ["a", "7", "b"]
    assert listed[2].features == {"words": 3}
    with pytest.raises(InputError, match="an item with features is"):
        _candidates([{"name": "b"}])


def test_models_without_features_have_scorer_files_as_before(agents: dict[str, Agent], tmp_path: Path) -> None:
    agent = agents["mbcal"]
    plain = type(agent)(replace(agent.config, net=replace(agent.config.net, features=())), "cpu").fit(sessions())
    registry = Registry(tmp_path / "registry")
    registry.publish(plain)
    version = registry.open("v000001")
    assert version.unknown_items is None
    assert "unknown_items" not in version.manifest["version"]["scorer"]
    assert len(version.scorer.terms["instant"].tables.cell.items) == version.catalog.n_rows  # type: ignore[union-attr]
    assert np.isfinite(version.scorer.terms["instant"].tables.cell.items).all()  # type: ignore[union-attr]


TEXTS = st.text(st.sampled_from(["a", "b", "{", "}", '"', "\\", "[", ",", " ", "é", "7"]), min_size=1, max_size=5)
VALUES = st.fixed_dictionaries(
    {}, optional={"kind": TEXTS, "tags": st.lists(TEXTS, max_size=2), "words": st.integers(0, 99)}
)
LISTED = st.lists(
    st.one_of(TEXTS, st.integers(0, 9), st.builds(lambda item, values: {"item": item, "features": values}, TEXTS, VALUES)),
    min_size=1,
    max_size=5,
)


@given(LISTED, st.booleans())
def test_the_c_parser_and_python_read_the_same(candidates: list[Any], compact: bool) -> None:
    declared = {
        "kind": FeatureDeclaration("kind", "category"),
        "tags": FeatureDeclaration("tags", "category", multi=True),
        "words": FeatureDeclaration("words", "number"),
    }
    catalog = Catalog(("a", "b", "7", "{", "a{b"))
    raw = msgspec.Raw(json.dumps(candidates, separators=(",", ":") if compact else None, ensure_ascii=False).encode())
    found = []
    for rows in (np.empty(100, np.int32), None):
        try:
            read = CandidateReader(catalog, rows, declared).read(raw, 1, 50)
            found.append(
                (
                    read.at(range(len(read.rows))),
                    read.rows.tolist(),
                    {k: msgspec.msgpack.decode(item.packed) for k, item in read.features.items()},
                    read.packed(),
                )
            )
        except InputError as error:
            found.append(str(error))
    assert found[0] == found[1]


@pytest.mark.parametrize("in_c", [True, False])
def test_a_request_says_the_same_whichever_items_a_version_knows(in_c: bool) -> None:
    """A new version knows an item that the request described: its id is still that of the same request."""
    declared = {"words": FeatureDeclaration("words", "number")}

    def packed(catalog: tuple[str, ...], words: int) -> bytes:
        described = json.dumps(["a", {"item": "new", "features": {"words": words}}])
        reader = CandidateReader(Catalog(catalog), np.empty(100, np.int32) if in_c else None, declared)
        read = reader.read(msgspec.Raw(described.encode()), 1, 50)
        assert len(read.features) == len(read.logged_features()) == ("new" not in catalog)
        return read.packed()

    assert packed(("a",), 3) == packed(("a", "new"), 3)
    assert packed(("a", "new"), 3) != packed(("a", "new"), 4)
