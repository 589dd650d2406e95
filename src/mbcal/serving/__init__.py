"""The ranking service's memory: what was decided, what came of it, and both as training data. No torch."""

from __future__ import annotations

from mbcal.serving.archive import Compacted, Damage, compact, read
from mbcal.serving.log import DecisionLog
from mbcal.serving.records import Decision, Feedback, Record
from mbcal.serving.sessions import JoinCounts, Joined, join

__all__ = [
    "Compacted",
    "Damage",
    "Decision",
    "DecisionLog",
    "Feedback",
    "JoinCounts",
    "Joined",
    "Record",
    "compact",
    "join",
    "read",
]
