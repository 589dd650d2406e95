"""From served sessions to the next version: better ones go live, worse ones are refused with a reason."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from mbcal import MBCAL, MBCALConfig, NetConfig, Simulator, SimulatorConfig, TrainingConfig, load
from mbcal.agents import DQN, Agent
from mbcal.cli import app
from mbcal.data.store import Store
from mbcal.data.store_writer import write_sessions
from mbcal.decision_log.join import Joined, join_sessions
from mbcal.decision_log.reader import read_log
from mbcal.decision_log.writer import DecisionLog
from mbcal.errors import ConflictError, InputError
from mbcal.evaluation.evaluator import evaluate
from mbcal.evaluation.ope.difference import Difference
from mbcal.evaluation.ope.propensity import policy_choices
from mbcal.registry.registry import Registry
from mbcal.release.gate import Action, Answer, Check, GateConfig, combined_answer, interval_answer, split_judges
from mbcal.release.update import update, write_verdict
from mbcal.serving.messages import FeedbackRequest, RankRequest
from mbcal.serving.service import Service
from mbcal.serving.state import MemoryStore
from mbcal.types import SessionTensors
from tests.support.toys import BEHAVIOURS, CATALOG, DelayedPrize, logged, starts
from tests.support.workers import ThreadedEngine

EPSILON = 0.3
GATE = GateConfig(sessions=100)
DIFFERENCE = Difference(
    value=0.0,
    low=-1.0,
    high=1.0,
    level=0.95,
    reward=2.0,
    sessions=40,
    users=40,
    differing=50,
    seen=3,
    steps=240,
    weight_variance=500.0,
    reward_variance=4.0,
    range=6.0,
)


def let_the_log_say(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the comparison by the log."""
    monkeypatch.setattr("mbcal.release.update.compare_by_log", lambda *_, **__: (Check("log", answer, "detail"), DIFFERENCE))
    monkeypatch.setattr("mbcal.release.update.other_estimates", lambda *_, **__: ([], None))


def agent(sessions: int, seed: int = 0, epochs: int = 25) -> Agent:
    how = TrainingConfig(epochs=epochs, batch=64, warmup=10, validation=0.0)
    made = MBCAL(MBCALConfig(net=NetConfig(hidden=8, embedding=8), training=how, gamma=0.95, mix=1.0, seed=seed), "cpu")
    return made.fit(logged(sessions, seed))


def served(registry: Registry, log: Path, users: int, seed: int = 0) -> float:
    """Serve users of the toy world by the service; return the mean reward per session."""
    world, begin, generator = DelayedPrize(), starts(users, seed), np.random.default_rng(seed)

    async def serve() -> float:
        service = Service(registry, MemoryStore(), DecisionLog(log), EPSILON, generator=generator)
        await service.refresh_version()
        earned = 0.0
        assert begin.candidates is not None
        for number in range(users):
            opened = torch.zeros(1, dtype=torch.bool)
            names = [CATALOG.name_of(row) for row in begin.candidates[number]]
            for _ in range(begin.horizon):
                request = RankRequest(candidates=names, k=1, session=f"{seed}-{number}", user=f"{seed}-{number}")
                answer = await service.rank(request)
                row = torch.from_numpy(CATALOG.rows_of([answer.items[0].item]))
                behaviour, opened = world.respond(opened, row, torch.zeros(1))
                label = BEHAVIOURS.names[int(behaviour)]
                await service.feedback(FeedbackRequest(answer.decision, label))
                earned += BEHAVIOURS.rewards[int(behaviour)]
        await service.close()
        return earned / users

    return asyncio.run(serve())


@pytest.fixture(scope="module")
def weak_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has learned next to nothing."""
    return agent(30, epochs=1).save(tmp_path_factory.mktemp("weak") / "model")


@pytest.fixture
def weak(weak_model: Path, tmp_path: Path) -> Registry:
    """A registry whose live version v000001 is the weak model."""
    registry = Registry(tmp_path / "registry")
    registry.publish(weak_model)
    return registry


@pytest.fixture(scope="module")
def log(weak_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decision log of 150 sessions of the weak model as v000001; only to be read."""
    folder = tmp_path_factory.mktemp("served")
    registry = Registry(folder / "registry")
    registry.publish(weak_model)
    served(registry, folder / "log", 150)
    return folder / "log"


