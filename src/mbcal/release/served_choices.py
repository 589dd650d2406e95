"""What versions would have served at logged decisions: their rankers are asked again, exactly as the service asked.

::

    decision of the log (history, shown, candidates, items) ──▶ Ranker of a version ──▶ its best item at every rank

A roll-out of the same policy may choose differently: the service ranks a whole list from one state, knows only the feedback
that had arrived, knows no user by number, and breaks ties in numpy. A gate that judged anything else than what is served
could publish a policy that it never judged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from mbcal.decision_log.join import available_candidates
from mbcal.decision_log.joined import Joined
from mbcal.decision_log.records import Decision, Record
from mbcal.errors import LogError
from mbcal.evaluation.ope.propensity import PolicyChoices
from mbcal.progress import SILENT, Progress
from mbcal.serving.candidates import Candidates
from mbcal.serving.fields import GivenFields, as_text
from mbcal.serving.messages import CandidateItem
from mbcal.serving.ranker import RankableVersion, Ranker


def served_choices(
    versions: Sequence[RankableVersion],
    records: Iterable[Record],
    joined: Joined,
    rows: NDArray[np.int64],
    progress: Progress = SILENT,
) -> list[PolicyChoices]:
    """Find what versions would have chosen at every step of joined sessions.

    Args:
        versions: The versions.
        records: The records that were joined, read again.
        joined: The sessions.
        rows: (N,) which of them.
        progress: Notified of decisions.

    Returns:
        The choices of each version, (N, T). The logged choice and the number of candidates are the same for all.

    Raises:
        LogError: If a decision is no longer in the records.
    """
    wanted: dict[tuple[str, int], list[tuple[int, int, int]]] = defaultdict(list)
    for number, row in enumerate(rows.tolist()):
        for column, (decision, time, rank) in enumerate(joined.origins[row]):
            wanted[decision, time].append((number, column, rank))
    shape = (len(rows), joined.sessions.horizon)
    best = [np.zeros(shape, np.int64) for _ in versions]
    logged, count = np.zeros(shape, np.int64), np.ones(shape, np.int64)
    rankers = [Ranker(version, repeats=True) for version in versions]  # what was shown is taken out here
    progress.phase("choices along the log", len(wanted))
    for record in records:
        if not isinstance(record, Decision) or (record.id, record.time) not in wanted:
            continue
        steps = wanted.pop((record.id, record.time))
        candidates = available_candidates(record)
        position = {name: number for number, name in reversed(list(enumerate(candidates)))}
        for ranker, choices in zip(rankers, best, strict=True):
            order = _order(ranker, record, candidates, max(rank for _, _, rank in steps) + 1)
            for number, column, rank in steps:
                taken = set(record.items[:rank])
                choices[number, column] = position[next(item for item in order if item not in taken)]
        for number, column, rank in steps:
            logged[number, column], count[number, column] = position[record.items[rank]], len(candidates) - rank
        progress.advance(1)
    if wanted:
        raise LogError(f"{len(wanted):,} decisions have left the log while it was judged; run the update again")
    return [PolicyChoices(choices, logged, count) for choices in best]


def _order(ranker: Ranker, decision: Decision, candidates: Sequence[str], k: int) -> list[str]:
    """The k best candidates of a decision, best first."""
    uniform = np.ones((min(k, len(candidates)), 2))  # with epsilon 0 nothing is random
    listed: Candidates | Sequence[str] = candidates
    if features := decision.features:
        items = [CandidateItem(name, features[name]) if name in features else name for name in candidates]
        listed = ranker.reader.read(items, 1, len(items))
    told = GivenFields(as_text(decision.context), as_text(decision.user_features), tuple(decision.shown_context))
    ranked = ranker.rank(decision.history, listed, decision.shown, k=k, epsilon=0.0, uniform=uniform, given=told)
    return [entry.item for entry in ranked]
