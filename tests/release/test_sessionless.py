"""Requests without a session, or with neither session nor user: the gate must still see what a choice costs later."""

from __future__ import annotations

from pathlib import Path

import pytest

from mbcal.decision_log.join import join_sessions
from mbcal.registry.registry import Registry
from mbcal.release.gate import UNJUDGED, Verdict
from mbcal.release.update import update
from tests.support.bait import BEHAVIOURS, CATALOG, STEPS, agent_for, visits
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
        assert verdict.checks[0].detail.endswith(UNJUDGED)
        assert verdict.reason == f"the log cannot tell: {UNJUDGED}"


def test_what_chooses_alike_is_judged_where_requests_have_no_names(tmp_path: Path) -> None:
    check = judged(tmp_path, "good", user=False).checks[0]
    assert "it chooses as the live version does at all" in check.detail
    assert UNJUDGED not in check.detail
