"""The training loop: Adam over minibatches, a schedule of rates and stopping, checkpoints, guards against divergence.

Every random number is derived from seed, purpose, epoch and batch. So a run that was killed resumes from its last checkpoint
and ends with the identical result: weights, optimiser state and a position are all that has to be saved.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mbcal.distributed.group import SINGLE_WORKER, Group
from mbcal.distributed.worker_slice import all_reduce_gradients
from mbcal.errors import DivergenceWarning, TrainingError
from mbcal.progress import SILENT, Progress
from mbcal.storage.checkpoints import Checkpoints
from mbcal.training.config import TrainingConfig
from mbcal.training.cuda_graph import GraphedStep
from mbcal.training.epoch_batches import EpochBatches
from mbcal.training.random import Key, Noise, derive_seed, permutation
from mbcal.training.record import Curve, TrainingRecord
from mbcal.training.schedule import Schedule
from mbcal.training.state import load_state_arrays, state_to_arrays, without_prefix

LOSS_CHECK_INTERVAL = 100
"""Updates between two looks at the losses: each look makes a GPU wait."""

Objective = Callable[[Tensor, Noise], tuple[Tensor, Tensor]]
"""(rows (B,), noise of the batch) -> (summed loss, number of steps it was summed over).

On a GPU the objective is recorded once as a CUDA graph and replayed for every batch. It must not branch on values
(`int(x)`, `if x > 0`) and must not create tensors from lists. What has to happen outside the graph, such as copying a
target network, belongs in `TrainingJob.before_update`.
"""


@dataclass(frozen=True)
class TrainingJob:
    """One network to fit."""

    name: str
    """Names the job in messages, checkpoints and random draws."""
    net: nn.Module
    objective: Objective
    optimiser: torch.optim.Adam
    train_rows: NDArray[np.int64]
    """Sessions to learn from, by number over all workers."""
    held_out_rows: NDArray[np.int64]
    """Sessions whose loss decides when to stop; empty runs every epoch."""
    before_update: Callable[[int], None] | None = None
    """Called before every update with the number of planned updates, outside the CUDA graph."""
    use_cuda_graph: bool = True
    """On a GPU, replay updates as a CUDA graph. Needs all data on the device."""
    loss_scale: float = 1.0
    """Factor from the objective's loss to the reported one: value networks learn normalised labels."""
    n_steps: float = 0.0
    """Steps of all training rows; needed unless the config names a batch size."""
    base_loss: float | None = None
    """Held-out loss of the best constant prediction. Training does not stop early before it is beaten."""
    max_loss: float | None = None
    """Largest loss per step that is possible unless the network has diverged; an epoch above it ends training."""
    row_index: Tensor | None = None
    """`WorkerSlice.row_index` where several workers share the fit."""


def train(
    job: TrainingJob,
    config: TrainingConfig,
    *,
    seed: int,
    progress: Progress = SILENT,
    checkpoints: Checkpoints | None = None,
    group: Group = SINGLE_WORKER,
) -> TrainingRecord:
    """Fit one network.

    Args:
        job: The network, its objective and its data.
        config: Epochs, batch size, learning rate, patience.
        seed: Seed of the order of sessions and all noise.
        progress: Called with epochs and sessions as they are done.
        checkpoints: Where the state is saved, and resumed from. In a group only the first worker writes.
        group: The workers that share the fit. All of them pass the same rows.

    Returns:
        What happened. The network holds the weights of the best epoch on the held-out rows, or of the last one. If it
        diverged, that is the last one before; a `DivergenceWarning` and the record say so.

    Raises:
        TrainingError: If there are no rows, a loss is NaN or infinite, or the network diverged in its first epoch.
    """
    if not len(job.train_rows):
        raise TrainingError(f"{job.name}: no sessions to learn from")
    return _Trainer(job, config, seed, progress, checkpoints, group).run()


