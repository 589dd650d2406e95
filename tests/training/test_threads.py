"""Fits use one thread of PyTorch, and give the others back."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mbcal import MBCAL, Simulator, SimulatorConfig, TrainingConfig
from mbcal.training.threads import one_thread
from tests.support.batches import sessions

QUICK = TrainingConfig(epochs=1)


class Watch:
    """Progress that takes note of the threads in use."""

    def __init__(self) -> None:
        self.threads: set[int] = set()

    def phase(self, *_: Any) -> None:
        self.threads.add(torch.get_num_threads())

    def advance(self, amount: int) -> None: ...


@pytest.mark.parametrize(("variable", "inside"), [(None, 1), ("2", 2)])
def test_fits_use_one_thread_unless_told_otherwise(
    variable: str | None, inside: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable is None:
        monkeypatch.delenv("OMP_NUM_THREADS")
    else:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        watch = Watch()
        MBCAL(device="cpu", hidden=8, embedding=8, epochs=1).fit(sessions(count=40), progress=watch)
        Simulator(SimulatorConfig(hidden=8, embedding=8, training=QUICK), "cpu").fit(sessions(count=40), progress=watch)
        assert watch.threads == {inside}
        with pytest.raises(ValueError, match="stop"), one_thread():
            raise ValueError("stop")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
