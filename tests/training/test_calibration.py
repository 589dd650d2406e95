"""One temperature makes probabilities agree with frequencies, without changing the order of predictions."""

from pathlib import Path

import pytest
import torch

from mbcal import Simulator
from mbcal.training.calibration import MAX_TEMPERATURE, best_temperature, calibrate
from mbcal.training.device_data import DeviceSessions
from tests.support import batches


@pytest.mark.parametrize("sharpness", [0.7, 1.0, 1.6])
def test_the_temperature_of_logits_that_are_too_sharp_is_found(sharpness: float) -> None:
    generator = torch.Generator().manual_seed(0)
    true_logits = torch.randn(60_000, 4, generator=generator)
    behaviours = torch.multinomial(true_logits.softmax(-1), 1, generator=generator).squeeze(1)
    assert best_temperature(sharpness * true_logits, behaviours) == pytest.approx(sharpness, rel=0.02)


def test_a_network_that_has_learned_nothing_is_not_flattened() -> None:
    logits = torch.tensor([[4.0, 0.0], [4.0, 0.0]])
    assert best_temperature(logits, torch.tensor([1, 1])) == MAX_TEMPERATURE


def test_calibration_divides_the_logits_of_the_network() -> None:
    log = batches.sessions(count=64, horizon=3)
    net, data, rows = batches.net(), DeviceSessions(log, torch.device("cpu")), torch.arange(64).numpy()
    with torch.no_grad():
        before = net.forward_batch(log.tensors())
        temperature = calibrate(net, data, rows)
        assert temperature != 1
        torch.testing.assert_close(net.forward_batch(log.tensors()), before / temperature)
        assert calibrate(net, data, rows[:0]) == 1


def test_simulators_are_calibrated_on_held_out_users_and_keep_their_temperature(tmp_path: Path) -> None:
    simulator = Simulator(hidden=8, embedding=8, epochs=2).fit(batches.sessions(count=64, horizon=3))
    assert simulator.temperature != 1
    simulator.save(tmp_path / "simulator")
    assert Simulator.load(tmp_path / "simulator").temperature == simulator.temperature
    whole = Simulator(hidden=8, embedding=8, epochs=2, validation=0).fit(batches.sessions(count=64, horizon=3))
    assert whole.temperature == 1
