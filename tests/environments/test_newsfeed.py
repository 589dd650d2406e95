"""The newsfeed's truth: against plain Python, against brute-force simulation, and in what it is meant to do to policies."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from mbcal import Newsfeed, NewsfeedConfig, Oracle, SessionConfig, prepare_newsfeed
from mbcal.environments.newsfeed.articles import generate_articles
from mbcal.environments.newsfeed.log import sample_candidate_sets
from mbcal.environments.newsfeed.oracle import OraclePolicy
from mbcal.environments.newsfeed.world import NewsfeedConstants, UserState
from mbcal.errors import OptionError
from tests.support.logs import content

WORLD = Newsfeed(users=400, items=300, seed=3)
KNOWN = WORLD.constants


class SlowUser:
    """One user, in plain Python, straight from the equations."""

    def __init__(self, user: int) -> None:
        self.interests = WORLD.initial_interests[user].tolist()
        self.satiation = [0.0] * KNOWN.topics
        self.mood = 0.0
        self.bias = float(WORLD.bias[user])

    def copy(self) -> SlowUser:
        other = object.__new__(SlowUser)
        other.interests, other.satiation, other.mood, other.bias = self.interests, self.satiation, self.mood, self.bias
        return other

    def utility(self, row: int) -> float:
        topics = WORLD.topics[row].tolist()
        liked = sum(w * z for w, z in zip(self.interests, topics, strict=True))
        tired = sum(s * z for s, z in zip(self.satiation, topics, strict=True))
        instant = float(WORLD.instant[row])
        return KNOWN.base + self.bias + KNOWN.interest * liked - KNOWN.satiation * tired + instant + self.mood

    def chances(self, row: int) -> list[float]:
        above = [1.0, *(1 / (1 + math.exp(-(self.utility(row) - k - 0.5) / KNOWN.noise)) for k in range(11)), 0.0]
        return [above[k] - above[k + 1] for k in range(12)]

    def expected(self, row: int) -> float:
        return sum((level + 1) * chance for level, chance in enumerate(self.chances(row)))

    def step(self, row: int, level: int) -> SlowUser:
        topics, moved = WORLD.topics[row].tolist(), self.copy()
        pull = KNOWN.drift * level / 11
        moved.interests = [w + pull * (z - w) for w, z in zip(self.interests, topics, strict=True)]
        moved.satiation = [KNOWN.forget * s + z for s, z in zip(self.satiation, topics, strict=True)]
        moved.mood = KNOWN.calm * self.mood - KNOWN.bait_later * float(WORLD.bait[row])
        return moved

    def state(self) -> UserState:
        one = [torch.tensor([part]) for part in (self.interests, self.satiation, self.mood, self.bias)]
        return UserState(*one)


def test_truth_equals_plain_python() -> None:
    draw = np.random.default_rng(0)
    for user in range(5):
        history = draw.integers(2, 302, 6), draw.integers(0, 12, 6)
        slow = SlowUser(user)
        for row, level in zip(*history, strict=True):
            slow = slow.step(int(row), int(level))
        slow.satiation = [KNOWN.rest * s for s in slow.satiation]
        slow.mood *= KNOWN.rest
        padded = [np.r_[part, 0, 0] for part in history]  # padding is never replayed
        state = WORLD.begin(
            torch.tensor([user]), torch.tensor(padded[0])[None], torch.tensor(padded[1])[None], torch.tensor([6])
        )
        rows = torch.tensor([[2, 50, 77, 1]])
        truth = [slow.expected(int(row)) for row in rows[0]]
        assert WORLD.expected_reward(state, rows)[0].tolist() == pytest.approx(truth, abs=1e-4)
        chances = [slow.chances(int(row)) for row in rows[0]]
        assert np.allclose(WORLD.probabilities(state, rows)[0], chances, atol=1e-5)


def test_expected_reward_equals_brute_force_simulation() -> None:
    draws = 200_000
    user = torch.zeros(draws, dtype=torch.long)
    state, item = WORLD.fresh_state(user), torch.full((draws,), 40)
    behaviour, _ = WORLD.respond(state, item, torch.rand(len(item), generator=torch.Generator().manual_seed(1)))
    reward = behaviour.double() + 1
    truth = float(WORLD.expected_reward(state, item[:, None])[0, 0])
    assert float(reward.mean()) == pytest.approx(truth, abs=4 * float(reward.std()) / draws**0.5)
    seen = np.bincount(behaviour.numpy(), minlength=12) / draws
    chances = WORLD.probabilities(state, item[:, None])[0, 0].double().numpy()
    chi_squared = float(np.sum((seen - chances) ** 2 / chances) * draws)
    assert chi_squared < 31.3  # 0.1% of 11 degrees of freedom


def test_shared_noise_gives_the_better_item_the_better_behaviour() -> None:
    state = WORLD.fresh_state(torch.arange(400))
    rows = torch.randint(2, 302, (400, 2), generator=torch.Generator().manual_seed(0))
    best, worst = rows.gather(1, WORLD.utility(state, rows).argsort(1, descending=True)).unbind(1)
    uniform = torch.rand(400, generator=torch.Generator().manual_seed(2))
    assert bool((WORLD.respond(state, best, uniform)[0] >= WORLD.respond(state, worst, uniform)[0]).all())


def test_bait_pleases_now_and_costs_later() -> None:
    user = torch.arange(400)
    state = WORLD.fresh_state(user)
    bait, other = int(WORLD.bait[2:].argmax()) + 2, int(WORLD.bait[2:].argmin()) + 2
    level = torch.full((400,), 5)
    after_bait, after_other = (WORLD.observe(state, torch.full((400,), row), level) for row in (bait, other))
    neutral = torch.full((400, 1), 1)  # the average item
    without_bait = copy.deepcopy(WORLD)  # the same item without its bait
    without_bait.instant[bait] -= KNOWN.bait_now * WORLD.bait[bait]
    gain = WORLD.utility(state, torch.full((400, 1), bait)) - without_bait.utility(state, torch.full((400, 1), bait))
    assert bool((gain > 0.9 * KNOWN.bait_now).all())
    articles = generate_articles(300, KNOWN.topics, torch.Generator().manual_seed(3))
    by_hand = KNOWN.appeal * articles.appeal + KNOWN.bait_now * articles.bait
    assert torch.allclose(WORLD.instant[2:], by_hand)
    gap = KNOWN.bait_later * float(WORLD.bait[bait] - WORLD.bait[other])
    assert torch.allclose(after_other.mood - after_bait.mood, torch.tensor(gap))
    assert float(WORLD.utility(after_other, neutral).mean()) > float(WORLD.utility(after_bait, neutral).mean()) + 0.5 * gap


def test_repeated_topics_tire_and_interests_drift_towards_what_is_read() -> None:
    user = torch.arange(400)
    item = torch.full((400,), 30)
    state = WORLD.fresh_state(user)
    for _ in range(3):
        state = WORLD.observe(state, item, torch.full((400,), 11))
    assert bool((state.satiation @ WORLD.topics[30] > 0).all())
    before = (WORLD.initial_interests - WORLD.topics[30]).norm(dim=1)
    assert torch.allclose((state.interests - WORLD.topics[30]).norm(dim=1), before * (1 - KNOWN.drift) ** 3, atol=1e-5)
    skipped = WORLD.observe(WORLD.fresh_state(user), item, torch.zeros(400, dtype=torch.long))
    assert torch.equal(skipped.interests, WORLD.initial_interests)


def play(policy: str, users: int = 400, horizon: int = 20) -> float:
    draw = torch.Generator().manual_seed(7)
    state = WORLD.fresh_state(torch.arange(users))
    candidates = sample_candidate_sets(WORLD.popularity, users, 2 * horizon, draw)
    available = torch.ones_like(candidates, dtype=torch.bool)
    total = torch.zeros(users)
    noise = torch.rand(horizon, users, generator=draw)
    for step in range(horizon):
        if policy == "oracle":
            chosen = Oracle(WORLD).choose(state, candidates, available, horizon - step)
        elif policy == "myopic":
            chosen = WORLD.utility(state, candidates).masked_fill(~available, -torch.inf).argmax(1)
        else:
            chosen = torch.multinomial(available.float(), 1, generator=draw).squeeze(1)
        item = candidates.gather(1, chosen[:, None]).squeeze(1)
        behaviour, state = WORLD.respond(state, item, noise[step])
        available = available.scatter(1, chosen[:, None], False)
        total += behaviour + 1.0
    return float(total.mean())


def test_the_far_sighted_beat_the_myopic_who_beat_chance() -> None:
    random, myopic, oracle = play("random"), play("myopic"), play("oracle")
    assert random + 0.5 < myopic
    assert myopic * 1.12 < oracle


def best_value(user: SlowUser, rows: tuple[int, ...], left: int) -> float:
    """The optimum, by trying everything."""
    values = []
    for row in rows:
        value = user.expected(row)
        if left > 1:
            rest = tuple(other for other in rows if other != row)
            value += sum(
                chance * best_value(user.step(row, level), rest, left - 1) for level, chance in enumerate(user.chances(row))
            )
        values.append(value)
    return max(values)


def value_of(choose: object, user: SlowUser, rows: tuple[int, ...], left: int) -> float:
    """What a policy is worth, exactly."""
    row = rows[choose(user, rows, left)]  # type: ignore[operator]
    value = user.expected(row)
    if left > 1:
        rest = tuple(other for other in rows if other != row)
        value += sum(
            chance * value_of(choose, user.step(row, level), rest, left - 1)
            for level, chance in enumerate(user.chances(row))
        )
    return value


def test_oracle_is_within_a_percent_of_exhaustive_search() -> None:
    oracle = Oracle(WORLD)

    def look_ahead(user: SlowUser, rows: tuple[int, ...], left: int) -> int:
        candidates = torch.tensor([rows])
        return int(oracle.choose(user.state(), candidates, torch.ones_like(candidates, dtype=torch.bool), left)[0])

    def myopic(user: SlowUser, rows: tuple[int, ...], left: int) -> int:
        return max(range(len(rows)), key=lambda k: user.utility(rows[k]))

    draw = np.random.default_rng(5)
    best = planned = near = 0.0
    for user in range(6):
        rows = tuple(int(row) for row in draw.choice(np.arange(2, 302), 4, replace=False))
        best += best_value(SlowUser(user), rows, 3)
        planned += value_of(look_ahead, SlowUser(user), rows, 3)
        near += value_of(myopic, SlowUser(user), rows, 3)
    assert near < planned <= best + 1e-3
    assert planned > 0.99 * best


def test_oracle_takes_only_what_is_available() -> None:
    state = WORLD.fresh_state(torch.arange(50))
    candidates = sample_candidate_sets(WORLD.popularity, 50, 6, torch.Generator().manual_seed(0))
    available = torch.zeros(50, 6, dtype=torch.bool)
    available[torch.arange(50), torch.arange(50) % 6] = True
    for left in (1, 3):  # also when there is less to show than there are steps
        assert Oracle(WORLD).choose(state, candidates, available, left).tolist() == [k % 6 for k in range(50)]
    with pytest.raises(ValueError, match="nothing to choose"):
        Oracle(WORLD).choose(state, candidates, torch.zeros_like(available), 3)


def test_offers_are_distinct_and_by_weight() -> None:
    weights = torch.tensor([8.0, 4.0, 2.0, 1.0, 1.0])
    drawn = sample_candidate_sets(weights, 40_000, 1, torch.Generator().manual_seed(0)) - 2
    assert np.allclose(np.bincount(drawn.flatten()) / 40_000, weights / 16, atol=0.01)
    rows = sample_candidate_sets(weights, 500, 5, torch.Generator().manual_seed(0))
    assert bool((rows == torch.arange(2, 7)).all())


def test_log_is_what_the_world_says(tmp_path: Path) -> None:
    """Replays every logged session from its own history in the world the manifest describes."""
    store = prepare_newsfeed(
        tmp_path / "feed", NewsfeedConfig(sessions=402, items=200), SessionConfig(horizon=6, history=8, seed=5)
    )
    world = Newsfeed.from_options(store.manifest["options"])
    assert store.catalog.items == world.catalog.items
    assert store.manifest["counts"]["sessions"] == 402
    seen = 0
    for part in ("simulator", "train", "test"):
        sessions = store.sessions(part)
        seen += len(sessions)
        known = sessions.tensors()
        state = world.begin(known.user, known.history_items, known.history_behaviours, known.history_length)
        assert known.candidates is not None
        assert known.propensities is not None
        available = torch.ones_like(known.candidates, dtype=torch.bool)
        for step in range(6):
            chances = world.logging_probabilities(world.utility(state, known.candidates), available)
            chosen = known.candidates == known.items[:, step : step + 1]
            assert bool((chosen.sum(1) == 1).all())
            assert torch.allclose(chances[chosen], known.propensities[:, step], atol=1e-5)
            available &= ~chosen
            state = world.observe(state, known.items[:, step], known.behaviours[:, step])
        assert set(sessions.history_length.tolist()) <= {0, 6, 8}
    assert seen == 402


def test_logging_policy_draws_with_its_propensities(tmp_path: Path) -> None:
    """Inverse propensities of the steps taken sum to the number of choices there were."""
    store = prepare_newsfeed(
        tmp_path / "feed", NewsfeedConfig(sessions=8000, items=200), SessionConfig(horizon=3, split=(0, 1, 0))
    )
    propensities = store.sessions("train").propensities
    assert propensities is not None
    for step, choices in enumerate((6, 5, 4)):
        inverse = 1 / propensities[:, step].astype(float)
        assert inverse.mean() == pytest.approx(choices, abs=4 * inverse.std() / 8000**0.5)


def test_same_seed_same_bytes_other_seed_other_world(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        prepare_newsfeed(tmp_path / name, NewsfeedConfig(sessions=50, items=120), SessionConfig(seed=seed))
    assert content(tmp_path / "a") == content(tmp_path / "b")
    assert content(tmp_path / "a") != content(tmp_path / "c")


def test_seven_features_tell_what_they_should() -> None:
    features = WORLD.catalog.features
    assert list(features) == ["category", "topics", "tag", "title", "type", "source"]  # the seventh is the item itself
    for row in range(2, 302):
        named = {int(name.removeprefix("topic-")) for name in features["topics"].values(row)}
        assert named == set(torch.nonzero(WORLD.topics[row]).flatten().tolist())
    lurid = np.array([sum(word.startswith("lurid") for word in features["title"].values(row)) for row in range(2, 302)])
    assert np.corrcoef(lurid, WORLD.bait[2:])[0, 1] > 0.4


@pytest.mark.parametrize(
    ("log", "how", "message"),
    [
        ({"sessions": 0}, SessionConfig(), "sessions: must be at least 1"),
        ({"items": 10}, SessionConfig(horizon=2), "items: must be at least 100"),
        ({"items": 150}, SessionConfig(horizon=80), "need 160 candidates, the feed has 150"),
        ({}, SessionConfig(gap=5), "leave out --gap, --min-length, --max-per-user"),
        ({}, SessionConfig(min_length=2), "leave out --gap, --min-length, --max-per-user"),
        ({}, SessionConfig(none_reward=1.0), "--none-reward"),
        ({}, SessionConfig(ends=("left",)), "give --leaving in place of --ends"),
        ({}, SessionConfig(ends=("length",)), "give --leaving in place of --ends"),
    ],
)
def test_impossible_feeds_are_refused(tmp_path: Path, log: dict[str, int], how: SessionConfig, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        prepare_newsfeed(tmp_path / "feed", NewsfeedConfig(**{"sessions": 8, **log}), how)
    assert list(tmp_path.iterdir()) == []


def test_constants_change_the_world() -> None:
    calm = Newsfeed(50, 100, 0, NewsfeedConstants(bait_later=0.0))
    state = calm.observe(calm.fresh_state(torch.arange(50)), torch.full((50,), 9), torch.zeros(50))
    assert bool((state.mood == 0).all())


def test_reprs_are_short() -> None:
    world = Newsfeed(users=1_000, items=200, seed=3)
    policy = OraclePolicy(world, 20)
    user = torch.arange(4, dtype=torch.int32)
    history = torch.zeros(4, 2, dtype=torch.int32), torch.zeros(4, 2, dtype=torch.uint8), torch.zeros(4, dtype=torch.int32)
    assert repr(world) == "<Newsfeed: 1,000 users, 200 items, seed 3, on cpu>"
    assert repr(world.begin(user, *history)) == "<UserState: 4 sessions>"
    assert repr(Oracle(world)) == f"Oracle(world={world!r}, width=4)"
    assert repr(policy) == f"<OraclePolicy: plans 20 steps in {world!r}>"
    assert repr(policy.begin(user, *history)) == "<OracleState: 4 sessions after 0 steps>"
