"""Sessions as numpy arrays (Sessions) and as torch tensors on a device (SessionTensors)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from mbcal.errors import InputError, ModelError
from mbcal.types.catalog import Behaviours, Catalog
from mbcal.types.features import MASK_ROW, UNKNOWN_ROW

if TYPE_CHECKING:
    import torch

LOG_ORIGIN = "decision-log:"
"""Prefix of the origin of sessions from a decision log. The origin of a store's sessions is its content hash."""

Index = slice | NDArray[np.integer[Any]] | NDArray[np.bool_] | Sequence[int]
"""What `sessions[…]` takes."""

_ARRAYS: Mapping[str, tuple[type[np.generic], str]] = {
    "items": (np.int32, "NT"),
    "behaviours": (np.uint8, "NT"),
    "length": (np.int32, "N"),
    "user": (np.int32, "N"),
    "history_items": (np.int32, "NH"),
    "history_behaviours": (np.uint8, "NH"),
    "history_length": (np.int32, "N"),
    "candidates": (np.int32, "NC"),
    "propensities": (np.float32, "NT"),
    "timestamps": (np.int64, "NT"),
}
"""Array -> (dtype, axes), in the order of the dataclass fields."""


class _SessionsBase:
    """What Sessions and SessionTensors share."""

    catalog: Catalog
    behaviour_set: Behaviours

    def __repr__(self) -> str:
        sessions: Any = self
        steps = f"{len(sessions):,} of up to {sessions.horizon} steps"
        return f"<{type(self).__name__}: {steps}, {len(self.catalog):,} items, {len(self.behaviour_set)} behaviours>"

    def require_compatible(self, catalog: Catalog, behaviours: Behaviours, owner: str) -> None:
        """Raise ModelError if a model does not have the behaviours of these sessions, or their items in the same rows.

        Args:
            catalog: The model's items.
            behaviours: The model's behaviours.
            owner: The model, for the error: `the simulator`.
        """
        if self.behaviour_set != behaviours:
            names, data_names = ", ".join(behaviours.names), ", ".join(self.behaviour_set.names)
            problem = f"{owner} knows the behaviours {names}, the data has {data_names} (or other rewards)"
            raise ModelError(f"{problem}; fit one on this data")
        if not catalog.extends(self.catalog):
            problem = f"{owner} knows {len(catalog):,} items, the data has {len(self.catalog):,} and not the same"
            raise ModelError(f"{problem}; fit one on this data")


