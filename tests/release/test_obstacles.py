"""What a log cannot show: feedback that has not come, records that are lost, exploration that hides a loss."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from mbcal import Behaviours, Sessions
from mbcal.data.user_split import stable_hash
from mbcal.decision_log import Decision, Feedback, Record
from mbcal.decision_log.join import join_sessions
from mbcal.decision_log.joined import JoinCounts
from mbcal.evaluation.ope.propensity import PolicyChoices
from mbcal.registry.registry import Registry
from mbcal.release.gate import Verdict
from mbcal.release.heavy_users import capped_rows
from mbcal.release.obstacles import (
    changed_feedback_problem,
    lost_records_problem,
    missing_feedback_problem,
    partial_visits_problem,
)
from mbcal.release.served_choices import ServedChoices, served_choices
from mbcal.release.update import update
from tests.support.landing import BEHAVIOURS, CATALOG, LIVE, MINUTE, PAGES, agent_for, visits, whole
from tests.support.trials import write_quickly


def judged(folder: Path, records: list[Record]) -> Verdict:
    """What the gate says of a bait that costs more on later pages than it earns on the first."""
    registry = Registry(folder / "registry")
    registry.publish(agent_for("good"))
    write_quickly(folder / "log", records)
    return update(registry, folder / "log", candidate=agent_for("bait"), device="cpu", no_worse="publish")


def test_a_log_without_exploration_cannot_tell(tmp_path: Path) -> None:
    """No judging session could have been served by the candidate, so all of the usual estimates' weights are 0."""
    known = list(visits(1200, whole))
    baited = {record.session for record in known if isinstance(record, Decision) and record.items == ["bait"]}
    records = [
        msgspec.structs.replace(record, epsilon=0.0, propensities=[1.0]) if isinstance(record, Decision) else record
        for record in known
        if f"s{re.findall('[0-9]+', record.id if isinstance(record, Decision) else record.decision)[0]}" not in baited
    ]
    verdict = judged(tmp_path, records)
    assert (verdict.answer, verdict.action, verdict.estimates) == ("cannot tell", "canary", [])
    assert verdict.void == "the candidate would have served no judging session as it was served; no choice was explored"


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
    assert "users for whom the candidate chooses otherwise gave no feedback on " in verdict.reason
    assert "another session had begun" not in verdict.reason  # no feedback was late
    assert verdict.checks[0].detail.startswith(
        f"between {verdict.difference.low:+.3g} and {verdict.difference.high:+.3g} per"
    )


def test_lost_records_may_be_what_a_choice_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = list(visits(1000, whole, pages=1))
    assert judged(tmp_path / "whole", records).answer == "no worse"  # there are no later pages
    monkeypatch.setattr("mbcal.release.log_evidence.lost_records_problem", lambda _: "the log has lost records (7)")
    verdict = judged(tmp_path / "lost", records)
    assert (verdict.answer, verdict.reason) == ("cannot tell", "the log cannot tell: the log has lost records (7)")
    assert lost_records_problem(JoinCounts(lost=["segment 3 is missing", "5 bytes are damaged"])) == (
        "the log has lost records (segment 3 is missing, 5 bytes are damaged)"
    )
    assert lost_records_problem(JoinCounts()) == ""


def test_purchases_after_clicks_may_be_what_a_choice_costs(tmp_path: Path) -> None:
    """By the first reports the bait is no worse, but what was skipped first and clicked later may be what it loses."""
    records = list(visits(1000, whole, pages=1))
    skipped = [record for record in records if isinstance(record, Feedback) and record.behaviour == "skip"]
    again = [msgspec.structs.replace(one, time=one.time + 60, id=f"{one.id}-later") for one in skipped]
    assert judged(tmp_path / "again", records + again).answer == "no worse"  # the same behaviour changes nothing
    verdict = judged(tmp_path / "changed", records + [msgspec.structs.replace(one, behaviour="click") for one in again])
    assert (verdict.answer, verdict.action) == ("cannot tell", "canary")
    assert re.search("on [0-9]+ items a further behaviour was reported after the one that counts", verdict.reason)


