"""Limits on requests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits on requests."""

    max_candidates: int = 1000
    max_body: int = 512 * 1024
    """Bytes of a request's body."""
    body_seconds: float = 5.0
    """Seconds in which a body must arrive."""
    max_in_progress: int = 64
    """Requests in progress; further ones are refused with status 503 (see `admission`)."""
    rate: float = 0.0
    """Requests per second of one client; further ones are refused with status 429. 0 is no limit."""
    max_memory: int = 512 << 20
    """Bytes of all that is remembered: half of it sessions and decisions, the rest answers and the states of scorers."""

    @property
    def batch_slots(self) -> int:
        """Requests of one batch in progress at a time."""
        return max(self.max_in_progress // 4, 1)
