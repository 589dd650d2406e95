"""What versions would have served at logged decisions: their rankers are asked again, exactly as the service asked.

::

    decision of the log (history, shown, candidates, items) ──▶ Ranker of a version ──▶ its best item at every rank

A roll-out of the same policy may choose differently: the service ranks a whole list from one state, knows only the feedback
that had arrived, knows no user by number, and breaks ties in numpy. A gate that judged anything else than what is served
could publish a policy that it never judged.

Sessions hold steps with feedback, cut at the horizon, and so do their weights. What was served beyond that may still change
what users do later: `ServedChoices.n_unweighted_differences` and `ServedChoices.hidden_differences` count the choices among
it at which the versions differ. Decisions with neither session nor user are joined to no others, so all of their choices
belong there.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mbcal.decision_log.join import available_candidates
from mbcal.decision_log.joined import Joined, StepOrigin, served_before_feedback
from mbcal.decision_log.records import SKEW, Decision, Record
from mbcal.decision_log.visits import user_name
from mbcal.errors import LogError
from mbcal.evaluation.ope.propensity import PolicyChoices
from mbcal.progress import SILENT, Progress
from mbcal.serving.candidates import Candidates
from mbcal.serving.fields import GivenFields, as_text
from mbcal.serving.messages import CandidateItem
from mbcal.serving.ranker import RankableVersion, Ranker
from mbcal.types import Sessions


class ServedChoices(NamedTuple):
    """What versions would have served."""

    choices: list[PolicyChoices]
    """Of each version, (N, T). The logged choice and the number of candidates are the same for all."""
    n_unweighted_differences: int
    """Steps at which the versions differ and whose effect no weight contains: those in a window after which the session went
    on, or before whose beginning not all feedback on earlier windows had come."""
    missing_feedback: dict[int, int]
    """User -> choices without feedback, of users for whom the versions differ at a step: what another choice cost may be
    what users did not do there, or have not reported yet."""
    late_feedback: NDArray[np.int64]
    """(N,) steps with feedback that came after their user began a later session in which the versions differ: what users did
    may depend on choices there."""
    hidden_differences: dict[int, int]
    """User (-1 if the user has no step) -> served choices at which the versions differ and that are no steps, or belong to
    no session: those without feedback, and all of decisions with neither session nor user."""

    def differing(self, sessions: Sessions) -> NDArray[np.bool_]:
        """Return at which steps of the sessions (N, T) the first version differs from any other."""
        first, *others = self.choices
        return np.asarray(np.any([choices.best != first.best for choices in others], axis=0) & sessions.mask, np.bool_)

    def of_rows(self, rows: NDArray[np.int64], users: NDArray[np.int32]) -> ServedChoices:
        """Return what concerns some of the sessions; `n_unweighted_differences` stays as it is.

        Args:
            rows: (M,) which of the N.
            users: (M,) their users.
        """
        choices = [PolicyChoices(own.best[rows], own.logged[rows], own.count[rows]) for own in self.choices]
        judging = set(users.tolist())
        missing_feedback, hidden_differences = (
            {user: count for user, count in counts.items() if user in judging or user < 0}
            for counts in (self.missing_feedback, self.hidden_differences)
        )
        return self._replace(
            choices=choices,
            missing_feedback=missing_feedback,
            late_feedback=self.late_feedback[rows],
            hidden_differences=hidden_differences,
        )


def served_choices(
    versions: Sequence[RankableVersion],
    records: Iterable[Record],
    joined: Joined,
    rows: NDArray[np.int64],
    progress: Progress = SILENT,
    *,
    enough: float = math.inf,
) -> ServedChoices:
    """Find what versions would have chosen at every step of joined sessions.

    Args:
        versions: The versions.
        records: The records that were joined, read again.
        joined: The sessions.
        rows: (N,) which of them.
        progress: Notified of decisions.
        enough: With more `hidden_differences` than this, no further ones are looked for.

    Raises:
        LogError: If a decision is no longer in the records, or returned an item that it could not choose.
    """
    wanted: dict[tuple[str, int], list[tuple[int, int, int]]] = defaultdict(list)
    for number, row in enumerate(rows.tolist()):
        for column, origin in enumerate(joined.origins[row]):
            wanted[origin.decision, origin.time].append((number, column, origin.rank))
    hidden = _HiddenChoices(joined, rows, enough)
    shape = (len(rows), joined.sessions.horizon)
    best = [np.zeros(shape, np.int64) for _ in versions]
    logged, count = np.zeros(shape, np.int64), np.ones(shape, np.int64)
    rankers = [Ranker(version, repeats=True) for version in versions]  # what was shown is taken out here
    progress.phase("choices along the log", len(wanted))
    for record in records:
        if not isinstance(record, Decision):
            continue
        steps, hidden_ranks = wanted.pop((record.id, record.time), []), hidden.ranks(record)
        if not steps and not hidden_ranks:
            continue
        candidates = available_candidates(record)
        position = {name: number for number, name in reversed(list(enumerate(candidates)))}
        if not position.keys() >= set(record.items):
            raise LogError(
                f"decision {record.id!r}: returned an item that is no candidate, or was shown before without repeats"
            )
        deepest = max([rank for _, _, rank in steps] + hidden_ranks)
        orders = [_order(ranker, record, candidates, deepest + 1) for ranker in rankers]
        for order, choices in zip(orders, best, strict=True):
            for number, column, rank in steps:
                choices[number, column] = position[_best(order, record, rank)]
        hidden.compare(record, orders, hidden_ranks)
        for number, column, rank in steps:
            logged[number, column], count[number, column] = position[record.items[rank]], len(candidates) - rank
        progress.advance(bool(steps))
    if wanted:
        raise LogError(f"{len(wanted):,} decisions have left the log while it was judged; run the update again")
    sessions = joined.sessions[rows]
    differs = sum((choices != best[0] for choices in best[1:]), np.zeros(shape, np.int64)) * sessions.mask
    n_linked = int(differs[_linked(joined)[rows]].sum())
    is_other = np.any(differs, axis=1)
    users = np.unique(sessions.user[is_other]).tolist()
    missing = hidden.missing_feedback
    missing_feedback = {user: missing[name] for user in users if (name := joined.users[user]) in missing}
    every = [PolicyChoices(choices, logged, count) for choices in best]
    numbers = {name: number for number, name in enumerate(joined.users)}
    hidden_differences = Counter[int]()
    for name, number in hidden.differing.items():
        hidden_differences[numbers.get(name, -1)] += number
    late_feedback = _late_feedback(joined, rows, is_other)
    return ServedChoices(every, n_linked, missing_feedback, late_feedback, dict(hidden_differences))


class _HiddenChoices:
    """Served choices without logged consequences: items without feedback, and decisions with neither session nor user.

    Those of users who judge, or who have no step at all. Feedback on the newest decisions may still come, so these do not
    matter.
    """

    def __init__(self, joined: Joined, rows: NDArray[np.int64], enough: float) -> None:
        self.differing: Counter[str] = Counter()
        """Choices at which the versions differ by user; the search ends when there are more than `enough`."""
        self.missing_feedback: Counter[str] = Counter()
        """Choices without feedback by user."""
        self._enough = enough
        self._until = joined.ended_until()
        self._answered: dict[str, set[int]] = defaultdict(set)
        self._times: dict[str, int] = {}
        for origin in chain.from_iterable(joined.origins):
            self._answered[origin.decision].add(origin.rank)
            self._times[origin.decision] = origin.time
        judging = {joined.users[user] for user in joined.sessions.user[rows].tolist()}
        self._teaching = set(joined.users) - judging

    def ranks(self, decision: Decision) -> list[int]:
        """The ranks of a decision whose effect is not shown; none if they do not matter."""
        if decision.time > self._until or (user := user_name(decision)) in self._teaching:
            return []
        if self._times.get(decision.id, decision.time) != decision.time:  # another decision with this id was served
            return []
        answered = self._answered.get(decision.id, set())
        unanswered = [rank for rank in range(len(decision.items)) if rank not in answered]
        if unanswered:
            self.missing_feedback[user] += len(unanswered)
        if self.differing.total() > self._enough:
            return []
        return unanswered if decision.session or decision.user else list(range(len(decision.items)))

    def compare(self, decision: Decision, orders: Sequence[Sequence[str]], ranks: Sequence[int]) -> None:
        """Count ranks at which orders have another best item."""
        if count := sum(len({_best(order, decision, rank) for order in orders}) > 1 for rank in ranks):
            self.differing[user_name(decision)] += count


def _best(order: Sequence[str], decision: Decision, rank: int) -> str:
    """The best item of an order among those that were left at a rank of the decision."""
    taken = set(decision.items[:rank])
    return next(item for item in order if item not in taken)


def _linked(joined: Joined) -> NDArray[np.bool_]:
    """(N,) whether the session of each row goes on in a later row, or feedback on an earlier one came after it began."""
    keys = list(zip(joined.sessions.user.tolist(), joined.session_names, strict=True))
    last = {key: row for row, key in enumerate(keys)}
    linked = np.asarray([last[key] != row for row, key in enumerate(keys)], np.bool_)
    earlier: dict[tuple[int, str], _LatestAnswers] = defaultdict(_LatestAnswers)
    for row, (key, origins) in enumerate(zip(keys, joined.origins, strict=True)):
        linked[row] |= earlier[key].any_after(origins[0])
        earlier[key].add(origins)
    return linked


class _LatestAnswers:
    """Steps of a session, of which those stay that no later step was answered after: newest answer first."""

    def __init__(self) -> None:
        self._steps: list[StepOrigin] = []

    def add(self, steps: Iterable[StepOrigin]) -> None:
        for step in steps:
            while self._steps and self._steps[-1].answered <= step.answered:
                self._steps.pop()
            self._steps.append(step)

    def any_after(self, other: StepOrigin) -> bool:
        """Whether another step may have been served before the feedback on any of these came (`served_before_feedback`).

        Of all steps, and of those that the server did not know, the one answered last decides. Items of one decision are
        neighbours, so the last step shows whether one is of the same.
        """
        unknown = bisect_left(self._steps, other.known, key=lambda step: step.number)
        deciding = [*self._steps[:1], *self._steps[unknown : unknown + 1], *self._steps[-1:]]
        return any(served_before_feedback(other, step) for step in deciding)


def _late_feedback(joined: Joined, rows: NDArray[np.int64], differs: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(N,) steps whose feedback came after their user began another session in which versions differ; differs (N,)."""
    begun: dict[int, list[tuple[int, str]]] = defaultdict(list)  # these sessions by user, in order of time
    for row in rows[differs].tolist():
        begun[int(joined.sessions.user[row])].append((joined.origins[row][0].time, joined.session_names[row]))
    others: dict[int, list[int]] = {}  # for each of them, the place of the next one with another name
    for user, sessions in begun.items():
        sessions.sort()
        others[user] = places = [len(sessions)] * len(sessions)
        for place in range(len(sessions) - 2, -1, -1):
            is_same = sessions[place][1] == sessions[place + 1][1]
            places[place] = places[place + 1] if is_same else place + 1
    late = np.zeros(len(rows), np.int64)
    for number, row in enumerate(rows.tolist()):
        user, own = int(joined.sessions.user[row]), joined.session_names[row]
        sessions = begun.get(user, [])
        for step in joined.origins[row]:
            place = bisect_right(sessions, step.time, key=lambda session: session[0])
            if place < len(sessions) and sessions[place][1] == own:
                place = others[user][place]
            late[number] += place < len(sessions) and sessions[place][0] <= step.answered + SKEW * 1e6
    return late


def _order(ranker: Ranker, decision: Decision, candidates: Sequence[str], k: int) -> list[str]:
    """The k best candidates of a decision, best first."""
    uniform = np.ones((min(k, len(candidates)), 2))  # with epsilon 0 nothing is random
    listed: Candidates | Sequence[str] = candidates
    if features := decision.features:
        items = [CandidateItem(name, features[name]) if name in features else name for name in candidates]
        listed = ranker.reader.read(items, 1, len(items))
    given = GivenFields(as_text(decision.context), as_text(decision.user_features), tuple(decision.shown_context))
    ranked = ranker.rank(decision.history, listed, decision.shown, k=k, epsilon=0.0, uniform=uniform, given=given)
    return [entry.item for entry in ranked]
