"""What the page of a simulator says of it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from mbcal import Simulator, SimulatorConfig, TrainingConfig
from mbcal.studio.views import simulator_view
from tests.support.toys import logged


def test_a_simulator_says_for_what_it_can_be_trusted(tmp_path: Path) -> None:
    """Its sentence, drift and calibration stand beside its numbers; without a report card it says that nothing is known."""
    users = logged(300)
    how = SimulatorConfig(hidden=8, embedding=8, training=TrainingConfig(epochs=15, batch=64, warmup=10))
    simulator = Simulator(how, "cpu").fit(users[:200])
    simulator.save(tmp_path / "without card")
    assert "has no report card" in simulator_view(tmp_path / "without card")["trust"]["sentence"]
    card = simulator.evaluate(users[200:])
    simulator.save(tmp_path / "sim", card=card)
    loaded = Simulator.load(tmp_path / "sim", "cpu").trust
    view = simulator_view(tmp_path / "sim")
    assert view["trust"] == {"sentence": loaded.warning or loaded.sentence, "is_low": loaded.is_low, "drift": card.drift}
    assert view["report_card"] == asdict(card)
