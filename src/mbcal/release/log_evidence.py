"""What a decision log shows of a candidate: who judges it, what it would have served, and what is not shown.

::

    sessions of the live version ──▶ choose_judges ──▶ judging sessions ──▶ judge_by_log ──▶ LogEvidence
                                          └─▶ teaching sessions, from which the candidate learns
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mbcal.decision_log.joined import Joined
from mbcal.decision_log.records import Record
from mbcal.evaluation.ope.difference import LogDifference, cumulative_weights, greedy_share
from mbcal.evaluation.ope.estimators import Floats
from mbcal.evaluation.ope.propensity import PolicyChoices
from mbcal.progress import SILENT, Progress
from mbcal.registry.version import Version
from mbcal.release.gate import Check, GateConfig, compare_by_log, split_judges
from mbcal.release.heavy_users import capped_rows, heavy_rows, heavy_user_problem
from mbcal.release.obstacles import (
    changed_feedback_problem,
    ended_rows,
    lost_records_problem,
    max_hidden_differences,
    missing_feedback_problem,
    partial_visits_problem,
    propensity_mismatch_problem,
)
from mbcal.release.other_versions import other_version_problem
from mbcal.release.served_choices import served_choices
from mbcal.types import Sessions

ReadRecords = Callable[[Collection[str] | None], Iterable[Record]]
"""Reads the log once more: all feedback, and the decisions of these versions; None for those of all."""


class Judges(NamedTuple):
    """Which sessions of a log judge a candidate. Arrays hold indices of joined sessions."""

    teaching: NDArray[np.int64]
    """From which candidates learn; no user is in both."""
    judging: NDArray[np.int64]
    """By which they are judged: those of the live version alone that have ended."""
    users: frozenset[str]
    """Who judge."""
    heavy: NDArray[np.int64]
    """Sessions of the live version that teach, of users with so many that nobody can judge in their place."""
    decided: int
    """Number of the live version's sessions, teaching or judging."""
    cap: int
    """The most sessions of a user that judge."""
    left_out: int
    """Sessions beyond that, which neither teach nor judge."""


class LogEvidence(NamedTuple):
    """What a log shows of a candidate."""

    check: Check
    difference: LogDifference
    """Candidate minus live version."""
    sessions: Sessions
    """Those that judged, (N, T)."""
    epsilon: Floats
    """(N, T) exploration with which each of their steps was decided."""
    choices: tuple[PolicyChoices, PolicyChoices]
    """What candidate and live version would have served along them."""
    unshown: str
    """What keeps the log from showing that the candidate is worse, or no worse; empty if nothing does."""


def choose_judges(joined: Joined, live: str, gate: GateConfig) -> Judges:
    """Choose the sessions that teach a candidate and those that judge it.

    Args:
        joined: Sessions of the log.
        live: The live version, whose own sessions judge.
        gate: Share of users who judge, and the tolerance.
    """
    teaching, judging = split_judges(joined.users, joined.sessions.user, gate.judge_share)
    users = frozenset(joined.users[user] for user in np.unique(joined.sessions.user[judging]).tolist())
    decided = joined.decided_by(live)
    heavy = heavy_rows(joined, np.intersect1d(teaching, decided), len(decided))
    judging = np.intersect1d(judging, decided)
    kept, cap = capped_rows(joined, judging)
    ended, left_out = ended_rows(joined, kept, gate.tolerance), len(judging) - len(kept)
    return Judges(teaching, ended, users, heavy, len(decided), cap, left_out)


def judge_by_log(
    versions: tuple[Version, Version],
    joined: Joined,
    judges: Judges,
    read: ReadRecords,
    gate: GateConfig,
    progress: Progress = SILENT,
    *,
    unlogged_inputs: str = "",
) -> LogEvidence:
    """Compare a candidate with the live version by the log of the latter.

    Args:
        versions: The candidate as it would be published, and the live version.
        joined: Sessions of the log.
        judges: Which of them judge.
        read: Reads the log again, to ask both versions about every logged decision.
        gate: The conditions.
        progress: Notified of decisions.
        unlogged_inputs: What the candidate reads that the log does not hold (`unlogged_inputs_problem`); empty if nothing.

    Raises:
        LogError: If decisions have left the log in the meantime.
    """
    live = versions[1].name
    rows, heavy = judges.judging, judges.heavy
    enough = max_hidden_differences(joined.sessions[rows], gate.tolerance)
    served = served_choices(versions, read({live}), joined, rows, progress, enough=enough)
    is_other: NDArray[np.bool_] = np.zeros(0, np.bool_)
    if len(heavy):
        unasked = served_choices(versions, read({live}), joined, heavy, progress, enough=0)
        is_other = np.asarray(unasked.differing(joined.sessions[heavy]).any(1))
    tolerance = gate.tolerance * greedy_share(served.differing(joined.sessions[rows]), joined.epsilons[rows])
    ended = ended_rows(joined, rows, tolerance)  # as few may go on as are tolerated below
    served, rows = served.of_rows(np.searchsorted(rows, ended), joined.sessions.user[ended]), ended
    sessions, epsilon = joined.sessions[rows], joined.epsilons[rows]
    new, old = served.choices
    obstacles = [
        unlogged_inputs,
        heavy_user_problem(joined, heavy, is_other, judges.decided),
        propensity_mismatch_problem(old, sessions, epsilon, tolerance),
    ]
    if served.differing(sessions).any() or served.hidden_differences:
        largest_weight = float(cumulative_weights(sessions, new, epsilon).max(initial=1.0))
        obstacles += [
            partial_visits_problem(joined, rows, tolerance, largest_weight),
            other_version_problem(read(None), live, joined, judges.users, rows, tolerance),
            missing_feedback_problem(served, sessions, epsilon, tolerance),
            changed_feedback_problem(joined, rows, tolerance, largest_weight),
            lost_records_problem(joined.counts),
        ]
    obstacles.append(_unweighted_problem(served.n_unweighted_differences, sessions.horizon))
    unshown = list(filter(None, obstacles))
    last_served = joined.last_served()[rows]
    check, difference = compare_by_log(
        new, old, sessions, gate, epsilon=epsilon, last_served=last_served, n_unshown=len(unshown)
    )
    return LogEvidence(check, difference, sessions, epsilon, (new, old), "; ".join(unshown))


def _unweighted_problem(n_steps: int, horizon: int) -> str:
    """Say that the candidate chooses otherwise at steps whose effect no weight contains; empty if there are none."""
    if not n_steps:
        return ""
    return (
        f"the candidate chooses otherwise at {n_steps:,} steps of sessions that are longer than {horizon}, or whose earlier "
        "feedback came after later choices: what these lead to cannot be judged by this log"
    )
