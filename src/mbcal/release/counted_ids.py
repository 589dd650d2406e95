"""Which ids were met, and which decisions were counted with what they had shown, in little memory."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

MOST_SHOWN = 1 << 24
"""Shown items of counted decisions that are kept, in about 200 MiB; of more, the oldest are forgotten."""
_FEWEST_TO_SORT = 1 << 16


class CountedIds:
    """A set of ids in about 8 bytes each, which grows, or forgets the oldest.

    Args:
        most: Ids that are kept at most, about, and at least half of that; None for all.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._recent: set[int] = set()
        self._sorted = self._older = np.empty(0, np.int64)

    def add(self, name: Hashable) -> None:
        """Add an id."""
        self._recent.add(hash(name))
        if len(self._recent) > max(_FEWEST_TO_SORT, len(self._sorted) // 8):
            recent = np.sort(np.fromiter(self._recent, np.int64, len(self._recent)))
            merged = np.sort(np.concatenate((self._sorted, recent)), kind="stable")  # linear: both parts are sorted
            self._sorted = merged[np.append(True, merged[1:] != merged[:-1])]
            self._recent = set()
            if self._most is not None and 2 * len(self._sorted) >= self._most:
                self._older, self._sorted = self._sorted, np.empty(0, np.int64)

    def __contains__(self, name: Hashable) -> bool:
        value = hash(name)
        return value in self._recent or _is_in(value, self._sorted) or _is_in(value, self._older)


class VersionIds:
    """Ids with the version that each was added for first. Versions are few."""

    def __init__(self) -> None:
        self._ids: dict[str, CountedIds] = {}

    def add(self, name: Hashable, version: str) -> None:
        """Add an id, unless it is there."""
        if self.version_of(name) is None:
            self._ids.setdefault(version, CountedIds()).add(name)

    def version_of(self, name: Hashable) -> str | None:
        """Return the version of an id; None if it was not added."""
        return next((version for version, ids in self._ids.items() if name in ids), None)


class CountedDecisions:
    """The decisions that were counted, so that feedback which comes later is told from what was read before.

    Of decisions whose items were forgotten (`MOST_SHOWN`) one late response counts, whatever item it names: neither do late
    rewards vanish, nor can a client make up many.
    """

    def __init__(self) -> None:
        self._decisions, self._answered, self._shown = VersionIds(), CountedIds(), CountedIds(MOST_SHOWN)

    def add(self, decision: str, version: str, shown: Collection[str], reported: Mapping[str, Sequence[str]] | None) -> None:
        """Add a decision.

        Args:
            decision: Its id.
            version: The version that its session counts for.
            shown: Its items.
            reported: The behaviours that were reported, by item, the one that counts first. None: no further response counts
                at all.
        """
        self._decisions.add(decision, version)
        if reported is None:
            self._answered.add((decision,))
            return
        self._shown.add(decision)  # before its items: if it is there, they are
        for item in shown:
            self._shown.add((decision, item))
        for item, behaviours in reported.items():
            self._note_first(decision, item, behaviours[0])
            for behaviour in behaviours[1:]:
                self._answered.add((decision, item, behaviour))

    def _note_first(self, decision: str, item: str, behaviour: str) -> None:
        for known in ((decision, item), (decision, item, behaviour), (decision, item, behaviour, "first")):
            self._answered.add(known)

    def first_behaviour(self, decision: str, item: str, behaviours: Iterable[str]) -> str | None:
        """Return which of some behaviours came first on an item; None if none of them did."""
        return next((one for one in behaviours if (decision, item, one, "first") in self._answered), None)

    def version_of(self, decision: str) -> str | None:
        """Return the version that a decision's session counted for; None if it was not counted."""
        return self._decisions.version_of(decision)

    def respond(self, decision: str, item: str, behaviour: str) -> Literal["first", "again", "changed", "not shown"]:
        """Take note of feedback on a counted decision.

        Returns:
            Whether it is the first on an item that was shown, repeats what was reported, or reports another behaviour.
        """
        whole, response, report = (decision,), (decision, item), (decision, item, behaviour)
        if whole in self._answered or report in self._answered:
            return "again"
        is_first = response not in self._answered
        if is_first and decision not in self._shown:
            self._answered.add(whole)
            return "first"
        if is_first and response not in self._shown:
            return "not shown"
        if is_first:
            self._note_first(decision, item, behaviour)
            return "first"
        self._answered.add(report)
        return "changed"


def _is_in(value: int, values: NDArray[np.int64]) -> bool:
    """Whether a value is in a sorted array."""
    place = int(np.searchsorted(values, value))
    return place < len(values) and int(values[place]) == value
