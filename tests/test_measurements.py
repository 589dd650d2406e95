"""Scripts that are no experiments write files like those of the experiments: a table, and how it was made."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mbcal import NewsfeedConfig, prepare_newsfeed
from mbcal.agents.advantage_choice import AdvantageChoice, AdvantageTrial
from tests.support.logs import ROOT

sys.path.append(str(ROOT / "benchmarks"))

import planning
from measurements import Measurements

EARNS = {"gru4rec": 1.0, "mbcal": 2.0, "counterfactual": 3.0, "none": 1.0, "planned": 5.0}
"""Reward of a stubbed agent by its method or advantage."""


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def test_a_row_measured_again_replaces_the_old_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "docs" / "table.csv"
    table = Measurements(path, ("data", "seed"), ("reward", "note"))
    table.add(data="a", seed=0, reward=1 / 3, note="x, y")
    Measurements(path, ("data", "seed"), ("reward", "note")).add(data="b", seed=0, reward=2.0)  # another process
    assert table.has(data="b", seed=0)
    table.add(data="a", seed=0, reward=4.0)
    assert rows(path) == [
        {"data": "a", "seed": "0", "reward": "4.0", "note": ""},
        {"data": "b", "seed": "0", "reward": "2.0", "note": ""},
    ]
    assert not table.has(data="a", seed=1)
    assert 'a,0,0.333333,"x, y"\n' in capsys.readouterr().out
    table.record("a", "cpu", "hash of a", {"store": Path("build/a")})
    table.record("b", "cpu", "hash of b", {})
    records = json.loads((tmp_path / "docs" / "table.json").read_text())
    assert {name: record["run"]["data"] for name, record in records.items()} == {"a": "hash of a", "b": "hash of b"}
    assert records["a"]["settings"] == {"store": "build/a"}
    assert records["a"]["run"]["versions"]["numpy"] == np.__version__


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Agents that are not fitted; every method fitted, with its seed."""
    fitted: list[tuple[str, int]] = []

    def fit(method: str, store: Any, options: Any, seed: int, **settings: Any) -> tuple[Any, float]:
        fitted.append((method, seed))
        kind = settings.get("advantage", "auto") if method == "mbcal-plan" else method
        return SimpleNamespace(kind=kind, choices={}, environment=lambda: "imagined"), 1.0

    def serve(agent: Any, environment: Any, sessions: Any) -> np.ndarray[Any, Any]:
        return np.full(len(sessions), EARNS[agent.kind], np.float32) + np.arange(len(sessions), dtype=np.float32)

    monkeypatch.setattr(planning, "fitted", fit)
    monkeypatch.setattr(planning, "serve", serve)
    return fitted


def test_regret_of_the_choice_is_that_to_the_best_advantage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fits: list[tuple[str, int]]
) -> None:
    prepare_newsfeed(tmp_path / "feed", NewsfeedConfig(60, 100))
    monkeypatch.setattr(planning, "choose", lambda store, device, seed: ({"kind": "counterfactual"}, 7.0))
    output = tmp_path / "planning-choice.csv"
    command = ["planning.py", "choice", str(tmp_path / "feed"), "--device", "cpu", "--output", str(output)]
    monkeypatch.setattr(sys, "argv", [*command, "--seeds", "0"])
    planning.main()
    found = {row["policy"]: row for row in rows(output)}
    assert {name for name, row in found.items() if row["regret"]} == {"mbcal-plan"}
    assert (float(found["mbcal-plan"]["regret"]), float(found["mbcal-plan"]["seconds"])) == (2.0, 8.0)
    assert found["mbcal-plan"]["reward"] == found["mbcal-plan, counterfactual"]["reward"]
    assert float(found["mbcal-plan, planned"]["gain over gru4rec"]) == 4.0
    assert [row["data"] for row in rows(output)] == ["feed"] * 6
    monkeypatch.setattr(sys, "argv", [*command, "--seeds", "0", "1"])
    planning.main()
    assert {seed for _, seed in fits[5:]} == {1}  # the first seed is not run again
    assert len(rows(output)) == 12


def test_evidence_of_the_choice_by_candidate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare_newsfeed(tmp_path / "feed", NewsfeedConfig(60, 100))
    output = tmp_path / "planning-evidence.csv"
    trials = tuple(
        AdvantageTrial(kind=kind, reward=5.0 + gain, gain=gain, low=gain - 1, high=gain + 1)
        for kind, gain in (("counterfactual", 0.0), ("none", -2.0), ("planned", 1.5))
    )
    monkeypatch.setattr(planning, "choose_advantage", lambda *_: AdvantageChoice("planned", 24, trials))
    monkeypatch.setattr(
        sys, "argv", ["planning.py", "evidence", str(tmp_path / "feed"), "--seeds", "1", "--output", str(output)]
    )
    planning.main()
    found = {row["advantage"]: row for row in rows(output)}
    assert [name for name, row in found.items() if row["chosen"] == "True"] == ["planned"]
    assert [found["planned"][name] for name in ("seed", "reward", "gain", "low", "high", "sessions")] == [
        *("1", "6.5", "1.5", "0.5", "2.5", "24")
    ]
    monkeypatch.setattr(planning, "choose_advantage", None)
    planning.main()  # the rows are there, so nothing is chosen again
