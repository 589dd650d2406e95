"""The few operations that numpy and torch spell differently, for code that works on both and imports no torch."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

Array = Any
"""A numpy array or a torch tensor."""


def sigmoid_(x: Array) -> Array:
    """1 / (1 + exp(-x)), in place."""
    if not isinstance(x, np.ndarray):
        return x.sigmoid_()
    np.multiply(x, 0.5, out=x)  # 1/2 tanh(x/2) + 1/2 is the same function and never overflows
    np.tanh(x, out=x)
    x *= 0.5
    x += 0.5
    return x


def tanh_(x: Array) -> Array:
    """In place."""
    return np.tanh(x, out=x) if isinstance(x, np.ndarray) else x.tanh_()


def exp(x: Array) -> Array:
    """e^x."""
    return np.exp(x) if isinstance(x, np.ndarray) else x.exp()


def sqrt(x: Array) -> Array:
    """Square root."""
    return np.sqrt(x) if isinstance(x, np.ndarray) else x.sqrt()


def stack(parts: list[Array]) -> Array:
    """(B,) each -> (B, how many)."""
    if isinstance(parts[0], np.ndarray):
        return np.stack(parts, -1)
    made = parts[0].new_empty(*parts[0].shape, len(parts))
    for place, part in enumerate(parts):
        made[..., place] = part
    return made


def largest(x: Array) -> Array:
    """The maximum along the last axis, kept as an axis."""
    return x.max(-1, keepdims=True) if isinstance(x, np.ndarray) else x.amax(-1, keepdim=True)


def where(condition: Array, yes: Array, no: Array) -> Array:
    """`yes` where the condition holds, else `no`."""
    return np.where(condition, yes, no) if isinstance(condition, np.ndarray) else yes.where(condition, no)


def as_index(x: Array) -> Array:
    """As 64-bit integers, to index with."""
    return x.astype(np.int64) if isinstance(x, np.ndarray) else x.long()


def as_float(x: Array) -> Array:
    """As 32-bit floats."""
    return x.astype(np.float32) if isinstance(x, np.ndarray) else x.float()


def zeros(like: Array, rows: int) -> Array:
    """(rows, columns of `like`) of zeros, wherever `like` lives."""
    shape = (rows, like.shape[1])
    return np.zeros(shape, like.dtype) if isinstance(like, np.ndarray) else like.new_zeros(shape)


def to_numpy(value: Any) -> Any:
    """Tensors within tables, terms and scorers as plain arrays, for where torch is not."""
    if value is None or isinstance(value, np.ndarray | int | float):
        return value
    if isinstance(value, dict):
        return {name: to_numpy(part) for name, part in value.items()}
    if isinstance(value, tuple):
        return tuple(to_numpy(part) for part in value)
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{field.name: to_numpy(getattr(value, field.name)) for field in fields(value)})
    return value.detach().cpu().numpy()


def copy_into(kept: Any, fresh: Any) -> None:
    """Overwrite the tensors within tables and terms by those of another of the same shape, in their own memory."""
    if isinstance(kept, tuple):
        for mine, new in zip(kept, fresh, strict=True):
            copy_into(mine, new)
    elif is_dataclass(kept) and not isinstance(kept, type):
        for field in fields(kept):
            copy_into(getattr(kept, field.name), getattr(fresh, field.name))
    elif kept is not None:
        kept.copy_(fresh)
