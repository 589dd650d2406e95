"""Gymnasium environments as worlds: items, behaviours, horizon, and episodes played by a policy."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

import mbcal
from mbcal.environments.gymnasium.adapter import LEVELS, reward_behaviours
from mbcal.environments.gymnasium.world import GymnasiumWorld
from mbcal.errors import InputError, OptionError
from mbcal.scoring.scorers import RandomScorer
from tests.support.worlds import BEST, HORIZON, KEYS, KIND, SMALL


class Fixed:
    """Ranks items by fixed scores, (items,), whatever happened."""

    def __init__(self, scores: list[float]) -> None:
        self.scores = torch.tensor([0.0, 0.0, *scores])

    def begin(self, user: Any, *history: Any) -> None:
        self.users = user

    def score(self, state: None, candidates: torch.Tensor) -> torch.Tensor:
        return self.scores[candidates.long()]

    def observe(self, state: None, item: Any, behaviour: Any) -> None:
        pass


BEST_POLICY = Fixed([9, 0, 0, 0, 5, 4, 3])


def test_items_features_behaviours_and_horizon_come_from_the_environment() -> None:
    world = GymnasiumWorld(f"gym:{KEYS}")
    assert world.catalog.items == tuple("0123456")
    assert [world.catalog.features["kind"].values(row)[0] for row in range(2, 9)] == list(KIND)
    assert (world.behaviours.names, world.behaviours.rewards) == (("0", "1", "2"), (0.0, 1.0, 2.0))
    assert world.horizon == HORIZON
    assert repr(world) == f"<GymnasiumWorld {KEYS!r}: 7 items, 3 behaviours, up to 4 steps, no repeats>"
    assert GymnasiumWorld("toy/Limited-v0").horizon == 3  # the registered limit
    assert GymnasiumWorld("toy/Never-v0", horizon=5).horizon == 5


def test_item_features_can_be_given_as_values_or_by_a_function() -> None:
    assert GymnasiumWorld("toy/Keys-v0", item_features={}).catalog.features == {}
    by_function = GymnasiumWorld("toy/Keys-v0", item_features=lambda env: {"size": range(env.action_space.n)})
    assert by_function.catalog.features["size"].values(8) == ("6",)
    with pytest.raises(InputError, match="item feature 'size': has 2 values, but there are 7 items"):
        GymnasiumWorld("toy/Keys-v0", item_features={"size": [1, 2]})


def test_a_policy_plays_the_whole_catalogue_and_earns_what_is_known() -> None:
    world = GymnasiumWorld(KEYS)
    played = world.play_episodes(BEST_POLICY, 5)
    assert played.returns.tolist() == [BEST] * 5
    assert played.sessions.items.tolist() == [[2, 6, 7, 8]] * 5
    assert played.sessions.behaviours.tolist() == [[0, 2, 2, 2]] * 5
    assert played.sessions.propensities is not None
    assert (played.sessions.propensities == 1).all()
    assert played.sessions.user.tolist() == [0, 1, 2, 3, 4]
    assert BEST_POLICY.users.tolist() == [2**31 - 1 - user for user in range(5)]  # users whom no encoder of ids knows


def test_repeats_are_a_setting() -> None:
    likes_plain = Fixed([0, 9, 1, 1, 1, 1, 1])
    once = GymnasiumWorld(KEYS).play(likes_plain, 3)
    assert all(len(set(row)) == HORIZON for row in once.items.tolist())
    again = GymnasiumWorld(KEYS, repeats=True).play(likes_plain, 3)
    assert again.items.tolist() == [[3, 3, 3, 3]] * 3
    assert again.rewards.sum(1).tolist() == [4.0] * 3


def test_propensities_are_those_of_the_choices() -> None:
    world = GymnasiumWorld(KEYS)
    played = world.play(BEST_POLICY, 4000, epsilon=0.4, seed=3)
    propensities = played.propensities
    assert propensities is not None
    for step, left in enumerate((7, 6, 5, 4)):
        allowed = {round(0.4 / left, 5), round(0.6 + 0.4 / left, 5)}
        assert {round(value, 5) for value in propensities[:, step].tolist()} <= allowed
    is_key = played.items[:, 0] == 2
    assert abs(is_key.mean() - (0.6 + 0.4 / 7)) < 0.03
    assert np.allclose(propensities[is_key, 0], 0.6 + 0.4 / 7)
    random = world.play(RandomScorer(0), 2000, epsilon=1.0)
    assert np.allclose(random.propensities, [1 / 7, 1 / 6, 1 / 5, 1 / 4])
    assert np.bincount(random.items[:, 0], minlength=9)[2:].min() > 200


def test_episodes_do_not_depend_on_the_batch_and_are_named_by_seed_and_index() -> None:
    world = GymnasiumWorld("toy/Impatient-v0")
    whole = world.play(RandomScorer(0), 23, epsilon=0.5, seed=4)
    in_parts = world.play(RandomScorer(0), 23, epsilon=0.5, seed=4, batch=5)
    later = world.play(RandomScorer(0), 10, epsilon=0.5, seed=4, first_index=13)
    other = world.play(RandomScorer(0), 23, epsilon=0.5, seed=5)
    for name, array in whole.arrays():
        np.testing.assert_array_equal(array, getattr(in_parts, name))
        np.testing.assert_array_equal(array[13:], getattr(later, name))
    assert not np.array_equal(whole.items, other.items)
    # the same users for another policy
    np.testing.assert_array_equal(world.play(BEST_POLICY, 23, seed=4).length, whole.length)


def test_episodes_that_end_early_are_shorter_sessions() -> None:
    played = GymnasiumWorld("toy/Impatient-v0").play_episodes(BEST_POLICY, 400)
    lengths = played.sessions.length
    assert set(lengths.tolist()) == {1, 2, 3, 4}
    assert played.returns.tolist() == [2.0 * (length - 1) for length in lengths]
    np.testing.assert_array_equal(played.sessions.rewards.sum(1), played.returns)


def test_many_distinct_rewards_become_levels() -> None:
    world = GymnasiumWorld("toy/Scored-v0", repeats=True)
    behaviours = world.behaviours
    assert len(behaviours) == LEVELS
    assert list(behaviours.rewards) == sorted(behaviours.rewards)
    played = world.play_episodes(RandomScorer(0), 500, epsilon=1.0)
    assert abs(played.returns.mean() - 4 * 3.5) < 0.5
    assert np.abs(played.sessions.rewards.sum(1) - played.returns).max() < 4  # levels are about 0.7 wide
    assert abs(played.sessions.rewards.sum(1).mean() - played.returns.mean()) < 0.2
    values = np.r_[np.zeros(900), np.arange(1, 101)]
    skewed = reward_behaviours(values, "x")
    assert skewed.rewards[0] == 0
    assert skewed.rewards[-1] == values[values >= skewed.cuts[-1]].mean()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("toy/Nothing-v0", "gym:toy/Nothing-v0: not registered in Gymnasium; check the ID, or install its package and name"),
        ("no_such_module:toy/Keys-v0", "gym:no_such_module:toy/Keys-v0: needs the module no_such_module; install it"),
        ("toy/OneItem-v0", r"has no items to choose from \(its action space has 1 action\)"),
        ("toy/Continuous-v0", "has a continuous action; only worlds whose action is an item"),
        ("toy/Slate-v0", "shows 2 items at a time"),
        ("toy/Buttons-v0", "has MultiBinary actions"),
        ("toy/AtOnce-v0", "ends at once, after one step"),
        ("toy/Never-v0", r"never ends \(not within 10,000 steps\); give a horizon"),
        ("toy/Constant-v0", "always pays 1 in random episodes, so there is nothing to learn"),
        ("toy/Long-v0", "an episode has 8 steps, but there are only 7 items to show; allow repeats"),
    ],
)
def test_what_cannot_be_played_is_refused_in_one_sentence(name: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        GymnasiumWorld(name)


def test_a_reward_that_random_episodes_did_not_pay_is_refused_unless_given() -> None:
    with pytest.raises(InputError, match=r"toy/Surprising-v0: paid 3, which is not among its rewards \(0, 1, 2\)"):
        GymnasiumWorld("toy/Surprising-v0").play(BEST_POLICY, 2000)
    behaviours = mbcal.Behaviours(("0", "1", "2", "3"), (0.0, 1.0, 2.0, 3.0))
    played = GymnasiumWorld("toy/Surprising-v0", behaviours=behaviours).play(BEST_POLICY, 2000)
    assert 0 < (played.behaviours == 3).sum() < 60


def test_wrong_options_are_one_sentence() -> None:
    world = GymnasiumWorld(KEYS)
    with pytest.raises(OptionError, match=r"epsilon: must be in \[0, 1\], got 2"):
        world.play(BEST_POLICY, 2, epsilon=2)
    with pytest.raises(OptionError, match="episodes and batch: must be at least 1, got 0 and 256"):
        world.play(BEST_POLICY, 0)


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("gymnasium", "gym:sardine/A-v0: Gymnasium is not installed; run pip install 'mbcal[gym]'"),
        ("sardine", "gym:sardine/A-v0: needs the module sardine; run pip install 'mbcal[worlds]'"),
    ],
)
def test_what_to_install_is_said(missing: str, message: str) -> None:
    script = f"import sys; sys.modules[{missing!r}] = None\nimport mbcal; mbcal.GymnasiumWorld('sardine/A-v0')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert message in done.stderr


def test_an_agent_fitted_on_random_episodes_finds_the_best_policy() -> None:
    world = GymnasiumWorld(KEYS)
    log = world.play(RandomScorer(0), 600, epsilon=1.0, seed=1)
    agent = mbcal.MBCAL(features=("kind",), **SMALL).fit(log)
    assert world.play_episodes(agent, 20, seed=2).returns.mean() == BEST
    assert log.rewards.sum(1).mean() < BEST - 2


def test_sardine_is_played() -> None:
    pytest.importorskip("sardine", reason="sardine-rec is not installed; pip install 'mbcal[worlds]'")
    world = GymnasiumWorld("sardine/SingleItem-BoredInf-v0")
    assert (len(world.catalog), world.horizon, world.behaviours.rewards) == (1000, 100, (0.0, 1.0))
    assert len(world.catalog.features["topic"].vocabulary) == 10
    played = world.play_episodes(RandomScorer(0), 30, epsilon=1.0, seed=5)
    assert (played.sessions.length == 100).all()
    assert all(len(set(row)) == 100 for row in played.sessions.items.tolist())
    assert 4 < played.returns.mean() < 20  # about 10 clicks of 100
