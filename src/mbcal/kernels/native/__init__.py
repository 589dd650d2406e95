"""Candidate scores in C, where it was compiled: the fast twin of `scoring.Tables.score`, called by ctypes.

Whatever it is not made for (CUDA, float64, gradients, shapes to broadcast, indices out of range) is answered with None, so
that the twin's own arithmetic, or its error, follows. `MBCAL_NATIVE=0` turns it off.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import numpy as np

from mbcal.errors import OptionError

Array = Any
"""A numpy array or a torch tensor."""
Four = tuple[Array, Array, Array, Array]

WORTHWHILE = 4096
"""Candidates a thread must get to be worth waking: below, handing over takes as long as the work."""
FEW = 16
"""Candidates below which numpy itself is done before all checks and addresses are; torch never is."""
LEVEL = 2
"""The widest instructions to use if the machine has them: 0 plain, 1 AVX2, 2 AVX-512."""
NO_HEAD = (None,) * 4
NO_REWARDS = (None,)

_threads = 1


class Task(ctypes.Structure):
    """`struct task` of score.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("items", "behaviours", "weight", "bias")),
        *((name, ctypes.c_void_p) for name in ("first", "first_bias", "second", "second_bias", "rewards")),
        *((name, ctypes.c_void_p) for name in ("hidden", "previous", "candidates", "outputs")),
        *((name, ctypes.c_int64) for name in ("rows", "kinds", "size", "inner", "count", "width", "wide")),
    )


def available() -> bool:
    """Whether scores come from C."""
    return os.environ.get("MBCAL_NATIVE") != "0" and _kernel() is not None


def threads() -> int:
    """How many threads share the sessions of one call."""
    return _threads


def set_threads(count: int) -> None:
    """More than one pays for large blocks (waking takes 0.1 ms), and if torch's threads do not spin for the same cores."""
    global _threads
    if count < 1:
        raise OptionError(f"threads: must be at least 1, got {count}")
    _threads = count


def score(cell: Four, head: Four | None, hidden: Array, previous: Array, candidates: Array) -> Array | None:
    """Outputs (B, C, outputs) as by `Tables.score`, previous behaviours being int64; None where the twin has to do it.

    Without a head, the hidden states (B, C, H) after each candidate.
    """
    if not available():
        return None
    tables, given = (*cell, *(head or ())), (hidden, previous, candidates)
    space = _space(hidden)
    if space is np and np.size(candidates) < FEW:
        return None
    if not (all(_readable(array, space) for array in tables) and all(_readable(array, space) for array in given)):
        return None
    if not (_typed(tables, given, space) and shaped(tables, given) and all(map(dense, tables))):
        return None
    given = tuple(array if dense(array) else _copied(array) for array in given)
    count, inner = head[2].shape if head else (hidden.shape[1], 0)
    shape = (*candidates.shape, count)
    outputs = np.empty(shape, np.float32) if space is np else hidden.new_empty(shape)
    pointers = (*map(address, tables), *(() if head else NO_HEAD), *NO_REWARDS, *map(address, (*given, outputs)))
    sizes = (cell[0].shape[0], cell[1].shape[0], hidden.shape[1], inner, count, candidates.shape[1])
    task = Task(*pointers, *sizes, candidates.dtype == space.int64)
    return outputs if _run(task, shape, (*tables, *given, outputs)) else None