def test_what_further_behaviours_would_lower_counts_as_often_as_it_may_be_served() -> None:
    """A candidate may serve what is cancelled so much more often; of what is bought later it can lose all, and no more."""
    records = list(visits(200, whole, pages=1))
    for first, further, often in (("click", "skip", True), ("skip", "click", False)):
        reported = [record for record in records if isinstance(record, Feedback) and record.behaviour == first]
        one = msgspec.structs.replace(reported[0], behaviour=further, time=reported[0].time + 60, id="further")
        joined = join_sessions([*records, one], CATALOG, BEHAVIOURS)
        rows = np.arange(len(joined.sessions))
        assert changed_feedback_problem(joined, rows, 0.02, largest_weight=1.0) == ""
        assert bool(changed_feedback_problem(joined, rows, 0.02, largest_weight=20.0)) == often


def test_sessions_that_go_on_do_not_hold_up_the_others(tmp_path: Path) -> None:
    """Visits five minutes apart until now, half of the choices random: as few may go on as are tolerated of such a log."""
    records = [msgspec.structs.replace(record, time=record.time // 200) for record in visits(1000, whole, pages=1)]
    verdict = judged(tmp_path, records)
    assert (verdict.answer, verdict.reason) == (
        "no worse",
        "the log shows that it is no worse, unless it learned from users who judge ('mbcal log export --teaching' leaves "
        "them out)",
    )


def heavy(sessions: int, behaviour: str = "click", offered: tuple[str, ...] = ("plain",)) -> list[Record]:
    """Sessions of one user beside those of `visits`; the first of the offered items is served."""
    records: list[Record] = []
    for number in range(sessions):
        name, time = f"h{number}", (1000 * number + 500) * MINUTE
        records.append(
            Decision(name, time, f"h{number}", "heavy", 0, LIVE, 0.5, [], [], list(offered), [offered[0]], [0.75])
        )
        records.append(Feedback(name, offered[0], behaviour, time + 1, f"f-{name}"))
    return records


def test_a_single_user_who_judges_ends_no_update(tmp_path: Path) -> None:
    """A household: two people, of whom one teaches."""
    judges = [stable_hash(f"p{number}", 0, "judge") / 2**64 < 0.3 for number in range(20)]
    people = [f"p{judges.index(True)}", f"p{judges.index(False)}"]
    verdict = judged(tmp_path, list(visits(250, lambda visit, _: (people[visit % 2], f"s{visit}"), pages=1)))
    assert verdict.difference is not None
    assert (verdict.difference.users, verdict.answer, verdict.estimates) == (1, "cannot tell", [])
    assert verdict.void == "only one user judges; these estimates compare users with each other"


@pytest.mark.parametrize(("more", "buys", "kept", "most"), [(5, False, 1000, 1), (7, False, 1001, 2), (5, True, 1004, 5)])
def test_few_sessions_of_heavy_users_are_left_out(more: int, buys: bool, kept: int, most: int) -> None:
    """999 users with a session each, and one with more: at most 5 are left out, unless they hold much of the reward."""
    behaviours = Behaviours(("skip", "click", "buy"), (0.0, 1.0, 100.0))
    records = [*visits(999, whole, pages=1), *heavy(more, "buy" if buys else "click")]
    joined = join_sessions(records, CATALOG, behaviours, horizon=PAGES)
    rows, cap = capped_rows(joined, np.arange(len(joined.sessions)))
    assert (len(rows), cap) == (kept, most)
    counts = np.bincount(joined.sessions.user[rows])
    assert (counts.max(), counts.min()) == (most, 1)


def test_a_verdict_says_how_many_sessions_of_heavy_users_were_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mbcal.release.heavy_users.LEFT_OUT", 0.02)
    monkeypatch.setattr(
        "mbcal.release.gate.stable_hash", lambda name, *_: 0 if name == "heavy" else stable_hash(name, 0, "judge")
    )
    verdict = judged(tmp_path, [*visits(1000, whole, pages=1), *heavy(4, "skip")])
    assert verdict.answer == "no worse"
    assert verdict.reason.endswith("; of every user at most 1 judged, and 3 sessions were left out")


@pytest.mark.parametrize(("sessions", "other"), [(20, "bait"), (9, "bait"), (20, "plain")])
def test_a_user_with_many_sessions_who_teaches_is_not_judged_by_others(
    sessions: int, other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an agent for the bait this user gets it where it is offered; nobody else has 1% of the sessions."""
    monkeypatch.setattr(
        "mbcal.release.gate.stable_hash", lambda name, *_: 2**64 - 1 if name == "heavy" else stable_hash(name, 0, "judge")
    )
    verdict = judged(
        tmp_path,
        [*visits(1000, whole, pages=1), *heavy(sessions, offered=("good", other) if other == "bait" else ("plain",))],
    )
    if (sessions, other) == (20, "bait"):
        assert verdict.answer == "cannot tell"
        assert (
            "2.0% of all sessions are of one user and teach the candidate, which chooses otherwise there" in verdict.reason
        )
    else:
        assert verdict.answer == "no worse"


def alike(count: int, rewards: tuple[float, float]) -> tuple[Sessions, PolicyChoices, NDArray[np.float64]]:
    """Sessions of one step and one user each, all chosen with probability 0.25 where a candidate chooses with 0.75."""
    sessions = join_sessions(
        visits(count, whole, pages=1), CATALOG, Behaviours(("skip", "click"), rewards), horizon=1
    ).sessions
    zeros = np.zeros((count, 1), np.int64)
    sessions = replace(sessions, propensities=np.full((count, 1), 0.25, np.float32))
    return sessions, PolicyChoices(zeros, zeros, zeros + 2), np.full((count, 1), 0.5)


@pytest.mark.parametrize(("rewards", "most"), [((0.0, 1.0), 1), ((-1.0, 1.0), 6)])
def test_few_choices_without_feedback_hide_little(rewards: tuple[float, float], most: int) -> None:
    """Each may hide the range of rewards; where they can be negative, three times, as often as it would be served.

    A late reward counts as often in any case.
    """
    sessions, candidate, epsilon = alike(400, rewards)
    live = PolicyChoices(candidate.best + 1, candidate.logged, candidate.count)
    range_of_rewards = rewards[1] - rewards[0]
    allowed = 0.02 * abs(float(sessions.rewards.sum()))

    def why(unanswered: int, late: int = 0) -> str:
        found = np.eye(1, 400, dtype=np.int64)[0] * late
        return missing_feedback_problem(
            ServedChoices([candidate, live], 0, {0: unanswered}, found, {}), sessions, epsilon, 0.02
        )

    assert why(int(allowed / most)) == ""
    assert f" gave no feedback on {int(allowed / most) + 1:,} choices, and so " in why(int(allowed / most) + 1)
    assert why(0, late=int(allowed / (3 * range_of_rewards))) == ""
    assert why(0, late=int(allowed / (3 * range_of_rewards)) + 1) != ""


def test_a_call_without_feedback_does_not_keep_the_gate_from_telling(tmp_path: Path) -> None:
    """A choice that differs and has no feedback may cost a session of six: half a percent of 160 clicks is less.

    One of a monitor, which is offered the bait and never answers, is tolerated in a log of eight times as many visits.
    """
    call = Decision("call", MINUTE, "check", "monitor", 0, LIVE, 0.5, [], [], ["good", "bait"], ["good"], [0.75])
    assert judged(tmp_path / "many", [*visits(8000, whole, pages=1), call]).answer == "no worse"
    verdict = judged(tmp_path / "few", [*visits(1000, whole, pages=1), call])
    assert verdict.answer == "cannot tell"
    assert verdict.reason.startswith(
        "the log cannot tell: the candidate chooses otherwise at 1 or more choices that have no feedback"
    )


def test_choices_without_feedback_count_where_versions_differ(tmp_path: Path) -> None:
    """The first of three visits is not offered the bait, so both versions choose alike in it."""
    records = [record for record in visits(3, whole) if "d0-0" not in (record.id, getattr(record, "decision", ""))]
    answered = answered_where(records, lambda decision: not decision.id.endswith("-5"))
    versions = []
    for name in ("bait", "good"):
        registry = Registry(tmp_path / name)
        versions.append(registry.open(registry.publish(agent_for(name))))

    def unanswered(records: list[Record]) -> dict[str, int]:
        end = Decision("end", 9000 * MINUTE, "s9", "u9", 0, LIVE, 0.5, [], [], ["plain"], ["plain"], [1.0])
        records = [*records, end, Feedback("end", "plain", "skip", 9000 * MINUTE, "f")]
        joined = join_sessions(records, CATALOG, BEHAVIOURS, horizon=PAGES)
        found = served_choices(versions, records, joined, np.arange(len(joined.sessions))).missing_feedback
        return {joined.users[user]: count for user, count in found.items()}

    assert unanswered(records) == {}
    assert unanswered(answered) == {"u1": 1, "u2": 1}
    before, pending = (
        msgspec.structs.replace(answered[0], id="more", user="u1", time=(9000 - ago) * MINUTE) for ago in (40, 20)
    )
    assert unanswered([*answered, before]) == {"u1": 2, "u2": 1}
    assert unanswered([*answered, pending]) == {"u1": 1, "u2": 1}  # its feedback may still come


def test_late_feedback_may_depend_on_a_later_session(tmp_path: Path) -> None:
    """The first of two sessions is answered after the second began, where the versions differ."""
    versions = []
    for name in ("bait", "good"):
        registry = Registry(tmp_path / name)
        versions.append(registry.open(registry.publish(agent_for(name))))

    def late(answered: int, candidates: list[str]) -> int:
        first = Decision("d1", MINUTE, "s1", "u", 0, LIVE, 0.5, [], [], ["plain"], ["plain"], [1.0])
        second = Decision("d2", 100 * MINUTE, "s2", "u", 0, LIVE, 0.5, [], [], candidates, ["good"], [0.75])
        records: list[Record] = [first, second, Feedback("d1", "plain", "click", answered * MINUTE, "f1")]
        records.append(Feedback("d2", "good", "click", 101 * MINUTE, "f2"))
        joined = join_sessions(records, CATALOG, BEHAVIOURS, horizon=PAGES)
        return served_choices(versions, records, joined, np.arange(len(joined.sessions))).late_feedback.sum()

    assert late(2, ["good", "bait"]) == 0
    assert late(200, ["good", "bait"]) == 1
    assert late(200, ["good"]) == 0  # both choose alike


def test_limits_are_shares_of_what_was_earned_in_all() -> None:
    """1,000 visits whose rewards of +1 and -1 leave 10 in all; five are followed by another session worth 1."""
    records: list[Record] = []
    for visit in range(1000):
        for part in range(2 if visit < 5 else 1):
            name, time = f"d{visit}-{part}", (1000 * visit + 10 * part + 1) * MINUTE
            label = "click" if part or visit < 505 else "skip"
            names = (f"s{visit}-{part}", f"u{visit}")
            records.append(Decision(name, time, *names, 0, LIVE, 0.5, [], [], ["plain"], ["plain"], [1.0]))
            records.append(Feedback(name, "plain", label, time + 1, f"f-{name}"))
    joined = join_sessions(records, CATALOG, Behaviours(("skip", "click"), (-1.0, 1.0)), horizon=PAGES)
    judging = np.flatnonzero([name.endswith("-0") for name in joined.session_names])
    assert joined.sessions[judging].rewards.sum() == 10
    assert partial_visits_problem(joined, judging, 0.01).startswith(
        "during or after 5 of 1,000 judging sessions their users began"
    )
    assert partial_visits_problem(joined, judging, 0.6) == ""
    assert (
        partial_visits_problem(joined, judging, 0.6, largest_weight=2.0) != ""
    )  # the candidate may lead there twice as often
    joined = join_sessions(records, CATALOG, BEHAVIOURS, horizon=PAGES)
    assert (
        partial_visits_problem(joined, judging, 0.02, largest_weight=9.0) == ""
    )  # what is lost is no more than what was earned


def test_limits_shrink_with_exploration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the choices of these visits are random, so that half of every difference shows."""
    limits: list[float] = []
    monkeypatch.setattr("mbcal.release.log_evidence.missing_feedback_problem", lambda *given: limits.append(given[-1]) or "")
    judged(tmp_path, list(visits(1000, whole)))
    assert limits == [pytest.approx(0.01 * 0.5)]


@pytest.mark.parametrize("logged_first", ["good", "bait"])
def test_decisions_of_another_model_of_that_name_judge_nobody(logged_first: str, tmp_path: Path) -> None:
    """A registry begun anew beside its old log: what chooses as the old model did is level with the log, whoever is live."""
    registry = Registry(tmp_path / "registry")
    registry.publish(agent_for("good"))
    write_quickly(tmp_path / "log", visits(1000, whole, first=logged_first))
    verdict = update(
        registry, tmp_path / "log", candidate=agent_for(logged_first), device="cpu", tolerance=0.2, no_worse="publish"
    )
    if logged_first == "good":
        assert (verdict.answer, verdict.action) == ("no worse", "published"), verdict.reason
        return
    assert (verdict.answer, verdict.action) == ("cannot tell", "canary"), verdict.reason
    assert verdict.difference is not None
    n = verdict.difference.sessions
    assert verdict.reason == (
        f"the log cannot tell: in {n:,} of {n:,} judging sessions the live version would have chosen with other "
        "propensities than those logged: another model had its name, or they are wrong; give a new registry a new log"
    )
