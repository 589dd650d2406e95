"""Ways to explore in growing rounds: what an ensemble ranks by, and that a round is collected as its strategy says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import mbcal
from tests.support.logs import ROOT

sys.path.append(str(ROOT / "benchmarks"))

import exploration


class Constant:
    """Scores every candidate by its row times a factor."""

    device = torch.device("cpu")

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def begin(self, user: Tensor, *history: Tensor) -> int:
        return 0

    def score(self, state: int, candidates: Tensor) -> Tensor:
        return (self.factor * candidates + state).float()

    def observe(self, state: int, item: Tensor, behaviour: Tensor) -> int:
        return state + 1


def test_an_ensemble_ranks_by_its_mean_or_each_session_by_one_member() -> None:
    members, candidates = [Constant(1.0), Constant(-3.0)], torch.tensor([[1, 2]] * 40)
    users = torch.zeros(40, dtype=torch.int64)
    mean = exploration.Ensemble(members)  # type: ignore[arg-type]
    assert mean.score(mean.begin(users), candidates)[0].tolist() == [-1.0, -2.0]
    drawn = exploration.Ensemble(members, seed=0)  # type: ignore[arg-type]
    state = drawn.begin(users)
    first = drawn.score(state, candidates)
    of_second = first[:, 1] < 0
    assert 10 <= int(of_second.sum()) <= 30
    state = drawn.observe(state, candidates[:, 0], users)
    later = drawn.score(state, candidates)  # a session keeps its member
    assert torch.equal(later, first + 1)


def test_rounds_are_measured_and_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mbcal.prepare_newsfeed(tmp_path / "feed", mbcal.NewsfeedConfig(400, 100))
    sizes = {"seeds": "0", "members": "2", "rounds": "2", "round-sessions": "40", "test-sessions": "40", "hidden": "8"}
    arguments = [word for name, value in sizes.items() for word in (f"--{name}", value)]
    output = tmp_path / "exploration.csv"
    command = ["exploration.py", str(tmp_path / "feed"), "--method", "gru4rec", *arguments, "--output", str(output)]
    monkeypatch.setattr(sys, "argv", command)
    exploration.main()
    written = output.read_text()
    rows = [line.split(",") for line in written.splitlines()]
    assert rows[0] == ["data", "method", "strategy", "seed", "round", "collected", "reward", "stderr"]
    assert [(row[2], row[4]) for row in rows[1:]] == [
        (strategy, number) for strategy in ("greedy", "epsilon", "thompson") for number in ("1", "2")
    ]
    collected = [row[5] for row in rows[1:]]
    assert collected[0] == collected[2] == collected[4]  # round 1 is collected at random, whatever the strategy
    assert len(set(collected[1::2])) == 3
    monkeypatch.setattr(exploration, "grow", lambda *_: pytest.fail("ran again"))
    exploration.main()
    assert output.read_text() == written
