"""Requests without a session, or with neither session nor user: the gate must still see what a choice costs later."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from mbcal.decision_log.join import join_sessions
from mbcal.decision_log.records import Decision, Record
from mbcal.registry.registry import Registry
from mbcal.release.canary import CanaryWatcher
from mbcal.release.gate import UNSHOWN, Verdict
from mbcal.release.judge import UNSERVED
from mbcal.release.outcomes import OutcomeReader, SessionRule
from mbcal.release.update import update
from tests.support.bait import BEHAVIOURS, CATALOG, STEPS, agent_for, visits
from tests.support.command_line import refused
from tests.support.trials import write_quickly


def judged(folder: Path, candidate: str, **named: bool) -> Verdict:
    """Judge a candidate, first `good` being live, by a log of 600 visits."""
    registry = Registry(folder / "registry")
    registry.publish(agent_for("good"))
    write_quickly(folder / "log", visits(600, **named))
    return update(registry, folder / "log", candidate=agent_for(candidate), device="cpu")


@pytest.mark.parametrize("shown", [True, False])
def test_visits_without_a_session_are_joined_by_user(shown: bool) -> None:
    options = {"horizon": STEPS, "history": STEPS}
    named = join_sessions(visits(20, session=True), CATALOG, BEHAVIOURS, **options)
    joined = join_sessions(visits(20, shown=shown), CATALOG, BEHAVIOURS, **options)
    assert joined.sessions.length.tolist() == [STEPS] * 20
    assert joined.users == named.users
    for name, array in named.sessions.arrays():
        assert array.tobytes() == dict(joined.sessions.arrays())[name].tobytes(), name
    assert set(joined.session_names) == {f"d0-{number}-0" for number in range(20)}


@pytest.mark.parametrize("user", [True, False])
@pytest.mark.parametrize("shown", [True, False])
def test_a_bait_is_not_published_where_requests_have_no_session(user: bool, shown: bool, tmp_path: Path) -> None:
    verdict = judged(tmp_path, "bait", user=user, shown=shown)
    assert (verdict.answer, verdict.action) == ("cannot tell", "canary")
    if not user:
        assert verdict.checks[0].detail.endswith(UNSHOWN)
        assert f"{600 * STEPS:,} decisions have neither session nor user, beside " in verdict.reason


def test_a_bait_is_not_published_where_every_request_has_a_session_of_its_own(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry")
    registry.publish(agent_for("good"))
    records = [
        msgspec.structs.replace(record, session=record.id) if isinstance(record, Decision) else record
        for record in visits(600, session=True)
    ]
    write_quickly(tmp_path / "log", records)
    verdict = update(registry, tmp_path / "log", candidate=agent_for("bait"), device="cpu")
    assert verdict.counts is not None
    assert verdict.counts.missing_start == 600 * (STEPS - 1)
    assert (verdict.answer, verdict.action) == ("cannot tell", "canary")
    assert f"; {600 * (STEPS - 1):,} sessions have no beginning, beside " in verdict.reason


def test_what_chooses_alike_is_judged_where_requests_have_no_names(tmp_path: Path) -> None:
    check = judged(tmp_path, "good", user=False).checks[0]
    assert "the candidate chooses as the live version does at all" in check.detail
    assert UNSHOWN not in check.detail


REWARDS = {"skip": 0.0, "click": 1.0}


def two_versions(users: int, **named: bool) -> list[Record]:
    """Visits of which every third is by v000002, which ranks the bait first."""
    records: list[Record] = []
    for number, first in enumerate(("good", "good", "bait")):
        for record in visits(users, first=first, seed=number, **named):
            is_bait = isinstance(record, Decision) and first == "bait"
            changes = {"user": f"{number} {record.user}"} if isinstance(record, Decision) and record.user else {}
            records.append(msgspec.structs.replace(record, **changes, **({"version": "v000002"} if is_bait else {})))
    return records


def test_a_canary_is_compared_by_visits_of_users_without_a_session() -> None:
    named, unattributed = (OutcomeReader(REWARDS, SessionRule(horizon=STEPS)) for _ in range(2))
    for record in two_versions(50):
        named.add(record)
    found = named.outcomes(10**15)
    assert found.length.tolist() == [STEPS] * 150
    assert (found.versions, not named.ignored) == (("v000001", "v000002"), True)
    reward = [found.reward[found.version == number].mean() for number in range(2)]
    assert reward[0] > reward[1] + 0.2  # by decision, the bait would earn more at first
    for record in two_versions(50, user=False):
        unattributed.add(record)
    assert len(unattributed.outcomes(10**15)) == 0
    assert unattributed.ignored.total().unattributed == 150 * STEPS
    assert not unattributed._early
    assert "900 decisions with neither session nor user" in str(unattributed.ignored)


def test_sessions_that_go_on_are_the_reason_that_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where some requests have neither session nor user."""
    Registry(tmp_path / "registry").publish(agent_for("good"))
    now = time.time_ns() // 1000
    records = [*two_versions(2), *two_versions(1, user=False)]
    latest = max(record.time for record in records)
    moved = [msgspec.structs.replace(record, time=now - (latest - record.time) // 10**6) for record in records]
    write_quickly(tmp_path / "log", moved)
    said = refused("compare-versions", "--registry", "registry", "--log", "log", cwd=tmp_path, capsys=capsys)
    assert said.endswith(
        "no session is finished yet; one is finished 1800 seconds after its last record (--idle): ask again later"
    )


def test_nothing_is_decided_by_requests_without_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    registry = Registry(tmp_path / "registry")
    registry.publish(agent_for("good"))
    registry.start_canary(registry.publish(agent_for("bait"), activate=False))
    began = registry.pointer().canary_began
    records = [msgspec.structs.replace(record, time=record.time + began) for record in two_versions(200, user=False)]
    write_quickly(tmp_path / "log", records)
    look = CanaryWatcher(registry, [tmp_path / "log"], clock=lambda: began / 1e6 + 3e5).look()
    assert look is not None
    assert (look.action, look.comparison, look.ignored.total().unattributed) == ("wait", None, 600 * STEPS)
    words = "not promoted, since 3,600 decisions have neither session nor user: send a session with every request of a visit"
    assert look.reason.startswith(f"{UNSERVED}; {words}")
    said = refused("compare-versions", "--registry", "registry", "--log", "log", cwd=tmp_path, capsys=capsys)
    assert said.endswith("no session can be counted, since requests had neither session nor user; send a session")
