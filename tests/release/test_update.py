"""From served sessions to the next version: better ones are tried, worse ones are refused with a reason."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mbcal import load
from mbcal.agents import DQN, Agent
from mbcal.cli import app
from mbcal.data.store import Store
from mbcal.data.store_writer import write_sessions
from mbcal.decision_log.join import join_sessions
from mbcal.decision_log.joined import Joined
from mbcal.decision_log.reader import read_log
from mbcal.decision_log.records import Decision
from mbcal.errors import ConflictError, InputError, OptionError
from mbcal.evaluation.evaluator import evaluate
from mbcal.registry.registry import Registry
from mbcal.release.gate import Check, GateConfig, split_judges, undecided_reason
from mbcal.release.update import update
from mbcal.types import SessionTensors
from tests.support.releases import DIFFERENCE, GATE, PUBLISHING, let_the_log_say, served
from tests.support.toys import DelayedPrize, logged, starts
from tests.support.trials import write_quickly
from tests.support.workers import ThreadedEngine


def test_the_logs_of_several_servers_are_one(weak: Registry, tmp_path: Path) -> None:
    for name in ("log", "here"):
        served(weak, tmp_path / name, 30)
    served(weak, tmp_path / "log", 20, seed=1)
    served(weak, tmp_path / "there", 20, seed=1)
    few = {"gate": GateConfig(min_sessions=1000), "device": "cpu"}
    whole = update(weak, tmp_path / "log", **few)
    apart = update(weak, [tmp_path / "there", tmp_path / "here"], **few)
    assert apart.reason == whole.reason
    assert apart.reason.startswith("50 sessions are logged, ")
    assert apart.counts == whole.counts


def test_what_is_better_becomes_the_canary_and_earns_more(weak: Registry, tmp_path: Path) -> None:
    """With six steps and a new policy, no log of this size can tell."""
    before = served(weak, tmp_path / "log", 400)
    verdict = update(weak, tmp_path / "log", epochs=40, gate=GATE, device="cpu")
    assert (verdict.answer, verdict.action, verdict.version) == ("cannot tell", "canary", "v000002")
    assert (weak.current(), weak.canary()) == ("v000001", "v000002")
    assert verdict.difference is not None
    assert verdict.difference.low < 0 < verdict.difference.high
    assert verdict.reason == "the log cannot tell: 120 of 120 judging sessions may still be going on: update later"
    why = undecided_reason(verdict.difference, GATE.tolerance)  # in half an hour
    assert why.startswith("the log cannot tell; to see a difference of 1%, 5% or 10% takes about a billion")
    assert " judging sessions of such a log, or about " in why
    assert verdict.void is not None
    assert "these estimates and their intervals mean nothing" in verdict.void
    version = weak.open("v000002")
    assert version.parent == "v000001"
    assert [check["name"] for check in version.metrics["checks"]] == ["log"]
    test = starts(200, seed=9)
    earned = [evaluate(load(weak.open(name).path, "cpu"), DelayedPrize(), test).reward.mean for name in weak.versions()]
    assert earned[1] > earned[0] + 1
    with pytest.raises(ConflictError, match="v000002 is the canary, and its trial goes on; update when"):
        update(weak, tmp_path / "log", gate=GATE, device="cpu")
    weak.promote_canary()
    assert served(weak, tmp_path / "later", 100, seed=1) > before
    assert verdict.counts is not None
    assert (verdict.counts.sessions, verdict.counts.steps) == (400, 2400)


def test_an_engine_teaches_what_one_process_would(
    weak: Registry, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_the_log_say("no worse", monkeypatch)
    shutil.copytree(weak.path, tmp_path / "other")
    made: list[Any] = []
    for registry, engine in ((weak, None), (Registry(tmp_path / "other"), ThreadedEngine(2))):
        settings: dict[str, Any] = {"epochs": 3, "gate": PUBLISHING, "device": "cpu"}
        verdict = update(registry, log, engine=engine, **settings)
        assert verdict.version == "v000002"
        made.append(load(registry.open().path, "cpu"))
        assert not list(registry.path.glob(".learning-*"))
    assert made[0].n_fits == made[1].n_fits == 2
    assert made[0].config == made[1].config
    for name, record in made[0].records.items():
        for mine, theirs in zip(record.curve, made[1].records[name].curve, strict=True):
            assert mine == pytest.approx(theirs, abs=1e-5, rel=1e-5)


def test_only_the_newest_decisions_are_read(weak: Registry, weak_model: Path, log: Path, tmp_path: Path) -> None:
    """As if the older ones had never been logged."""
    records = list(read_log(log))
    times = sorted(record.time for record in records if isinstance(record, Decision))
    assert len(times) == 900
    write_quickly(tmp_path / "newest", (record for record in records if record.time >= times[300]))
    expected = update(weak, tmp_path / "newest", candidate=load(weak_model, "cpu"), device="cpu", min_sessions=50)
    weak.withdraw_canary()
    verdict = update(weak, log, candidate=load(weak_model, "cpu"), device="cpu", min_sessions=50, decisions=600)
    assert verdict.counts is not None
    assert (verdict.counts.decisions, verdict.counts.steps, verdict.counts.since) == (600, 600, times[300])
    assert verdict.difference == expected.difference
    assert verdict.page is not None
    assert re.search(r"read from.*?[0-9-]{10} [0-9:]{5} UTC", verdict.page.read_text())
    with pytest.raises(OptionError, match="must be at least 1, got 10, 0 and None"):
        update(weak, log, decisions=0)


def test_too_little_to_learn_from(weak: Registry, tmp_path: Path) -> None:
    served(weak, tmp_path / "log", 20)
    verdict = update(weak, tmp_path / "log", gate=GATE, device="cpu")
    assert verdict.reason.startswith("20 sessions are logged, ")
    assert verdict.reason.endswith("; 100 (--min-sessions) and at least one are needed")
    with pytest.raises(InputError, match="no version is live"):
        update(Registry(tmp_path / "empty"), tmp_path / "log")


def test_a_crash_leaves_the_old_version_live(weak: Registry, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    let_the_log_say("no worse", monkeypatch)

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("the power failed")

    for where in (
        "mbcal.agents.base.Agent.fit",
        "mbcal.release.log_evidence.compare_by_log",
        "mbcal.registry.registry.Registry.publish",
    ):
        with monkeypatch.context() as patch:
            patch.setattr(where, broken)
            with pytest.raises(RuntimeError):
                update(weak, log, gate=PUBLISHING, device="cpu")
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


def test_what_the_log_has_lost_is_printed(
    weak: Registry, log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = Path(shutil.copytree(log, tmp_path / os.fsdecode(b"damaged \xff")))  # not UTF-8
    segment = damaged / "segment-000001.log"
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 255
    segment.write_bytes(content)
    where = ["--registry", str(weak.path), "--log", str(damaged)]
    with pytest.raises(SystemExit) as left:
        app(["update", *where, "--device", "cpu", "--min-sessions", "1000"])
    assert left.value.code == 3
    losses = capsys.readouterr().err.splitlines()
    assert len(losses) == 1
    assert losses[0].startswith(f"the log has lost records: {tmp_path}/damaged \\udcff/{segment.name}: damaged at byte ")
    verdict = json.loads((weak.path / "updates" / "000001.json").read_text())
    assert [f"the log has lost records: {loss}" for loss in verdict["counts"]["lost"]] == losses


def test_who_teaches_does_not_judge_and_replay_reaches_back(
    weak: Registry, weak_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served(weak, tmp_path / "log", 60)
    weak.publish(weak_model, activate=True)
    served(weak, tmp_path / "log", 50, seed=1)
    seen: dict[str, set[int]] = {}

    def judged(candidate: Agent, now: Agent, sessions: Any, *_: Any, **__: Any) -> Any:
        seen["judge"] = set(sessions.user.tolist())
        return Check("log", "worse", ""), DIFFERENCE

    def taught(self: Agent, sessions: Any, **_: Any) -> Agent:
        seen["teach"] = set(sessions.user.tolist())
        return self

    let_the_log_say("worse", monkeypatch)
    monkeypatch.setattr("mbcal.release.log_evidence.compare_by_log", judged)
    monkeypatch.setattr(Agent, "fit", taught)
    for versions, users in ((1, 50), (2, 110)):
        verdict = update(weak, tmp_path / "log", versions=versions, gate=GateConfig(min_sessions=10), device="cpu")
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

    monkeypatch.setattr("mbcal.release.log_records.join_sessions", spy_join)
    let_the_log_say("worse", monkeypatch)
    monkeypatch.setattr("mbcal.release.log_evidence.compare_by_log", judged)
    monkeypatch.setattr(Agent, "fit", taught)
    for number in range(3):
        served(weak, tmp_path / "log", 40, seed=number)
        update(weak, tmp_path / "log", gate=GateConfig(min_sessions=10), seed=number, device="cpu")
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
    teaching, _ = split_judges(joined.users, sessions.user, GATE.judge_share)
    assert sessions.candidates is not None
    assert sessions.candidates.shape == (40, 6, 12)
    expected = {array.tobytes() for array in sessions.candidates[teaching].astype(np.int64)}
    learned: set[bytes] = set()
    compute_label = DQN.label

    def label(self: DQN, batch: SessionTensors) -> torch.Tensor:
        learned.update(array.tobytes() for array in batch.require_candidates().numpy().astype(np.int64))
        return compute_label(self, batch)

    monkeypatch.setattr(DQN, "label", label)
    gate = GateConfig(min_sessions=10)
    engine = ThreadedEngine(workers) if workers else None
    update(registry, tmp_path / "log", epochs=1, gate=gate, engine=engine, device="cpu")
    assert learned == expected


def test_candidates_of_every_step_go_through_a_store(tmp_path: Path) -> None:
    sessions = logged(20)
    assert sessions.candidates is not None
    candidates = np.repeat(sessions.candidates[:, None], sessions.horizon, 1)
    candidates[:, 1:] = candidates[:, 1:, ::-1]
    by_step = replace(sessions, candidates=candidates)
    store = Store.open(write_sessions(tmp_path / "store", by_step))
    assert np.array_equal(store.sessions("train").candidates, candidates)
