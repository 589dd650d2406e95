"""Candidate scores in C, called through ctypes. The reference implementation is `scoring.tables.Tables`.

Every function returns None for what C does not support (the library was not compiled, CUDA, float64, gradients, shapes to
broadcast, indices out of range), and the caller goes on with the reference implementation, which also raises the error if
there is one. `MBCAL_NATIVE=0` turns everything off.

Modules: this one (blocks of sessions), `session` (one session of the service), `names` (item names in a request's JSON).
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
FourArrays = tuple[Array, Array, Array, Array]
"""The arrays of a cell (`CellTables.arrays`) or of a head (`Tables.head`)."""

MIN_THREAD_CANDIDATES = 4096
"""Candidates for which a further thread is used; with fewer, waking it takes as long as the work."""
MIN_NUMPY_CANDIDATES = 16
"""Candidates below which numpy is faster than checking the arguments and taking addresses; torch never is."""
INSTRUCTION_LEVEL = 2
"""The widest instructions to use if the CPU has them: 0 plain, 1 AVX2, 2 AVX-512."""
NO_HEAD = (None,) * 4
NO_REWARDS = (None,)

_threads = 1


class Task(ctypes.Structure):
    """`struct task` of score.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("items", "behaviours", "weight", "bias")),
        *((name, ctypes.c_void_p) for name in ("first", "first_bias", "second", "second_bias", "rewards")),
        *((name, ctypes.c_void_p) for name in ("hidden", "previous", "candidates", "outputs")),
        *((name, ctypes.c_int64) for name in ("n_rows", "n_behaviours", "size", "inner", "n_outputs", "width", "wide_rows")),
    )


def available() -> bool:
    """Whether the library was compiled and is turned on."""
    return os.environ.get("MBCAL_NATIVE") != "0" and score_function() is not None


def threads() -> int:
    """Threads that share the sessions of one call."""
    return _threads


def set_threads(count: int) -> None:
    """Set the number of threads that share the sessions of one call.

    More than one pays off for large blocks (waking a thread takes 0.1 ms), unless torch's threads spin on the same cores.

    Raises:
        OptionError: If the number is below 1.
    """
    global _threads
    if count < 1:
        raise OptionError(f"threads: must be at least 1, got {count}")
    _threads = count


def score(cell: FourArrays, head: FourArrays | None, hidden: Array, previous: Array, candidates: Array) -> Array | None:
    """Compute a network's outputs for every candidate, as `Tables.score`.

    Args:
        cell: The arrays of its cell, float32.
        head: The arrays of its head, float32; None for the hidden states after each candidate.
        hidden: (B, H) hidden states, float32.
        previous: (B,) previous behaviours, int64.
        candidates: (B, C) catalogue rows, int32 or int64.

    Returns:
        (B, C, K), or (B, C, H) without a head; None if not supported.
    """
    if not available():
        return None
    tables, inputs = (*cell, *(head or ())), (hidden, previous, candidates)
    backend = _backend_of(hidden)
    if backend is np and np.size(candidates) < MIN_NUMPY_CANDIDATES:
        return None
    if not all(_is_readable(array, backend) for array in (*tables, *inputs)):
        return None
    if not (_types_match(tables, inputs, backend) and shapes_match(tables, inputs) and all(map(is_dense, tables))):
        return None
    inputs = tuple(array if is_dense(array) else _dense_copy(array) for array in inputs)
    n_outputs, inner = head[2].shape if head else (hidden.shape[1], 0)
    shape = (*candidates.shape, n_outputs)
    outputs = np.empty(shape, np.float32) if backend is np else hidden.new_empty(shape)
    pointers = (*map(address, tables), *(() if head else NO_HEAD), *NO_REWARDS, *map(address, (*inputs, outputs)))
    sizes = (cell[0].shape[0], cell[1].shape[0], hidden.shape[1], inner, n_outputs, candidates.shape[1])
    task = Task(*pointers, *sizes, candidates.dtype == backend.int64)
    return outputs if _run(task, shape, (*tables, *inputs, outputs)) else None


