"""The ranker: the library's ranking, true propensities, the same answers with and without cache and C."""

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
from mbcal.kernels import native
from mbcal.scoring.backend import to_numpy
from mbcal.scoring.choice import epsilon_greedy
from mbcal.serving.candidates import CandidateReader, JsonNames, require_rankable
from mbcal.serving.fields import GivenFields
from mbcal.serving.messages import UndecodedRankRequest
from mbcal.serving.ranker import Ranker, choose
from mbcal.types import Catalog
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
        features={},
        unknown_items=None,
    )


def options(k: int, epsilon: float = 0.0, count: int | None = None, seed: int = 0) -> dict[str, Any]:
    """k, epsilon and random numbers of a ranking."""
    return {"k": k, "epsilon": epsilon, "uniform": np.random.default_rng(seed).random((count or k, 2))}


@pytest.mark.parametrize("name", AGENTS)
def test_it_ranks_as_the_library_does(name: str) -> None:
    agent = fitted(name)
    candidates = [item for item in ITEMS if item not in ("item 2", "item 9")]
    wanted = agent.rank(HISTORY, candidates, SHOWN)
    found = Ranker(version(agent)).rank(HISTORY, candidates, SHOWN, **options(len(candidates)))
    assert [place.item for place in found] == [entry.item for entry in wanted]
    for place, entry in zip(found, wanted, strict=True):
        assert place.score == pytest.approx(entry.score, abs=1e-5)
        assert place.parts == pytest.approx(dict(entry.parts), abs=1e-5)
        assert place.known == entry.known
        assert place.propensity == 1.0


def test_a_cached_state_gives_the_answer_of_one_computed_from_the_start() -> None:
    alone = Ranker(version(fitted()))
    alone.rank([], ITEMS, [], **options(1), session="s")
    ranker = Ranker(version(fitted()), cache_bytes=2 * alone.cached_bytes)  # of two sessions with short names
    shown = [("item 2", "click"), ("item 9", "skip"), ("item 5", "like")]
    for steps in range(4):
        asked, more = (HISTORY, ITEMS, shown[:steps]), options(12, 0.3)
        assert ranker.rank(*asked, **more, session="s") == ranker.rank(*asked, **more)
    assert "s" in ranker._states
    for other in ("a", "b"):  # two more push it out of the cache
        ranker.rank([], ITEMS, [], **options(1), session=other)
    assert "s" not in ranker._states
    late = [("item 3", "click"), *shown[1:]]  # late feedback changes an earlier step: the cached state is not used
    for steps_shown in (shown, late):
        cached = ranker.rank(HISTORY, ITEMS, steps_shown, **options(3), session="s")
        assert cached == ranker.rank(HISTORY, ITEMS, steps_shown, **options(3))


def test_what_was_shown_comes_last_and_only_when_nothing_else_is_left() -> None:
    ranker = Ranker(version(fitted()))
    found = [place.item for place in ranker.rank(HISTORY, ITEMS, SHOWN, **options(12, 0.5))]
    assert sorted(found) == sorted(set(ITEMS) - {"item 2", "item 9"})
    again = ranker.rank(HISTORY, ["item 2", "item 9"], SHOWN, **options(5))
    assert sorted(place.item for place in again) == ["item 2", "item 9"]


def test_with_repeats_what_was_shown_is_ranked_like_the_rest() -> None:
    agent = fitted()
    found = Ranker(version(agent), repeats=True).rank(HISTORY, ITEMS, SHOWN, **options(12))
    assert sorted(place.item for place in found) == sorted(ITEMS)
    scores = [place.score for place in found]
    assert scores == sorted(scores, reverse=True)
    once = {place.item: place.score for place in Ranker(version(agent)).rank(HISTORY, ITEMS, SHOWN, **options(12))}
    assert {place.item: place.score for place in found if place.item in once} == once


def test_unknown_items_get_a_finite_score_and_are_flagged() -> None:
    ranker = Ranker(version(fitted()))
    place = ranker.rank([], ["unknown"], [], **options(10, 0.1))[0]
    assert not place.known
    assert np.isfinite(place.score)
    assert place.propensity == 1.0
    with pytest.raises(InputError, match="behaviour: 'loved' is unknown to version v1; its behaviours are skip, click"):
        ranker.require_known([("item 1", "loved")])


def test_behaviours_that_the_version_does_not_know_are_not_read_but_their_items_were_shown() -> None:
    ranker, lost = Ranker(version(fitted())), ("item 3", "loved")
    found = ranker.rank([*HISTORY, lost], ITEMS, [lost, *SHOWN, lost], **options(12))
    assert found == [place for place in ranker.rank(HISTORY, ITEMS, SHOWN, **options(12)) if place.item != "item 3"]
    given = GivenFields(shown_context=("", *["{}"] * len(SHOWN), ""))
    assert ranker.rank(HISTORY, ITEMS, [lost, *SHOWN, lost], given=given, **options(12)) == found


def test_choosing_is_epsilon_greedy_at_every_rank() -> None:
    """The reference implementation: `scoring.choice.epsilon_greedy`, each time among the candidates left."""
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
    firsts = [
        ranker.rank(HISTORY, ITEMS, [], k=1, epsilon=epsilon, uniform=generator.random((1, 2)), session="s")[0]
        for _ in range(count)
    ]
    probabilities = {place.item: place.propensity for place in firsts}
    assert sum(probabilities.values()) == pytest.approx(1)
    observed = [sum(place.item == item for place in firsts) for item in probabilities]
    assert stats.chisquare(observed, [count * chance for chance in probabilities.values()]).pvalue > 1e-3


