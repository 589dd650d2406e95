"""The decision log of the ranking service: decisions and feedback on disk, joined to training sessions. No torch."""

from __future__ import annotations

from mbcal.decision_log.compaction import Compacted, compact_log
from mbcal.decision_log.join import join_sessions
from mbcal.decision_log.joined import JoinCounts, Joined
from mbcal.decision_log.numbering import Missing
from mbcal.decision_log.reader import Damage, Loss, read_log
from mbcal.decision_log.records import Decision, Feedback, Record
from mbcal.decision_log.writer import DecisionLog

__all__ = [
    "Compacted",
    "Damage",
    "Decision",
    "DecisionLog",
    "Feedback",
    "JoinCounts",
    "Joined",
    "Loss",
    "Missing",
    "Record",
    "compact_log",
    "join_sessions",
    "read_log",
]
