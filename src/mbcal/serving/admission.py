"""How much may be asked: requests in progress, and the rate of a client, so that no client takes everything from the others.

Slots are for requests in progress. A batch runs a quarter of all slots at a time, whatever its size, and the batches of one
client hold at most half, so that single requests find a slot beside them. When all slots are taken, clients that hold next
to nothing get one of a reserve.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from mbcal.serving.limits import Limits
from mbcal.serving.metrics import RequestMetrics
from mbcal.serving.refusals import RefusedError

MAX_CLIENTS = 10_000
"""Clients whose rate is tracked; the least recently seen are dropped."""


class Admission:
    """Slots for requests in progress, and a bucket per client."""

    def __init__(self, limits: Limits, metrics: RequestMetrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits, self._metrics, self._clock = limits, metrics, clock
        self._rates: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._held: dict[str, int] = {}  # slots by client, of clients that hold some
        self._held_by_batches: dict[str, int] = {}
        most = limits.max_in_progress
        self._few, self._with_reserve = max(most // 16, 1), most + max(most // 4, 1)

    def take(self, members: int, client: str) -> int:
        """Take slots for a request; `release` gives them back.

        Args:
            members: Requests of a batch, 1 for a single request.
            client: Address of the client.

        Returns:
            The number of slots taken.

        Raises:
            RefusedError: If too few slots are free (503), or the client sends too much (429).
        """
        limits = self._limits
        most, rate = limits.max_in_progress, limits.rate
        taken = min(members, limits.batch_slots)
        total, held = self._metrics.in_progress + taken, self._held.get(client, 0) + taken
        if total > most and (held > self._few or total > self._with_reserve):
            raise RefusedError(503, "too many requests are in progress; try again in a second")
        by_batches = 0 if members == 1 else self._held_by_batches.get(client, 0) + taken
        if by_batches > max(most // 2, limits.batch_slots):
            raise RefusedError(503, "too many batches of this client are in progress; try again in a second")
        if rate and not self._within_rate(client, members, rate):
            raise RefusedError(429, f"more than {rate:g} requests per second; try again in a second")
        self._metrics.in_progress = total
        self._held[client] = held
        if by_batches:
            self._held_by_batches[client] = by_batches
        return taken

    def release(self, slots: int, members: int, client: str) -> None:
        """Give back the slots that `take` returned for so many members of this client."""
        self._metrics.in_progress -= slots
        _subtract(self._held, client, slots)
        if members > 1:
            _subtract(self._held_by_batches, client, slots)

    def _within_rate(self, client: str, members: int, rate: float) -> bool:
        """Take from the client's bucket, which holds one second's requests and refills at the rate.

        A batch that is larger than the bucket needs a full one and leaves a debt.
        """
        now, size = self._clock(), max(rate, 1.0)
        tokens, last = self._rates.pop(client, (size, now))
        tokens = min(size, tokens + (now - last) * rate)
        allowed = tokens >= min(members, size)
        self._rates[client] = (tokens - members if allowed else tokens, now)
        if len(self._rates) > MAX_CLIENTS:
            self._rates.popitem(last=False)
        return allowed


def _subtract(counts: dict[str, int], client: str, slots: int) -> None:
    left = counts[client] - slots
    if left:
        counts[client] = left
    else:
        del counts[client]
