"""Sessions as numpy arrays; `session_tensors.py` has them as torch tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mbcal.errors import InputError
from mbcal.types.catalog import Behaviours, Catalog
from mbcal.types.features import MASK_ROW, UNKNOWN_ROW
from mbcal.types.fields import NO_FIELDS, SessionFields
from mbcal.types.session_base import ARRAYS, SessionsBase, recode_arrays

if TYPE_CHECKING:
    import torch

    from mbcal.types.session_tensors import SessionTensors

LOG_ORIGIN = "decision-log:"
"""Prefix of the origin of sessions from a decision log. The origin of a store's sessions is its content hash."""

Index = slice | NDArray[np.integer[Any]] | NDArray[np.bool_] | Sequence[int]
"""What `sessions[…]` takes."""


@dataclass(frozen=True, eq=False, repr=False)
class Sessions(SessionsBase):
    """N sessions of up to T steps (the paper's trajectories o), one per row.

    ::

        items        (N, T) int32    a_1 a_2 a_3  0  0   catalogue rows; padding is 0
        behaviours   (N, T) uint8    b_1 b_2 b_3  0  0   numbers of behaviours in `behaviour_set`
        length       (N,)   int32    3                   steps that count
        history_*    (N, H)          h_1 h_2  0          steps of the user just before the session, oldest first
        candidates   (N, C) int32                        items to choose from; (N, T, C) if they differ by step; padding is 0
        propensities (N, T) float32                      probability with which the logging policy chose a_t
        timestamps   (N, T) int64                        microseconds since 1970, UTC
        user_features (N, U) float32                     the user, encoded by `fields.user`
        context      (N, T, K) float32                   each step, encoded by `fields.context`; padding is 0

    A slice (`sessions[10:20]`) shares memory; an index array or a boolean mask copies its rows.

    Raises:
        InputError: If an array has the wrong dtype, shape or values.
    """

    catalog: Catalog
    behaviour_set: Behaviours
    items: NDArray[np.int32]
    behaviours: NDArray[np.uint8]
    length: NDArray[np.int32]
    user: NDArray[np.int32]
    """(N,) user numbers, 0 or more; comparable only between sessions of one origin."""
    history_items: NDArray[np.int32]
    history_behaviours: NDArray[np.uint8]
    history_length: NDArray[np.int32]
    candidates: NDArray[np.int32] | None = None
    propensities: NDArray[np.float32] | None = None
    timestamps: NDArray[np.int64] | None = None
    user_features: NDArray[np.float32] | None = None
    context: NDArray[np.float32] | None = None
    origin: str = ""
    """Content hash of the store they come from; see `LOG_ORIGIN` for decision logs."""
    fields: SessionFields = NO_FIELDS
    """What `user_features` and `context` mean. Steps of histories have no context (docs/features.md says why)."""

    def __post_init__(self) -> None:
        self._check_shapes()
        self._check_steps("items", "behaviours", self.length, self.mask)
        self._check_steps("history_items", "history_behaviours", self.history_length, self.history_mask)
        if len(self) and int(self.length.min()) < 1:
            raise InputError("sessions: length must be at least 1; drop empty sessions")
        if self.behaviour_set.terminal:
            is_end = self.behaviour_set.is_terminal[self.behaviours]
            if np.any(is_end[:, :-1] & self.mask[:, 1:]):
                ends = ", ".join(self.behaviour_set.terminal)
                raise InputError(f"sessions: terminal behaviours ({ends}) must come last; cut sessions after them")
        if len(self) and int(self.user.min()) < 0:
            raise InputError("sessions: user must be 0 or more")
        if self.candidates is not None:
            _require_range("candidates", self.candidates, self.catalog.n_rows)
        if self.propensities is not None:
            chosen = self.propensities[self.mask]
            if not (np.all(chosen > 0) and np.all(chosen <= 1)):
                raise InputError("sessions: propensities must lie in (0, 1] at every step")
        if self.timestamps is not None:
            decreasing = (np.diff(self.timestamps, axis=1) < 0) & self.mask[:, 1:]
            if decreasing.any():
                row = int(np.argwhere(decreasing)[0, 0])
                raise InputError(f"sessions: timestamps must not decrease within a session; those of row {row} do")
        self._check_fields()

    def _check_fields(self) -> None:
        for name, fields in (("user_features", self.fields.user), ("context", self.fields.context)):
            rows = getattr(self, name)
            if (rows is None) == bool(len(fields)):
                raise InputError(f"sessions: {name} and its fields belong together; give both or neither")
            if rows is not None:
                fields.require_valid(name, rows)
        if self.context is not None and np.any(self.context[~self.mask]):
            raise InputError("sessions: context must be 0 after the end of a row")

    def _check_shapes(self) -> None:
        sizes: dict[str, int] = {}
        for name, array in self.arrays():
            dtype, axes = ARRAYS[name]
            if array.dtype != dtype:
                raise InputError(f"sessions: {name} must be {np.dtype(dtype)}, got {array.dtype}")
            if name == "candidates" and array.ndim == 3:
                axes = "NTC"
            if array.ndim != len(axes):
                raise InputError(f"sessions: {name} must have shape ({', '.join(axes)}), got {array.shape}")
            for axis, size in zip(axes, array.shape, strict=True):
                if sizes.setdefault(axis, size) != size:
                    raise InputError(f"sessions: {name} has shape {array.shape}, but {axis} is {sizes[axis]} elsewhere")

    def _check_steps(self, items: str, behaviours: str, length: NDArray[np.int32], mask: NDArray[np.bool_]) -> None:
        rows, numbers = getattr(self, items), getattr(self, behaviours)
        if len(length) and not 0 <= int(length.min()) <= int(length.max()) <= rows.shape[1]:
            raise InputError(f"sessions: lengths of {items} must lie in 0..{rows.shape[1]}")
        _require_range(items, rows, self.catalog.n_rows)
        _require_range(behaviours, numbers, len(self.behaviour_set))
        if np.any((rows == MASK_ROW) & mask):
            raise InputError(f"sessions: {items} holds the masking item inside a session; use the unknown row {UNKNOWN_ROW}")
        if np.any(rows[~mask]) or np.any(numbers[~mask]):
            raise InputError(f"sessions: {items} and {behaviours} must be 0 after the end of a row")

    def arrays(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield (name, array) for every array that is present."""
        for name in ARRAYS:
            array = getattr(self, name)
            if array is not None:
                yield name, array

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: Index) -> Sessions:
        if isinstance(index, int | np.integer):
            raise TypeError(f"sessions[{index}] would lose the first axis; write sessions[{index}:{index + 1}]")
        return unchecked_sessions(self, {name: array[index] for name, array in self.arrays()})

    def like(self, arrays: Mapping[str, NDArray[Any]]) -> Sessions:
        """Return sessions of other arrays, which are checked, with the same catalogue, behaviours and origin."""
        values: dict[str, Any] = {**arrays, "origin": self.origin, "fields": self.fields}
        return Sessions(self.catalog, self.behaviour_set, **values)

    def encoded_by(self, fields: SessionFields) -> Sessions:
        """Return the same sessions with user features and context encoded by the fields of a model.

        Fields that these sessions lack are missing values; those that the model does not have are left out.
        """
        if fields == self.fields:
            return self
        recoded = recode_arrays(self, fields, lambda *shape: np.zeros(shape, np.float32))
        return dataclasses.replace(self, fields=fields, **recoded)

    def context_at(self, step: int) -> NDArray[np.float32] | None:
        """The context (N, K) of a step; beyond a session's end that of its last. None if there is none."""
        return None if self.context is None else self.context[np.arange(len(self)), np.minimum(self.length - 1, step)]

    @classmethod
    def concat(cls, parts: Sequence[Sessions]) -> Sessions:
        """Join sessions along the first axis.

        Args:
            parts: At least one; all with the same catalogue, behaviours, horizon and optional arrays.

        Raises:
            InputError: If they differ in any of these.
        """
        first = parts[0]
        names = [name for name, _ in first.arrays()]
        for other in parts[1:]:
            if other.catalog is not first.catalog or other.behaviour_set != first.behaviour_set:
                raise InputError("sessions: only sessions over the same catalogue and behaviours can be joined")
            if [name for name, _ in other.arrays()] != names:
                raise InputError("sessions: only sessions that carry the same arrays can be joined")
            if other.fields != first.fields:
                raise InputError("sessions: only sessions whose fields are encoded alike can be joined")
        return unchecked_sessions(first, {name: np.concatenate([getattr(part, name) for part in parts]) for name in names})

    @property
    def horizon(self) -> int:
        """T, the longest possible session."""
        return int(self.items.shape[1])

    @property
    def mask(self) -> NDArray[np.bool_]:
        """(N, T) bool: steps that count."""
        return np.arange(self.items.shape[1]) < self.length[:, None]

    @property
    def history_mask(self) -> NDArray[np.bool_]:
        """(N, H) bool: steps of the history that count."""
        return np.arange(self.history_items.shape[1]) < self.history_length[:, None]

    @property
    def rewards(self) -> NDArray[np.float32]:
        """(N, T) float32 rewards, 0 in the padding."""
        table = np.asarray(self.behaviour_set.rewards, np.float32)
        return np.where(self.mask, table[self.behaviours], np.float32(0))

    @property
    def left(self) -> NDArray[np.bool_]:
        """(N,) whether the user left: the last behaviour is terminal."""
        return self.behaviour_set.is_terminal[self.behaviours[np.arange(len(self)), self.length - 1]]

    def tensors(self, device: str | torch.device = "cpu", without: Collection[str] = ()) -> SessionTensors:
        """Return the same sessions as torch tensors: views of this memory on the CPU, copies on another device.

        Args:
            device: Where to put them.
            without: Optional arrays to leave out.
        """
        import torch

        from mbcal.types.session_tensors import SessionTensors

        selected = {name: array for name, array in self.arrays() if name not in without}
        tensors = {name: torch.from_numpy(np.ascontiguousarray(array)).to(device) for name, array in selected.items()}
        return SessionTensors(self.catalog, self.behaviour_set, **tensors, origin=self.origin, fields=self.fields)


def unchecked_sessions(like: Sessions | SessionTensors, arrays: Mapping[str, NDArray[Any]]) -> Sessions:
    """Create sessions from arrays that are known to be valid, skipping the checks; the rest is as in `like`."""
    sessions = object.__new__(Sessions)
    for field in dataclasses.fields(Sessions):
        object.__setattr__(sessions, field.name, arrays.get(field.name))
    for name in ("catalog", "behaviour_set", "origin", "fields"):
        object.__setattr__(sessions, name, getattr(like, name))
    return sessions


def _require_range(name: str, array: NDArray[Any], size: int) -> None:
    if array.size and not 0 <= int(array.min()) <= int(array.max()) < size:
        raise InputError(f"sessions: {name} must lie in 0..{size - 1}, got {int(array.min())}..{int(array.max())}")
