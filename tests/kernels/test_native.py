"""The compiled scores against their twin in `scoring.py`."""

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
from tests.support.kernels import KINDS, ROWS, SESSIONS, WIDTH, Case, case, fast, twin

compiled = pytest.mark.skipif(not native.available(), reason="score.c was not compiled, or MBCAL_NATIVE=0")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = native.threads()
    yield
    native.set_threads(before)


def in_torch(tables: Tables, *others: Any) -> Case:
    cell = CellTables(*map(torch.from_numpy, tables.cell.arrays))
    first, first_bias, second, second_bias = map(torch.from_numpy, tables.head)
    hidden, previous, candidates = map(torch.from_numpy, others)
    return Tables(cell, (first, first_bias, second, second_bias), None, None), hidden, previous, candidates


@compiled
@pytest.mark.parametrize("size", [1, 5, 8, 32, 33])
@pytest.mark.parametrize("outputs", [1, 3, 12])
@pytest.mark.parametrize("level", [0, 1, 2], ids=["plain", "avx2", "avx512"])
def test_scores_equal_the_twin(size: int, outputs: int, level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "LEVEL", level)
    tables, hidden, previous, candidates = case(size, outputs)
    expected = twin(tables, hidden, previous, candidates)
    for indices in (candidates, candidates.astype(np.int64)):
        made = fast(tables, hidden, previous, indices)
        assert made.dtype == np.float32
        assert np.abs(made - expected).max() < 1e-5
        tensor = fast(*in_torch(tables, hidden, previous, indices))
        assert isinstance(tensor, torch.Tensor)
        assert np.array_equal(tensor.numpy(), made)