def read(cell: Four, items: Array, behaviours: Array, length: Array) -> Array | None:
    """Hidden states (B, H) after histories (B, T) of these lengths (B,), from none; None where the twin has to do it."""
    hidden, given = np.zeros((len(items), cell[3].shape[0] // 3), np.float32), (items, behaviours, length)
    if not available() or reader() is None or not all(_readable(array, np) and dense(array) for array in (*cell, *given)):
        return None
    if items.dtype != np.int32 or length.dtype != np.int32 or any(array.dtype != np.float32 for array in cell):
        return None
    if not (items.shape == behaviours.shape and len(length) == len(items) and shaped(cell, (hidden, length, items))):
        return None
    if not items.size:
        return hidden
    previous = behaviours.astype(np.int64)
    pointers = (*map(address, cell), *NO_HEAD, *NO_REWARDS, None, *map(address, (previous, items, hidden)))
    task = Task(*pointers, len(cell[0]), len(cell[1]), hidden.shape[1], 0, hidden.shape[1], 1, False)
    failed = reader()(ctypes.byref(task), address(length), *items.shape, LEVEL)
    return None if failed else hidden


def _space(array: Array) -> Any:
    """Where its kind lives: numpy or torch, which whoever has a tensor has imported."""
    return np if isinstance(array, np.ndarray) else sys.modules.get("torch")


def _readable(array: Array, space: Any) -> bool:
    """Whether it is an ordinary array of numpy or tensor of torch, whose memory can be read as it lies."""
    if space is np:
        return isinstance(array, np.ndarray) and array.flags.aligned
    if space is None or type(array) is not space.Tensor:
        return False
    return array.is_cpu and not array.requires_grad and array.layout is space.strided


def _typed(tables: Sequence[Array], given: Sequence[Array], space: Any) -> bool:
    hidden, previous, candidates = (array.dtype for array in given)
    indices = previous == space.int64 and (candidates == space.int32 or candidates == space.int64)
    return indices and hidden == space.float32 and all(array.dtype == hidden for array in tables)


def shaped(tables: Sequence[Array], given: Sequence[Array]) -> bool:
    """Whether every shape is the plain one: what would have to be broadcast is left to the twin."""
    hidden, previous, candidates = (tuple(array.shape) for array in given)
    if len(hidden) != 2 or hidden[1] < 1 or len(candidates) != 2:
        return False
    size, shapes = hidden[1], [tuple(array.shape) for array in tables]
    wanted = [(*shapes[0][:1], 3 * size), (*shapes[1][:1], 3 * size), (3 * size, size), (3 * size,)]
    if len(shapes) > 4:
        inner, count = shapes[5], shapes[7]
        wanted += [(*inner, size), inner, (*count, *inner), count]
    return shapes == wanted and previous == hidden[:1] == candidates[:1]


def dense(array: Array) -> bool:
    """Whether it lies row by row, without gaps."""
    return bool(array.flags.c_contiguous if isinstance(array, np.ndarray) else array.is_contiguous())


def _copied(array: Array) -> Array:
    return np.ascontiguousarray(array) if isinstance(array, np.ndarray) else array.contiguous()


def address(array: Array) -> int:
    """Where its memory begins."""
    # the interface, since `array.ctypes` makes an object of its own: three times as long, twelve times a call
    return int(array.__array_interface__["data"][0] if isinstance(array, np.ndarray) else array.data_ptr())


def _run(task: Task, shape: Sequence[int], arrays: Sequence[Array]) -> bool:
    """Sessions in as many parts as pay; false if an index was out of range. `arrays` own the task's memory."""
    sessions, width = shape[0], shape[1]
    parts = max(1, min(_threads, sessions, sessions * width // WORTHWHILE))
    cuts = [sessions * part // parts for part in range(parts + 1)]

    def work(part: int, _memory: Sequence[Array] = arrays) -> int:  # an interrupt must not free what a thread still uses
        return int(_kernel()(ctypes.byref(task), cuts[part], cuts[part + 1], LEVEL))

    others = [_pool(_threads - 1).submit(work, part) for part in range(1, parts)]
    return not any([work(0), *(other.result() for other in others)])


@cache
def _kernel() -> Any:
    """The compiled function, or None where there is none."""
    return function("mbcal_score_2", ctypes.c_int, (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int))


@cache
def reader() -> Any:
    """The compiled function that reads histories, or None where there is none."""
    arguments = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int)
    return function("mbcal_read_1", ctypes.c_int, arguments, short=True)


def function(name: str, result: Any, arguments: tuple[Any, ...], short: bool = False) -> Any:
    """A compiled function, or None where there is none; a short one keeps the GIL, since handing it over takes longer."""
    for suffix in EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(f"_score{suffix}")
        if path.exists():
            try:
                found = getattr((ctypes.PyDLL if short else ctypes.CDLL)(str(path)), name)
            except (OSError, AttributeError):  # made for another machine, or from another version of the source
                return None
            found.restype, found.argtypes = result, arguments
            return found
    return None


@cache
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, "mbcal-score")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads stay behind in the parent
