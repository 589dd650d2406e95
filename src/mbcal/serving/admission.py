"""How much may be asked: requests in progress, and the rate of a client. A batch counts as its members."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from mbcal.serving.metrics import RequestMetrics
from mbcal.serving.refusals import RefusedError
from mbcal.serving.service import Limits

MAX_CLIENTS = 10_000
"""Clients whose rate is tracked; the least recently seen are dropped."""


class Admission:
    """Slots for requests in progress, and a bucket per client."""

    def __init__(self, limits: Limits, metrics: RequestMetrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits, self._metrics, self._clock = limits, metrics, clock
        self._rates: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, members: int, client: str) -> int:
        """Take slots for a request; `release` gives them back.

        Args:
            members: Requests of a batch, 1 for a single request. A batch larger than all slots needs all of them.
            client: Address of the client.

        Returns:
            The number of slots taken.

        Raises:
            RefusedError: If too few slots are free (503), or the client sends too much (429).
        """
        most, rate = self._limits.max_in_progress, self._limits.rate
        taken = min(members, most)
        if self._metrics.in_progress + taken > most:
            raise RefusedError(503, "too many requests are in progress; try again in a second")
        if rate and not self._within_rate(client, members, rate):
            raise RefusedError(429, f"more than {rate:g} requests per second; try again in a second")
        self._metrics.in_progress += taken
        return taken

    def release(self, slots: int) -> None:
        """Give slots back."""
        self._metrics.in_progress -= slots

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
