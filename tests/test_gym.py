"""Users as Gymnasium environments."""

from __future__ import annotations

import dataclasses
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
from mbcal.errors import InputError, OptionError
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
    _, logged = small_feed()
    quick = TrainingConfig(epochs=1, batch=32)
    return {
        family: Simulator(SimulatorConfig(family, hidden=8, embedding=4, training=quick), "cpu").fit(
            logged[logged.user < 30]
        )
        for family in ("lstm", "transformer")
    }


def environment(kind: str) -> tuple[Any, Any]:
    world, logged = small_feed()
    return (world if kind == "truth" else simulators()[kind]), logged[logged.user >= 30]


kinds = pytest.mark.parametrize("kind", ["truth", "lstm", "transformer"])


@kinds
def test_gymnasium_accepts_the_environment(kind: str) -> None:
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
    folders = {"simulator": tmp_path / "sim", "data": tmp_path / "feed"}
    check_env(gymnasium.make("mbcal/Simulator-v0", **folders).unwrapped, skip_render_check=True)
    many = gymnasium.make_vec("mbcal/Simulator-v0", num_envs=3, **folders)
    assert many.reset(seed=0)[0]["candidates"].shape == (3, 8)


def test_an_episode_is_a_session_and_terminates_with_it() -> None:
    env = SessionEnv(DelayedPrize(), starts(10))
    observation, info = env.reset(seed=0, options={"session": 3})
    assert observation["candidates"].tolist() == starts(10).candidates[3].tolist()  # type: ignore[index]
    assert info["action_mask"].all()
    key = 0  # candidates rise, so the keys come first
    observation, reward, terminated, truncated, info = env.step(key)
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert observation["items"][0] == observation["candidates"][key] < 2 + KEYS
    assert observation["behaviours"].tolist() == [0, 3, 3, 3, 3, 3]  # 3: no behaviour yet
    assert observation["step"].tolist() == [1]
    earned = 0.0
    for action in range(2, 7):
        assert not terminated
        observation, reward, terminated, truncated, info = env.step(action)
        earned += reward
    assert terminated
    assert not truncated
    assert earned == BEST
    assert info["action_mask"].sum() == 12 - 6


def test_a_candidate_shown_before_pays_nothing_and_costs_a_step() -> None:
    env = SessionEnv(DelayedPrize(), starts(10))
    env.reset(seed=0, options={"session": 0})
    _, first, *_ = env.step(4)  # a sweet
    observation, second, terminated, _, info = env.step(4)
    assert (first, second, terminated) == (1.0, 0.0, False)
    assert info["invalid"]
    assert observation["step"].tolist() == [2]
    assert observation["items"][1] == 0
    rewards = [env.step(action)[1] for action in (5, 6, 7, 2)]
    assert sum(rewards) == GREEDY - 2


@kinds
def test_many_sessions_side_by_side_respond_as_one_alone(kind: str) -> None:
    """The same sessions, actions and noise give the same rewards, whether batched (and ending at other times) or alone."""
    users, logged = environment(kind)
    length = (logged.length - np.arange(len(logged)) % 3).astype(np.int32)
    inside = np.arange(logged.horizon) < length[:, None]
    logged = dataclasses.replace(
        logged,
        items=np.where(inside, logged.items, 0),
        behaviours=np.where(inside, logged.behaviours, 0).astype(np.uint8),
        length=length,
        propensities=None,
        timestamps=None,
    )
    many, singles = SessionVectorEnv(users, logged, 4, seed=0), [SessionEnv(users, logged, seed=0) for _ in range(4)]
    observation, info = many.reset(seed=0)
    draw = np.random.default_rng(1)
    begun, ended, episodes = np.ones(4, bool), np.zeros(4, bool), 0
    for _ in range(25):
        for env in np.flatnonzero(begun):
            alone, _ = singles[env].reset(options={"session": int(info["session"][env])})
            assert all(np.array_equal(alone[name], observation[name][env]) for name in alone)
        actions = np.array([draw.choice(np.flatnonzero(mask)) for mask in info["action_mask"]])
        uniform = draw.random(4)
        many.np_random = FixedUniform(uniform, many.np_random)
        begun = ended  # these only begin anew in this step
        observation, rewards, ended, truncated, info = many.step(actions)
        assert observation in many.observation_space
        assert not truncated.any()
        for env in np.flatnonzero(~begun):
            singles[env].np_random = FixedUniform(uniform[env : env + 1], singles[env].np_random)
            alone, reward, terminated, _, _ = singles[env].step(int(actions[env]))
            assert (reward, terminated) == (rewards[env], ended[env])
            assert all(np.array_equal(alone[name], observation[name][env]) for name in alone)
        assert (rewards[begun] == 0).all()
        assert not ended[begun].any()
        episodes += int(ended.sum())
    assert episodes > 15


class FixedUniform:
    """A generator whose uniform numbers are given."""

    def __init__(self, uniform: np.ndarray[Any, Any], other: Any) -> None:
        self.uniform, self.other = uniform, other

    def random(self, size: int) -> np.ndarray[Any, Any]:
        return self.uniform[:size]

    def integers(self, *arguments: Any, **more: Any) -> Any:
        return self.other.integers(*arguments, **more)


def per_step(sessions: Any) -> Any:
    """The same sessions with their candidates repeated for every step."""
    return dataclasses.replace(sessions, candidates=np.repeat(sessions.candidates[:, None], sessions.horizon, 1))


@pytest.mark.parametrize("kind", [SessionEnv, SessionVectorEnv])
def test_sessions_with_one_candidate_set_per_step_are_refused(kind: Any) -> None:
    with pytest.raises(InputError, match="one candidate set per step, but an environment needs one per session") as raised:
        kind(DelayedPrize(), per_step(starts(3)))
    assert "\n" not in str(raised.value)
    sampled = kind(DelayedPrize(), dataclasses.replace(starts(3), candidates=None))  # what the message advises
    assert sampled.reset(seed=0)[0]["candidates"].shape[-1] == 12


@pytest.mark.parametrize("kind", [SessionEnv, SessionVectorEnv])
def test_no_sessions_and_impossible_actions_are_refused(kind: Any) -> None:
    with pytest.raises(InputError, match="no sessions to serve"):
        kind(DelayedPrize(), starts(3)[:0])
    env = kind(DelayedPrize(), starts(3))
    env.reset(seed=0)
    for action in (-1, 12):
        with pytest.raises(OptionError, match=rf"action: must be in 0\.\.11, got {action}"):
            env.step(action if kind is SessionEnv else np.array([action]))
    with pytest.raises(OptionError, match=r"session: must be in 0\.\.2, got 3"):
        SessionEnv(DelayedPrize(), starts(3)).reset(options={"session": 3})


def test_the_dqn_of_stable_baselines3_trains_on_it() -> None:
    pytest.importorskip("stable_baselines3", reason="stable-baselines3 is not installed")
    example = [sys.executable, str(ROOT / "examples/dqn_stable_baselines3.py"), "--steps", "800"]
    done = subprocess.run(example, capture_output=True, text=True, check=True)
    means = {line.split()[0]: float(line.split()[1]) for line in done.stdout.splitlines()}
    assert set(means) == {"random", "dqn"}
    assert 35 < means["random"] < 50
    assert means["dqn"] > means["random"] - 5  # too short a training to ask for more


def test_without_gymnasium_the_error_says_what_to_install() -> None:
    script = "import sys; sys.modules['gymnasium'] = None\nimport mbcal.gym"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "gym: Gymnasium is not installed; run pip install 'mbcal[gym]'" in done.stderr
