"""Our users as Gymnasium environments."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mbcal import Newsfeed, NewsfeedConfig, Simulator, SimulatorConfig, TrainingConfig, prepare_newsfeed
from mbcal.data.cutting import SessionConfig
from mbcal.environments.newsfeed.log import generate_sessions
from tests.support.logs import ROOT
from tests.support.toys import BEST, GREEDY, KEYS, DelayedPrize, starts

gymnasium = pytest.importorskip("gymnasium", reason="the gym extra is not installed")
from gymnasium.utils.env_checker import check_env  # noqa: E402

from mbcal.gym import SessionEnv, SessionVectorEnv  # noqa: E402


@cache
def small_feed() -> tuple[Any, Any]:
    world = Newsfeed(users=60, items=120, seed=1)
    return world, generate_sessions(world, SessionConfig(horizon=5, history=4), 0)


@cache
def simulators() -> dict[str, Any]:
    _, known = small_feed()
    quick = TrainingConfig(epochs=1, batch=32)
    return {
        family: Simulator(SimulatorConfig(family, hidden=8, embedding=4, training=quick), "cpu").fit(known[known.user < 30])
        for family in ("lstm", "transformer")
    }


def environment(kind: str) -> tuple[Any, Any]:
    world, known = small_feed()
    return (world if kind == "truth" else simulators()[kind]), known[known.user >= 30]


kinds = pytest.mark.parametrize("kind", ["truth", "lstm", "transformer"])


@kinds
def test_gymnasium_finds_no_fault(kind: str) -> None:
    check_env(SessionEnv(*environment(kind)), skip_render_check=True)


def test_the_registered_newsfeed() -> None:
    env = gymnasium.make("mbcal/Newsfeed-v0", users=20, items=120, horizon=4)
    check_env(env.unwrapped, skip_render_check=True)
    many = gymnasium.make_vec("mbcal/Newsfeed-v0", num_envs=3, users=20, items=120, horizon=4)
    assert isinstance(many.unwrapped, SessionVectorEnv)
    observation, _ = many.reset(seed=0)
    assert observation in many.observation_space


def test_the_registered_simulator(tmp_path: Path) -> None:
    store = prepare_newsfeed(tmp_path / "feed", NewsfeedConfig(sessions=200, items=100), SessionConfig(horizon=4, history=4))
    config = SimulatorConfig(hidden=4, embedding=4, training=TrainingConfig(epochs=1))
    Simulator(config, "cpu").fit(store).save(tmp_path / "sim")
    given = {"simulator": tmp_path / "sim", "data": tmp_path / "feed"}
    check_env(gymnasium.make("mbcal/Simulator-v0", **given).unwrapped, skip_render_check=True)
    many = gymnasium.make_vec("mbcal/Simulator-v0", num_envs=3, **given)
    assert many.reset(seed=0)[0]["candidates"].shape == (3, 8)


def test_an_episode_is_a_session_and_terminates_with_it() -> None:
    env = SessionEnv(DelayedPrize(), starts(10))
    observation, info = env.reset(seed=0, options={"session": 3})
    assert observation["candidates"].tolist() == starts(10).candidates[3].tolist()  # type: ignore[index]
    assert info["action_mask"].all()
    key = 0  # candidates rise, so the keys come first
    observation, reward, over, cut, info = env.step(key)
    assert (reward, over, cut) == (0.0, False, False)
    assert observation["items"][0] == observation["candidates"][key] < 2 + KEYS
    assert observation["behaviours"].tolist() == [0, 3, 3, 3, 3, 3]  # 3: nothing yet
    assert observation["step"].tolist() == [1]
    earned = 0.0
    for action in range(2, 7):
        assert not over
        observation, reward, over, cut, info = env.step(action)
        earned += reward
    assert over
    assert not cut
    assert earned == BEST
    assert info["action_mask"].sum() == 12 - 6


def test_a_candidate_that_is_gone_pays_nothing_and_costs_a_step() -> None:
    env = SessionEnv(DelayedPrize(), starts(10))
    env.reset(seed=0, options={"session": 0})
    _, first, *_ = env.step(4)  # a sweet
    observation, again, over, _, info = env.step(4)
    assert (first, again, over) == (1.0, 0.0, False)
    assert info["invalid"]
    assert observation["step"].tolist() == [2]
    assert observation["items"][1] == 0
    rest = [env.step(action)[1] for action in (5, 6, 7, 2)]
    assert sum(rest) == GREEDY - 2


@kinds
def test_many_sessions_side_by_side_answer_as_one_alone(kind: str) -> None:
    """The same sessions, actions and luck give the same rewards, whether batched (and ending at other times) or alone."""
    users, known = environment(kind)
    length = (known.length - np.arange(len(known)) % 3).astype(np.int32)
    inside = np.arange(known.horizon) < length[:, None]
    known = type(known)(
        known.catalog, known.behaviour_set, np.where(inside, known.items, 0), np.where(inside, known.behaviours, 0), length,
        known.user, known.history_items, known.history_behaviours, known.history_length, known.candidates,
    )  # fmt: skip
    many, singles = SessionVectorEnv(users, known, 4, seed=0), [SessionEnv(users, known, seed=0) for _ in range(4)]
    observation, info = many.reset(seed=0)
    draw = np.random.default_rng(1)
    fresh, episodes = np.ones(4, bool), 0
    for _ in range(25):
        for place in np.flatnonzero(fresh):
            alone, _ = singles[place].reset(options={"session": int(many._table.row[place])})
            assert all(np.array_equal(alone[name], observation[name][place]) for name in alone)
        actions = np.array([draw.choice(np.flatnonzero(mask)) for mask in info["action_mask"]])
        uniform = draw.random(4)
        many._np_random = Fixed(uniform, many.np_random)
        again = many._ended.copy()  # these only start anew in this step
        observation, rewards, over, cut, info = many.step(actions)
        assert observation in many.observation_space
        assert not cut.any()
        for place in np.flatnonzero(~again):
            singles[place]._np_random = Fixed(uniform[place : place + 1], singles[place].np_random)
            alone, reward, ended, _, _ = singles[place].step(int(actions[place]))
            assert (reward, ended) == (rewards[place], over[place])
            assert all(np.array_equal(alone[name], observation[name][place]) for name in alone)
        assert (rewards[again] == 0).all()
        assert not over[again].any()
        fresh, episodes = again, episodes + int(over.sum())
    assert episodes > 15


class Fixed:
    """A generator whose uniform numbers are given."""

    def __init__(self, uniform: np.ndarray[Any, Any], other: Any) -> None:
        self._uniform, self._other = uniform, other

    def random(self, size: int) -> np.ndarray[Any, Any]:
        return self._uniform[:size]

    def integers(self, *arguments: Any, **more: Any) -> Any:
        return self._other.integers(*arguments, **more)


def test_somebody_elses_dqn_trains_on_it() -> None:
    pytest.importorskip("stable_baselines3", reason="stable-baselines3 is not installed")
    example = [sys.executable, str(ROOT / "examples/dqn_stable_baselines3.py"), "--steps", "1500"]
    done = subprocess.run(example, capture_output=True, text=True, check=True)
    means = {line.split()[0]: float(line.split()[1]) for line in done.stdout.splitlines()}
    assert set(means) == {"random", "dqn"}
    assert 35 < means["random"] < 50
    assert means["dqn"] > means["random"] - 5  # too short a training to ask for more


def test_without_gymnasium_it_says_what_to_install() -> None:
    script = "import sys; sys.modules['gymnasium'] = None\nimport mbcal.gym"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "gym: Gymnasium is not installed; run pip install 'mbcal[gym]'" in done.stderr
