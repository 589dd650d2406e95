"""Learning rate, stopping, batch size and replay follow from the data."""

from __future__ import annotations

import pytest

from mbcal.training.config import TrainingConfig
from mbcal.training.record import TrainingRecord
from mbcal.training.replay import REPLAY_STEPS, replayed_rounds, round_passes
from mbcal.training.schedule import PLATEAU_UPDATES, Schedule


def test_the_rate_rises_then_falls_with_every_reduction() -> None:
    config, schedule = TrainingConfig(learning_rate=1.0, warmup=4, decay=0.5), Schedule()
    assert [schedule.next_rate(config, None) for _ in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    schedule.reductions = 2
    assert schedule.next_rate(config, None) == 0.25
    assert (schedule.updates, schedule.learning_rate) == (7, 0.25)


def test_without_held_out_users_the_rate_falls_linearly() -> None:
    config, schedule = TrainingConfig(learning_rate=1.0, warmup=0, decay=0.2), Schedule()
    assert [schedule.next_rate(config, 4) for _ in range(4)] == pytest.approx([1.0, 0.8, 0.6, 0.4])


def test_the_held_out_loss_decides() -> None:
    config, schedule = TrainingConfig(patience=2, reductions=1), Schedule()
    losses = (5.0, 4.0, 4.5, 4.2, 3.9, 4.0, 3.95, 3.0)
    steps = [schedule.end_epoch(config, loss, None) for loss in losses[:-1]]
    assert steps == ["best", "best", "continue", "reduce", "best", "continue", "stop"]
    assert schedule.best_loss == 3.9


def test_it_does_not_give_up_on_an_initial_plateau() -> None:
    config, schedule = TrainingConfig(patience=1, reductions=0), Schedule(updates=100)
    assert schedule.end_epoch(config, 0.2975, 0.2980) == "best"
    assert [schedule.end_epoch(config, 0.2976, 0.2980) for _ in range(5)] == ["continue"] * 5
    schedule.updates = PLATEAU_UPDATES
    assert schedule.end_epoch(config, 0.2976, 0.2980) == "stop"
    learned = Schedule(updates=100, best_loss=0.25)
    assert learned.end_epoch(config, 0.26, 0.2980) == "stop"


@pytest.mark.parametrize(
    ("sessions", "steps", "batch"),
    [
        (3_232, 64_640, 32),  # the demo: 640 steps are the least
        (7_200, 720_000, 36),  # long sessions: 200 updates in a pass
        (40_000, 4_000_000, 51),  # 5,120 steps are the most
        (150_000, 3_000_000, 256),  # the paper's batch
        (10, 100, 10),  # never more than there are
    ],
)
def test_a_batch_is_counted_in_steps(sessions: int, steps: int, batch: int) -> None:
    assert TrainingConfig().batch_sessions(sessions, steps) == batch
    assert TrainingConfig(batch=7).batch_sessions(sessions, steps) == 7


def test_small_rounds_are_replayed_and_large_ones_are_not() -> None:
    assert replayed_rounds([16_000] * 6, None) == 6
    assert replayed_rounds([5_120_000] * 3, None) == 1
    assert replayed_rounds([REPLAY_STEPS // 2] * 5, None) == 2
    assert replayed_rounds([16_000] * 6, 3) == 3
    assert replayed_rounds([16_000], 3) == 1


def test_small_rounds_get_more_passes() -> None:
    assert round_passes(16_000, 40, None) == 40
    assert round_passes(1_000_000, 40, None) == 10
    assert round_passes(50_000_000, 40, None) == 1
    assert round_passes(16_000, 40, 6) == 6


def test_a_record_says_what_happened() -> None:
    curve = [{"loss": 0.5, "held_out": 0.4}, {"loss": 0.4, "held_out": 0.3}, {"loss": 0.3, "held_out": 0.35}]
    record = TrainingRecord(curve, 600, 36, 0.0009, "stopped because the held-out loss no longer fell", 0.45)
    assert (record.best_epoch, record.held_out_loss, record.has_learned) == (2, 0.3, True)
    assert str(record) == (
        "600 updates of 36 sessions, epoch 2 of 3, held-out loss 0.3000 (a constant prediction has 0.4500), "
        "last rate 0.0009; stopped because the held-out loss no longer fell"
    )
    assert not TrainingRecord(curve, base_loss=0.3).has_learned
    assert TrainingRecord([{"loss": 0.5}], 5, 8, 0.1, "done").best_epoch == 1
    assert TrainingRecord().has_learned
