"""One fit of an agent: the sessions, who is held out, and the ways a method trains its networks on them.

A method's `learn` is given a `FitContext` and calls `train` for a loss of its own, or `fit_values` to regress labels. Both
work unchanged when several workers share the fit (docs/scale.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mbcal.distributed.worker_slice import WorkerSlice
from mbcal.nn.label_scaler import LabelScaler
from mbcal.nn.recurrent import ValueNet
from mbcal.progress import Progress
from mbcal.storage.checkpoints import Checkpoints
from mbcal.training.config import TrainingConfig
from mbcal.training.device_data import DeviceSessions
from mbcal.training.loop import Curve, Objective, TrainingJob, train
from mbcal.training.losses import value_mse
from mbcal.types import SessionTensors

NO_ROWS = np.zeros(0, np.int64)
"""For methods whose targets move with the network: a held-out error would not tell when to stop."""


@dataclass
class FitContext:
    """One fit: data, held-out rows, settings, and the networks being fitted."""

    data: DeviceSessions
    """The N sessions of this worker, on the agent's device."""
    worker_slice: WorkerSlice
    """Which of all workers' sessions they are."""
    train_rows: NDArray[np.int64]
    """Sessions to learn from, by number over all workers."""
    held_out_rows: NDArray[np.int64]
    """Sessions of the users held out for early stopping, likewise."""
    config: TrainingConfig
    seed: int
    is_first_fit: bool
    """Whether the agent has learned nothing before; later fits are warm starts."""
    progress: Progress
    checkpoints: Checkpoints | None
    nets: Mapping[str, nn.Module]
    optimisers: Mapping[str, torch.optim.Adam]
    curves: dict[str, Curve] = field(default_factory=dict)
    """Losses by network, filled by `train`."""

    def train(
        self,
        name: str,
        objective: Objective,
        *,
        held_out_rows: NDArray[np.int64] | None = None,
        before_update: Callable[[], None] | None = None,
        use_cuda_graph: bool | None = None,
        copies: int = 1,
    ) -> None:
        """Fit one network with an objective.

        Args:
            name: The network, a key of `nets`.
            objective: Its loss, a function of rows and noise (`training.loop.Objective`).
            held_out_rows: Rows for early stopping instead of the context's; `NO_ROWS` runs every epoch.
            before_update: Called before every update, outside the CUDA graph.
            use_cuda_graph: Whether all data the objective reads lies on the device; by default whether `data` does.
            copies: How many times the objective's data holds all sessions, one copy after another (Dyna-Q: real, imagined).
        """
        worker_slice = self.worker_slice
        job = TrainingJob(
            name=name,
            net=self.nets[name],
            objective=objective,
            optimiser=self.optimisers[name],
            train_rows=np.concatenate([self.train_rows + copy * worker_slice.total for copy in range(copies)]),
            held_out_rows=self.held_out_rows if held_out_rows is None else held_out_rows,
            before_update=before_update,
            use_cuda_graph=self.data.is_on_device if use_cuda_graph is None else use_cuda_graph,
            loss_scale=_loss_scale(self.nets[name]),
            row_index=worker_slice.row_index(self.data.device, copies),
        )
        self.curves[name] = train(
            job,
            self.config,
            seed=self.seed,
            progress=self.progress,
            checkpoints=self.checkpoints,
            group=worker_slice.group,
        )

    def label(self, title: str, function: Callable[[SessionTensors], Tensor]) -> Tensor:
        """Compute a label for every step of this worker's sessions, a block at a time.

        Args:
            title: What the progress calls it.
            function: From B sessions to labels (B, T).

        Returns:
            Labels (N, T) on the device.
        """
        self.progress.phase(title, len(self.data))
        return self.data.map_blocks(function, self.progress.advance)

    def fit_values(self, name: str, labels: Tensor, *, mask_item: bool = False) -> None:
        """Fit a value network to labels by squared error: label scale first, then weights.

        Args:
            name: The network, a key of `nets`; must be a `ValueNet`.
            labels: (N, T), one per step of this worker's sessions.
            mask_item: Hide each step's own item, so that the network learns the mean label of a state.
        """
        net = self.nets[name]
        if not isinstance(net, ValueNet):
            raise TypeError(f"fit_values: {name!r} is a {type(net).__name__}, not a ValueNet")
        self.fit_label_scaler(net.label_scaler, labels)
        self.train(name, value_mse(net, self.data, labels, mask_item))

    def fit_label_scaler(self, scaler: LabelScaler, labels: Tensor) -> None:
        """Fit the scale of labels (N, T) over all workers. Later fits keep the first scale: weights depend on it."""
        if self.is_first_fit:
            scaler.fit(labels, self.data.mask, self.worker_slice.group)


def _loss_scale(net: nn.Module) -> float:
    """Squared reward units per unit of the network's loss; 1 for networks without a label scaler."""
    scalers = [module for module in net.modules() if isinstance(module, LabelScaler)]
    return float(scalers[0].scale) ** 2 if scalers else 1.0
