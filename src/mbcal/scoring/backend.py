"""The operations that numpy and torch spell differently, for code that works on both and does not import torch."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from mbcal.types import SessionFields

Array = Any
"""A numpy array or a torch tensor."""


def sigmoid_(x: Array) -> Array:
    """1 / (1 + exp(-x)), in place."""
    if not isinstance(x, np.ndarray):
        return x.sigmoid_()
    np.multiply(x, 0.5, out=x)  # tanh(x/2) / 2 + 1/2 is the same function and never overflows
    np.tanh(x, out=x)
    x *= 0.5
    x += 0.5
    return x


def tanh_(x: Array) -> Array:
    """tanh(x), in place."""
    return np.tanh(x, out=x) if isinstance(x, np.ndarray) else x.tanh_()


def exp(x: Array) -> Array:
    """e^x."""
    return np.exp(x) if isinstance(x, np.ndarray) else x.exp()


def sqrt(x: Array) -> Array:
    """Square root."""
    return np.sqrt(x) if isinstance(x, np.ndarray) else x.sqrt()


def stack(parts: list[Array]) -> Array:
    """Stack N arrays (…) along a new last axis: (…, N)."""
    if isinstance(parts[0], np.ndarray):
        return np.stack(parts, -1)
    stacked = parts[0].new_empty(*parts[0].shape, len(parts))
    for index, part in enumerate(parts):
        stacked[..., index] = part
    return stacked


def largest(x: Array) -> Array:
    """The maximum along the last axis: (…, N) -> (…, 1)."""
    return x.max(-1, keepdims=True) if isinstance(x, np.ndarray) else x.amax(-1, keepdim=True)


def where(condition: Array, yes: Array, no: Array) -> Array:
    """`yes` where the condition holds, else `no`."""
    return np.where(condition, yes, no) if isinstance(condition, np.ndarray) else yes.where(condition, no)


def as_index(x: Array) -> Array:
    """As int64, to index with."""
    return x.astype(np.int64) if isinstance(x, np.ndarray) else x.long()


def as_float(x: Array) -> Array:
    """As float32."""
    return x.astype(np.float32) if isinstance(x, np.ndarray) else x.float()


def zeros(like: Array, rows: int) -> Array:
    """Zeros (rows, N) of the type and on the device of `like` (M, N)."""
    shape = (rows, like.shape[1])
    return np.zeros(shape, like.dtype) if isinstance(like, np.ndarray) else like.new_zeros(shape)


def numbered(x: Array) -> Array:
    """0, 1, 2, … along the first axis of an array (N,), on its device."""
    return (as_index(x) * 0 + 1).cumsum(0) - 1


def to_numpy(value: Any) -> Any:
    """Convert every tensor in a nest of dataclasses, tuples and dictionaries (tables, terms, scorers) to a numpy array."""
    if value is None or isinstance(value, np.ndarray | int | float | SessionFields):
        return value
    if isinstance(value, dict):
        return {name: to_numpy(part) for name, part in value.items()}
    if isinstance(value, tuple):
        return tuple(to_numpy(part) for part in value)
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{field.name: to_numpy(getattr(value, field.name)) for field in fields(value)})
    return value.detach().cpu().numpy()


def copy_into(target: Any, source: Any) -> None:
    """Overwrite every tensor in a nest of dataclasses and tuples, in place, by its counterpart of the same shape.

    A CUDA graph that reads the target goes on reading the same memory.
    """
    if isinstance(target, tuple):
        for target_part, source_part in zip(target, source, strict=True):
            copy_into(target_part, source_part)
    elif is_dataclass(target) and not isinstance(target, type):
        for field in fields(target):
            copy_into(getattr(target, field.name), getattr(source, field.name))
    elif target is not None:
        target.copy_(source)