@dataclass
class _Position:
    """Where a run stands. With weights and optimiser state this is all a checkpoint needs."""

    epoch: int = 0
    batch: int = 0
    """The next batch of the epoch."""
    loss_sum: float = 0.0
    """Loss summed over the epoch so far."""
    step_count: float = 0.0
    """Steps it was summed over."""
    schedule: Schedule = field(default_factory=Schedule)
    stopped: str = ""
    """Why training ended."""
    curve: Curve = field(default_factory=list)


class _Trainer:
    """One call of `train`."""

    def __init__(
        self,
        job: TrainingJob,
        config: TrainingConfig,
        seed: int,
        progress: Progress,
        checkpoints: Checkpoints | None,
        group: Group,
    ) -> None:
        self.job, self.config, self.seed = job, config, seed
        self.progress, self.checkpoints, self.group = progress, checkpoints, group
        self.device = next(job.net.parameters()).device
        self.batch_size = config.batch_sessions(len(job.train_rows), job.n_steps)
        self.position = _Position()
        self.best_state: dict[str, NDArray[Any]] = {}
        self._restore()

    def run(self) -> TrainingRecord:
        """Run epochs until the config or early stopping ends them."""
        train_rows, held_out_rows = (
            torch.from_numpy(rows).to(self.device) for rows in (self.job.train_rows, self.job.held_out_rows)
        )
        while not self.position.stopped:
            self._run_epoch(train_rows)
            self._end_epoch(held_out_rows)
            self._save()
        position, base_loss = self.position, self.job.base_loss
        return TrainingRecord(
            curve=position.curve,
            updates=position.schedule.updates,
            batch=self.batch_size,
            learning_rate=position.schedule.learning_rate,
            stopped=position.stopped,
            base_loss=None if base_loss is None else base_loss * self.job.loss_scale,
        )

    # ---- one epoch

    @torch.enable_grad()
    def _run_epoch(self, train_rows: Tensor) -> None:
        position, batch_size = self.position, self.batch_size
        order = permutation(derive_seed(self.seed, self.job.name, "order", position.epoch), len(train_rows), self.device)
        n_batches = -(-len(train_rows) // batch_size)
        noise_seeds = self._noise_seeds(n_batches, "noise", position.epoch)
        batches = EpochBatches(train_rows[order], batch_size, noise_seeds, position.batch)
        self._announce_epoch(len(train_rows))
        self.job.net.train()
        use_graph = self.job.use_cuda_graph and self.device.type == "cuda" and self.group.size == 1
        update_next = GraphedStep(lambda: self._update_next(batches), use_graph)
        try:
            while position.batch < batches.count:
                first = position.batch
                position.batch = min(first + LOSS_CHECK_INTERVAL, batches.count)
                for number in range(first, position.batch):
                    planned_updates = self.config.epochs * batches.count
                    if self.job.before_update:
                        self.job.before_update(planned_updates)
                    self._set_rate(planned_updates)
                    if number < batches.n_full:
                        update_next()
                    else:  # the last, shorter batch does not fit the recorded graph
                        batches.losses[number] = self._update(batches.batch_rows(number), batches.noise_seeds[number])
                self._check_losses(batches, first)
                self.progress.advance(min(position.batch * batch_size, len(train_rows)) - first * batch_size)
                if self.checkpoints and self.checkpoints.due() and position.batch < batches.count:
                    self._save()
        finally:
            update_next.release()

    def _announce_epoch(self, n_sessions: int) -> None:
        position = self.position
        title = f"{self.job.name}: epoch {position.epoch + 1} of at most {self.config.epochs}"
        if position.curve and "held_out" in position.curve[-1]:
            title += f", held-out loss {position.curve[-1]['held_out']:.4f}"
        self.progress.phase(title, n_sessions)
        self.progress.advance(position.batch * self.batch_size)

    def _set_rate(self, planned_updates: int) -> None:
        planned = None if len(self.job.held_out_rows) else planned_updates
        self.config.set_rate(self.job.optimiser, self.position.schedule.next_rate(self.config, planned))

    def _clip_gradient(self) -> None:
        if self.config.clip is not None:
            parameters = [parameter for group in self.job.optimiser.param_groups for parameter in group["params"]]
            nn.utils.clip_grad_norm_(parameters, self.config.clip, foreach=True)

    def _update_next(self, batches: EpochBatches) -> None:
        """Update on the next full batch. Its number is read from a tensor, so that the step can be recorded."""
        rows = batches.full_batches.index_select(0, batches.next_batch).squeeze(0)
        noise_seed = batches.noise_seeds.index_select(0, batches.next_batch).squeeze(0)
        batches.losses.index_copy_(0, batches.next_batch, self._update(rows, noise_seed).unsqueeze(0))
        batches.next_batch += 1

    def _update(self, rows: Tensor, noise_seed: Tensor) -> Tensor:
        """One step of the optimiser on rows (B,); returns summed loss and step count (2,)."""
        if self.group.size > 1:
            return self._update_shared(rows, noise_seed)
        loss_sum, step_count = self.job.objective(rows, Noise(noise_seed))
        self.job.optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(loss_sum / step_count.clamp(min=1))
        self._clip_gradient()
        self.job.optimiser.step()
        return torch.stack([loss_sum.detach(), step_count.to(loss_sum.dtype)])

    def _update_shared(self, rows: Tensor, noise_seed: Tensor) -> Tensor:
        """The same step on every worker of a group, by the sum of their gradients."""
        optimiser = self.job.optimiser
        local_rows, noise = self._local_batch(rows, noise_seed)
        optimiser.zero_grad(set_to_none=True)
        sums = torch.zeros(2, device=self.device)
        if len(local_rows):
            loss_sum, step_count = self.job.objective(local_rows, noise)
            torch.autograd.backward(loss_sum)
            sums = torch.stack([loss_sum.detach(), step_count.to(loss_sum.dtype)])
        parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
        sums = all_reduce_gradients(parameters, sums, self.group)
        self._clip_gradient()
        optimiser.step()
        return sums

    def _local_batch(self, rows: Tensor, noise_seed: Tensor) -> tuple[Tensor, Noise]:
        """The rows of a batch that lie with this worker, and their noise."""
        if self.job.row_index is None:
            return rows, Noise(noise_seed)
        local = self.job.row_index[rows]
        present = (local >= 0).nonzero().squeeze(1)
        return local[present], Noise(noise_seed, present)

    def _noise_seeds(self, count: int, *purpose: Key) -> Tensor:
        """(count,): one seed for the noise of each batch."""
        seeds = [derive_seed(self.seed, self.job.name, *purpose, number) for number in range(count)]
        return torch.tensor(seeds, device=self.device)

    def _check_losses(self, batches: EpochBatches, first: int) -> None:
        """Add up the losses since batch `first`; raise if one is not finite."""
        position = self.position
        loss_sums, step_counts = batches.losses[first : position.batch].double().cpu().unbind(1)
        bad = (~loss_sums.isfinite()).nonzero()
        if len(bad):
            number = first + int(bad[0])
            rows = ", ".join(str(row) for row in batches.batch_rows(number)[:5].tolist())
            raise TrainingError(
                f"{self.job.name}: the loss became {float(loss_sums[bad[0]])} at epoch {position.epoch + 1}, "
                f"step {number + 1}, batch of sessions {rows}, …; {self._last_good_checkpoint()}; "
                "try a smaller learning rate, or look at these sessions"
            )
        position.loss_sum += float(loss_sums.sum())
        position.step_count += float(step_counts.sum())

    # ---- between epochs

    def _end_epoch(self, held_out_rows: Tensor) -> None:
        """Add an entry to the curve; decide whether this epoch is the best so far, and the last."""
        position, losses = self.position, {"loss": self.position.loss_sum / max(self.position.step_count, 1)}
        if self.job.max_loss is not None and abs(losses["loss"]) > self.job.max_loss:
            self._stop_diverged(losses["loss"])
            return
        if len(held_out_rows):
            losses["held_out"] = self._held_out_loss(held_out_rows)
            if not np.isfinite(losses["held_out"]):
                problem = f"the held-out loss became {losses['held_out']} after epoch {position.epoch + 1}"
                raise TrainingError(f"{self.job.name}: {problem}; {self._last_good_checkpoint()}")
            self._follow_schedule(losses["held_out"])
        elif self.job.max_loss is not None:
            self.best_state = state_to_arrays(self.job.net, self.job.optimiser)
        position.curve.append({name: loss * self.job.loss_scale for name, loss in losses.items()})
        position.epoch, position.batch, position.loss_sum, position.step_count = position.epoch + 1, 0, 0.0, 0.0
        if position.epoch >= self.config.epochs and not position.stopped:
            position.stopped = f"stopped after the {self.config.epochs} epochs of the settings"
        if position.stopped and self.best_state:
            load_state_arrays(self.job.net, self.job.optimiser, self.best_state)
            self.best_state = {}

    def _stop_diverged(self, loss: float) -> None:
        """End training with the best weights, or those of the last epoch, before the network diverged."""
        job, position = self.job, self.position
        problem = f"diverged in epoch {position.epoch + 1} (loss {loss:.3g}, at most {job.max_loss:.3g} is possible)"
        if not self.best_state:
            raise TrainingError(f"{job.name}: {problem}; try a smaller learning rate")
        position.stopped = f"stopped because the network {problem}"
        load_state_arrays(job.net, job.optimiser, self.best_state)
        self.best_state = {}
        if self.group.rank == 0:
            advice = "the last good weights are kept; try a smaller learning rate"
            warnings.warn(f"{job.name}: {position.stopped}; {advice}", DivergenceWarning, stacklevel=2)

    def _follow_schedule(self, held_out_loss: float) -> None:
        step = self.position.schedule.end_epoch(self.config, held_out_loss, self.job.base_loss)
        if step == "best":
            self.best_state = state_to_arrays(self.job.net, self.job.optimiser)
        elif step == "reduce":
            load_state_arrays(self.job.net, self.job.optimiser, self.best_state)
        elif step == "stop":
            self.position.stopped = "stopped because the held-out loss no longer fell"

    @torch.no_grad()
    def _held_out_loss(self, held_out_rows: Tensor) -> float:
        self.job.net.eval()
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        batches = torch.split(held_out_rows, max(4 * self.batch_size, 256))
        for batch, noise_seed in zip(batches, self._noise_seeds(len(batches), "held-out noise"), strict=True):
            rows, noise = self._local_batch(batch, noise_seed)
            if len(rows):
                loss_sum, step_count = self.job.objective(rows, noise)
                sums += torch.stack([loss_sum.double(), step_count.double()])
        self.group.all_reduce_sum(sums)
        return float(sums[0] / sums[1].clamp(min=1))

    # ---- checkpoints

    def _restore(self) -> None:
        record, arrays = self.checkpoints.stage(self.job.name) if self.checkpoints else (None, {})
        if record is not None:
            self.position = _Position(**{**record, "schedule": Schedule(**record["schedule"])})
            load_state_arrays(self.job.net, self.job.optimiser, without_prefix(arrays, "now/"))
            self.best_state = without_prefix(arrays, "best/")

    def _save(self) -> None:
        if self.checkpoints and self.group.rank == 0:
            now = state_to_arrays(self.job.net, self.job.optimiser)
            arrays = {f"now/{name}": array for name, array in now.items()}
            arrays |= {f"best/{name}": array for name, array in self.best_state.items()}
            self.checkpoints.save(self.job.name, asdict(self.position), arrays)

    def _last_good_checkpoint(self) -> str:
        latest = self.checkpoints.latest if self.checkpoints else None
        return f"the last good checkpoint is {latest}" if latest else "there is no checkpoint yet"
