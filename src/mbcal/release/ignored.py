"""What of a decision log did not count in a comparison of versions, and how much of it may hide what a version costs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, astuple, dataclass, field


@dataclass
class PartialVisits:
    """Visits of which the log may hold only a part, so that their reward may be incomplete."""

    unattributed: int = 0
    """Decisions with neither session nor user, which belong to no session."""
    late: int = 0
    """Decisions with a reward that came after the end of their session, whatever ended it: a terminal behaviour or time."""
    missing_start: int = 0
    """Sessions whose first decision says that something was shown before, or whose name was counted with a user before and
    now without, or the other way: their beginnings have other names, or are in a log that was not read."""
    unmatched: int = 0
    """Sessions that name no user, or those of users that name no session, whichever are fewer in all versions together.
    These do count; but one visit may be both, and then had two versions."""
    changed: int = 0
    """Further behaviours that were reported on an item, as a purchase after a click. The first one counts."""
    reward: float = 0.0
    """Rewards, without their signs, of late feedback, of sessions without a beginning and of unattributed decisions; and by
    how much further behaviours on an item would change the reward."""
    lowered: float = 0.0
    """The part of it by which further behaviours would lower rewards, as a cancellation after a purchase."""

    @property
    def count(self) -> int:
        """Parts of visits: what they hide may not be met yet. Of late and changed rewards it is known (`reward`)."""
        return self.unattributed + self.missing_start + self.unmatched

    def __bool__(self) -> bool:
        return any(asdict(self).values())


@dataclass
class Ignored:
    """What was read and did not count."""

    repeated: int = 0
    """Decisions that had been read before, as in a copied log, or were made again: the latest with an id counts."""
    not_shown: int = 0
    """Feedback on items that its decision did not return."""
    dropped: int = 0
    """Feedback that waited in vain for its decision: longer than a session lasts, or until the memory for that was full."""
    lost: int = 0
    """Records that the logs have lost since the trial began: damaged, or in segments that are gone."""
    partial_visits: dict[str, PartialVisits] = field(default_factory=dict)
    """By version: that of the session's first decision, or of a decision that belongs to no session."""

    def of(self, version: str) -> PartialVisits:
        """Return the partial visits of a version, to be added to."""
        return self.partial_visits.setdefault(version, PartialVisits())

    def total(self, versions: Collection[str] | None = None) -> PartialVisits:
        """Return the partial visits of these versions together, by default of all."""
        parts = [astuple(part) for version, part in self.partial_visits.items() if versions is None or version in versions]
        return PartialVisits(*map(sum, zip(*parts, strict=True)))

    def __bool__(self) -> bool:
        return any((self.repeated, self.not_shown, self.dropped, self.lost, self.total()))

    def __str__(self) -> str:
        partial = self.total()
        kinds = (
            (self.repeated, "decisions read before"),
            (self.not_shown, "feedback on items that were not shown"),
            (self.dropped, "feedback whose decision did not come"),
            (partial.unattributed, "decisions with neither session nor user"),
            (partial.late, "decisions with rewards that came after their session"),
            (partial.missing_start, "sessions without a beginning"),
            (partial.unmatched, "visits known by user alone or by session alone"),
            (partial.changed, "further behaviours on an item"),
            (self.lost, "records lost"),
        )
        return ", ".join(f"{count:,} {words}" for count, words in kinds if count)
