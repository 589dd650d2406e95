"""Names in requests: text, or whole numbers, which stand for their text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from mbcal.decision_log.reader import read_log
from mbcal.decision_log.records import Decision
from mbcal.registry.registry import Registry
from mbcal.serving.service import Service
from tests.support.servers import run_app


def test_whole_numbers_stand_for_their_text(registry: Registry, tmp_path: Path) -> None:
    async def story(http: httpx.AsyncClient, service: Service) -> None:
        history = [["item 1", "click"], [160974, "skip"]]
        request = {"history": history, "candidates": [160974, "d3", 7], "session": 5, "user": 42, "k": 2, "id": 9}
        as_text = {
            "history": [["item 1", "click"], ["160974", "skip"]],
            "candidates": ["160974", "d3", "7"],
            "session": "6",
            "user": "42",
            "k": 2,
        }
        answer = (await http.post("/v1/rank", json=request)).json()
        assert answer["decision"] == "9"
        assert answer["items"] == (await http.post("/v1/rank", json=as_text)).json()["items"]
        again = (await http.post("/v1/rank", json=request | {"id": "9"})).json()
        assert again == answer  # one id, as number and as text
        first = int(answer["items"][0]["item"]) if answer["items"][0]["item"] != "d3" else "d3"
        feedback = await http.post("/v1/feedback", json={"decision": 9, "behaviour": "click", "item": first})
        assert feedback.json() == {"decision": "9", "applied": True}
        session = await service.sessions.get("5")
        assert session is not None
        assert session.shown == ((str(first), "click"),)
        in_full = {"history": history, "candidates": [160974, 7], "shown": [[3, "like"]], "k": 2}
        assert (await http.post("/v1/rank", json={"batch": [in_full]})).status_code == 200

    run_app(registry, story, tmp_path / "log")
    decisions = [record for record in read_log(tmp_path / "log") if isinstance(record, Decision)]
    assert [(record.session, record.user) for record in decisions] == [("5", "42"), ("6", "42"), ("", "")]
    assert decisions[0].candidates == ["160974", "d3", "7"]
    assert decisions[0].history == [("item 1", "click"), ("160974", "skip")]
    assert decisions[2].shown == [("3", "like")]


@pytest.mark.parametrize(("value", "kind"), [(True, "bool"), (1.0, "float"), (None, "null"), ([1], "array")])
def test_other_values_are_refused_as_names(registry: Registry, value: Any, kind: str) -> None:
    good: dict[str, Any] = {"history": [["item 1", "click"]], "candidates": ["item 2"], "shown": [["item 3", "click"]]}
    cases: list[tuple[str, Any, str]] = [
        ("/v1/rank", good | {"history": [[value, "click"]]}, "$.history[0][0]"),
        ("/v1/rank", good | {"candidates": ["item 2", value]}, "$.candidates[1]"),
        ("/v1/rank", good | {"shown": [[value, "click"]]}, "$.shown[0][0]"),
        ("/v1/feedback", {"decision": "d", "behaviour": "click", "item": [value]}, "$.item"),
        ("/v1/feedback", {"decision": value, "behaviour": "click", "item": 1}, "$.decision"),
    ]

    async def story(http: httpx.AsyncClient, _: Service) -> None:
        for path, body, where in cases:
            answer = await http.post(path, json=body)
            assert answer.status_code == 422, answer.text
            got = "array" if where == "$.item" else kind
            expected = {"$.item": "int | str | null", "$.candidates[1]": "int | str | object"}.get(where, "int | str")
            assert answer.json() == {"error": f"Expected `{expected}`, got `{got}` - at `{where}`"}

    run_app(registry, story)
