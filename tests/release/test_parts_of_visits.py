"""Visits whose requests are named in parts: a bait on the landing page must not be published or promoted."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from mbcal import Behaviours
from mbcal.decision_log import Decision, Feedback, Record
from mbcal.decision_log.join import join_sessions
from mbcal.registry.registry import Registry
from mbcal.release.canary import CanaryWatcher, Look
from mbcal.release.judge import CanaryConfig
from mbcal.release.obstacles import partial_visits_problem
from mbcal.release.other_versions import other_version_problem
from mbcal.release.update import update
from tests.support.landing import (
    BEHAVIOURS,
    CANARY,
    CATALOG,
    LIVE,
    MINUTE,
    PAGES,
    Names,
    agent_for,
    anonymous_session_of_a_page,
    halves,
    known_by_user,
    landing,
    login,
    logout,
    named_first,
    session_of_a_page,
    visits,
    whole,
)
from tests.support.trials import write_quickly


def in_trial(registry: Registry, folder: Path, records: list[Record]) -> Look:
    """Look at a trial, to whose beginning the times of the records are relative."""
    registry.publish(agent_for("good"))
    registry.start_canary(registry.publish(agent_for("bait"), activate=False))
    began = registry.pointer().canary_began
    write_quickly(folder / "log", (msgspec.structs.replace(record, time=record.time + began) for record in records))
    config = CanaryConfig(promote_after=50, max_seconds=1e9)
    look = CanaryWatcher(registry, [folder / "log"], config, clock=lambda: began / 1e6 + 1e8).look()
    assert look is not None
    return look


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (landing, " judging sessions their users began another session within 30 minutes: send the same session"),
        (session_of_a_page, " judging sessions their users began another session within 30 minutes: send the same session"),
        (named_first, "5,000 decisions have neither session nor user, beside "),
        (halves, "1,000 visits may be known by user alone at first and by session alone later, beside "),
        (anonymous_session_of_a_page, "5,000 sessions have no beginning, beside "),
    ],
)
def test_the_gate_cannot_tell_by_parts_of_visits(names: Names, why: str, tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry")
    registry.publish(agent_for("good"))
    write_quickly(tmp_path / "log", visits(1000, names))
    verdict = update(registry, tmp_path / "log", candidate=agent_for("bait"), device="cpu")
    assert (verdict.answer, verdict.action) == ("cannot tell", "canary"), verdict.reason
    assert why in verdict.reason


@pytest.mark.parametrize("names", [login, logout])
def test_the_gate_cannot_tell_by_visits_in_which_users_log_in_before_any_feedback(names: Names, tmp_path: Path) -> None:
    """Nothing was shown yet, as far as the server knows, when the second part begins: only the session joins the two."""
    registry = Registry(tmp_path / "registry")
    registry.publish(agent_for("good"))
    write_quickly(tmp_path / "log", visits(1000, names, late=True))
    verdict = update(registry, tmp_path / "log", candidate=agent_for("bait"), device="cpu")
    assert (verdict.answer, verdict.action) == ("cannot tell", "canary"), verdict.reason
    assert "1,000 sessions have no beginning, beside " in verdict.reason


@pytest.mark.parametrize(
    ("user", "session", "why"),
    [
        ("u{}", "s{}-2", "during or after 5 of 1,000 judging sessions their users began another session"),
        ("", "", "5 decisions have neither session nor user, beside 1,000 judging sessions"),
        ("", "s{}-2", ""),  # nothing says that it belongs to another visit
    ],
)
@pytest.mark.parametrize("behaviour", ["click", "buy"])
def test_few_parts_that_hold_much_of_the_reward_count(user: str, session: str, why: str, behaviour: str) -> None:
    """1,000 visits earn 1 each; five have another part, within the share of visits that may have one."""
    behaviours, records = Behaviours(("skip", "click", "buy"), (0.0, 1.0, 100.0)), []
    for visit in range(1000):
        parts = [(f"u{visit}", f"s{visit}", "click")]
        if visit < 5:
            parts.append((user.format(visit), session.format(visit), behaviour if visit else "click"))
        for part, (user_name, session_name, shown) in enumerate(parts):
            name, time = f"d{visit}-{part}", (1000 * visit + part + 1) * MINUTE
            records += [
                Decision(name, time, session_name, user_name, 0, LIVE, 0.5, [], [], ["plain"], ["plain"], [1.0], True),
                Feedback(name, "plain", shown, time + 1, f"f-{name}"),
            ]
    joined = join_sessions(records, CATALOG, behaviours, horizon=PAGES, history=PAGES)
    judging = np.flatnonzero([name.count("-") == 0 for name in joined.session_names])
    found = partial_visits_problem(joined, judging, 0.01)
    if session and user:  # what follows sessions of users who do not judge is not missed
        names = [joined.users[number] for number in joined.sessions.user[judging]]
        assert partial_visits_problem(joined, judging[~np.isin(names, ["u1", "u2", "u3", "u4"])], 0.01) == ""
    assert found.startswith(why if behaviour == "buy" else "")
    assert bool(found) == bool(why and behaviour == "buy")


@pytest.mark.parametrize("answered", [True, False])
@pytest.mark.parametrize("other", ["w000009", "v000002", LIVE])
@pytest.mark.parametrize("names", [whole, landing, known_by_user])
def test_the_gate_cannot_tell_if_another_version_decides_the_rest_of_visits(
    names: Names, other: str, answered: bool, tmp_path: Path
) -> None:
    """One of another registry, whose decisions are in no joined session, or one that was live for a while."""
    registry = Registry(tmp_path / "registry")
    for name in (LIVE, "v000002"):
        assert registry.publish(agent_for("good"), activate=True) == name
    registry.activate(LIVE)
    records = [
        msgspec.structs.replace(record, version=other)
        if isinstance(record, Decision) and not record.id.endswith("-0")
        else record
        for record in visits(1000, names)
        if answered or isinstance(record, Decision) or record.decision.endswith("-0")
    ]
    write_quickly(tmp_path / "log", records)
    verdict = update(registry, tmp_path / "log", candidate=agent_for("bait"), device="cpu", no_worse="publish")
    assert verdict.answer == "cannot tell"
    if names is not landing:
        is_seen = "judging sessions another version decided" in verdict.reason
        assert is_seen == (other == "w000009" or (other == "v000002" and not answered)), verdict.reason


@pytest.mark.parametrize(("minutes", "is_part"), [(29, True), (31, False)])
def test_what_another_version_decides_soon_after_feedback_is_a_part(minutes: int, is_part: bool) -> None:
    """A film of an hour; at its end, a surface of its own chooses the next one."""
    end = 61 * MINUTE
    records: list[Record] = [
        Decision("d", 1, "s", "u", 0, LIVE, 0.5, [], [], ["plain"], ["plain"], [1.0], True),
        Feedback("d", "plain", "click", 2, "f"),
        Feedback("d", "plain", "skip", end, "g"),
        Decision("e", end + minutes * MINUTE, "t", "u", 0, "w000009", 0.5, [], [], ["plain"], ["plain"], [1.0], True),
    ]
    joined = join_sessions(records, CATALOG, BEHAVIOURS, horizon=PAGES, history=PAGES, versions={LIVE})
    found = other_version_problem(records, LIVE, joined, {"u"}, np.arange(1), 0.01)
    assert ("in or within 30 minutes of 1 of 1 judging sessions another version decided" in found) == is_part


@pytest.mark.parametrize("names", [whole, known_by_user])
def test_the_gate_cannot_tell_if_sessions_go_on_with_a_version_that_was_live_for_a_while(
    names: Names, tmp_path: Path
) -> None:
    """Half of the visits go on with it, and judge nobody; of the others every one shows what the bait gains at first."""
    registry = Registry(tmp_path / "registry")
    for _ in range(2):
        registry.publish(agent_for("good"), activate=True)
    registry.activate(LIVE)
    records = list(visits(2500, names))
    users = [record.user for record in records if isinstance(record, Decision)]
    moved = set(list(dict.fromkeys(users))[::2])
    changed = [
        msgspec.structs.replace(record, version="v000002")
        if isinstance(record, Decision) and record.user in moved and not record.id.endswith("-0")
        else record
        for record in records
    ]
    write_quickly(tmp_path / "log", changed)
    verdict = update(registry, tmp_path / "log", candidate=agent_for("bait"), device="cpu", no_worse="publish")
    assert verdict.answer == "cannot tell"
    assert "sessions of the live version, beside" in verdict.reason
    assert "that judge, went on with another one" in verdict.reason


def test_the_gate_sees_what_a_bait_costs_in_whole_visits(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry")
    registry.publish(agent_for("good"))
    write_quickly(tmp_path / "log", visits(2500, whole))
    verdict = update(registry, tmp_path / "log", candidate=agent_for("bait"), device="cpu")
    assert (verdict.answer, verdict.action) == ("worse", "refused")


@pytest.mark.parametrize("names", [whole, landing, session_of_a_page])
def test_a_visit_of_a_user_is_one_session_of_a_trial(names: Names, tmp_path: Path) -> None:
    look = in_trial(Registry(tmp_path / "registry"), tmp_path, list(visits(400, names, canary=True)))
    assert look.comparison is not None
    assert look.comparison.a.sessions + look.comparison.b.sessions == pytest.approx(400, abs=5)
    assert look.comparison.a.length.mean == pytest.approx(PAGES)
    assert (look.action, look.reason[:12], look.ignored.total().count) == ("withdraw", "earns less: ", 0)


@pytest.mark.parametrize(
    ("names", "count", "why"),
    [
        (named_first, 2000, "not promoted, since 2,000 decisions have neither session nor user, worth "),
        (halves, 400, " visits may be known by user alone at first and by session alone later, beside "),
        (anonymous_session_of_a_page, 2000, " sessions have no beginning in the log, worth "),
    ],
)
def test_nothing_is_promoted_by_parts_of_visits(names: Names, count: int, why: str, tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry")
    look = in_trial(registry, tmp_path, list(visits(400, names, canary=True)))
    assert look.comparison is not None
    assert look.action == "wait"
    assert why in look.reason
    assert "; not promoted, since " in look.reason
    assert look.ignored.total().count == count
    assert (registry.current(), registry.canary()) == (LIVE, CANARY)


def test_a_trial_counts_what_comes_after_the_horizon(tmp_path: Path) -> None:
    records = list(visits(300, whole, pages=3 * PAGES, bait_page=PAGES - 1, canary=True))
    look = in_trial(Registry(tmp_path / "registry"), tmp_path, records)
    assert look.comparison is not None
    assert look.comparison.a.length.mean == pytest.approx(3 * PAGES)
    assert look.comparison.max_reward == 3 * PAGES  # a session of that length may earn so much
    assert (look.action, look.reason[:12]) == ("withdraw", "earns less: ")
