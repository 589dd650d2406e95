"""Worse, no worse or cannot tell: what the gate says, and what becomes of the candidate."""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import msgspec
import numpy as np
import pytest

from mbcal import Behaviours, Catalog, Simulator, SimulatorConfig, TrainingConfig, load
from mbcal.decision_log.join import join_sessions
from mbcal.decision_log.reader import read_log
from mbcal.decision_log.records import Decision, Feedback, Record
from mbcal.decision_log.writer import DecisionLog
from mbcal.environments.trust import Trust
from mbcal.errors import ConflictError, LogError
from mbcal.evaluation.ope.intervals import Estimate
from mbcal.evaluation.ope.propensity import policy_choices
from mbcal.registry.registry import Registry
from mbcal.release.gate import (
    Action,
    Answer,
    Check,
    GateConfig,
    Verdict,
    combined_answer,
    compare_by_simulator,
    interval_answer,
)
from mbcal.release.obstacles import ended_rows, unlogged_inputs_problem
from mbcal.release.update import update
from mbcal.release.verdict_files import write_verdict
from mbcal.types import SessionFields
from mbcal.types.field import Field
from mbcal.types.fields import Fields
from tests.support.releases import DIFFERENCE, EPSILON, GATE, PUBLISHING, agent, let_the_log_say, served
from tests.support.toys import BEHAVIOURS, logged


def test_a_candidate_that_chooses_alike_is_no_worse(weak: Registry, weak_model: Path, log: Path) -> None:
    gate = replace(PUBLISHING, judge_share=0.9, level=0.5, tolerance=0.9)  # few users, in a world of rare prizes
    verdict = update(weak, log, gate=gate, device="cpu", candidate=load(weak_model, "cpu"))
    assert (verdict.answer, verdict.action, weak.current()) == ("no worse", "published", "v000002"), verdict.checks
    assert "the candidate chooses as the live version does at all " in verdict.checks[0].detail
    assert verdict.void is None
    assert verdict.difference is not None
    assert verdict.difference.value == pytest.approx(0, abs=1e-5)  # with the exploration of the log, not with less


@pytest.mark.parametrize("kind", ["history", "fields"])
def test_a_candidate_that_reads_what_is_not_logged_is_not_published(
    kind: str, weak: Registry, weak_model: Path, log: Path
) -> None:
    """It chooses alike where the log has less than it would be given once it is live."""
    candidate = load(weak_model, "cpu")
    domain = candidate.domain
    fields = SessionFields(context=Fields((Field("device", "category", vocabulary=("phone", "tv")),)))
    more: dict[str, Any] = {"history": domain.history + 3} if kind == "history" else {"fields": fields}
    found = unlogged_inputs_problem(replace(domain, **more), domain)
    steps = f"{domain.history + 3} steps before a session, of which the live version logs {domain.history}"
    expected = {
        "history": f"the candidate reads {steps}",
        "fields": "the candidate reads context that the live version does not log (device)",
    }
    assert found == expected[kind]
    assert unlogged_inputs_problem(domain, replace(domain, **more)) == ""
    if kind == "history":
        candidate._domain = replace(domain, **more)
        gate = replace(PUBLISHING, judge_share=0.9, level=0.5, tolerance=0.9)
        verdict = update(weak, log, gate=gate, device="cpu", candidate=candidate)
        assert (verdict.answer, verdict.action, weak.current()) == ("cannot tell", "canary", "v000001")
        assert verdict.reason == f"the log cannot tell: {found}"


