"""Tables of a run: what methods chose from data, with the evidence."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from mbcal.evaluation.experiment.run import Cell
from mbcal.report.tables import choices_table


def trial(kind: str, reward: float, gain: float, low: float, high: float) -> dict[str, Any]:
    return {"kind": kind, "reward": reward, "gain": gain, "low": low, "high": high}


def test_choices_are_listed_with_their_evidence() -> None:
    trials = [trial("counterfactual", 5.0, 0.0, 0.0, 0.0), trial("planned", 5.5, 0.5, 0.25, 0.75)]
    chosen = {"advantage": {"kind": "planned", "sessions": 90, "trials": trials}}
    records = {
        "batch": {"mbcal-plan": [{"choices": chosen}], "mbcal": [{"choices": {}}]},
        "growing": {"mbcal-plan": [{"choices": {"advantage": {"kind": "none", "sessions": 0, "trials": []}}}], "dqn": [{}]},
    }

    def by_agent(protocol: str) -> dict[str, list[Any]]:
        return {
            agent: [SimpleNamespace(cell=Cell(protocol, agent, seed), record=record) for seed, record in enumerate(found)]
            for agent, found in records[protocol].items()
        }

    summary: Any = SimpleNamespace(by_agent=by_agent)
    table = choices_table(summary)
    assert table.rows == [
        ["batch", "mbcal-plan", 0, "counterfactual", 5.0, 0.0, 0.0, 0.0, False],
        ["batch", "mbcal-plan", 0, "planned", 5.5, 0.5, 0.25, 0.75, True],
    ]
    assert table.grid().splitlines()[0].startswith("| protocol | method | seed | advantage | judged reward | judged gain |")