@dataclass(frozen=True, eq=False, repr=False)
class Sessions(_SessionsBase):
    """N sessions of up to T steps (the paper's trajectories o), one per row.

    ::

        items        (N, T) int32    a_1 a_2 a_3  0  0   catalogue rows; padding is 0
        behaviours   (N, T) uint8    b_1 b_2 b_3  0  0   numbers of behaviours in `behaviour_set`
        length       (N,)   int32    3                   steps that count
        history_*    (N, H)          h_1 h_2  0          steps of the user just before the session, oldest first
        candidates   (N, C) int32                        items to choose from; (N, T, C) if they differ by step; padding is 0
        propensities (N, T) float32                      probability with which the logging policy chose a_t
        timestamps   (N, T) int64                        microseconds since 1970, UTC

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
    origin: str = ""
    """Content hash of the store they come from; see `LOG_ORIGIN` for decision logs."""

    def __post_init__(self) -> None:
        self._check_shapes()
        self._check_steps("items", "behaviours", self.length, self.mask)
        self._check_steps("history_items", "history_behaviours", self.history_length, self.history_mask)
        if len(self) and int(self.length.min()) < 1:
            raise InputError("sessions: length must be at least 1; drop empty sessions")
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

    def _check_shapes(self) -> None:
        sizes: dict[str, int] = {}
        for name, array in self.arrays():
            dtype, axes = _ARRAYS[name]
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
        for name in _ARRAYS:
            array = getattr(self, name)
            if array is not None:
                yield name, array

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: Index) -> Sessions:
        if isinstance(index, int | np.integer):
            raise TypeError(f"sessions[{index}] would lose the first axis; write sessions[{index}:{index + 1}]")
        return _unchecked(self, {name: array[index] for name, array in self.arrays()})

    def like(self, arrays: Mapping[str, NDArray[Any]]) -> Sessions:
        """Return sessions of other arrays, which are checked, with the same catalogue, behaviours and origin."""
        fields: dict[str, Any] = {**arrays, "origin": self.origin}
        return Sessions(self.catalog, self.behaviour_set, **fields)

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
        return _unchecked(first, {name: np.concatenate([getattr(part, name) for part in parts]) for name in names})

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
    def history(self) -> History:
        return History(self.user, self.history_items, self.history_behaviours, self.history_length)

    def tensors(self, device: str | torch.device = "cpu", without: Collection[str] = ()) -> SessionTensors:
        """Return the same sessions as torch tensors: views of this memory on the CPU, copies on another device.

        Args:
            device: Where to put them.
            without: Optional arrays to leave out.
        """
        import torch

        selected = {name: array for name, array in self.arrays() if name not in without}
        tensors = {name: torch.from_numpy(np.ascontiguousarray(array)).to(device) for name, array in selected.items()}
        return SessionTensors(self.catalog, self.behaviour_set, **tensors, origin=self.origin)


class History(NamedTuple):
    """What is known about B users when a session begins, as arrays or tensors."""

    user: Any
    """(B,) user numbers."""
    items: Any
    """(B, H) catalogue rows, oldest first."""
    behaviours: Any
    """(B, H) behaviour numbers."""
    length: Any
    """(B,) steps that count."""


@dataclass(frozen=True, eq=False, repr=False)
class SessionTensors(_SessionsBase):
    """`Sessions` as tensors on one device, with the same shapes. They come from valid sessions and are not checked again."""

    catalog: Catalog
    behaviour_set: Behaviours
    items: torch.Tensor
    behaviours: torch.Tensor
    length: torch.Tensor
    user: torch.Tensor
    history_items: torch.Tensor
    history_behaviours: torch.Tensor
    history_length: torch.Tensor
    candidates: torch.Tensor | None = None
    propensities: torch.Tensor | None = None
    timestamps: torch.Tensor | None = None
    origin: str = ""

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, rows: slice | torch.Tensor) -> Self:
        """Return some of the sessions; a slice shares memory."""
        return self._map(lambda tensor: tensor[rows])

    def to(self, device: str | torch.device) -> Self:
        """Return the same sessions on another device."""
        return self._map(lambda tensor: tensor.to(device))

    def without(self, *names: str) -> Self:
        """Return the same sessions without these optional tensors."""
        removed: dict[str, Any] = dict.fromkeys(names)
        return dataclasses.replace(self, **removed)

    def sessions(self) -> Sessions:
        """Return the same sessions as numpy arrays."""
        return _unchecked(self, {name: tensor.cpu().numpy() for name, tensor in self.tensors()})

    @classmethod
    def concat(cls, parts: Sequence[SessionTensors]) -> SessionTensors:
        """Join sessions of one catalogue, with the same optional tensors, along the first axis."""
        import torch

        names = [name for name, _ in parts[0].tensors()]
        joined: dict[str, Any] = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
        return dataclasses.replace(parts[0], **joined)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (name, tensor) for every tensor that is present."""
        for name in _ARRAYS:
            tensor = getattr(self, name)
            if tensor is not None:
                yield name, tensor

    def _map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Self:
        changed: dict[str, Any] = {name: change(tensor) for name, tensor in self.tensors()}
        return dataclasses.replace(self, **changed)

    @property
    def horizon(self) -> int:
        """T, the longest possible session."""
        return self.items.shape[1]

    @property
    def device(self) -> torch.device:
        return self.items.device

    @property
    def history(self) -> History:
        return History(self.user, self.history_items, self.history_behaviours, self.history_length)

    def require_candidates(self) -> torch.Tensor:
        """Return the candidates (B, C) or (B, T, C); raises InputError if absent."""
        if self.candidates is None:
            raise InputError("sessions: these have no candidates; sample them first")
        return self.candidates

    @property
    def mask(self) -> torch.Tensor:
        """(B, T) bool: steps that count."""
        import torch

        return torch.arange(self.items.shape[1], device=self.items.device) < self.length.unsqueeze(1)

    @property
    def rewards(self) -> torch.Tensor:
        """(B, T) rewards, 0 in the padding."""
        import torch

        table = self.behaviour_set.reward_table(self.items.device)
        return torch.where(self.mask, table[self.behaviours.long()], 0)


def _unchecked(like: Sessions | SessionTensors, arrays: Mapping[str, NDArray[Any]]) -> Sessions:
    """Create sessions from arrays that are known to be valid, skipping the checks; the rest is as in `like`."""
    sessions = object.__new__(Sessions)
    for field in dataclasses.fields(Sessions):
        object.__setattr__(sessions, field.name, arrays.get(field.name))
    for name in ("catalog", "behaviour_set", "origin"):
        object.__setattr__(sessions, name, getattr(like, name))
    return sessions


def _require_range(name: str, array: NDArray[Any], size: int) -> None:
    if array.size and not 0 <= int(array.min()) <= int(array.max()) < size:
        raise InputError(f"sessions: {name} must lie in 0..{size - 1}, got {int(array.min())}..{int(array.max())}")