def test_the_logs_of_several_servers_are_one(weak: Registry, tmp_path: Path) -> None:
    for name in ("log", "here"):
        served(weak, tmp_path / name, 30)
    served(weak, tmp_path / "log", 20, seed=1)
    served(weak, tmp_path / "there", 20, seed=1)
    few = {"gate": GateConfig(sessions=1000), "device": "cpu"}
    whole = update(weak, tmp_path / "log", **few)
    apart = update(weak, [tmp_path / "there", tmp_path / "here"], **few)
    assert apart.reason == whole.reason
    assert apart.reason.startswith("50 sessions are logged, ")
    assert apart.counts == whole.counts


def test_what_is_better_becomes_the_canary_and_earns_more(weak: Registry, tmp_path: Path) -> None:
    """With six steps and a new policy, no log of this size can tell."""
    before = served(weak, tmp_path / "log", 400)
    verdict = update(weak, tmp_path / "log", epochs=40, epsilon=EPSILON, gate=GATE, device="cpu")
    assert (verdict.answer, verdict.action, verdict.version) == ("cannot tell", "canary", "v000002")
    assert (weak.current(), weak.canary()) == ("v000001", "v000002")
    assert verdict.difference is not None
    assert verdict.difference.low < 0 < verdict.difference.high
    assert verdict.reason.startswith("the log cannot tell; to see a difference of 1%, 5% or 10% takes about a billion")
    assert " judging sessions of such a log, or about " in verdict.reason
    assert verdict.void is not None
    assert "these estimates and their intervals mean nothing" in verdict.void
    version = weak.open("v000002")
    assert version.parent == "v000001"
    assert [check["name"] for check in version.metrics["checks"]] == ["log"]
    test = starts(200, seed=9)
    earned = [evaluate(load(weak.open(name).path, "cpu"), DelayedPrize(), test).mean.mean for name in weak.versions()]
    assert earned[1] > earned[0] + 1
    with pytest.raises(ConflictError, match="v000002 is the canary; wait"):
        update(weak, tmp_path / "log", gate=GATE, device="cpu")
    weak.promote_canary()
    assert served(weak, tmp_path / "later", 100, seed=1) > before
    assert verdict.counts is not None
    assert (verdict.counts.sessions, verdict.counts.steps) == (400, 2400)


def test_a_candidate_that_chooses_alike_is_no_worse(weak: Registry, weak_model: Path, log: Path) -> None:
    gate = GateConfig(sessions=100, judges=0.9, level=0.5, tolerance=0.9)  # few users, in a world of rare prizes
    verdict = update(weak, log, epsilon=EPSILON, gate=gate, device="cpu", candidate=load(weak_model, "cpu"))
    assert (verdict.answer, verdict.action, weak.current()) == ("no worse", "published", "v000002"), verdict.checks
    assert "it chooses as the live version does at all " in verdict.checks[0].detail
    assert verdict.void is None


