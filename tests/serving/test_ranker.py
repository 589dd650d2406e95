"""The service's arithmetic: exactly the library's ranking, true propensities, one answer from memory or from scratch."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from mbcal.agents import AGENTS
from mbcal.errors import InputError
from mbcal.scoring.backend import to_numpy
from mbcal.scoring.choice import epsilon_greedy
from mbcal.serving.candidates import JsonReader, require_askable
from mbcal.serving.messages import QuickRankRequest
from mbcal.serving.ranker import Ranker, choose
from tests.support.batches import CATALOG
from tests.support.versions import HISTORY, ITEMS, SHOWN, fitted


def version(agent: Any, name: str = "v1") -> Any:
    domain = agent.domain
    return SimpleNamespace(
        name=name,
        scorer=to_numpy(agent.fitted_scorer),
        catalog=domain.catalog,
        behaviours=domain.behaviours,
        history=domain.history,
        seen=agent.seen(),
    )


def draws(count: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).random((count, 2))


@pytest.mark.parametrize("name", AGENTS)
def test_it_ranks_as_the_library_does(name: str) -> None:
    agent = fitted(name)
    candidates = [item for item in ITEMS if item not in ("item 2", "item 9")]
    wanted = agent.rank(HISTORY, candidates, SHOWN)
    found = Ranker(version(agent)).rank(HISTORY, SHOWN, candidates, len(candidates), 0.0, draws(len(candidates)))
    assert [place.item for place in found] == [entry.item for entry in wanted]
    for place, entry in zip(found, wanted, strict=True):
        assert place.score == pytest.approx(entry.score, abs=1e-5)
        assert place.parts == pytest.approx(dict(entry.parts), abs=1e-5)
        assert place.known == entry.known
        assert place.propensity == 1.0


def test_from_memory_or_from_scratch_the_answer_is_the_same() -> None:
    ranker = Ranker(version(fitted()), remembered=2)
    told = [("item 2", "click"), ("item 9", "skip"), ("item 5", "like")]
    for steps in range(4):
        asked = (HISTORY, told[:steps], ITEMS, 12, 0.3, draws(12))
        assert ranker.rank(*asked, "s") == ranker.rank(*asked)
    for other in ("a", "b"):  # two more push it out of memory
        ranker.rank([], [], ITEMS, 1, 0.0, draws(1), other)
    assert "s" not in ranker._standing
    assert ranker.rank(HISTORY, told, ITEMS, 3, 0.0, draws(3), "s") == ranker.rank(HISTORY, told, ITEMS, 3, 0.0, draws(3))
    changed = [("item 3", "click"), *told[1:]]  # feedback that came late changes the past: nothing stale is used
    assert ranker.rank(HISTORY, changed, ITEMS, 3, 0.0, draws(3), "s") == ranker.rank(
        HISTORY, changed, ITEMS, 3, 0.0, draws(3)
    )


def test_what_was_shown_comes_last_and_only_when_nothing_else_is_left() -> None:
    ranker = Ranker(version(fitted()))
    found = [place.item for place in ranker.rank(HISTORY, SHOWN, ITEMS, 12, 0.5, draws(12))]
    assert sorted(found) == sorted(set(ITEMS) - {"item 2", "item 9"})
    again = ranker.rank(HISTORY, SHOWN, ["item 2", "item 9"], 5, 0.0, draws(5))
    assert sorted(place.item for place in again) == ["item 2", "item 9"]


def test_strangers_get_a_finite_flagged_answer() -> None:
    ranker = Ranker(version(fitted()))
    place = ranker.rank([], [], ["never heard of"], 10, 0.1, draws(1))[0]
    assert not place.known
    assert np.isfinite(place.score)
    assert place.propensity == 1.0
    with pytest.raises(InputError, match=r"behaviour: 'loved' is unknown to version v1; known are skip, click, like"):
        ranker.rank([("item 1", "loved")], [], ITEMS, 1, 0.0, draws(1))


def test_choosing_is_epsilon_greedy_again_and_again() -> None:
    """The slow twin: `scoring.epsilon_greedy`, each time among what is left."""
    generator = np.random.default_rng(3)
    for trial in range(200):
        scores = generator.integers(0, 4, 9).astype(np.float64)  # with ties
        left = np.flatnonzero(generator.random(9) < 0.7)
        if not len(left):
            continue
        uniform, epsilon = generator.random((4, 2)), (0.0, 0.3, 1.0)[trial % 3]
        available = np.isin(np.arange(9), left)
        for place, chance, draw in zip(*choose(scores, left.tolist(), 4, epsilon, uniform.tolist()), uniform, strict=False):
            chosen, propensity = epsilon_greedy(scores[None], available[None], epsilon, draw[None])
            assert place == chosen[0]
            assert chance == pytest.approx(float(propensity[0]))
            available[place] = False


def test_items_come_as_often_as_their_propensities_say() -> None:
    ranker, epsilon, count = Ranker(version(fitted())), 0.4, 6000
    generator = np.random.default_rng(5)
    firsts = [ranker.rank(HISTORY, [], ITEMS, 1, epsilon, generator.random((1, 2)), "s")[0] for _ in range(count)]
    chances = {place.item: place.propensity for place in firsts}
    assert sum(chances.values()) == pytest.approx(1)
    observed = [sum(place.item == item for place in firsts) for item in chances]
    assert stats.chisquare(observed, [count * chance for chance in chances.values()]).pvalue > 1e-3


@pytest.mark.parametrize("name", ["mbcal", "dqn", "ddpg", "popular"])
def test_with_and_without_c_the_answer_is_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = fitted(name)
    with_c = Ranker(version(agent))
    monkeypatch.setenv("MBCAL_NATIVE", "0")
    without = Ranker(version(agent))
    monkeypatch.delenv("MBCAL_NATIVE")
    assert without._native is None
    strangers = [*ITEMS, "never heard of", "nor of this"]
    for shown in ([], SHOWN, [*SHOWN, ("never heard of", "skip")], [(item, "skip") for item in strangers]):
        for names in (ITEMS, strangers, strangers[-2:]):
            text = msgspec.Raw(json.dumps(names).encode())
            asked = (12, 0.3, draws(len(names), len(shown)))
            wanted = without.rank(HISTORY, shown, without.reader.read(text, 12, 100), *asked)
            for found in (
                with_c.rank(HISTORY, shown, names, *asked),
                with_c.rank(HISTORY, shown, with_c.reader.read(text, 12, 100), *asked, "s"),
            ):
                assert [(entry.item, entry.propensity, entry.known) for entry in found] == [
                    (entry.item, entry.propensity, entry.known) for entry in wanted
                ]
                for mine, theirs in zip(found, wanted, strict=True):
                    assert mine.score == pytest.approx(theirs.score, abs=1e-5)
                    assert mine.parts == pytest.approx(theirs.parts, abs=1e-5)


def test_what_has_no_answer_is_refused() -> None:
    for candidates, k, said in (
        ([], 1, "none were given"),
        (["a", "a"], 1, "twice"),
        (["a"], 0, "k: must"),
        (["a", "b"], 1, "at most 1"),
    ):
        with pytest.raises(InputError, match=said):
            require_askable(candidates, k, 1 if said == "at most 1" else 10)


NAMES = st.one_of(
    st.sampled_from(ITEMS), st.text(max_size=3), st.sampled_from(["x" * 256, "x" * 257, "\x7f", '"', "\\", "é"])
)
LISTS = st.one_of(
    st.lists(NAMES, max_size=45, unique=True), st.lists(NAMES, max_size=4), st.lists(st.none() | NAMES, max_size=3)
)


@settings(max_examples=400, deadline=None)
@given(
    names=LISTS,
    escaped=st.booleans(),
    indent=st.none() | st.just(1),
    at=st.integers(0),
    put=st.none() | st.binary(max_size=2),
)
@example(names=[f"nobody knows {number}" for number in range(40)], escaped=True, indent=None, at=0, put=None)
def test_candidates_are_read_or_refused_alike_with_and_without_c(
    names: list[str], escaped: bool, indent: int | None, at: int, put: bytes | None
) -> None:
    text = json.dumps(names, ensure_ascii=escaped, indent=indent).encode("utf-8", "surrogatepass")
    if put is not None:  # something else in the place of a letter
        text = text[: at % len(text)] + put + text[at % len(text) + 1 :]

    def outcome(rows: Any) -> Any:
        try:
            asked = msgspec.json.decode(b'{"k":3,"candidates":' + text + b"}", type=QuickRankRequest)
            found = JsonReader(CATALOG, rows).read(asked.candidates, asked.k, 42)
            logged = msgspec.msgpack.decode(msgspec.msgpack.encode(found.logged()))
            return found.rows.tolist(), found.at(range(len(found.rows))), logged
        except (InputError, msgspec.DecodeError, UnicodeError) as error:
            return type(error), str(error)

    assert outcome(np.empty(50, np.int32)) == outcome(None)
