"""One fit of an agent: the sessions, the held-out users, and the ways in which a method trains its networks on them.

A method's `learn` is given a `FitContext`. It calls `train` for a loss of its own, or computes labels with `label` and fits
a value network to them with `fit_values`. All three work unchanged when several workers share the fit (docs/scale.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mbcal.distributed.worker_slice import WorkerSlice
from mbcal.nn.base import SessionNet
from mbcal.nn.label_scaler import LabelScaler
from mbcal.nn.recurrent import ValueNet
from mbcal.progress import Progress
from mbcal.storage.checkpoints import Checkpoints
from mbcal.training.config import TrainingConfig
from mbcal.training.device_data import DeviceSessions
from mbcal.training.loop import Objective, TrainingJob, train
from mbcal.training.losses import base_mse, base_nll, behaviour_nll, value_mse
from mbcal.training.record import TrainingRecord
from mbcal.training.selection import EVIDENCE_SESSIONS, shown_evidence
from mbcal.types import SessionTensors

NO_ROWS = np.zeros(0, np.int64)
"""No held-out rows: for methods whose targets move with the network, where a held-out loss does not show when to stop."""


@dataclass
class FitContext:
    """One fit: data, held-out rows, settings, and the networks that are trained."""

    data: DeviceSessions
    """The N sessions of this worker, on the agent's device."""
    worker_slice: WorkerSlice
    """Which of all workers' sessions they are; `worker_slice.group` is the group of workers."""
    train_rows: NDArray[np.int64]
    """Indices of the sessions to learn from, among all workers' sessions."""
    held_out_rows: NDArray[np.int64]
    """Indices of the held-out users' sessions, used for early stopping, likewise."""
    config: TrainingConfig
    """Training settings of this fit."""
    seed: int
    """Seed of the noise of this fit."""
    is_first_fit: bool
    """Whether the agent has learned nothing before; later fits are warm starts."""
    progress: Progress
    checkpoints: Checkpoints | None
    nets: Mapping[str, nn.Module]
    """The agent's networks by name."""
    optimisers: Mapping[str, torch.optim.Adam]
    """Their optimisers."""
    weights: Tensor | None = None
    """(N, T) how much each step counts in `fit_behaviours` and `fit_values`, if `TrainingConfig.propensity_weights`."""
    records: dict[str, TrainingRecord] = field(default_factory=dict)
    """How the training of each network went, filled by `train`."""
    warnings: list[str] = field(default_factory=list)
    """What a user should know about the log or the fit, in words."""

    def train(
        self,
        name: str,
        objective: Objective,
        *,
        held_out_rows: NDArray[np.int64] | None = None,
        before_update: Callable[[int], None] | None = None,
        use_cuda_graph: bool | None = None,
        copies: int = 1,
        base_loss: float | None = None,
        max_loss: float | None = None,
        stage: str | None = None,
    ) -> None:
        """Train one network: minibatches, Adam, early stopping, checkpoints. What happened goes to `records`.

        Args:
            name: The network, a key of `nets`.
            objective: Its loss, a function of rows and noise (`training.loop.Objective`).
            held_out_rows: Rows for early stopping instead of the context's; with `NO_ROWS` training does not
                stop early (`TrainingConfig.epochs_without_stopping`).
            before_update: Called before every update with the number of planned updates, outside the CUDA graph.
            use_cuda_graph: Whether all data that the objective reads lies on the device; by default whether `data` does.
            copies: How many times the objective's data holds all sessions, one copy after another (2 in Dyna-Q: real and
                imagined).
            base_loss: Held-out loss of the best constant prediction, if known; see `TrainingJob.base_loss`.
            max_loss: Loss per step above which the network has diverged; see `TrainingJob.max_loss`.
            stage: Name of this training, if the network is trained several times in one fit; by default that of the network.

        Raises:
            TrainingError: If a loss becomes NaN, or the network diverges in its first epoch.
        """
        worker_slice, config, n_steps = self.worker_slice, self.config, self._n_train_steps() * copies
        if held_out_rows is not None and not len(held_out_rows):
            config = replace(config, epochs=config.epochs_without_stopping(len(self.train_rows) * copies, n_steps))
        job = TrainingJob(
            name=stage or name,
            net=self.nets[name],
            objective=objective,
            optimiser=self.optimisers[name],
            train_rows=np.concatenate([self.train_rows + copy * worker_slice.total for copy in range(copies)]),
            held_out_rows=self.held_out_rows if held_out_rows is None else held_out_rows,
            before_update=before_update,
            use_cuda_graph=self.data.is_on_device if use_cuda_graph is None else use_cuda_graph,
            loss_scale=_loss_scale(self.nets[name]),
            n_steps=n_steps,
            base_loss=base_loss,
            max_loss=max_loss,
            row_index=worker_slice.row_index(self.data.device, copies),
        )
        self.records[name] = train(
            job,
            config,
            seed=self.seed,
            progress=self.progress,
            checkpoints=self.checkpoints,
            group=worker_slice.group,
        )

    def label(self, title: str, function: Callable[[SessionTensors], Tensor]) -> Tensor:
        """Compute a label for every step of this worker's sessions, a block at a time.

        Args:
            title: Name of the phase that progress reports.
            function: From B sessions to labels (B, T).

        Returns:
            Labels (N, T) on the device.
        """
        self.progress.phase(title, len(self.data))
        return self.data.map_blocks(function, self.progress.advance)

    def fit_values(self, name: str, labels: Tensor, *, mask_item: bool = False) -> None:
        """Fit a value network to labels by squared error: first the label scale, over all workers, then the weights.

        Args:
            name: The network, a key of `nets`; must be a `ValueNet`.
            labels: One per step of this worker's sessions, (N, T), in reward units.
            mask_item: Mask each step's own item, so that the network learns the mean label of a state.

        Raises:
            TypeError: If the network is no `ValueNet`.
            TrainingError: If a loss becomes NaN.
        """
        net = self.nets[name]
        if not isinstance(net, ValueNet):
            problem = f"fit_values: {name!r} is a {type(net).__name__}, not a ValueNet"
            raise TypeError(f"{problem}; create a ValueNet in build_networks, or train with an objective of your own")
        self.fit_label_scaler(net.label_scaler, labels)
        normalized = net.label_scaler.normalize(labels)
        base_loss = base_mse(normalized, self._weights, self.held_out_rows, self.worker_slice)
        self.train(name, value_mse(net, self.data, labels, mask_item, self.weights), base_loss=base_loss)

    def fit_behaviours(self, name: str, mask_rate: float = 0.0) -> None:
        """Fit a network of behaviours by likelihood. Warns if what was shown counts as evidence of what users like.

        Args:
            name: The network, a key of `nets`.
            mask_rate: Probability that a step's item is masked.

        Raises:
            TypeError: If the network is no `SessionNet`.
            TrainingError: If a loss becomes NaN.
        """
        net = self.nets[name]
        if not isinstance(net, SessionNet):
            raise TypeError(f"fit_behaviours: {name!r} is a {type(net).__name__}, not a SessionNet")
        base_loss = base_nll(self.data, self._weights, self.held_out_rows, self.worker_slice)
        self.train(name, behaviour_nll(net, self.data, mask_rate, self.weights), base_loss=base_loss)
        evidence = shown_evidence(net, self.data[:EVIDENCE_SESSIONS], self.seed, self.worker_slice.group)
        if evidence.is_large:
            self.warnings.append(evidence.warning())

    @property
    def _weights(self) -> Tensor:
        """(N, T) how much each step counts in a loss; 0 in the padding."""
        return self.data.mask if self.weights is None else self.weights

    def _n_train_steps(self) -> float:
        """Steps of all training sessions of all workers."""
        counts = torch.stack([self.data.mask.sum(), torch.tensor(len(self.data), device=self.data.device)]).double()
        self.worker_slice.group.all_reduce_sum(counts)
        return float(counts[0] / counts[1]) * len(self.train_rows)

    def fit_label_scaler(self, scaler: LabelScaler, labels: Tensor) -> None:
        """Fit the scale of labels over all workers. `fit_values` does so; call it only for networks trained otherwise.

        Warm starts keep the scale of the first fit, since the weights depend on it. Shrunk weights are half fresh, and the
        labels of a first round, whose model knew nothing, may be far too small for later ones: they get a new scale.

        Args:
            scaler: The network's `label_scaler`.
            labels: One per step of this worker's sessions, (N, T), in reward units.
        """
        if self.is_first_fit or self.config.shrink < 1:
            scaler.fit(labels, self.data.mask, self.worker_slice.group)

    def __repr__(self) -> str:
        rows = f"{len(self.train_rows):,} sessions to train on, {len(self.held_out_rows):,} held out"
        return f"<FitContext: {rows}, networks {', '.join(self.nets)}>"


def _loss_scale(net: nn.Module) -> float:
    """Squared reward units per unit of the network's loss; 1 for networks without a label scaler."""
    scalers = [module for module in net.modules() if isinstance(module, LabelScaler)]
    return float(scalers[0].scale) ** 2 if scalers else 1.0
