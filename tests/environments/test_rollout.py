"""Roll-outs: who is served what, with which propensity, under which noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from mbcal import Newsfeed
from mbcal.data.cutting import SessionConfig
from mbcal.environments.candidates import sample_candidates
from mbcal.environments.model import ModelEnvironment
from mbcal.environments.newsfeed.log import generate_sessions
from mbcal.environments.rollout import rollout
from mbcal.errors import InputError, OptionError
from mbcal.scoring.scorers import ItemScorer, RandomScorer
from mbcal.types import MASK_ROW
from tests.support.batches import CATALOG, LABELS, net, sessions
from tests.support.toys import DelayedPrize, starts

LIKES = ItemScorer(torch.arange(CATALOG.n_rows, dtype=torch.float32))  # the higher the row the better


def imagined(seed: int = 0) -> ModelEnvironment:
    return ModelEnvironment(net(seed=seed), CATALOG, LABELS)


def test_candidates_are_the_sessions_own_and_as_many_others() -> None:
    draw = np.random.default_rng(0)
    world = Newsfeed(users=30, items=500, seed=1)
    known = generate_sessions(world, SessionConfig(horizon=8), 0)
    length = draw.integers(1, 9, len(known)).astype(np.int32)
    inside = np.arange(8) < length[:, None]
    short = type(known)(
        known.catalog, known.behaviour_set, np.where(inside, known.items, 0), np.where(inside, known.behaviours, 0),
        length, known.user, known.history_items, known.history_behaviours, known.history_length,
    )  # fmt: skip
    candidates = sample_candidates(short, seed=3)
    assert candidates.shape == (len(short), 16)
    everything = set(short.items[short.mask].tolist())
    for row, offered in enumerate(candidates):
        real = offered[offered != MASK_ROW].tolist()
        own = set(short.items[row, : length[row]].tolist())
        assert own <= set(real) <= everything
        assert len(real) == len(set(real)) == 2 * length[row]
        assert real == sorted(real)
        assert (offered[len(real) :] == MASK_ROW).all()
    assert np.array_equal(candidates, sample_candidates(short, seed=3))
    assert not np.array_equal(candidates, sample_candidates(short, seed=4))


def test_a_catalogue_too_small_gives_fewer_candidates() -> None:
    candidates = sample_candidates(sessions(count=40, horizon=12), seed=0)  # 13 rows, up to 24 wanted
    assert ((candidates != MASK_ROW).sum(1) <= CATALOG.n_rows - 1).all()
    for offered in candidates:
        real = offered[offered != MASK_ROW]
        assert len(set(real.tolist())) == len(real)


def environments() -> list[Any]:
    world = Newsfeed(users=40, items=200, seed=1)
    return [
        (imagined(), sessions(count=40, seed=2)),
        (world, generate_sessions(world, SessionConfig(horizon=6, history=4), 0)),
        (DelayedPrize(), starts(40)),
    ]


@pytest.mark.parametrize(("environment", "known"), environments(), ids=["model", "truth", "toy"])
def test_everybody_is_served_once_from_the_candidates_without_repeats(environment: Any, known: Any) -> None:
    candidates = known.candidates if known.candidates is not None else sample_candidates(known, 5)
    enough = (candidates != MASK_ROW).sum(1) >= known.length
    known, candidates = known[enough], candidates[enough]
    served = rollout(RandomScorer(1), environment, known, epsilon=0.3, seed=5, candidates=candidates)
    assert np.array_equal(served.length, known.length)
    assert np.array_equal(served.user, known.user)
    assert np.array_equal(served.history_items, known.history_items)
    for row in range(len(served)):
        shown = served.items[row, : served.length[row]].tolist()
        assert len(set(shown)) == len(shown)
        assert set(shown) <= set(candidates[row].tolist()) - {MASK_ROW}
        assert (served.items[row, served.length[row] :] == 0).all()
    assert served.propensities is not None
    assert (served.propensities[~served.mask] == 0).all()


def test_blocks_change_nothing() -> None:
    known = starts(50)
    whole, parts = (
        rollout(RandomScorer(1), DelayedPrize(noise=True), known, epsilon=0.5, seed=2, block=block) for block in (50, 7)
    )
    for (name, one), (_, other) in zip(whole.arrays(), parts.arrays(), strict=True):
        assert np.array_equal(one, other), name


def test_two_policies_meet_the_same_luck() -> None:
    """Where they show the same item to the same past, the same behaviour comes back; another seed is other noise."""
    known, environment = sessions(count=400, horizon=4, seed=2), imagined()
    enough = (sample_candidates(known, 1) != MASK_ROW).sum(1) >= known.length
    known = known[enough]
    better = ItemScorer(LIKES.values.clone())
    better.values[5] = 1000.0  # only who is offered item 5 sees a difference
    first, second, other = (
        rollout(policy, environment, known, seed=seed) for policy, seed in ((LIKES, 1), (better, 1), (LIKES, 7))
    )
    assert np.array_equal(first.candidates, second.candidates)  # type: ignore[arg-type]
    same = (first.items == second.items).all(1)
    assert 0.05 < same.mean() < 0.95
    assert np.array_equal(first.behaviours[same], second.behaviours[same])
    assert not np.array_equal(first.behaviours, other.behaviours)


def test_greedy_shows_the_best_first() -> None:
    known = starts(30)
    served = rollout(ItemScorer(torch.arange(known.catalog.n_rows).float()), DelayedPrize(), known)
    assert np.array_equal(served.items, np.sort(known.candidates, 1)[:, ::-1][:, :6])  # type: ignore[arg-type]
    assert (served.propensities == 1).all()  # type: ignore[union-attr]


@pytest.mark.parametrize(("epsilon", "temperature"), [(0.25, 0.0), (1.0, 0.0), (0.0, 5.0)])
def test_propensities_are_the_shares_of_what_is_drawn(epsilon: float, temperature: float) -> None:
    """Chi-squared over 100,000 draws of the first step, all sessions alike."""
    one = starts(1)
    known = one[np.zeros(100_000, np.int64)]
    scorer = ItemScorer(torch.arange(known.catalog.n_rows).float())
    served = rollout(scorer, DelayedPrize(), known, epsilon=epsilon, temperature=temperature, seed=0, block=20_000)
    assert served.propensities is not None
    shown, propensity = served.items[:, 0], served.propensities[:, 0].astype(float)
    choices = np.unique(shown)
    said = np.array([propensity[shown == item][0] for item in choices])
    assert all(len(np.unique(propensity[shown == item])) == 1 for item in choices)
    counts = np.array([(shown == item).sum() for item in choices])
    assert said.sum() == pytest.approx(1, abs=1e-5)
    assert stats.chisquare(counts, said / said.sum() * 100_000).pvalue > 1e-4


def test_epsilon_explores_as_often_as_it_says() -> None:
    known = starts(5000)
    scorer = ItemScorer(torch.arange(known.catalog.n_rows).float())
    greedy, exploring = (rollout(scorer, DelayedPrize(), known, epsilon=epsilon, seed=3) for epsilon in (0.0, 0.1))
    differs = (greedy.items[:, 0] != exploring.items[:, 0]).mean()
    assert differs == pytest.approx(0.1 * 11 / 12, abs=4 * (0.09 / 5000) ** 0.5)  # one draw in twelve is the best anyhow


def test_bad_options_are_refused_in_words() -> None:
    with pytest.raises(OptionError, match=r"epsilon: must be in \[0, 1\], got 2"):
        rollout(LIKES, DelayedPrize(), starts(3), epsilon=2)
    with pytest.raises(OptionError, match="temperature"):
        rollout(LIKES, DelayedPrize(), starts(3), epsilon=0.1, temperature=1.0)
    few = starts(3)
    none = few.candidates.copy()  # type: ignore[union-attr]
    none[1] = MASK_ROW
    with pytest.raises(InputError, match="session 1 has none"):
        rollout(LIKES, DelayedPrize(), few, candidates=none)
    with pytest.raises(InputError, match=r"candidates: must lie in 0\.\.25"):
        rollout(LIKES, DelayedPrize(), few, candidates=none + 100)
    with pytest.raises(InputError, match="no sessions to serve"):
        rollout(LIKES, DelayedPrize(), few[:0])
    with pytest.raises(InputError, match="policy: must have begin, score, observe; str has no begin, score, observe"):
        rollout("mbcal", DelayedPrize(), few)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="environment: must have begin, respond, observe; str has no begin"):
        rollout(LIKES, "newsfeed", few)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"sessions: must be sessions, such as store.sessions\('test'\), got str"):
        rollout(LIKES, DelayedPrize(), "feed")  # type: ignore[type-var]


def test_a_session_longer_than_its_candidates_begins_them_again() -> None:
    known = starts(20)
    scorer = ItemScorer(torch.arange(known.catalog.n_rows).float())
    served = rollout(scorer, DelayedPrize(), known, candidates=known.candidates[:, :4])  # type: ignore[index]
    assert np.array_equal(served.items[:, 4:], served.items[:, :2])
    assert (np.sort(served.items[:, :4], 1) == known.candidates[:, :4]).all()  # type: ignore[index]


def test_a_policy_on_another_device_is_named() -> None:
    class Elsewhere(ItemScorer):
        device = torch.device("meta")

    with pytest.raises(OptionError, match="the policy is on meta, the environment on cpu"):
        rollout(Elsewhere(LIKES.values), DelayedPrize(), starts(3))
