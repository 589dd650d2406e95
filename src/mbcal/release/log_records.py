"""The part of decision logs that an update reads: the newest decisions, with the feedback on them.

Logs grow without end, and what is joined is held in memory. So only so many decisions are read, the newest; older ones are
as if they had never been logged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mbcal.agents.domain import Domain
from mbcal.decision_log.join import join_sessions
from mbcal.decision_log.joined import Joined
from mbcal.decision_log.new_items import extend_by_log
from mbcal.decision_log.new_values import extend_by_values
from mbcal.decision_log.reader import Loss, read_log
from mbcal.decision_log.records import Decision, Feedback, Record
from mbcal.decision_log.visits import SKEW
from mbcal.errors import printable
from mbcal.types import Catalog

LogFolders = str | Path | Sequence[str | Path]
"""One decision log, or those of several servers."""


@dataclass(frozen=True)
class NewestPart:
    """The newest part of decision logs."""

    log: LogFolders
    since: int | None
    """Time of its first decision, in microseconds since 1970; None for the whole log."""
    earlier: int
    """Decisions before that."""

    def records(self, versions: Collection[str] | None, lost: list[Loss] | None = None) -> Iterator[Record]:
        """All feedback, and the decisions of some versions, None for all; what the whole log has lost is added to `lost`."""
        for record in _read(self.log, lost):
            if isinstance(record, Feedback):
                is_wanted = self.since is None or record.time >= self.since - SKEW * 1e6
            else:
                is_wanted = self.since is None or record.time >= self.since
                is_wanted &= versions is None or record.version in versions
            if is_wanted:
                yield record


def newest_part(log: LogFolders, versions: Collection[str], most: int) -> NewestPart:
    """Find the part with the newest decisions of some versions.

    Args:
        log: The logs.
        versions: The versions.
        most: Decisions of theirs that it may have.
    """
    read = (record.time for record in _read(log) if isinstance(record, Decision) and record.version in versions)
    times = np.fromiter(read, np.int64)
    if len(times) <= most:
        return NewestPart(log, None, 0)
    since = int(np.partition(times, len(times) - most)[len(times) - most])
    return NewestPart(log, since, int((times < since).sum()))


def join_versions(part: NewestPart, versions: Collection[str], domain: Domain, catalog: Catalog) -> Joined:
    """Return the sessions that some versions decided.

    Their catalogue is the given one, grown by the items that are new to it and that users met; their fields are the
    domain's, grown by new values of categories.
    """
    lost: list[Loss] = []
    grown = extend_by_log(catalog, part.records(versions))
    records = part.records(None, lost)
    sizes = {"horizon": domain.horizon, "history": domain.history}
    fields = extend_by_values(domain.fields, part.records(versions)) if domain.fields else domain.fields
    joined = join_sessions(records, grown, domain.behaviours, **sizes, fields=fields, versions=versions)
    joined.counts.new_items = len(grown) - len(catalog)
    joined.counts.earlier = part.earlier
    joined.counts.lost = [printable(str(loss)) for loss in lost]
    return joined


def _read(log: LogFolders, lost: list[Loss] | None = None) -> Iterator[Record]:
    """All records of the logs; what is lost is skipped, and added to `lost`."""
    for folder in [log] if isinstance(log, str | Path) else log:
        yield from read_log(folder, [] if lost is None else lost)