@compiled
@pytest.mark.parametrize("convert", [lambda *case: case, in_torch], ids=["numpy", "torch"])
def test_tables_use_it(convert: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tables, hidden, previous, candidates = convert(*case(32))
    calls: list[Any] = []
    monkeypatch.setattr(native, "score", lambda *given, score=native.score: calls.append(score(*given)) or calls[-1])
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
    monkeypatch.setattr(native, "LEVEL", level)
    given = case(8, scale=50.0)
    made = fast(*given)
    assert np.isfinite(made).all()
    assert np.abs(made - twin(*given)).max() < 1e-5
    items = given[0].cell.items
    items[:] = np.where(items > 0, np.inf, -np.inf)
    assert np.abs(fast(*given) - twin(*given)).max() < 1e-5


@compiled
@pytest.mark.parametrize("level", [0, 1, 2])
def test_nan_stays_where_it_was(level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "LEVEL", level)
    tables, hidden, previous, candidates = case(8)
    hidden[5, 3] = np.nan
    made = fast(tables, hidden, previous, candidates)
    assert np.isnan(made[5]).all()
    assert np.isfinite(np.delete(made, 5, 0)).all()


@compiled
@pytest.mark.parametrize("convert", [lambda *case: case, in_torch], ids=["numpy", "torch"])
@pytest.mark.parametrize("threads", [1, 2])
def test_indices_out_of_range_are_index_errors(convert: Any, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    native.set_threads(threads)
    monkeypatch.setattr(native, "WORTHWHILE", 1)
    for wide in (np.int32, np.int64):
        for wrong in (ROWS, -ROWS - 1, np.iinfo(wide).max, np.iinfo(wide).min):
            tables, hidden, previous, candidates = case()
            candidates = candidates.astype(wide)
            candidates[-1, -1] = wrong
            given = convert(tables, hidden, previous, candidates)
            assert fast(*given) is None
            with pytest.raises(IndexError):
                given[0].score(*given[1:])
    for wrong in (KINDS, -KINDS - 1, 2**62):
        tables, hidden, previous, candidates = case()
        previous[-1] = wrong
        given = convert(tables, hidden, previous, candidates)
        with pytest.raises(IndexError):
            given[0].score(*given[1:])


@compiled
def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    given = case(32, 6, sessions=200)
    alone = fast(*given)
    monkeypatch.setattr(native, "WORTHWHILE", 1)
    for count in (2, 3, 500):
        native.set_threads(count)
        assert np.array_equal(fast(*given), alone)


def test_threads_are_at_least_one() -> None:
    with pytest.raises(OptionError, match="at least 1"):
        native.set_threads(0)


@compiled
def test_a_session_scores_the_same_in_any_batch() -> None:
    tables, hidden, previous, candidates = case(33, 6)
    whole = fast(tables, hidden, previous, candidates)
    part = slice(20, 29)
    assert np.array_equal(fast(tables, hidden[part], previous[part], candidates[part]), whole[part])


@compiled
def test_what_lies_scattered_is_gathered() -> None:
    tables, hidden, previous, candidates = case()
    whole = fast(tables, hidden, previous, candidates)
    scattered = np.asfortranarray(hidden), np.repeat(previous, 2)[::2], np.asfortranarray(candidates)
    assert np.array_equal(fast(tables, *scattered), whole)
    made = fast(*in_torch(tables, *scattered))
    assert np.array_equal(made.numpy(), whole)


@compiled
@pytest.mark.parametrize("shape", [(0, 5), (20, 0)])
def test_nothing_is_scored_as_nothing(shape: tuple[int, int]) -> None:
    tables, hidden, previous, _ = in_torch(*case())
    none = torch.zeros(shape, dtype=torch.int32)
    assert fast(tables, hidden[: shape[0]], previous[: shape[0]], none).shape == (*shape, 3)


@compiled
def test_the_rest_is_left_to_the_twin() -> None:
    tables, hidden, previous, candidates = given = case()
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
    tensors = in_torch(*given)
    torches = [
        (tensors[0], tensors[1].clone().requires_grad_(), *tensors[2:]),
        (tensors[0], tensors[1].double(), *tensors[2:]),
        (tensors[0], tensors[1].bfloat16(), *tensors[2:]),
        (tensors[0], tensors[1].to("meta"), *tensors[2:]),
        (tables, *tensors[1:]),
    ]
    assert [fast(*one) for one in plain + torches] == [None] * 13


@compiled
def test_an_item_table_that_would_have_to_be_copied_is_left_to_the_twin() -> None:
    tables, *others = case()
    cell = CellTables(np.asfortranarray(tables.cell.items), *tables.cell.arrays[1:])
    loose = Tables(cell, tables.head, None, None)
    assert fast(loose, *others) is None
    assert np.allclose(loose.score(*others), fast(tables, *others), atol=1e-5)


@compiled
def test_the_environment_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    tables, *others = case()
    before = tables.score(*others)
    monkeypatch.setenv("MBCAL_NATIVE", "0")
    assert not native.available()
    assert fast(tables, *others) is None
    assert np.allclose(tables.score(*others), before, atol=1e-5)


def test_without_the_library_the_twin_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_kernel", lambda: None)
    assert not native.available()
    tables, *others = case()
    assert tables.score(*others).shape == (SESSIONS, WIDTH, 3)


@pytest.mark.parametrize("content", [None, b"no library"], ids=["missing", "broken"])
def test_a_library_that_does_not_load_is_none(content: bytes | None, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if content is not None:
        (tmp_path / f"_score{native.EXTENSION_SUFFIXES[0]}").write_bytes(content)
    monkeypatch.setattr(native, "__file__", str(tmp_path / "__init__.py"))
    assert native._kernel.__wrapped__() is None


def test_it_needs_no_torch() -> None:
    script = (
        "import sys, numpy as np\n"
        "from mbcal.kernels import native\n"
        "def ones(*shape): return np.ones(shape, np.float32)\n"
        "cell, head = (ones(9, 6), ones(3, 6), ones(6, 2), ones(6)), (ones(2, 2), ones(2), ones(1, 2), ones(1))\n"
        "made = native.score(cell, head, ones(20, 2), np.zeros(20, int), np.zeros((20, 3), int))\n"
        "assert (made is not None) == native.available()\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@compiled
@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
def test_a_forked_process_starts_threads_of_its_own() -> None:
    script = (
        "import os, numpy as np\n"
        "from mbcal.kernels import native\n"
        "from tests.support.kernels import case, fast\n"
        "native.set_threads(2)\n"
        "native.WORTHWHILE = 1\n"
        "fast(*case())\n"
        "child = os.fork()\n"
        "if not child: os._exit(0 if fast(*case()) is not None else 1)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
