"""The C kernels of the service against the reference: one session ranked in a call, names found in JSON."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mbcal.kernels import native
from mbcal.kernels.native.names import name_finder
from mbcal.kernels.native.session import SessionRanker, TermArrays, session_ranker
from mbcal.scoring.scorers import ScoreTerm
from mbcal.scoring.tables import Tables
from mbcal.serving.ranker import choose
from mbcal.types import UNKNOWN_ROW, Catalog
from tests.support.kernels import BEHAVIOURS, ROWS, case, reference_score

pytestmark = pytest.mark.skipif(not native.available(), reason="score.c was not compiled, or MBCAL_NATIVE=0")

NAMES = ("a", "item-1", "item-12", "eight888", "eight888 and more", " ", "~" * 256, "ünïcödé", "x" * 31, "x" * 32, "x" * 255)


def two_terms(size: int, behaviours: int) -> list[ScoreTerm]:
    rewards = np.random.default_rng(1).normal(0, 3, behaviours).astype(np.float32)
    return [ScoreTerm(case(size, behaviours)[0], rewards), ScoreTerm(case(size + 1, 1)[0], None)]


def create_ranker(terms: list[ScoreTerm]) -> SessionRanker:
    ranker = session_ranker([TermArrays(term.tables.cell.arrays, term.tables.head, term.rewards) for term in terms])
    assert ranker is not None
    return ranker


@pytest.mark.parametrize("size", [1, 8, 32, 33])
@pytest.mark.parametrize("level", [0, 1, 2], ids=["plain", "avx2", "avx512"])
def test_a_session_is_ranked_as_by_the_reference(size: int, level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "INSTRUCTION_LEVEL", level)
    random = np.random.default_rng(size)
    terms = two_terms(size, 1 + size % 7)
    ranker = create_ranker(terms)
    for width in (1, 7, 40, 200):
        rows = random.integers(0, ROWS, width).astype(np.int32)
        hidden = [np.tanh(random.normal(0, 1, (1, size + more))).astype(np.float32) for more in (0, 1)]
        previous, available = random.integers(0, BEHAVIOURS, 1), random.random(width) < 0.8
        available[0] = True
        k, epsilon = min(10, int(available.sum())), (0.0, 0.3, 1.0)[width % 3]
        uniform = random.random((k, 2))
        outputs = [
            reference_score(term.tables, state, previous, rows[None]) for term, state in zip(terms, hidden, strict=True)
        ]
        parts = np.stack([term.value(output)[0] for term, output in zip(terms, outputs, strict=True)])
        ranked = ranker.rank(hidden, previous, rows, available, k, epsilon, uniform)
        assert ranked is not None
        assert np.abs(np.array(ranked.parts) - parts[:, ranked.indices].T).max() < 1e-5
        assert np.allclose(ranked.scores, np.sum(ranked.parts, 1), atol=1e-6)
        scores = ranker.scores[:width].copy()
        assert np.abs(scores - parts.sum(0)).max() < 1e-5
        assert (ranked.indices, ranked.propensities) == choose(
            scores, np.flatnonzero(available).tolist(), k, epsilon, uniform.tolist()
        )


def test_ties_and_nan_are_chosen_as_by_the_reference() -> None:
    tables, hidden, previous, _ = case(8, 1, sessions=1)
    tables.cell.items[7] = np.nan
    tables.cell.items[8] = tables.cell.items[9]
    rows = np.array([7, 9, 8, 3, 7, 8], np.int32)
    uniform = np.random.default_rng(0).random((6, 2))
    for epsilon in (0.0, 0.5):
        ranker = create_ranker([ScoreTerm(tables, None)])
        ranked = ranker.rank([hidden], previous, rows, np.ones(6, np.bool_), 6, epsilon, uniform)
        assert ranked is not None
        assert (ranked.indices, ranked.propensities) == choose(ranker.scores[:6], range(6), 6, epsilon, uniform.tolist())


def test_unsupported_terms_and_requests_are_left_to_the_reference() -> None:
    (term, _), width = two_terms(8, 3), 4
    cell, head, rewards = term.tables.cell.arrays, term.tables.head, term.rewards
    wrong: list[Any] = [
        TermArrays(cell, head, None),
        TermArrays(cell, head, rewards[:2]),
        TermArrays(cell, head, rewards.astype(np.float64)),
        TermArrays((*cell[:3], cell[3][:-1]), head, rewards),
        TermArrays((np.asfortranarray(cell[0]), *cell[1:]), head, rewards),
        TermArrays(cell, (head[0][:, 1:], *head[1:]), rewards),
    ]
    for arrays in wrong:
        assert session_ranker([arrays]) is None
    assert session_ranker([]) is None
    ranker, state, available = create_ranker([term]), np.zeros((1, 8), np.float32), np.ones(width, np.bool_)
    for rows, previous, k in (([0, 1, 2, ROWS], 0, 1), ([0, 1, 2, 3], BEHAVIOURS, 1), ([0, 1, 2, 3], 0, 5)):
        request = ([state], np.array([previous]), np.array(rows, np.int32), available, k, 0.0, np.zeros((k, 2)))
        assert ranker.rank(*request) is None
    many = np.zeros(10_001, np.int32)
    assert ranker.rank([state], np.zeros(1, np.int64), many, many == 0, 1, 0.0, np.zeros((1, 2))) is None


@pytest.mark.parametrize("level", [0, 1, 2], ids=["plain", "avx2", "avx512"])
def test_histories_are_read_as_by_the_reference(level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "INSTRUCTION_LEVEL", level)
    random = np.random.default_rng(0)
    for size, sessions, steps in ((8, 1, 20), (33, 5, 7), (1, 3, 1), (8, 2, 0)):
        cell = case(size)[0].cell
        tables = Tables(cell, case(size)[0].head, cell, None)
        items = random.integers(0, ROWS, (sessions, steps)).astype(np.int32)
        behaviours = random.integers(0, BEHAVIOURS, (sessions, steps)).astype(np.uint8)
        length = random.integers(0, steps + 1, sessions).astype(np.int32)
        history = (np.zeros(sessions, np.int32), items, behaviours, length)
        hidden = native.read(cell.arrays, items, behaviours, length)
        assert np.array_equal(hidden, tables.begin(*history))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MBCAL_NATIVE", "0")
            assert np.abs(hidden - tables.begin(*history)).max(initial=0) < 1e-5
    cell, one = case(8)[0].cell.arrays, np.ones(1, np.int32)
    items, behaviours = np.zeros((1, 2), np.int32), np.zeros((1, 2), np.uint8)
    assert native.read(cell, items, behaviours, one) is not None
    for wrong in (
        (items.astype(np.int64), behaviours),
        (items + ROWS, behaviours),
        (items, behaviours + BEHAVIOURS),
        (items[0], one),
    ):
        assert native.read(cell, *wrong, one) is None


@pytest.mark.parametrize("level", [0, 1, 2], ids=["plain", "avx2", "avx512"])
def test_steps_are_observed_as_by_the_reference(level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "INSTRUCTION_LEVEL", level)
    random, terms = np.random.default_rng(0), two_terms(8, 3)
    ranker = create_ranker(terms)
    begin = [np.tanh(random.normal(0, 1, (1, size))).astype(np.float32) for size in (8, 9)]
    previous, items = np.array([2]), random.integers(0, ROWS, 30).astype(np.int32)
    behaviours = random.integers(0, BEHAVIOURS, 30).astype(np.uint8)
    for steps in (1, 2, 30):
        expected, before = list(begin), previous
        for item, behaviour in zip(items[:steps], behaviours, strict=False):
            cells = [term.tables.cell for term in terms]
            expected = [cell.observe(state, item[None], before) for cell, state in zip(cells, expected, strict=True)]
            before = behaviour[None]
        copies = [state.copy() for state in begin]
        states = ranker.after(begin, previous, items[:steps], behaviours[:steps])
        assert states is not None
        assert all(np.abs(state - other).max() < 1e-5 for state, other in zip(states, expected, strict=True))
        assert all(map(np.array_equal, begin, copies))  # the states before are not changed
    for wrong in ((previous + BEHAVIOURS, items, behaviours), (previous, items + ROWS, behaviours)):
        assert ranker.after(begin, *wrong) is None


TEXTS = st.lists(st.one_of(st.sampled_from(NAMES), st.text(max_size=12), st.text("ab", max_size=300)), max_size=60)


@settings(max_examples=300, deadline=None)
@given(names=TEXTS, escaped=st.booleans(), indent=st.sampled_from([None, 0, 2]))
def test_names_are_found_as_by_the_reference(names: list[str], escaped: bool, indent: int | None) -> None:
    catalog, rows = Catalog(NAMES), np.empty(50, np.int32)
    finder = name_finder(NAMES, rows)
    assert finder is not None
    text = json.dumps(names, ensure_ascii=escaped, indent=indent).encode()
    plain = names and len(set(names)) == len(names) <= 50
    plain = plain and all(0 < len(name) <= 256 and name.isascii() and json.dumps(name) == f'"{name}"' for name in names)
    known = catalog.rows_of(names)
    for _ in range(2):  # one list does not affect the next
        count = finder.find(text)
        assert count == (len(names) if plain and (known == UNKNOWN_ROW).sum() <= 32 else 0)
        if count:
            assert rows[:count].tolist() == known.tolist()
            assert msgspec.msgpack.decode(finder.packed()) == names
            spans = finder.spans(range(count))
            assert [text[begin:end].decode() for begin, end in spans] == names


@settings(max_examples=300, deadline=None)
@given(text=st.one_of(st.binary(max_size=40), st.text('[]",ab \\\n\x00\x7f', max_size=14).map(str.encode)))
def test_any_bytes_are_read_as_by_the_reference_or_not_at_all(text: bytes) -> None:
    finder = name_finder(NAMES, np.empty(5, np.int32))
    assert finder is not None
    if finder.find(text):
        assert msgspec.json.decode(text, type=list[str]) == msgspec.msgpack.decode(finder.packed())


@pytest.mark.parametrize("form", ["{:08d}", "item-{:03d}", "{:016d}", "{}", "{:032x}"])
def test_similar_names_do_not_collide_in_the_hash_table(form: str) -> None:
    finder = name_finder([form.format(number) for number in range(1000)], np.empty(5, np.int32))
    assert finder is not None
    gaps = np.diff(np.flatnonzero(finder.slots < 0))
    assert gaps.max() < 50  # slots probed for a name, at most