@pytest.mark.parametrize(
    ("answer", "no_worse", "action", "title", "reason"),
    [
        ("no worse", "publish", "published", "No worse: v000002 is live", "the log shows that it is no worse"),
        ("no worse", "canary", "canary", "No worse: v000002 is the canary, v000001 stays live", "the log shows that it is"),
        (
            "cannot tell",
            "publish",
            "canary",
            "Cannot tell: v000002 is the canary, v000001 stays live",
            "the log cannot tell",
        ),
        ("worse", "publish", "refused", "Worse: refused, v000001 stays live", "the candidate is worse: log detail"),
    ],
)
def test_what_the_log_says_decides(
    answer: Answer,
    no_worse: Any,
    action: Action,
    title: str,
    reason: str,
    weak: Registry,
    log: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    let_the_log_say(answer, monkeypatch)
    gate = GateConfig(min_sessions=100, no_worse=no_worse)
    verdict = update(weak, log, gate=gate, device="cpu", candidate=agent(30, epochs=1))
    assert (verdict.answer, verdict.action) == (answer, action)
    assert weak.current() == ("v000002" if action == "published" else "v000001")
    assert weak.canary() == ("v000002" if action == "canary" else None)
    assert weak.versions() == ["v000001", "v000002"][: 1 if action == "refused" else 2]
    assert verdict.reason.startswith(reason)
    page = write_verdict(tmp_path / "updates", verdict)
    record = json.loads(page.with_suffix(".json").read_text())
    assert (record["answer"], record["action"], record["difference"]["low"]) == (answer, action, -1.0)
    assert f"<h1>{title}</h1>" in page.read_text()
    assert write_verdict(tmp_path / "updates", verdict).name == "000002.html"


def test_a_log_without_feedback_has_no_sessions(weak: Registry, weak_model: Path, log: Path, tmp_path: Path) -> None:
    with DecisionLog(tmp_path / "unanswered") as unanswered:
        for record in read_log(log):
            if isinstance(record, Decision):
                unanswered.append(record)
    verdict = update(weak, tmp_path / "unanswered", device="cpu", candidate=load(weak_model, "cpu"))
    assert (verdict.answer, verdict.action) == ("cannot tell", "refused")
    assert verdict.reason.startswith("0 sessions are logged, 0 of users who judge are of the live version alone;")


def test_items_that_could_not_be_chosen_are_one_sentence(
    weak: Registry, weak_model: Path, log: Path, tmp_path: Path
) -> None:
    """As in logs of other programs that repeat items and do not say so."""
    with DecisionLog(tmp_path / "repeating") as repeating:
        for record in read_log(log):
            if isinstance(record, Decision):
                record = msgspec.structs.replace(record, shown=[(record.items[0], BEHAVIOURS.names[0]), *record.shown])
            repeating.append(record)
    with pytest.raises(LogError, match="returned an item that is no candidate, or was shown before without repeats"):
        update(weak, tmp_path / "repeating", gate=GATE, device="cpu", candidate=load(weak_model, "cpu"))


def test_sessions_judge_up_to_the_first_that_may_go_on() -> None:
    """Sessions a minute apart; number 20 goes on beside those of the last half an hour."""
    minute, records = 60 * 10**6, list[Record]()
    for number in range(100):
        for step, time in enumerate((number * minute, 100 * minute) if number == 20 else (number * minute,)):
            name, shown = f"d{number}-{step}", [("a", "click")] * step
            values = (f"s{number}", f"u{number}", step, "v", 0.1, [], shown, ["a", "b"], ["b" if step else "a"], [0.95])
            records += [Decision(name, time, *values), Feedback(name, "b" if step else "a", "click", time, f"f{name}")]
    joined = join_sessions(records, Catalog(("a", "b")), Behaviours(("skip", "click"), (0.0, 1.0)), horizon=3)
    began = {row: min(origin.time for origin in origins) // minute for row, origins in enumerate(joined.origins)}
    judging = np.flatnonzero([number % 2 == 0 for number in began.values()])
    assert sorted(began[row] for row in ended_rows(joined, judging, 0.0).tolist()) == list(range(0, 20, 2))
    assert sorted(began[row] for row in ended_rows(joined, judging, 0.05).tolist()) == list(range(0, 72, 2))
    recent = np.flatnonzero([number > 80 for number in began.values()])
    assert np.array_equal(ended_rows(joined, recent, 0.01), recent)


def test_verdicts_written_at_once_have_numbers_of_their_own(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        pages = list(pool.map(lambda number: write_verdict(tmp_path, Verdict(f"v{number:06d}")), range(24)))
    assert sorted(page.stem for page in pages) == [f"{number:06d}" for number in range(1, 25)]
    written = [json.loads(page.with_suffix(".json").read_text())["live"] for page in pages]
    assert written == [f"v{number:06d}" for number in range(24)]


def test_numbers_that_are_not_finite_are_null_and_a_dash(tmp_path: Path) -> None:
    """Without exploration no number of sessions is enough, and an estimate may have no upper end."""
    estimates = [Estimate("policy", "ips", math.nan, 0.0, math.inf, "bootstrap", 3.0, 10)]
    verdict = Verdict("v000001", difference=replace(DIFFERENCE, weight_variance=math.inf), estimates=estimates)
    page = write_verdict(tmp_path, verdict)
    record = json.loads(page.with_suffix(".json").read_text())
    assert record["difference"]["weight_variance"] is None
    assert [record["estimates"][0][name] for name in ("value", "low", "high")] == [None, 0.0, None]
    assert "[0, –]" in page.read_text()


def test_answers() -> None:
    assert interval_answer(-0.5, 3.0, least=-1.0) == "no worse"
    assert interval_answer(-0.5, -0.1, least=-1.0) == "no worse"  # worse, but by no more than is tolerated
    assert interval_answer(-3.0, -0.1, least=-1.0) == "worse"
    assert interval_answer(-3.0, 0.1, least=-1.0) == "cannot tell"
    log, simulator = ({answer: Check(name, answer, "") for answer in get_args(Answer)} for name in ("log", "simulator"))
    assert combined_answer([log["no worse"], simulator["cannot tell"]]) == "no worse"
    assert (
        combined_answer([log["cannot tell"], simulator["no worse"]]) == "cannot tell"
    )  # a simulator alone publishes nothing
    assert combined_answer([log["no worse"], simulator["worse"]]) == "worse"
    assert combined_answer([log["worse"]]) == "worse"


@pytest.mark.parametrize("gate", [GATE, PUBLISHING], ids=["canary", "publish"])
def test_a_canary_that_an_operator_starts_meanwhile_stays(
    gate: GateConfig, weak: Registry, weak_model: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start_canary(*_: Any, **__: Any) -> Any:
        weak.start_canary(weak.publish(weak_model, activate=False))
        return Check("log", "no worse", "detail"), DIFFERENCE

    monkeypatch.setattr("mbcal.release.log_evidence.compare_by_log", start_canary)
    with pytest.raises(ConflictError, match="v000002 became the canary in the meantime; its trial goes on"):
        update(weak, log, gate=gate, device="cpu", candidate=load(weak_model, "cpu"))
    assert (weak.current(), weak.canary()) == ("v000001", "v000002")


@pytest.mark.parametrize("gate", [GATE, PUBLISHING], ids=["canary", "publish"])
def test_a_version_that_an_operator_activates_meanwhile_stays(
    gate: GateConfig, weak: Registry, weak_model: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def activate_another(*_: Any, **__: Any) -> Any:
        weak.publish(weak_model, activate=True)
        return Check("log", "no worse", "detail"), DIFFERENCE

    let_the_log_say("no worse", monkeypatch)
    monkeypatch.setattr("mbcal.release.log_evidence.compare_by_log", activate_another)
    with pytest.raises(ConflictError, match="v000002"):
        update(weak, log, gate=gate, device="cpu", candidate=load(weak_model, "cpu"))
    assert weak.current() == "v000002"
    assert weak.versions() == ["v000001", "v000002"]


def test_along_its_own_log_the_live_version_has_the_logged_propensities(weak: Registry, log: Path) -> None:
    """At every step the choice was among the candidates that the session had not shown yet."""
    live = load(weak.open().path, "cpu")
    domain = live.domain
    sessions = join_sessions(read_log(log), domain.catalog, domain.behaviours, horizon=6, history=0).sessions
    chosen = policy_choices(live, sessions)
    assert chosen.count[0].tolist() == [12, 11, 10, 9, 8, 7]
    assert chosen.propensities(EPSILON) == pytest.approx(sessions.propensities, rel=1e-5)


def test_only_sessions_of_the_live_version_judge(weak: Registry, weak_model: Path, tmp_path: Path) -> None:
    served(weak, tmp_path / "log", 120)
    weak.publish(weak_model, activate=True)
    gate = GateConfig(min_sessions=100, tolerance=0.9)
    unjudged = update(weak, tmp_path / "log", gate=gate, device="cpu", candidate=load(weak_model, "cpu"))
    assert (unjudged.action, unjudged.checks) == ("refused", [])
    assert unjudged.reason.startswith("120 sessions are logged, 0 of users who judge are of the live version alone")
    served(weak, tmp_path / "log", 60, seed=1)
    arguments: dict[str, Any] = {"device": "cpu", "candidate": load(weak_model, "cpu"), "versions": 1}
    alone = update(weak, tmp_path / "log", gate=GateConfig(min_sessions=100), **arguments).counts
    assert alone is not None
    assert (alone.sessions, alone.orphans, alone.other_versions) == (60, 0, 2 * alone.feedback // 3)
    verdict = update(weak, tmp_path / "log", gate=gate, device="cpu", candidate=load(weak_model, "cpu"))
    assert verdict.difference is not None
    assert 5 <= verdict.difference.sessions <= 35


def test_the_simulator_has_a_say(weak: Registry, tmp_path: Path) -> None:
    weak.publish(agent(800, epochs=12).save(tmp_path / "good"), activate=True)
    served(weak, tmp_path / "log", 150)
    how = SimulatorConfig(hidden=8, embedding=8, training=TrainingConfig(epochs=25, batch=64, warmup=10))
    users = logged(1800)
    fitted = Simulator(how, "cpu").fit(users[:1200])
    fitted.save(tmp_path / "without card")
    fitted.save(tmp_path / "sim", card=fitted.evaluate(users[1200:]))
    gate = GateConfig(min_sessions=100, tolerance=0.05)
    settings: dict[str, Any] = {"gate": gate, "device": "cpu"}
    bad, good = agent(20, seed=4, epochs=1), agent(600, epochs=15)  # the second as good as the live version
    for candidate, answers, action in (
        (bad, ["cannot tell", "worse"], "refused"),
        (good, ["cannot tell", "cannot tell"], "canary"),  # by a difference that the simulator's error may explain
    ):
        verdict = update(weak, tmp_path / "log", simulator=tmp_path / "sim", candidate=candidate, **settings)
        assert [check.name for check in verdict.checks] == ["log", "simulator"]
        assert [check.answer for check in verdict.checks] == answers
        assert "Can be trusted for differences of " in verdict.checks[1].detail
        assert verdict.action == action
    assert weak.current() == "v000002"
    weak.withdraw_canary()
    unknown = update(weak, tmp_path / "log", simulator=tmp_path / "without card", candidate=bad, **settings)
    assert [check.answer for check in unknown.checks] == ["cannot tell", "cannot tell"]
    assert "has no report card" in unknown.checks[1].detail


@pytest.mark.parametrize(
    ("gain", "trusted", "answer"),
    [(3.96, 5.62, "cannot tell"), (5.62, 5.62, "no worse"), (-3.96, 5.62, "cannot tell"), (-6.0, 5.62, "worse")],
)
def test_a_simulator_says_nothing_inside_its_own_error(
    gain: float, trusted: float, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither that the candidate is worse nor that it is no worse."""
    rewards = iter((np.full((40, 6), 8 + gain / 6), np.full((40, 6), 8.0)))  # of the candidate, then of the live version
    monkeypatch.setattr("mbcal.release.gate.rollout", lambda *_, **__: SimpleNamespace(rewards=next(rewards)))
    sessions, trust = logged(40), Trust(trusted, 0.13, 0.0, "")
    simulator: Any = SimpleNamespace(catalog=sessions.catalog, behaviours=sessions.behaviour_set, trust=trust)
    check = compare_by_simulator(agent(20, epochs=1), agent(20, epochs=1), simulator, sessions, GateConfig())
    assert check.answer == answer
    assert check.detail.startswith(
        f"{gain:+.3g} [{gain:+.3g}, {gain:+.3g}] per session, where it may lose at most 0.48, on 40"
    )


def test_a_log_whose_weights_contradict_it_cannot_tell(weak: Registry, weak_model: Path, log: Path, tmp_path: Path) -> None:
    """Propensities of half their size promise the candidate twice the reward of the same choices."""
    with DecisionLog(tmp_path / "wrong") as wrong:
        for record in read_log(log):
            if isinstance(record, Decision):
                record = msgspec.structs.replace(record, propensities=[value / 2 for value in record.propensities])
            wrong.append(record)
    gate = replace(PUBLISHING, judge_share=0.9, level=0.5, tolerance=0.9)
    verdict = update(weak, tmp_path / "wrong", gate=gate, device="cpu", candidate=load(weak_model, "cpu"))
    assert (verdict.answer, verdict.action) == ("cannot tell", "canary")
    assert "instead of 1, so its numbers mean nothing" in verdict.checks[0].detail
    assert verdict.checks[0].detail.startswith("between ")  # no value that would look like a finding
    assert "sessions the live version would have chosen with other propensities than those logged" in verdict.reason