@pytest.mark.parametrize("name", ["mbcal", "dqn", "ddpg", "popular"])
def test_with_and_without_c_the_answer_is_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = fitted(name)
    with_c = Ranker(version(agent))
    monkeypatch.setenv("MBCAL_NATIVE", "0")
    without = Ranker(version(agent))
    monkeypatch.delenv("MBCAL_NATIVE")
    assert not without.uses_c
    with_unknown = [*ITEMS, "unknown", "unknown too"]
    for shown in ([], SHOWN, [*SHOWN, ("unknown", "skip")], [(item, "skip") for item in with_unknown]):
        for names in (ITEMS, with_unknown, with_unknown[-2:]):
            text = msgspec.Raw(json.dumps(names).encode())
            more = options(12, 0.3, len(names), len(shown))
            wanted = without.rank(HISTORY, without.reader.read(text, 12, 100), shown, **more)
            for found in (
                with_c.rank(HISTORY, names, shown, **more),
                with_c.rank(HISTORY, with_c.reader.read(text, 12, 100), shown, **more, session="s"),
            ):
                assert [(entry.item, entry.propensity, entry.known) for entry in found] == [
                    (entry.item, entry.propensity, entry.known) for entry in wanted
                ]
                for actual, expected in zip(found, wanted, strict=True):
                    assert actual.score == pytest.approx(expected.score, abs=1e-5)
                    assert actual.parts == pytest.approx(expected.parts, abs=1e-5)


def test_requests_without_an_answer_are_refused() -> None:
    for candidates, k, message in (
        ([], 1, "none were given"),
        (["a", "a"], 1, "twice"),
        (["a"], 0, "k: must"),
        (["a", "b"], 1, "at most 1"),
    ):
        with pytest.raises(InputError, match=message):
            require_rankable(candidates, k, 1 if message == "at most 1" else 10)


NUMBERS = st.integers(-3, 12) | st.integers(10**17, 10**19) | st.sampled_from([2**63 - 1, 2**63, -(2**63), -(2**63) - 1])
NAMES = st.one_of(
    st.sampled_from(ITEMS),
    st.text(max_size=3),
    NUMBERS,
    NUMBERS.map(str),
    st.sampled_from(["x" * 256, "x" * 257, "\x7f", '"', "\\", "é"]),
)
OTHERS = st.none() | st.booleans() | st.floats(-2, 2)
LISTS = st.one_of(
    st.lists(NAMES, max_size=45, unique=True),
    st.lists(NAMES, max_size=4),
    st.lists(OTHERS | NAMES, max_size=3),
)


NUMBERED = Catalog((*CATALOG.items, "7", "-2", "100000000000000003"))
"""Some of its names look like numbers."""


@settings(max_examples=400, deadline=None)
@given(
    names=LISTS,
    escaped=st.booleans(),
    indent=st.none() | st.just(1),
    at=st.integers(0),
    put=st.none() | st.binary(max_size=2),
)
@example(names=[7, "-2", 8, 100000000000000003], escaped=True, indent=None, at=0, put=None)
@example(names=["7", 7], escaped=True, indent=None, at=0, put=None)
@example(names=[0], escaped=True, indent=None, at=1, put=b"-0")
@example(names=[0], escaped=True, indent=None, at=1, put=b"07")
@example(names=[0], escaped=True, indent=None, at=1, put=b"1.0")
@example(names=[0], escaped=True, indent=None, at=1, put=b"1e3")
@example(names=[f"unknown {number}" for number in range(40)], escaped=True, indent=None, at=0, put=None)
def test_candidates_are_read_or_refused_alike_with_and_without_c(
    names: list[Any], escaped: bool, indent: int | None, at: int, put: bytes | None
) -> None:
    text = json.dumps(names, ensure_ascii=escaped, indent=indent).encode("utf-8", "surrogatepass")
    if put is not None:  # other bytes in the place of one
        text = text[: at % len(text)] + put + text[at % len(text) + 1 :]

    def outcome(rows: Any) -> Any:
        try:
            asked = msgspec.json.decode(b'{"k":3,"candidates":' + text + b"}", type=UndecodedRankRequest)
            found = CandidateReader(NUMBERED, rows).read(asked.candidates, asked.k, 42)
            logged = msgspec.msgpack.decode(msgspec.msgpack.encode(found.logged()))
            return found.rows.tolist(), found.at(range(len(found.rows))), logged
        except (InputError, msgspec.DecodeError, UnicodeError) as error:
            return type(error), str(error)

    assert outcome(np.empty(50, np.int32)) == outcome(None)


def test_whole_numbers_are_found_in_c() -> None:
    text = msgspec.Raw(b'[7, "-2", -2000, 100000000000000003, 0]')
    found = CandidateReader(NUMBERED, np.empty(50, np.int32)).read(text, 3, 42)
    assert found.at(range(5)) == ["7", "-2", "-2000", "100000000000000003", "0"]
    assert found.rows.tolist() == NUMBERED.rows_of(found.at(range(5))).tolist()
    assert isinstance(found, JsonNames) == native.available()