def read(cell: FourArrays, items: Array, behaviours: Array, length: Array) -> Array | None:
    """Run a cell over histories, from a hidden state of zero.

    Args:
        cell: The arrays of the cell, float32 in numpy.
        items: (B, L) catalogue rows, int32.
        behaviours: (B, L).
        length: (B,) how many steps of each history count, int32.

    Returns:
        Hidden states (B, H), or None if not supported.
    """
    hidden, inputs = np.zeros((len(items), cell[3].shape[0] // 3), np.float32), (items, behaviours, length)
    if not available() or read_function() is None:
        return None
    if not all(_is_readable(array, np) and is_dense(array) for array in (*cell, *inputs)):
        return None
    if items.dtype != np.int32 or length.dtype != np.int32 or any(array.dtype != np.float32 for array in cell):
        return None
    if not (items.shape == behaviours.shape and len(length) == len(items) and shapes_match(cell, (hidden, length, items))):
        return None
    if not items.size:
        return hidden
    previous = behaviours.astype(np.int64)
    pointers = (*map(address, cell), *NO_HEAD, *NO_REWARDS, None, *map(address, (previous, items, hidden)))
    task = Task(*pointers, len(cell[0]), len(cell[1]), hidden.shape[1], 0, hidden.shape[1], 1, False)
    failed = read_function()(ctypes.byref(task), address(length), *items.shape, INSTRUCTION_LEVEL)
    return None if failed else hidden


def shapes_match(tables: Sequence[Array], inputs: Sequence[Array]) -> bool:
    """Whether the shapes fit each other without broadcasting.

    Args:
        tables: The four arrays of a cell, or of a cell and a head.
        inputs: hidden (B, H), previous (B,), candidates (B, C).
    """
    hidden, previous, candidates = (tuple(array.shape) for array in inputs)
    if len(hidden) != 2 or hidden[1] < 1 or len(candidates) != 2:
        return False
    size, shapes = hidden[1], [tuple(array.shape) for array in tables]
    expected = [(*shapes[0][:1], 3 * size), (*shapes[1][:1], 3 * size), (3 * size, size), (3 * size,)]
    if len(shapes) > 4:
        inner, n_outputs = shapes[5], shapes[7]
        expected += [(*inner, size), inner, (*n_outputs, *inner), n_outputs]
    return shapes == expected and previous == hidden[:1] == candidates[:1]


def is_dense(array: Array) -> bool:
    """Whether it is row-major without gaps."""
    return bool(array.flags.c_contiguous if isinstance(array, np.ndarray) else array.is_contiguous())


def address(array: Array) -> int:
    """The address of its first element."""
    # not `array.ctypes`, which creates an object: three times slower, and this is called a dozen times per call
    return int(array.__array_interface__["data"][0] if isinstance(array, np.ndarray) else array.data_ptr())


@cache
def read_function() -> Any:
    """The compiled `mbcal_read`, or None."""
    arguments = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int)
    return load_function("mbcal_read_1", ctypes.c_int, arguments, keep_gil=True)


def load_function(name: str, result: Any, arguments: tuple[Any, ...], keep_gil: bool = False) -> Any:
    """Load a function of the compiled library.

    Args:
        name: Its exported name.
        result: ctypes type of its result.
        arguments: ctypes types of its arguments.
        keep_gil: Keep the GIL during calls, for functions so short that releasing it takes longer.

    Returns:
        The function; None if the library is missing, does not load here, or is of another version.
    """
    for suffix in EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(f"_score{suffix}")
        if path.exists():
            try:
                function = getattr((ctypes.PyDLL if keep_gil else ctypes.CDLL)(str(path)), name)
            except (OSError, AttributeError):  # built for another machine, or from another version of the source
                return None
            function.restype, function.argtypes = result, arguments
            return function
    return None


def _backend_of(array: Array) -> Any:
    """The module numpy or torch. If it is a tensor, torch has been imported already."""
    return np if isinstance(array, np.ndarray) else sys.modules.get("torch")


def _is_readable(array: Array, backend: Any) -> bool:
    """Whether it is a plain array or CPU tensor of the backend, whose memory C can read."""
    if backend is np:
        return isinstance(array, np.ndarray) and array.flags.aligned
    if backend is None or type(array) is not backend.Tensor:
        return False
    return array.is_cpu and not array.requires_grad and array.layout is backend.strided


def _types_match(tables: Sequence[Array], inputs: Sequence[Array], backend: Any) -> bool:
    hidden, previous, candidates = (array.dtype for array in inputs)
    indices = previous == backend.int64 and (candidates == backend.int32 or candidates == backend.int64)
    return indices and hidden == backend.float32 and all(array.dtype == hidden for array in tables)


def _dense_copy(array: Array) -> Array:
    return np.ascontiguousarray(array) if isinstance(array, np.ndarray) else array.contiguous()


def _run(task: Task, shape: Sequence[int], arrays: Sequence[Array]) -> bool:
    """Score the sessions of a task, on several threads if there are enough candidates.

    Args:
        task: The task.
        shape: Sessions, candidates, outputs.
        arrays: The arrays the task points to.

    Returns:
        False if an index was out of range or memory ran out.
    """
    sessions, width = shape[0], shape[1]
    parts = max(1, min(_threads, sessions, sessions * width // MIN_THREAD_CANDIDATES))
    bounds = [sessions * part // parts for part in range(parts + 1)]

    def work(part: int, _memory: Sequence[Array] = arrays) -> int:  # keeps the arrays alive if the caller is interrupted
        return int(score_function()(ctypes.byref(task), bounds[part], bounds[part + 1], INSTRUCTION_LEVEL))

    others = [_pool(_threads - 1).submit(work, part) for part in range(1, parts)]
    return not any([work(0), *(other.result() for other in others)])


@cache
def score_function() -> Any:
    """The compiled `mbcal_score`; None if there is none."""
    return load_function("mbcal_score_2", ctypes.c_int, (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int))


@cache
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, "mbcal-score")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a forked child has none of its parent's threads
