"""The one loop over minibatches: Adam, early stopping on held-out users, checkpoints, and a guard against NaN.

Every random draw is named by seed, purpose, epoch and batch, so a run that was killed goes on from its last checkpoint to
the identical result: nothing but weights, optimiser and a position needs to be remembered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mbcal.distributed.group import SINGLE_WORKER, Group
from mbcal.distributed.worker_slice import all_reduce_gradients
from mbcal.errors import TrainingError
from mbcal.progress import SILENT, Progress
from mbcal.storage.checkpoints import Checkpoints, Position
from mbcal.training.config import TrainingConfig
from mbcal.training.cuda_graph import GraphedStep
from mbcal.training.random import Key, Noise, derive_seed, permutation
from mbcal.training.state import _unprefixed, load_state_arrays, state_to_arrays

LOSS_CHECK_INTERVAL = 100
"""Losses are looked at this often: a look makes a GPU wait."""

Objective = Callable[[Tensor, Noise], tuple[Tensor, Tensor]]
"""Rows (B,) of the training data and their noise -> summed loss and the number of steps it was summed over.

On a GPU it is recorded once and replayed for every batch, so it must not look at values (`int(x)`, `if x > 0`) nor make
tensors from lists; what has to happen outside, such as copying a target network now and then, goes into `before`.
"""


def train(
    net: nn.Module,
    objective: Objective,
    rows: NDArray[np.int64],
    held: NDArray[np.int64],
    how: TrainingConfig,
    *,
    name: str,
    seed: int,
    optimiser: torch.optim.Adam,
    before: Callable[[], None] | None = None,
    record: bool = True,
    unit: float = 1.0,
    progress: Progress = SILENT,
    checkpoints: Checkpoints | None = None,
    group: Group = SINGLE_WORKER,
    places: Tensor | None = None,
) -> list[dict[str, float]]:
    """Fit `net` on rows, stopping by the loss on the rows held out (if any); `before` is called before every update.

    On a GPU updates are recorded and replayed, unless told not to because the data does not lie there.
    In a group all workers are given the same rows, and `places` says where each row lies here (`WorkerSlice.places`); the first
    worker keeps the checkpoints.
    Returns the curve, an entry an epoch, in multiples of `unit`: what one of the objective's loss is worth to people.
    """
    if not len(rows):
        raise TrainingError(f"{name}: no sessions to learn from")
    run = _Run(net, objective, how, name, seed, optimiser, before, record, unit, progress, checkpoints, group, places)
    return run.to_the_end(torch.from_numpy(rows).to(run.device), torch.from_numpy(held).to(run.device))


class _Run:
    def __init__(
        self,
        net: nn.Module,
        objective: Objective,
        how: TrainingConfig,
        name: str,
        seed: int,
        optimiser: torch.optim.Adam,
        before: Callable[[], None] | None,
        record: bool,
        unit: float,
        progress: Progress,
        checkpoints: Checkpoints | None,
        group: Group,
        places: Tensor | None,
    ) -> None:
        self.net, self.objective, self.how, self.name, self.seed = net, objective, how, name, seed
        self.optimiser, self.before, self.record, self.unit = optimiser, before, record, unit
        self.progress, self.checkpoints, self.group, self.places = progress, checkpoints, group, places
        self.device = next(net.parameters()).device
        self.at = Position()
        self.best: dict[str, NDArray[Any]] = {}
        self._restore()

    def _restore(self) -> None:
        said, arrays = self.checkpoints.stage(self.name) if self.checkpoints else (None, {})
        if said is None:
            return
        self.at = Position(**{**said, "best": float("inf") if said["best"] is None else said["best"]})
        load_state_arrays(self.net, self.optimiser, _unprefixed(arrays, "now/"))
        self.best = _unprefixed(arrays, "best/")

    def _save(self) -> None:
        if self.checkpoints and self.group.rank == 0:
            now = {f"now/{key}": value for key, value in state_to_arrays(self.net, self.optimiser).items()}
            best = {f"best/{key}": value for key, value in self.best.items()}
            self.checkpoints.save(self.name, self.at, {**now, **best})

    def to_the_end(self, rows: Tensor, held: Tensor) -> list[dict[str, float]]:
        while not self.at.done:
            self._epoch(rows)
            self._judge(held)
            self._save()
        return self.at.curve

    @torch.enable_grad()
    def _epoch(self, rows: Tensor) -> None:
        at, size = self.at, self.how.batch
        order = rows[permutation(derive_seed(self.seed, self.name, "order", at.epoch), len(rows), self.device)]
        known = f", held-out loss {at.curve[-1]['held_out']:.4f}" if at.curve and "held_out" in at.curve[-1] else ""
        self.progress.phase(f"{self.name}: epoch {at.epoch + 1} of at most {self.how.epochs}{known}", len(rows))
        self.progress.advance(at.batch * size)
        self.net.train()
        updates = _Updates(self, order)
        try:
            self._run_all(updates)
        finally:
            updates.release()

    def _run_all(self, updates: _Updates) -> None:
        at, size = self.at, self.how.batch
        while at.batch < updates.count:
            begin, end = at.batch, min(at.batch + LOSS_CHECK_INTERVAL, updates.count)
            for number in range(begin, end):
                if self.before:
                    self.before()
                updates.run(number)
            at.batch = end
            self._look(updates, begin)
            self.progress.advance(min(end * size, updates.sessions) - begin * size)
            if self.checkpoints and self.checkpoints.due() and end < updates.count:
                self._save()

    def seeds(self, count: int, *purpose: Key) -> Tensor:
        """One for the noise of each batch."""
        made = [derive_seed(self.seed, self.name, *purpose, number) for number in range(count)]
        return torch.tensor(made, device=self.device)

    def here(self, rows: Tensor, seed: Tensor) -> tuple[Tensor, Noise]:
        """Those of a batch's rows that lie with this worker, and their noise."""
        if self.places is None:
            return rows, Noise(seed)
        found = self.places[rows]
        mine = (found >= 0).nonzero().squeeze(1)
        return found[mine], Noise(seed, mine)

    def _look(self, updates: _Updates, begin: int) -> None:
        """Add up what was learned at; a loss that is no number stops the fit here."""
        totals, counts = updates.losses[begin : self.at.batch].double().cpu().unbind(1)
        bad = (~totals.isfinite()).nonzero()
        if len(bad):
            number = begin + int(bad[0])
            some = ", ".join(str(row) for row in updates.rows(number)[:5].tolist())
            raise TrainingError(
                f"{self.name}: the loss became {float(totals[bad[0]])} at epoch {self.at.epoch + 1}, step {number + 1}, "
                f"batch of sessions {some}, …; {self._last_good()}; try a smaller learning rate, or look at these sessions"
            )
        self.at.total += float(totals.sum())
        self.at.count += float(counts.sum())

    def _last_good(self) -> str:
        kept = self.checkpoints.latest if self.checkpoints else None
        return f"the last good checkpoint is {kept}" if kept else "there is no checkpoint yet"

    def _judge(self, held: Tensor) -> None:
        """The end of an epoch: is it the best so far, and is it the last?"""
        at = self.at
        entry = {"loss": at.total / max(at.count, 1)}
        if len(held):
            entry["held_out"] = self._held_out_loss(held)
            if not np.isfinite(entry["held_out"]):
                said = f"the held-out loss became {entry['held_out']} after epoch {at.epoch + 1}"
                raise TrainingError(f"{self.name}: {said}; {self._last_good()}")
            at.waited += 1
            if entry["held_out"] < at.best:
                at.best, at.waited = entry["held_out"], 0
                self.best = state_to_arrays(self.net, self.optimiser)
        at.curve.append({name: value * self.unit for name, value in entry.items()})
        at.epoch, at.batch, at.total, at.count = at.epoch + 1, 0, 0.0, 0.0
        at.done = at.epoch >= self.how.epochs or at.waited >= self.how.patience
        if at.done and self.best:
            load_state_arrays(self.net, self.optimiser, self.best)
            self.best = {}

    @torch.no_grad()
    def _held_out_loss(self, held: Tensor) -> float:
        self.net.eval()
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        batches = torch.split(held, 4 * self.how.batch)
        for batch, seed in zip(batches, self.seeds(len(batches), "held-out noise"), strict=True):
            rows, noise = self.here(batch, seed)
            if len(rows):
                total, count = self.objective(rows, noise)
                sums += torch.stack([total.double(), count.double()])
        self.group.all_reduce_sum(sums)
        return float(sums[0] / sums[1].clamp(min=1))


