"""Recommendations for many users from a whole catalogue: exact, filtered, in bounded memory, equal to `rank`."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mbcal import AGENTS, MBCAL, Agent, Catalog, GRU4Rec, NetConfig, Sessions, TrainingConfig
from mbcal.errors import InputError, ModelError
from mbcal.scoring import retrieval
from mbcal.scoring.backend import to_numpy
from mbcal.scoring.retrieval import top_k
from mbcal.types import FIRST_ITEM_ROW, MASK_ROW
from tests.support import batches
from tests.support.agents import MORE

NAMES = batches.CATALOG.items


@cache
def fitted(name: str = "mbcal") -> Agent:
    kind = AGENTS[name]
    training = TrainingConfig(epochs=2, batch=64)
    config = kind.Config(net=NetConfig(hidden=8, embedding=8, features=()), training=training, **MORE.get(name, {}))
    return kind(config, "cpu").fit(batches.sessions(count=200, seed=3))


@cache
def large(items: int = 3000, users: int = 1500) -> tuple[Agent, Sessions]:
    """A catalogue and users enough for shortlists."""
    catalog, draw = Catalog(tuple(f"d{k}" for k in range(items))), np.random.default_rng(0)

    def sessions(count: int) -> Sessions:
        steps = draw.integers(FIRST_ITEM_ROW, catalog.n_rows, (2, count, 8)).astype(np.int32)
        taste = draw.integers(0, 3, count)
        behaviours = np.clip((steps % 3 == taste[:, None]) + draw.integers(0, 2, steps.shape), 0, 2).astype(np.uint8)
        full = np.full(count, 8, np.int32)
        user = np.arange(count, dtype=np.int32)
        return Sessions(catalog, batches.LABELS, steps[0], behaviours[0], full, user, steps[1], behaviours[1], full)

    agent = MBCAL(hidden=8, embedding=8, epochs=1, learning_rate=5e-3, device="cpu").fit(sessions(4000))
    return agent, sessions(users)


def history(*steps: tuple[str, str]) -> list[tuple[str, str]]:
    return list(steps)


@pytest.mark.parametrize("name", [*AGENTS])
def test_the_same_items_and_scores_as_ranking_one_user(name: str) -> None:
    agent = fitted(name)
    histories = [history(("item 3", "click"), ("item 5", "like")), history(), history(("item 1", "skip"))]
    found = agent.recommend(histories, k=4, filter_history=False)
    for user, one in enumerate(histories):
        seen = [item for item in NAMES if agent.seen()[batches.CATALOG.rows_of([item])[0]]]
        ranked = agent.rank(one, seen)[:4]
        assert found[user] == [entry.item for entry in ranked]
        assert found.scores[user].tolist() == pytest.approx([entry.score for entry in ranked], abs=1e-5)


def test_items_of_the_history_are_left_out() -> None:
    agent = fitted()
    histories = [history(*((item, "like") for item in NAMES[:4])), history()]
    found = agent.recommend(histories, k=20)
    assert not set(found[0]) & set(NAMES[:4])
    assert len(found[0]) == len(found[1]) - 4  # fewer than k are left
    assert found.rows[0, -1] == MASK_ROW
    assert np.isneginf(found.scores[0, -1])
    assert set(NAMES[:4]) <= set(agent.recommend(histories, k=20, filter_history=False)[0])


def test_candidates_for_all_or_for_each() -> None:
    agent = fitted()
    some = [NAMES[7], NAMES[2], NAMES[9]]
    alike = agent.recommend([history(), history()], k=2, candidates=some)
    assert alike[0] == alike[1] == [entry.item for entry in agent.rank([], some)[:2]]
    each = agent.recommend([history(), history()], k=2, candidates=[some, [NAMES[1]]])
    assert each[0] == alike[0]
    assert each[1] == [NAMES[1]]
    assert each.to_table().to_pydict()["rank"] == [1, 2, 1]


def test_sessions_of_a_store_are_taken_as_they_are() -> None:
    agent, known = fitted(), batches.sessions(count=9)
    by_name = [
        [(known.catalog.name_of(row), known.behaviour_set.names[label]) for row, label in zip(rows, labels, strict=True)][
            :length
        ]
        for rows, labels, length in zip(known.history_items, known.history_behaviours, known.history_length, strict=True)
    ]
    named, taken = agent.recommend(by_name, k=3), agent.recommend(known, k=3)
    assert list(named) == list(taken)


def test_shortlists_find_what_scoring_everything_finds() -> None:
    agent, users = large()
    fast, exact = agent.recommend(users, k=10), agent.recommend(users, k=10, exact=True)
    assert np.array_equal(fast.rows, exact.rows)
    assert np.allclose(fast.scores, exact.scores, atol=1e-6)


def test_most_candidates_are_never_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, users = large()
    scorer, scored = to_numpy(agent.fitted_scorer), []

    class Counting:
        def score(self, state: Any, candidates: Any) -> Any:
            scored.append(candidates.size)
            return scorer.score(state, candidates)

    state = scorer.begin(*users.history)
    rows = np.arange(FIRST_ITEM_ROW, users.catalog.n_rows, dtype=np.int32)
    top_k(Counting(), state, rows, users.history_items, 10)  # type: ignore[arg-type]
    assert sum(scored) < 0.6 * len(users) * len(rows)
    assert max(scored) <= retrieval.BLOCK_SCORES


def test_scores_of_no_few_dimensions_are_scored_in_full() -> None:
    """The shortlist of a policy without structure could miss anything; the check sees it."""
    users, items = 1200, 2500
    table = np.random.default_rng(1).standard_normal((users, items + FIRST_ITEM_ROW)).astype(np.float32)

    class Noise:
        def score(self, state: Any, candidates: Any) -> Any:
            return np.take_along_axis(table[state[0]], candidates, 1)

    rows = np.arange(FIRST_ITEM_ROW, items + FIRST_ITEM_ROW, dtype=np.int32)
    nothing = np.zeros((users, 0), np.int32)
    found, scores = top_k(Noise(), (np.arange(users),), rows, nothing, 5)  # type: ignore[arg-type]
    best = np.argsort(-table[:, FIRST_ITEM_ROW:], 1)[:, :5] + FIRST_ITEM_ROW
    assert np.array_equal(found, best)
    assert np.array_equal(scores, np.take_along_axis(table, best, 1))


@settings(max_examples=60)
@given(data=st.data(), n_users=st.integers(1, 5), width=st.integers(1, 8), k=st.integers(1, 10))
def test_top_k_by_brute_force(data: st.DataObject, n_users: int, width: int, k: int) -> None:
    """With padding, exclusions and ties."""
    numbers = st.lists(st.integers(0, 3), min_size=width, max_size=width)
    table = np.asarray([data.draw(numbers) for _ in range(n_users)], np.float32)
    rows = np.asarray([data.draw(st.permutations(range(1, 9))) for _ in range(n_users)], np.int32)[:, :width]
    rows[data.draw(st.integers(0, n_users - 1)), -1] = MASK_ROW
    excluded = np.asarray([[data.draw(st.integers(0, 8))] for _ in range(n_users)], np.int32)
    value = np.zeros((n_users, 9), np.float32)
    np.put_along_axis(value, rows, table, 1)

    class Table:
        def score(self, state: Any, candidates: Any) -> Any:
            return np.take_along_axis(value[state[0]], candidates, 1)

    found, scores = top_k(Table(), (np.arange(n_users),), rows, excluded, k)  # type: ignore[arg-type]
    for user in range(n_users):
        left = [row for row in rows[user] if row not in (MASK_ROW, excluded[user, 0])]
        best = sorted((value[user, row] for row in left), reverse=True)[:k]
        assert scores[user, : len(best)].tolist() == best
        assert [value[user, row] for row in found[user, : len(best)]] == best
        assert len(set(found[user, : len(best)])) == len(best)
        assert (found[user, len(best) :] == MASK_ROW).all()


def test_integers_are_names() -> None:
    catalog = Catalog(("160974", "234698", "7"))
    known = batches.sessions(count=50, seed=1)
    rows = np.where(known.mask, known.items % 3 + FIRST_ITEM_ROW, 0).astype(np.int32)
    past = np.where(known.history_mask, known.history_items % 3 + FIRST_ITEM_ROW, 0).astype(np.int32)
    sessions = Sessions(
        catalog, known.behaviour_set, rows, known.behaviours, known.length, known.user, past, known.history_behaviours,
        known.history_length,
    )  # fmt: skip
    agent = GRU4Rec(hidden=8, embedding=8, epochs=1, device="cpu").fit(sessions)
    text = agent.rank([("160974", "click")], ["234698", "7"])
    for number in (234698, np.int64(234698), np.uint32(234698)):
        assert agent.rank([(160974, "click")], [number, 7]) == text
    assert all(entry.known for entry in text)
    assert (
        agent.recommend([[(7, "like")]], candidates=[234698, 160974])[0]
        == agent.recommend([[("7", "like")]], candidates=["234698", "160974"])[0]
    )


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda agent: agent.recommend([], k=3), "histories: must be a list with one history per user"),
        (lambda agent: agent.recommend([[]], k=0), "k: must be a whole number of at least 1, got 0"),
        (lambda agent: agent.recommend([[]], k="3"), "k: must be a whole number of at least 1, got '3'"),
        (lambda agent: agent.recommend([[("item 1", "buy")]]), "behaviour 'buy' is unknown"),
        (lambda agent: agent.recommend([[("item 1", "click")] * 5]), "history: 5 steps, the model was fitted on at most 4"),
        (lambda agent: agent.recommend([["item 1"]]), "history: steps are (item, behaviour) pairs, got 'item 1'"),
        (lambda agent: agent.recommend([[(1.5, "click")]]), "history: item: names are text or whole numbers, got 1.5"),
        (lambda agent: agent.recommend([[]], candidates=[]), "candidates: must be a list with at least one item"),
        (lambda agent: agent.recommend([[]], candidates=["a", "a"]), "candidates: 'a' is there twice"),
        (lambda agent: agent.recommend([[]], candidates=[["a"], ["b"]]), "candidates: 2 lists for 1 users"),
        (lambda agent: agent.rank([], "item 1"), "candidates: must be a list, got 'item 1'"),
        (lambda agent: agent.rank([], [True]), "candidates: names are text or whole numbers, got True (bool)"),
        (lambda agent: agent.rank([], ["item 1"], shown=[("item 1", "click")]), "was already shown in this session"),
        (lambda agent: agent.score(agent.begin([0], [[]], [[]], [0]), [["item 1"]]), "score: takes tensors or arrays"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_mistakes_are_one_sentence(call: Any, said: str) -> None:
    with pytest.raises(InputError) as raised:
        call(fitted())
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_unfitted_agents_say_so() -> None:
    for call in (
        lambda a: a.recommend([[]]),
        lambda a: a.rank([], ["x"]),
        lambda a: a.save("x"),
        lambda a: a.begin(0, 0, 0, 0),
    ):
        with pytest.raises(ModelError, match="this mbcal agent has not been fitted; call fit\\(store\\) first"):
            call(MBCAL(device="cpu"))


def test_arrays_are_taken_where_tensors_are() -> None:
    agent, known = fitted(), batches.sessions(count=6)
    batch = known.tensors()
    candidates = np.tile(np.arange(2, 8), (6, 1))
    state = agent.begin(*known.history)
    scores = agent.score(state, candidates)
    assert isinstance(scores, np.ndarray)
    assert np.allclose(scores, agent.score(agent.begin(*batch.history), batch.items.new_tensor(candidates)).numpy())
    after = agent.observe(state, candidates[:, 0], np.zeros(6, np.uint8))
    assert agent.score(after, candidates).shape == (6, 6)