def test_an_engine_teaches_what_one_process_would(
    weak: Registry, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_the_log_say("no worse", monkeypatch)
    shutil.copytree(weak.path, tmp_path / "other")
    made: list[Any] = []
    for registry, engine in ((weak, None), (Registry(tmp_path / "other"), ThreadedEngine(2))):
        settings: dict[str, Any] = {"epochs": 3, "epsilon": EPSILON, "gate": GATE, "device": "cpu"}
        verdict = update(registry, log, engine=engine, **settings)
        assert verdict.version == "v000002"
        made.append(load(registry.open().path, "cpu"))
        assert not list(registry.path.glob(".learning-*"))
    assert made[0].n_fits == made[1].n_fits == 2
    assert made[0].config == made[1].config
    for name, record in made[0].records.items():
        for mine, theirs in zip(record.curve, made[1].records[name].curve, strict=True):
            assert mine == pytest.approx(theirs, abs=1e-5, rel=1e-5)


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
    gate = GateConfig(sessions=100, no_worse=no_worse)
    verdict = update(weak, log, epsilon=EPSILON, gate=gate, device="cpu", candidate=agent(30, epochs=1))
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


def test_a_version_that_an_operator_activates_meanwhile_stays(
    weak: Registry, weak_model: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def activate_another(*_: Any, **__: Any) -> Any:
        weak.publish(weak_model)
        return Check("log", "no worse", "detail"), DIFFERENCE

    let_the_log_say("no worse", monkeypatch)
    monkeypatch.setattr("mbcal.release.update.compare_by_log", activate_another)
    with pytest.raises(ConflictError, match="v000002"):
        update(weak, log, epsilon=EPSILON, gate=GATE, device="cpu", candidate=agent(30, epochs=1))
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
    weak.publish(weak_model)
    gate = GateConfig(sessions=100, tolerance=0.9)
    unjudged = update(weak, tmp_path / "log", gate=gate, epsilon=EPSILON, device="cpu", candidate=load(weak_model, "cpu"))
    assert (unjudged.action, unjudged.checks) == ("refused", [])
    assert unjudged.reason.startswith("120 sessions are logged, 0 of users who judge are of the live version alone")
    served(weak, tmp_path / "log", 60, seed=1)
    verdict = update(weak, tmp_path / "log", gate=gate, epsilon=EPSILON, device="cpu", candidate=load(weak_model, "cpu"))
    assert verdict.difference is not None
    assert 5 <= verdict.difference.sessions <= 35


def test_the_simulator_has_a_say(weak: Registry, tmp_path: Path) -> None:
    weak.publish(agent(1200).save(tmp_path / "good"))
    served(weak, tmp_path / "log", 150)
    how = SimulatorConfig(hidden=8, embedding=8, training=TrainingConfig(epochs=40, batch=64, warmup=10))
    users = logged(1800)
    fitted = Simulator(how, "cpu").fit(users[:1200])
    fitted.save(tmp_path / "without card")
    fitted.save(tmp_path / "sim", card=fitted.evaluate(users[1200:]))
    gate = GateConfig(sessions=100, tolerance=0.05)
    settings: dict[str, Any] = {"epsilon": EPSILON, "gate": gate, "device": "cpu"}
    bad, good = agent(20, seed=4, epochs=1), agent(1200, seed=1)
    for candidate, answers, action in (
        (bad, ["cannot tell", "worse"], "refused"),
        (good, ["cannot tell", "no worse"], "canary"),
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


def test_too_little_to_learn_from(weak: Registry, tmp_path: Path) -> None:
    served(weak, tmp_path / "log", 20)
    verdict = update(weak, tmp_path / "log", gate=GATE, device="cpu")
    assert verdict.reason.startswith("20 sessions are logged, ")
    assert verdict.reason.endswith("; 100 and at least one are needed")
    with pytest.raises(InputError, match="no version is live"):
        update(Registry(tmp_path / "empty"), tmp_path / "log")


def test_a_crash_leaves_the_old_version_live(weak: Registry, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    let_the_log_say("no worse", monkeypatch)

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("the power failed")

    for where in (
        "mbcal.agents.base.Agent.fit",
        "mbcal.release.update.compare_by_log",
        "mbcal.registry.registry.Registry.publish",
    ):
        with monkeypatch.context() as patch:
            patch.setattr(where, broken)
            with pytest.raises(RuntimeError):
                update(weak, log, gate=GATE, device="cpu")
        assert weak.current() == "v000001"
        assert weak.versions() == ["v000001"]
    assert [path.name for path in weak.path.glob(".candidate-*")] == []


def test_on_the_command_line(weak: Registry, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--registry", str(weak.path), "--log", str(log), "--device", "cpu"]
    with pytest.raises(SystemExit) as left:
        app(["update", *where, "--min-sessions", "1000"])
    assert left.value.code == 3
    said = capsys.readouterr().out
    assert "refused; v000001 stays live: 150 sessions are logged, " in said
    assert (weak.path / "updates" / "000001.html").is_file()
    with pytest.raises(SystemExit) as left:
        app(["loop", *where, "--min-sessions", "1000", "--times", "2", "--every", "1"])
    assert left.value.code in (0, None)
    assert (weak.path / "updates" / "000003.json").is_file()


def test_who_teaches_does_not_judge_and_replay_reaches_back(
    weak: Registry, weak_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served(weak, tmp_path / "log", 60)
    weak.publish(weak_model)
    served(weak, tmp_path / "log", 50, seed=1)
    seen: dict[str, set[int]] = {}

    def judged(candidate: Agent, now: Agent, sessions: Any, *_: Any, **__: Any) -> Any:
        seen["judge"] = set(sessions.user.tolist())
        return Check("log", "worse", ""), DIFFERENCE

    def taught(self: Agent, sessions: Any, **_: Any) -> Agent:
        seen["teach"] = set(sessions.user.tolist())
        return self

    let_the_log_say("worse", monkeypatch)
    monkeypatch.setattr("mbcal.release.update.compare_by_log", judged)
    monkeypatch.setattr(Agent, "fit", taught)
    for replay, users in ((1, 50), (2, 110)):
        verdict = update(weak, tmp_path / "log", replay=replay, gate=GateConfig(sessions=10), device="cpu")
        assert verdict.counts is not None
        assert verdict.counts.sessions == users
        assert not seen["teach"] & seen["judge"]
        assert 0 < len(seen["judge"]) < len(seen["teach"])
        assert len(seen["teach"] | seen["judge"]) <= users
    assert max(seen["judge"]) < 110


def test_who_judges_once_never_teaches(weak: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over updates whose logs hold other users in other orders, and under other seeds."""
    names: dict[str, set[str]] = {"teach": set(), "judge": set()}
    joined: list[Joined] = []

    def spy_join(*arguments: Any, **options: Any) -> Joined:
        joined.append(join_sessions(*arguments, **options))
        return joined[-1]

    def judged(candidate: Agent, live: Agent, sessions: Any, *_: Any, **__: Any) -> Any:
        names["judge"] |= {joined[-1].users[user] for user in sessions.user}
        return Check("log", "worse", ""), DIFFERENCE

    def taught(self: Agent, sessions: Any, **_: Any) -> Agent:
        names["teach"] |= {joined[-1].users[user] for user in sessions.user}
        return self

    monkeypatch.setattr("mbcal.release.update.join_sessions", spy_join)
    let_the_log_say("worse", monkeypatch)
    monkeypatch.setattr("mbcal.release.update.compare_by_log", judged)
    monkeypatch.setattr(Agent, "fit", taught)
    for number in range(3):
        served(weak, tmp_path / "log", 40, seed=number)
        update(weak, tmp_path / "log", gate=GateConfig(sessions=10), seed=number, device="cpu")
    assert len(names["teach"] | names["judge"]) == 120
    assert not names["teach"] & names["judge"]


@pytest.mark.parametrize("workers", [0, 2], ids=["this process", "two workers"])
def test_dqn_learns_from_the_logged_candidates_of_every_step(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry(tmp_path / "registry")
    settings = {"hidden": 8, "embedding": 8, "epochs": 1, "validation": 0.0, "batch": 16}
    registry.publish(DQN(device="cpu", **settings).fit(logged(30)))
    served(registry, tmp_path / "log", 40)
    domain = load(registry.open().path, "cpu").domain
    joined = join_sessions(read_log(tmp_path / "log"), domain.catalog, domain.behaviours, horizon=6, history=0)
    sessions = joined.sessions
    teaching, _ = split_judges(joined.users, sessions.user, GATE.judges)
    assert sessions.candidates is not None
    assert sessions.candidates.shape == (40, 6, 12)
    expected = {array.tobytes() for array in sessions.candidates[teaching].astype(np.int64)}
    learned: set[bytes] = set()
    compute_label = DQN.label

    def label(self: DQN, batch: SessionTensors) -> torch.Tensor:
        learned.update(array.tobytes() for array in batch.require_candidates().numpy().astype(np.int64))
        return compute_label(self, batch)

    monkeypatch.setattr(DQN, "label", label)
    gate = GateConfig(sessions=10)
    engine = ThreadedEngine(workers) if workers else None
    update(registry, tmp_path / "log", epochs=1, epsilon=EPSILON, gate=gate, engine=engine, device="cpu")
    assert learned == expected


def test_candidates_of_every_step_go_through_a_store(tmp_path: Path) -> None:
    sessions = logged(20)
    assert sessions.candidates is not None
    candidates = np.repeat(sessions.candidates[:, None], sessions.horizon, 1)
    candidates[:, 1:] = candidates[:, 1:, ::-1]
    by_step = replace(sessions, candidates=candidates)
    store = Store.open(write_sessions(tmp_path / "store", by_step))
    assert np.array_equal(store.sessions("train").candidates, candidates)