class _Updates:
    """The updates of one epoch. All full batches run the same recorded step; a last, shorter one runs by itself."""

    def __init__(self, run: _Run, order: Tensor) -> None:
        self._run, self._order, self._size = run, order, run.how.batch
        self.count = -(-len(order) // self._size)
        self._full = len(order) // self._size
        self._batches = order[: self._full * self._size].view(self._full, self._size)
        self._noise = run.seeds(self.count, "noise", run.at.epoch)
        self._next = torch.full((1,), run.at.batch, device=run.device)
        self.losses = torch.zeros(self.count, 2, device=run.device)
        self._update = self._update_alone if run.group.size == 1 else self._update_together
        self._step = GraphedStep(self._full_batch, run.record and run.device.type == "cuda" and run.group.size == 1)

    @property
    def sessions(self) -> int:
        return len(self._order)

    def release(self) -> None:
        """The epoch is over."""
        self._step.release()

    def rows(self, number: int) -> Tensor:
        """Of one batch."""
        return self._order[number * self._size : (number + 1) * self._size]

    def run(self, number: int) -> None:
        """Batches come one after another, from where the epoch stands."""
        if number < self._full:
            self._step()
        else:
            self.losses[number] = self._update(self.rows(number), self._noise[number])

    def _full_batch(self) -> None:
        """The next one. Which it is stands in a tensor, so that a recording serves them all."""
        rows = self._batches.index_select(0, self._next).squeeze(0)
        noise = self._noise.index_select(0, self._next).squeeze(0)
        self.losses.index_copy_(0, self._next, self._update(rows, noise).unsqueeze(0))
        self._next += 1

    def _update_alone(self, rows: Tensor, seed: Tensor) -> Tensor:
        """Summed loss and its count (2,), after a step of the optimiser."""
        run = self._run
        total, count = run.objective(rows, Noise(seed))
        run.optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(total / count.clamp(min=1))
        run.optimiser.step()
        return torch.stack([total.detach(), count.to(total.dtype)])

    def _update_together(self, rows: Tensor, seed: Tensor) -> Tensor:
        """The same step on every worker of a group, by the gradients of them all."""
        run = self._run
        mine, noise = run.here(rows, seed)
        run.optimiser.zero_grad(set_to_none=True)
        sums = self.losses.new_zeros(2)
        if len(mine):
            total, count = run.objective(mine, noise)
            torch.autograd.backward(total)
            sums = torch.stack([total.detach(), count.to(total.dtype)])
        sums = all_reduce_gradients(
            [each for group in run.optimiser.param_groups for each in group["params"]], sums, run.group
        )
        run.optimiser.step()
        return sums
