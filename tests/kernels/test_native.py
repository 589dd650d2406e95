"""Scores in C against the reference implementation, `scoring.tables.Tables`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from mbcal.errors import OptionError
from mbcal.kernels import native
from mbcal.scoring.tables import CellTables, Tables
from tests.support.kernels import BEHAVIOURS, ROWS, SESSIONS, WIDTH, Case, case, native_score, reference_score

compiled = pytest.mark.skipif(not native.available(), reason="score.c was not compiled, or MBCAL_NATIVE=0")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = native.threads()
    yield
    native.set_threads(before)


def in_torch(tables: Tables, *inputs: Any) -> Case:
    """The same case on torch tensors."""
    cell = CellTables(*map(torch.from_numpy, tables.cell.arrays))
    first, first_bias, second, second_bias = map(torch.from_numpy, tables.head)
    hidden, previous, candidates = map(torch.from_numpy, inputs)
    return Tables(cell, (first, first_bias, second, second_bias), None, None), hidden, previous, candidates


@compiled
@pytest.mark.parametrize("size", [1, 5, 8, 32, 33])
@pytest.mark.parametrize("outputs", [1, 3, 12])
@pytest.mark.parametrize("level", [0, 1, 2], ids=["plain", "avx2", "avx512"])
def test_scores_equal_the_reference(size: int, outputs: int, level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "INSTRUCTION_LEVEL", level)
    tables, hidden, previous, candidates = case(size, outputs)
    expected = reference_score(tables, hidden, previous, candidates)
    for indices in (candidates, candidates.astype(np.int64)):
        scores = native_score(tables, hidden, previous, indices)
        assert scores.dtype == np.float32
        assert np.abs(scores - expected).max() < 1e-5
        tensor = native_score(*in_torch(tables, hidden, previous, indices))
        assert isinstance(tensor, torch.Tensor)
        assert np.array_equal(tensor.numpy(), scores)


@compiled
@pytest.mark.parametrize("convert", [lambda *case: case, in_torch], ids=["numpy", "torch"])
def test_tables_call_c(convert: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tables, hidden, previous, candidates = convert(*case(32))
    calls: list[Any] = []
    monkeypatch.setattr(native, "score", lambda *arguments, score=native.score: calls.append(score(*arguments)) or calls[-1])
    assert tables.score(hidden, previous, candidates) is calls[0]
    moved = tables.cell.observe(hidden, candidates[:, 0], previous)
    assert calls[1] is not None
    monkeypatch.setenv("MBCAL_NATIVE", "0")
    expected = tables.cell.observe(hidden, candidates[:, 0], previous)
    assert calls[2] is None
    assert moved.shape == expected.shape
    assert np.allclose(moved, expected, atol=1e-6)


@compiled
@pytest.mark.parametrize("level", [0, 1, 2])
def test_large_gates_saturate(level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "INSTRUCTION_LEVEL", level)
    arguments = case(8, scale=50.0)
    scores = native_score(*arguments)
    assert np.isfinite(scores).all()
    assert np.abs(scores - reference_score(*arguments)).max() < 1e-5
    items = arguments[0].cell.items
    items[:] = np.where(items > 0, np.inf, -np.inf)
    assert np.abs(native_score(*arguments) - reference_score(*arguments)).max() < 1e-5


@compiled
@pytest.mark.parametrize("level", [0, 1, 2])
def test_nan_stays_in_its_session(level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "INSTRUCTION_LEVEL", level)
    tables, hidden, previous, candidates = case(8)
    hidden[5, 3] = np.nan
    scores = native_score(tables, hidden, previous, candidates)
    assert np.isnan(scores[5]).all()
    assert np.isfinite(np.delete(scores, 5, 0)).all()


@compiled
@pytest.mark.parametrize("convert", [lambda *case: case, in_torch], ids=["numpy", "torch"])
@pytest.mark.parametrize("threads", [1, 2])
def test_indices_out_of_range_are_index_errors(convert: Any, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    native.set_threads(threads)
    monkeypatch.setattr(native, "MIN_THREAD_CANDIDATES", 1)
    for wide in (np.int32, np.int64):
        for wrong in (ROWS, -ROWS - 1, np.iinfo(wide).max, np.iinfo(wide).min):
            tables, hidden, previous, candidates = case()
            candidates = candidates.astype(wide)
            candidates[-1, -1] = wrong
            arguments = convert(tables, hidden, previous, candidates)
            assert native_score(*arguments) is None
            with pytest.raises(IndexError):
                arguments[0].score(*arguments[1:])
    for wrong in (BEHAVIOURS, -BEHAVIOURS - 1, 2**62):
        tables, hidden, previous, candidates = case()
        previous[-1] = wrong
        arguments = convert(tables, hidden, previous, candidates)
        with pytest.raises(IndexError):
            arguments[0].score(*arguments[1:])


@compiled
def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = case(32, 6, sessions=200)
    alone = native_score(*arguments)
    monkeypatch.setattr(native, "MIN_THREAD_CANDIDATES", 1)
    for count in (2, 3, 500):
        native.set_threads(count)
        assert np.array_equal(native_score(*arguments), alone)


def test_threads_are_at_least_one() -> None:
    with pytest.raises(OptionError, match="at least 1"):
        native.set_threads(0)


@compiled
def test_a_session_scores_the_same_in_any_batch() -> None:
    tables, hidden, previous, candidates = case(33, 6)
    complete = native_score(tables, hidden, previous, candidates)
    part = slice(20, 29)
    assert np.array_equal(native_score(tables, hidden[part], previous[part], candidates[part]), complete[part])


@compiled
def test_inputs_that_are_not_dense_are_copied() -> None:
    tables, hidden, previous, candidates = case()
    complete = native_score(tables, hidden, previous, candidates)
    scattered = np.asfortranarray(hidden), np.repeat(previous, 2)[::2], np.asfortranarray(candidates)
    assert np.array_equal(native_score(tables, *scattered), complete)
    scores = native_score(*in_torch(tables, *scattered))
    assert np.array_equal(scores.numpy(), complete)


@compiled
@pytest.mark.parametrize("shape", [(0, 5), (20, 0)])
def test_no_sessions_or_candidates_give_empty_scores(shape: tuple[int, int]) -> None:
    tables, hidden, previous, _ = in_torch(*case())
    none = torch.zeros(shape, dtype=torch.int32)
    assert native_score(tables, hidden[: shape[0]], previous[: shape[0]], none).shape == (*shape, 3)


@compiled
def test_unsupported_inputs_are_left_to_the_reference() -> None:
    tables, hidden, previous, candidates = arguments = case()
    plain = [
        (tables, hidden.astype(np.float64), previous, candidates),
        (tables, hidden, previous, candidates.astype(np.int16)),
        (tables, hidden[:1], previous, candidates),
        (tables, hidden[:, :-1], previous, candidates),
        (tables, hidden, previous, candidates[0]),
        (tables, hidden, previous[:2], candidates[:2]),
        (tables, hidden[:1], previous[:1], candidates[:1]),  # so few that numpy is faster
        (tables, hidden, torch.from_numpy(previous), candidates),
    ]
    tensors = in_torch(*arguments)
    torches = [
        (tensors[0], tensors[1].clone().requires_grad_(), *tensors[2:]),
        (tensors[0], tensors[1].double(), *tensors[2:]),
        (tensors[0], tensors[1].bfloat16(), *tensors[2:]),
        (tensors[0], tensors[1].to("meta"), *tensors[2:]),
        (tables, *tensors[1:]),
    ]
    assert [native_score(*unsupported) for unsupported in plain + torches] == [None] * 13


@compiled
def test_a_table_that_is_not_dense_is_left_to_the_reference() -> None:
    tables, *inputs = case()
    cell = CellTables(np.asfortranarray(tables.cell.items), *tables.cell.arrays[1:])
    loose = Tables(cell, tables.head, None, None)
    assert native_score(loose, *inputs) is None
    assert np.allclose(loose.score(*inputs), native_score(tables, *inputs), atol=1e-5)


@compiled
def test_an_environment_variable_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    tables, *inputs = case()
    before = tables.score(*inputs)
    monkeypatch.setenv("MBCAL_NATIVE", "0")
    assert not native.available()
    assert native_score(tables, *inputs) is None
    assert np.allclose(tables.score(*inputs), before, atol=1e-5)


def test_without_the_library_the_reference_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "score_function", lambda: None)
    assert not native.available()
    tables, *inputs = case()
    assert tables.score(*inputs).shape == (SESSIONS, WIDTH, 3)


@pytest.mark.parametrize("content", [None, b"no library"], ids=["missing", "broken"])
def test_a_library_that_does_not_load_is_not_used(
    content: bytes | None, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if content is not None:
        (tmp_path / f"_score{native.EXTENSION_SUFFIXES[0]}").write_bytes(content)
    monkeypatch.setattr(native, "__file__", str(tmp_path / "__init__.py"))
    assert native.score_function.__wrapped__() is None


def test_it_needs_no_torch() -> None:
    script = (
        "import sys, numpy as np\n"
        "from mbcal.kernels import native\n"
        "def ones(*shape): return np.ones(shape, np.float32)\n"
        "cell, head = (ones(9, 6), ones(3, 6), ones(6, 2), ones(6)), (ones(2, 2), ones(2), ones(1, 2), ones(1))\n"
        "scores = native.score(cell, head, ones(20, 2), np.zeros(20, int), np.zeros((20, 3), int))\n"
        "assert (scores is not None) == native.available()\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@compiled
@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
def test_a_forked_process_starts_threads_of_its_own() -> None:
    script = (
        "import os, numpy as np\n"
        "from mbcal.kernels import native\n"
        "from tests.support.kernels import case, native_score\n"
        "native.set_threads(2)\n"
        "native.MIN_THREAD_CANDIDATES = 1\n"
        "native_score(*case())\n"
        "child = os.fork()\n"
        "if not child: os._exit(0 if native_score(*case()) is not None else 1)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
