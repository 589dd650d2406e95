"""What a log cannot show: feedback that has not come, records that are lost, exploration that hides a loss."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from mbcal.decision_log import Decision, Record
from mbcal.decision_log.join import join_sessions
from mbcal.decision_log.joined import JoinCounts
from mbcal.registry.registry import Registry
from mbcal.release.gate import Verdict
from mbcal.release.obstacles import why_lost, why_unanswered
from mbcal.release.served_choices import served_choices
from mbcal.release.update import update
from tests.support.landing import BEHAVIOURS, CATALOG, MINUTE, PAGES, agent_for, visits, whole
from tests.support.trials import write_quickly


def judged(folder: Path, records: list[Record]) -> Verdict:
    """What the gate says of a bait that costs more on later pages than it earns on the first."""
    registry = Registry(folder / "registry")
    registry.publish(agent_for("good"))
    write_quickly(folder / "log", records)
    return update(registry, folder / "log", candidate=agent_for("bait"), device="cpu", no_worse="publish")


def answered_where(records: list[Record], keep: Callable[[Decision], bool]) -> list[Record]:
    """The records without the feedback on some decisions."""
    kept = {record.id for record in records if isinstance(record, Decision) and keep(record)}
    return [record for record in records if isinstance(record, Decision) or record.decision in kept]


def test_feedback_that_has_not_come_may_be_what_a_choice_costs(tmp_path: Path) -> None:
    """Of later pages nothing is known yet: by the first one the bait earns more."""
    records = list(visits(1000, whole))
    known = judged(tmp_path / "whole", records)
    assert known.difference is not None
    assert known.difference.value < 0
    assert known.answer != "no worse"
    verdict = judged(tmp_path / "late", answered_where(records, lambda decision: "bait" in decision.candidates))
    assert verdict.difference is not None
    assert verdict.difference.low > 0
    assert (verdict.answer, verdict.action) == ("cannot tell", "canary")
    assert (
        "choices served to users for whom it chooses otherwise have no feedback, and may hide more than 1%" in verdict.reason
    )


def test_lost_records_may_be_what_a_choice_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = list(visits(1000, whole, pages=1))
    assert judged(tmp_path / "whole", records).answer == "no worse"  # there are no later pages
    monkeypatch.setattr("mbcal.release.update.why_lost", lambda _: "the log has lost records (7)")
    verdict = judged(tmp_path / "lost", records)
    assert (verdict.answer, verdict.reason) == ("cannot tell", "the log cannot tell: the log has lost records (7)")
    assert why_lost(JoinCounts(lost=["segment 3 is missing", "5 bytes are damaged"])) == (
        "the log has lost records (segment 3 is missing; 5 bytes are damaged)"
    )
    assert why_lost(JoinCounts()) == ""


def test_few_choices_without_feedback_hide_little() -> None:
    """Each may hide a click, and a hundredth of all clicks may be hidden."""
    records = list(visits(200, whole))
    joined = join_sessions(records, CATALOG, BEHAVIOURS, horizon=PAGES)
    earned = int(joined.sessions.rewards.sum())
    assert why_unanswered(earned // 100, joined.sessions, 0.01) == ""
    assert why_unanswered(earned // 100 + 1, joined.sessions, 0.01).startswith(f"{earned // 100 + 1:,} choices served to ")


def test_choices_without_feedback_count_where_versions_differ(tmp_path: Path) -> None:
    """The first of three visits is not offered the bait, so both versions choose alike in it."""
    records = [record for record in visits(3, whole) if "d0-0" not in (record.id, getattr(record, "decision", ""))]
    answered = answered_where(records, lambda decision: not decision.id.endswith("-5"))
    versions = []
    for name in ("bait", "good"):
        registry = Registry(tmp_path / name)
        versions.append(registry.open(registry.publish(agent_for(name))))

    def unanswered(records: list[Record]) -> int:
        joined = join_sessions(records, CATALOG, BEHAVIOURS, horizon=PAGES)
        return served_choices(versions, records, joined, np.arange(len(joined.sessions))).unanswered

    assert unanswered(records) == 0
    assert unanswered(answered) == 2
    last = max(record.time for record in answered)
    soon, later = (msgspec.structs.replace(answered[0], id="more", user="u1", time=last + k * MINUTE) for k in (20, 40))
    assert (unanswered([*answered, soon]), unanswered([*answered, later])) == (3, 2)
