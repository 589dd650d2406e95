"""Fits that lose a worker, for tests of engines."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

import mbcal.training.loop
from mbcal import MBCALConfig, NetConfig, TrainingConfig
from mbcal.agents.fit_job import FitJob
from mbcal.config import to_dict
from mbcal.distributed.group import Group


@dataclass(frozen=True)
class Deadly:
    """A fit with a checkpoint after every update; some workers are killed before their n-th sum, once."""

    fit: FitJob
    deaths: dict[int, int]
    """n by rank."""
    marks: Path
    """Folder in which a killed worker leaves a file."""
    stuck: bool = False
    """The worker hangs instead of being killed."""

    def __call__(self, group: Group) -> Any:
        mbcal.training.loop.LOSS_CHECK_INTERVAL = 1
        return self.fit(_Doomed(group, self.deaths.get(group.rank, 0), self.marks / f"dead-{group.rank}", self.stuck))


class _Doomed:
    def __init__(self, group: Group, sums: int, mark: Path, stuck: bool) -> None:
        self.group, self.rank, self.size = group, group.rank, group.size
        self._left, self._mark, self._stuck = 0 if mark.exists() else sums, mark, stuck

    def all_reduce_sum(self, *tensors: Tensor) -> None:
        self._left -= 1
        if self._left == 0:
            self._mark.touch()
            if self._stuck:
                time.sleep(600)
            os.kill(os.getpid(), signal.SIGKILL)
        self.group.all_reduce_sum(*tensors)


CONFIG = MBCALConfig(net=NetConfig(hidden=8, embedding=8), training=TrainingConfig(epochs=2, batch=64))


def job(shop: Path, name: str, data: str = "feed", checkpoint_every: float = 30.0) -> FitJob:
    config = to_dict(CONFIG)
    return FitJob(
        shop / data, shop / name, shop / f".{name}", "mbcal", config, device="cpu", checkpoint_every=checkpoint_every
    )
