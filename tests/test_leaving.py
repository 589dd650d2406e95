"""Users who leave, from roll-outs to the service: the length of a session is an outcome."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mbcal import MBCAL, AgentConfig, GRU4Rec, MBCALConfig, NetConfig, Newsfeed, Simulator, Store, TrainingConfig, prepare
from mbcal.data.cutting import SessionConfig
from mbcal.data.endings import suggest_ends
from mbcal.decision_log.join import join_sessions
from mbcal.decision_log.visits import IDLE
from mbcal.environments.newsfeed.log import generate_sessions
from mbcal.environments.newsfeed.oracle import OraclePolicy
from mbcal.environments.newsfeed.world import LEVELS, Leaving
from mbcal.environments.rollout import rollout
from mbcal.errors import OptionError
from mbcal.evaluation.evaluator import evaluate
from mbcal.release.outcomes import OutcomeReader, SessionRule
from mbcal.serving.ranker import Ranker
from tests.decision_log.test_join import CATALOG, answered, decided
from tests.serving.test_ranker import version
from tests.support.logs import Row, table, write_rows
from tests.support.toys import CLICKS, FIRST_ITEM_ROW, HOOKS, LEAVING, STEPS, Hooks, hooked_log
from tests.support.trials import session_records
from tests.support.versions import HISTORY, ITEMS, fitted

SMALL = {"net": NetConfig(hidden=16, embedding=8), "training": TrainingConfig(epochs=6, batch=128, validation=0.2)}


class Myopic:
    """Ranks by the true reward of the next step."""

    def __init__(self, world: Newsfeed) -> None:
        self.world = world
        self.begin, self.observe, self.score = world.begin, world.observe, world.expected_reward


@pytest.fixture(scope="module")
def world() -> Newsfeed:
    return Newsfeed(users=120, items=300, seed=1, leaving=Leaving())


def test_sessions_of_a_roll_out_end_where_users_leave() -> None:
    log = hooked_log(3000)
    is_end = log.behaviour_set.is_terminal[log.behaviours] & log.mask
    assert np.array_equal(is_end.any(1), log.left)
    assert np.array_equal(log.length[log.left] - 1, is_end[log.left].argmax(1))
    assert (log.length[~log.left] == STEPS).all()
    hooks = (log.items < FIRST_ITEM_ROW + HOOKS) & log.mask
    assert is_end[hooks].mean() == pytest.approx(0.9, abs=0.02)
    assert is_end[log.mask & ~hooks].mean() == pytest.approx(0.02, abs=0.005)
    # the length of the session that is served again does not matter: it is an outcome
    short = log[log.length <= 2]
    again = rollout(Ranked(), Hooks(), short, seed=5)
    assert again.length.max() == STEPS
    assert log.rewards[~log.mask].sum() == 0


class Ranked:
    """Shows items by their row."""

    def begin(self, user: Any, *_: Any) -> Any:
        return user

    def score(self, state: Any, candidates: Any) -> Any:
        return candidates.float()

    def observe(self, state: Any, item: Any, behaviour: Any) -> Any:
        return state


def test_an_item_that_pleases_and_drives_users_away_is_ranked_down() -> None:
    log, test = hooked_log(4000), hooked_log(500, seed=9)
    myopic = GRU4Rec(AgentConfig(**SMALL), "cpu").fit(log)  # type: ignore[arg-type]
    mbcal = MBCAL(MBCALConfig(gamma=1.0, **SMALL), "cpu").fit(log)  # type: ignore[arg-type]
    names = ["hook 0", *(f"honest {k}" for k in range(5))]
    assert myopic.rank([], names)[0].item == "hook 0"
    last = mbcal.rank([], names)[-1]
    assert last.item == "hook 0"
    assert last.parts["instant"] > 0.8  # it pleases
    assert last.parts["future"] < -1.0  # it costs most of the 2.4 clicks that five honest items earn
    earned = [evaluate(agent, Hooks(), test, seed=2).served for agent in (myopic, mbcal)]
    assert earned[0].length.mean() < 1.5
    assert earned[1].length.mean() > 5
    assert earned[1].rewards.sum(1).mean() > 2 * earned[0].rewards.sum(1).mean()


def test_the_leaving_newsfeed_is_what_it_says(world: Newsfeed) -> None:
    sessions = generate_sessions(world, SessionConfig(horizon=10), 0)
    assert 0.2 < sessions.left.mean() < 0.95
    state = world.begin(*sessions.tensors().history)
    items = torch.from_numpy(sessions.candidates[:, :1]).long()  # type: ignore[index]
    chances = world.probabilities(state, items)[:, 0]
    assert chances.shape[1] == 2 * LEVELS
    assert torch.allclose(chances.sum(1), torch.ones(len(chances)), atol=1e-5)
    assert torch.allclose(chances[:, LEVELS:].sum(1), world.leaving_probability(state, items)[:, 0], atol=1e-5)
    generator, counts = torch.Generator().manual_seed(0), torch.zeros_like(chances)
    for _ in range(2000):
        behaviour, _ = world.respond(state, items[:, 0], torch.rand(len(items), generator=generator))
        counts[torch.arange(len(items)), behaviour.long()] += 1
    error = torch.sqrt(chances * (1 - chances) / 2000)
    assert float(((counts / 2000 - chances).abs() / (error + 1e-3)).max()) < 6
    again = Newsfeed.from_options(world.options())
    assert again.leaving == world.leaving
    assert "leaving" not in Newsfeed(users=5, items=100).options()


def test_planning_keeps_users_whom_greed_drives_away(world: Newsfeed) -> None:
    sessions = generate_sessions(world, SessionConfig(horizon=10), 0)[:150]
    greedy, planned = (rollout(policy, world, sessions, seed=3) for policy in (Myopic(world), OraclePolicy(world, 10)))
    assert planned.length.mean() > greedy.length.mean() + 1
    assert planned.rewards.sum(1).mean() > 1.2 * greedy.rewards.sum(1).mean()


def test_a_simulator_reports_how_long_users_stay() -> None:
    log = hooked_log(4000)
    simulator = Simulator(hidden=16, embedding=8, epochs=8, device="cpu").fit(log[:3000])
    card = simulator.evaluate(log[3000:])
    rest = log[3000:]
    assert card.staying["real"][0] == 1.0
    assert sum(card.staying["real"]) == pytest.approx(rest.length.mean(), abs=1e-6)  # nothing is censored here
    assert card.length_drift == pytest.approx(0.0, abs=0.1)
    assert card.simulated[0] == pytest.approx(card.real[0], abs=0.1)
    served = rollout(Ranked(), simulator, rest, seed=1)
    true = rollout(Ranked(), Hooks(), rest, seed=1)
    assert served.length.mean() == pytest.approx(true.length.mean(), rel=0.15)


def test_a_log_with_a_label_for_leaving(tmp_path: Path) -> None:
    rows = [
        Row(
            f"u{user}",
            f"i{(user + step) % 7}",
            1_600_000_000 + 100 * step + visit * 10_000,
            "like" if step == 3 else "click",
        )
        for user in range(40)
        for visit in range(2)
        for step in range(4)
    ]
    path = write_rows(tmp_path / "log.csv", rows)
    plain = prepare(table(path), tmp_path / "plain", SessionConfig(gap=30, split=(0, 1, 0)))
    (suggestion,) = suggest_ends(plain)
    assert suggestion == "100% of the 'like' steps end their session; if users leave with it, prepare with --ends like"
    ended = prepare(table(path), tmp_path / "ended", SessionConfig(split=(0, 1, 0), ends=("like",)))
    assert suggest_ends(ended) == []
    sessions = ended.sessions("train")
    assert sessions.length.tolist() == [4] * 80
    assert sessions.left.all()
    assert Store.open(ended.path).behaviours.terminal == ("like",)
    with pytest.raises(OptionError, match=r"no length of their own; give --session or --gap"):
        prepare(table(path), tmp_path / "unclear", SessionConfig(ends=("length",)))
    with pytest.raises(OptionError, match="'left' is no behaviour"):
        prepare(table(path), tmp_path / "unknown", SessionConfig(ends=("left",)))


def test_sessions_of_a_decision_log_end_where_users_left() -> None:
    left = replace(CLICKS, terminal=("skip",))
    records = [decided(f"d{k}", step=k, time=10 + k) for k in range(5)]
    answers = [answered(f"d{k}", behaviour="skip" if k == 1 else "click", name=f"f{k}") for k in range(5)]
    found = join_sessions([*records, *answers], CATALOG, left, horizon=4, history=3).sessions
    assert found.length.tolist() == [2, 3]
    assert found.left.tolist() == [True, False]
    assert found.history_length.tolist() == [0, 2]
    # where the length shows it: the session is over only if nothing followed for a while
    newer = decided("e", session="t", time=10 + int((IDLE + 10) * 1e6))
    open_still = join_sessions([*records, *answers], CATALOG, LEAVING, horizon=20).sessions
    over = join_sessions([*records, *answers, newer, answered("e", name="g")], CATALOG, LEAVING, horizon=20).sessions
    assert (open_still.left.tolist(), sorted(over.left.tolist())) == ([False], [False, True])


def test_what_follows_leaving_is_history() -> None:
    agent = fitted("gru4rec")
    ranker = Ranker(version(agent))
    plain = ranker.state_after([*HISTORY, ("item 1", "like")], [("item 2", "click")])
    entry = version(agent)
    entry.behaviours = replace(entry.behaviours, terminal=("like",))
    ending = Ranker(entry).state_after(HISTORY, [("item 1", "like"), ("item 2", "click")])
    assert all(np.array_equal(a, b) for a, b in zip(plain.hidden, ending.hidden, strict=True))
    assert len(ITEMS) > 2


def test_a_canary_counts_a_session_until_the_user_leaves() -> None:
    reader = OutcomeReader({"skip": 0.0, "click": 1.0}, SessionRule(horizon=9, idle=100, longest=400), terminal=("skip",))
    for record in session_records("s", "v1", ["click", "skip", "click"]):
        reader.add(record)
    found = reader.outcomes(now=3_000_000)  # long before it would be idle
    assert (found.reward.tolist(), found.length.tolist()) == ([1.0], [2])


def test_gymnasium_terminates_where_the_user_leaves() -> None:
    gym = pytest.importorskip("mbcal.gym")
    env = gym.SessionEnv(Hooks(), hooked_log(50))
    ended = []
    for seed in range(40):
        env.reset(seed=seed, options={"session": seed})
        steps, over = 0, False
        while not over:
            available = np.flatnonzero(env._parallel.available[0])
            _, reward, over, truncated, _ = env.step(int(available[0]))
            assert not truncated
            steps += 1
        ended.append(steps)
        assert reward in (0.0, 1.0)
    assert min(ended) == 1  # a hook comes first
    assert max(ended) <= STEPS
