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
from mbcal.decision_log.reader import Loss, read_backwards, read_log
from mbcal.decision_log.records import SKEW, Decision, Feedback, Record
from mbcal.decision_log.segments import log_folders
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

    def records(self, versions: Collection[str] | None, lost: list[Loss] | None = None) -> Iterator[Record]:
        """All feedback, and the decisions of some versions, None for all; what is lost of this part is added to `lost`."""
        begin = 0 if self.since is None else self.since - int(SKEW * 1e6)  # of feedback on its first decisions
        for folder in _folders(self.log):
            for record in read_log(folder, [] if lost is None else lost, begin):
                if isinstance(record, Feedback):
                    is_wanted = record.time >= begin
                else:
                    is_wanted = self.since is None or record.time >= self.since
                    is_wanted &= versions is None or record.version in versions
                if is_wanted:
                    yield record


def newest_part(log: LogFolders, versions: Collection[str], most: int) -> NewestPart:
    """Find the part with the newest decisions of some versions; what is older than that is not read.

    Args:
        log: The logs.
        versions: The versions.
        most: Decisions of theirs that it may have.
    """
    newest, is_whole = np.zeros(0, np.int64), True
    for folder in (part for given in _folders(log) for part in log_folders(Path(given))):
        found: list[int] = []
        for records in read_backwards(folder):
            if len(found) > most:
                is_whole = False
                break
            found += (record.time for record in records if isinstance(record, Decision) and record.version in versions)
        newest = np.concatenate([newest, np.asarray(found, np.int64)])
        if len(newest) > most:
            newest, is_whole = np.partition(newest, len(newest) - most)[len(newest) - most :], False
    return NewestPart(log, None if is_whole else int(newest.min()))


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
    joined.counts.since = part.since
    joined.counts.lost = [printable(str(loss)) for loss in lost]
    return joined


def _folders(log: LogFolders) -> Sequence[str | Path]:
    return [log] if isinstance(log, str | Path) else log
