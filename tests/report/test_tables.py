"""Tables of a run: what methods chose from data, with the evidence."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mbcal.environments.trust import Trust
from mbcal.evaluation.experiment.run import Cell
from mbcal.report.page_writer import table_html
from mbcal.report.tables import choices_table, data_table, rewards_table
from tests.support.summaries import summary_of

NOISE = np.random.default_rng(0).normal(size=400)


def test_gaps_within_the_error_of_a_simulator_with_a_warning_are_marked() -> None:
    """Rewards and larger gaps are not; a gap within the simulator's own error has no p-value for readers."""
    levels = {"mbcal": 7.0, "dqn": 5.2, "gru4rec": 5.0}
    earned = {
        agent: np.stack([level + NOISE + 0.1 * np.roll(NOISE, int(level * 10))] * 2) for agent, level in levels.items()
    }
    trust = Trust(0.5, 0.1, 0.5, "", "drift: it drifts")
    summary = summary_of({"truth": earned, "lstm": earned}, trust={"lstm": trust}, logged=4.0 + NOISE)
    table = rewards_table(summary, "batch")
    texts = {(row[0], row[1]): dict(zip(table.columns, table.texts(row), strict=True)) for row in table.rows}
    for agent in levels:
        for column in ("reward per session", "spread over seeds", "low", "high"):
            assert texts["lstm", agent][column] == texts["truth", agent][column], (agent, column)
    assert texts["lstm", "the log"] == {**texts["truth", "the log"], "judge": "lstm"}
    assert not any("(!)" in text for (judge, _), row in texts.items() if judge == "truth" for text in row.values())
    close, far = texts["lstm", "dqn"], texts["lstm", "mbcal"]
    assert [close[f"{name} to gru4rec"] for name in ("gap", "gap low", "gap high", "p")] == [
        "0.200 (!)", "0.186 (!)", "0.214 (!)", "within its own error",
    ]  # fmt: skip
    assert (far["gap to gru4rec"], far["p to gru4rec"]) == ("2.00", "<0.001")
    assert texts["truth", "dqn"]["p to gru4rec"] == "<0.001"
    warning = f"(!) lstm: {trust.warning}"
    assert table.warnings == {4: warning}
    assert f"> {warning}\n\n| judge | method |" in table.markdown()
    page = table_html(table)
    assert page.index("<td>truth</td>") < page.index("(!) lstm: ") < page.index("<td>lstm</td>")
    assert "(!)" not in table.csv()
    assert float(table.csv().splitlines()[5].split(",")[2]) == pytest.approx(7.0, abs=0.1)
    assert "spread is their standard deviation" in table.note
    useless = Trust(np.inf, np.inf, 0.0, "It knows nothing.")
    one = rewards_table(
        summary_of({"lstm": {name: values[:1] for name, values in earned.items()}}, trust={"lstm": useless}), "batch"
    )
    assert all(one.texts(row)[2].endswith(" (!)") for row in one.rows)  # nothing of it can be trusted
    assert "spread" not in one.note


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
    assert (
        table.grid().splitlines()[0].startswith("| protocol | method | training | advantage | judged reward | judged gain |")
    )


def test_the_data_say_how_many_test_sessions_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {"train": {"sessions": 900}, "test": {"sessions": 1260}}
    names = ("source", "users", "items", "rows", "sessions", "horizon", "reward_per_step")
    description = {**dict.fromkeys(names, 1), "parts": parts, "behaviours": [], "features": []}
    monkeypatch.setattr("mbcal.report.tables.describe", lambda store: description)
    for used, note in ((1000, "The tests use 1,000 of the 1,260 test sessions (setting test_sessions)."), (1260, "")):
        summary: Any = SimpleNamespace(run=SimpleNamespace(store=lambda: None), users=np.arange(used))
        assert data_table(summary).note == note
