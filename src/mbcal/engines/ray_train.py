"""One job on several workers of a Ray cluster at a time."""

from __future__ import annotations

from collections.abc import Callable

from mbcal.engines import Made, Share
from mbcal.errors import EngineError
from mbcal.group import Group


def together(job: Callable[[Group], Made], workers: int, share: Share, patience: float) -> Made:  # noqa: ARG001
    """See `Engine.together`; gives up after `patience` seconds without workers."""
    raise EngineError("ray: fits on several workers are not there yet; leave out --engine ray")
