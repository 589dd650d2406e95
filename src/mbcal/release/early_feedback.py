"""Feedback that is read before its decision, as from the log of another worker: kept until the decision comes."""

from __future__ import annotations

from collections import OrderedDict

from mbcal.decision_log.records import Feedback
from mbcal.release.sessions import RESPONSE_BYTES, Response

MOST_BYTES = 256 << 20
"""Memory of feedback that waits; of more, the oldest is dropped."""


class EarlyFeedback:
    """Feedback by decision, within a bound on its memory."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, dict[tuple[str, str], Response]] = OrderedDict()  # by item and behaviour
        self.used_bytes = 0
        """Memory of it, about."""

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def add(self, feedback: Feedback) -> int:
        """Keep feedback, of several alike the earliest; return how many had to be dropped for it."""
        waiting = self._waiting.setdefault(feedback.decision, {})
        key, response = (feedback.item, feedback.behaviour), (feedback.time, feedback.id, feedback.behaviour)
        self.used_bytes += 0 if key in waiting else _bytes_of(feedback.decision, feedback.item)
        waiting[key] = min(waiting.get(key, response), response)
        dropped = 0
        while self.used_bytes > MOST_BYTES:
            dropped += len(self.take(next(iter(self._waiting))))
        return dropped

    def take(self, decision: str) -> dict[tuple[str, str], Response]:
        """Return the feedback that waits for a decision, by item and behaviour, and forget it."""
        responses = self._waiting.pop(decision, {})
        self.used_bytes -= sum(_bytes_of(decision, item) for item, _ in responses)
        return responses

    def drop_before(self, time: int) -> int:
        """Drop what has waited longest as long as all of it is older than a time; return how many that were."""
        dropped = 0
        while self._waiting:
            oldest = next(iter(self._waiting))
            if any(when >= time for when, _, _ in self._waiting[oldest].values()):
                break
            dropped += len(self.take(oldest))
        return dropped


def _bytes_of(decision: str, item: str) -> int:
    """Return the memory of one response, about: a character may take four bytes."""
    return RESPONSE_BYTES + 4 * (len(decision) + len(item))
