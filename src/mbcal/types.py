"""The nouns everything passes around: Behaviours, Catalog, Sessions.

Arrays are numpy here, so that reading logs and serving never import torch; `Sessions.tensors` gives the same memory as
torch tensors. Padding sits at the end of a row, holds zeros and is told by the length; nothing may depend on it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from mbcal.errors import InputError, ModelError, OptionError, nearest

if TYPE_CHECKING:
    import torch

MASK = 0
"""Row of the masking item a_M (and, in every feature, of its masking value). Padding holds it too."""
UNKNOWN = 1
"""Row of the out-of-vocabulary item (and value): what was never seen, or has no value."""
SPECIAL = 2
"""How many special rows come before the first real one. They come first so that a growing catalogue never moves them."""

Index = slice | NDArray[np.integer[Any]] | NDArray[np.bool_] | Sequence[int]


@dataclass(frozen=True)
class Behaviours:
    """What a user can do with an item (the paper's B), and the reward of each (the paper's R).

    `cuts` is set where behaviours are levels of a number (dwell, say): a value belongs to level k when exactly k of the
    cuts are at or below it.
    """

    names: tuple[str, ...]
    rewards: tuple[float, ...]
    cuts: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.names) < 2:
            raise OptionError(f"behaviours: at least two are needed, got {len(self.names)}: {list(self.names)}")
        if len(self.names) > 255:
            raise OptionError(f"behaviours: at most 255 are supported, got {len(self.names)}; merge rare ones")
        if len(set(self.names)) != len(self.names):
            raise OptionError(f"behaviours: names must differ, got {list(self.names)}")
        if len(self.rewards) != len(self.names):
            raise OptionError(f"behaviours: {len(self.names)} names but {len(self.rewards)} rewards; give one each")
        if not all(np.isfinite(self.rewards)):
            raise OptionError(f"behaviours: rewards must be finite numbers, got {list(self.rewards)}")
        if self.cuts:
            if len(self.cuts) != len(self.names) - 1:
                raise OptionError(f"behaviours: {len(self.cuts)} cuts make {len(self.cuts) + 1} levels, not {len(self)}")
            if not (all(np.isfinite(self.cuts)) and all(a < b for a, b in pairwise(self.cuts))):
                raise OptionError(f"behaviours: cuts must be finite and rising, got {list(self.cuts)}")

    @classmethod
    def from_cuts(cls, cuts: Sequence[float], rewards: Sequence[float] | None = None) -> Self:
        """Levels of a number; rewards 1, 2, 3, … unless given."""
        if not cuts:
            raise OptionError("behaviours: give at least one cut point")
        marks = [f"{cut:.15g}" for cut in cuts]
        inner = [f"{low}..{high}" for low, high in pairwise(marks)]
        names = (f"<{marks[0]}", *inner, f">={marks[-1]}")
        return cls(names, tuple(rewards) if rewards else tuple(float(k + 1) for k in range(len(names))), tuple(cuts))

    def __len__(self) -> int:
        return len(self.names)

    @property
    def start(self) -> int:
        """Index of b_s, the behaviour before the first step: one row after the last real behaviour."""
        return len(self.names)

    def reward_table(self, device: str | torch.device) -> torch.Tensor:
        """(behaviours,) rewards on a device, made once: not to be changed."""
        return _reward_table(self.rewards, str(device))

    def index(self, name: str) -> int:
        """Index of a behaviour by name."""
        try:
            return self.names.index(name)
        except ValueError:
            hint = nearest(name, self.names)
            raise InputError(f"behaviour {name!r} is unknown; known are {', '.join(self.names)}.{hint}") from None

    def level(self, values: NDArray[Any]) -> NDArray[np.uint8]:
        """Levels of raw numbers; needs `cuts`."""
        if not self.cuts:
            raise OptionError("behaviours: these are labels, not levels of a number")
        return np.searchsorted(np.asarray(self.cuts), values, side="right").astype(np.uint8)


@functools.lru_cache(maxsize=64)
def _reward_table(rewards: tuple[float, ...], device: str) -> torch.Tensor:
    import torch

    return torch.tensor(rewards, device=device)


@dataclass(frozen=True)
class Feature:
    """One property of every item, as codes into a vocabulary (code 0 masked, 1 unknown, 2… the values).

    Single-valued: `codes[row]`. Multi-valued: `codes[offsets[row] : offsets[row + 1]]`, possibly none::

        items   MASK  UNKNOWN  "Heat"           "Alien"
        codes  [0,    1,       4, 7,            2, 4, 9]
        offsets[0,    1,       2,               4,       7]
    """

    name: str
    vocabulary: tuple[str, ...]
    codes: NDArray[np.int32]
    offsets: NDArray[np.int64] | None = None

    @classmethod
    def single(cls, name: str, values: Iterable[str | None]) -> Self:
        """From one value an item (None: unknown)."""
        listed = list(values)
        vocabulary, code_of = _vocabulary(value for value in listed if value is not None)
        codes = [MASK, UNKNOWN, *(UNKNOWN if value is None else code_of[value] for value in listed)]
        return cls(name, vocabulary, np.asarray(codes, np.int32))

    @classmethod
    def multi(cls, name: str, values: Iterable[Sequence[str]]) -> Self:
        """From any number of values an item."""
        listed = list(values)
        vocabulary, code_of = _vocabulary(value for row in listed for value in row)
        codes = [MASK, UNKNOWN, *(code_of[value] for row in listed for value in row)]
        sizes = [0, 1, 1, *(len(row) for row in listed)]
        return cls(name, vocabulary, np.asarray(codes, np.int32), np.cumsum(sizes, dtype=np.int64))

    def __post_init__(self) -> None:
        if self.codes.size and not 0 <= int(self.codes.min()) <= int(self.codes.max()) < self.cardinality:
            raise InputError(f"feature {self.name!r}: codes must lie in 0..{self.cardinality - 1}")
        if self.offsets is not None and int(self.offsets[-1]) != len(self.codes):
            raise InputError(f"feature {self.name!r}: offsets end at {int(self.offsets[-1])}, not at {len(self.codes)}")

    @property
    def cardinality(self) -> int:
        """Rows an embedding table of this feature needs."""
        return len(self.vocabulary) + SPECIAL

    @property
    def rows(self) -> int:
        """Item rows described, the special ones included."""
        return len(self.codes) if self.offsets is None else len(self.offsets) - 1

    def values(self, row: int) -> tuple[str, ...]:
        """The known values of one item row, as text."""
        codes = self.codes[row : row + 1] if self.offsets is None else self.codes[slice(*self.offsets[row : row + 2])]
        return tuple(self.vocabulary[code - SPECIAL] for code in codes if code >= SPECIAL)


def _vocabulary(values: Iterable[str]) -> tuple[tuple[str, ...], dict[str, int]]:
    """Distinct values, shortest first (so numbers come in their order), and the code of each."""
    vocabulary = tuple(sorted(set(values), key=lambda value: (len(value), value)))
    return vocabulary, {value: code for code, value in enumerate(vocabulary, SPECIAL)}


@dataclass(frozen=True)
class Catalog:
    """All items, with the masking row 0 and the out-of-vocabulary row 1 before them; item k sits in row k + 2.

    `items` are the names the log knows them by; `titles`, where there are any, are what a person would rather read.
    """

    items: tuple[str, ...]
    features: Mapping[str, Feature] = dataclasses.field(default_factory=dict)
    titles: tuple[str | None, ...] = ()

    def __post_init__(self) -> None:
        for name, feature in self.features.items():
            if feature.rows != self.rows:
                raise InputError(f"feature {name!r} describes {feature.rows} rows, the catalogue has {self.rows}")
        if self.titles and len(self.titles) != len(self.items):
            raise InputError(f"catalogue: {len(self.items)} items but {len(self.titles)} titles; give one each or none")
        if len(self._row_of) != len(self.items):
            raise InputError("catalogue: item names must differ")

    def __len__(self) -> int:
        return len(self.items)

    @property
    def rows(self) -> int:
        """Rows an item embedding table needs."""
        return len(self.items) + SPECIAL

    @cached_property
    def _row_of(self) -> dict[str, int]:
        return {name: row for row, name in enumerate(self.items, SPECIAL)}

    def row(self, names: Iterable[str]) -> NDArray[np.int32]:
        """Rows of items by name; a name never seen gets the out-of-vocabulary row."""
        return np.asarray([self._row_of.get(name, UNKNOWN) for name in names], np.int32)

    def name(self, row: int) -> str:
        """An item's name; the special rows answer in angle brackets."""
        return ("<mask>", "<unknown>")[row] if row < SPECIAL else self.items[row - SPECIAL]

    def title(self, row: int) -> str:
        """An item's title, or its name where it has none."""
        return (self.titles[row - SPECIAL] if self.titles and row >= SPECIAL else None) or self.name(row)


# name -> (dtype, what its axes are); the order is that of the dataclass below
_FIELDS: Mapping[str, tuple[type[np.generic], str]] = {
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


class _Rows:
    """What sessions in arrays and sessions in tensors have in common."""

    catalog: Catalog
    behaviour_set: Behaviours

    def require_like(self, catalog: Catalog, behaviours: Behaviours, whose: str) -> None:
        """Refuse these sessions where their rows would mean something else to a model of this catalogue and behaviours."""
        if self.behaviour_set != behaviours:
            mine, theirs = ", ".join(behaviours.names), ", ".join(self.behaviour_set.names)
            rule = f"{whose} knows the behaviours {mine}, the data has {theirs} (or other rewards)"
            raise ModelError(f"{rule}; fit one on this data")
        if self.catalog is not catalog and self.catalog.items != catalog.items:
            rule = f"{whose} knows {len(catalog):,} items, the data has {len(self.catalog):,} and not the same"
            raise ModelError(f"{rule}; fit one on this data")


@dataclass(frozen=True, eq=False)
class Sessions(_Rows):
    """N sessions of up to T steps (the paper's trajectories o), one a row.

    ::

        items       (N, T) int32    a_1 a_2 a_3  0  0     catalogue rows; padding is 0
        behaviours  (N, T) uint8    b_1 b_2 b_3  0  0     indices into `behaviour_set`
        length      (N,)   int32    3                     steps that count
        history_*   (N, H)          h_1 h_2  0            what the user did just before, oldest first
        candidates  (N, C) int32    the set an item was chosen from; (N, T, C) where each step had its own; padding 0
        propensities(N, T) float32  probability with which the logging policy chose a_t
        timestamps  (N, T) int64    microseconds since 1970, UTC

    Slicing (`sessions[10:20]`) shares memory; an index array or a boolean mask copies the rows it names.
    """

    catalog: Catalog
    behaviour_set: Behaviours
    items: NDArray[np.int32]
    behaviours: NDArray[np.uint8]
    length: NDArray[np.int32]
    user: NDArray[np.int32]
    history_items: NDArray[np.int32]
    history_behaviours: NDArray[np.uint8]
    history_length: NDArray[np.int32]
    candidates: NDArray[np.int32] | None = None
    propensities: NDArray[np.float32] | None = None
    timestamps: NDArray[np.int64] | None = None
    origin: str = ""
    """Content hash of the store they come from: user numbers mean the same users only within one."""

    def __post_init__(self) -> None:
        self._check_shapes()
        self._check_steps("items", "behaviours", self.length, self.mask)
        self._check_steps("history_items", "history_behaviours", self.history_length, self.history_mask)
        if len(self) and int(self.length.min()) < 1:
            raise InputError("sessions: length must be at least 1; drop empty sessions")
        if len(self) and int(self.user.min()) < 0:
            raise InputError("sessions: user must be 0 or more")
        if self.candidates is not None:
            _require_range("candidates", self.candidates, self.catalog.rows)
        if self.propensities is not None:
            chosen = self.propensities[self.mask]
            if not (np.all(chosen > 0) and np.all(chosen <= 1)):
                raise InputError("sessions: propensities must lie in (0, 1] at every step")
        if self.timestamps is not None:
            falls = (np.diff(self.timestamps, axis=1) < 0) & self.mask[:, 1:]
            if falls.any():
                raise InputError(
                    f"sessions: timestamps must not fall within a session; row {int(np.argwhere(falls)[0, 0])} does"
                )

    def _check_shapes(self) -> None:
        sizes: dict[str, int] = {}
        for name, array in self.arrays():
            dtype, axes = _FIELDS[name]
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
        rows, labels = getattr(self, items), getattr(self, behaviours)
        if len(length) and not 0 <= int(length.min()) <= int(length.max()) <= rows.shape[1]:
            raise InputError(f"sessions: lengths of {items} must lie in 0..{rows.shape[1]}")
        _require_range(items, rows, self.catalog.rows)
        _require_range(behaviours, labels, len(self.behaviour_set))
        if np.any((rows == MASK) & mask):
            raise InputError(f"sessions: {items} holds the masking item inside a session; use the unknown row {UNKNOWN}")
        if np.any(rows[~mask]) or np.any(labels[~mask]):
            raise InputError(f"sessions: {items} and {behaviours} must be 0 after the end of a row")

    def arrays(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Every array that is present, by name."""
        for name in _FIELDS:
            array = getattr(self, name)
            if array is not None:
                yield name, array

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: Index) -> Sessions:
        if isinstance(index, int | np.integer):
            raise TypeError(f"sessions[{index}] would lose the first axis; write sessions[{index}:{index + 1}]")
        return self._with({name: array[index] for name, array in self.arrays()})

    def _with(self, arrays: Mapping[str, NDArray[Any]]) -> Sessions:
        """The same catalogue with rows already known to be valid: not checked again."""
        return _unchecked(self, arrays)

    def like(self, arrays: Mapping[str, NDArray[Any]]) -> Sessions:
        """Other arrays, checked, over the same catalogue and behaviours and of the same origin."""
        given: dict[str, Any] = {**arrays, "origin": self.origin}
        return Sessions(self.catalog, self.behaviour_set, **given)

    @classmethod
    def concat(cls, parts: Sequence[Sessions]) -> Sessions:
        """One after another; all must share catalogue, behaviours, horizon and the optional arrays they carry."""
        first = parts[0]
        names = [name for name, _ in first.arrays()]
        for other in parts[1:]:
            if other.catalog is not first.catalog or other.behaviour_set != first.behaviour_set:
                raise InputError("sessions: only sessions over the same catalogue and behaviours can be joined")
            if [name for name, _ in other.arrays()] != names:
                raise InputError("sessions: only sessions that carry the same arrays can be joined")
        return first._with({name: np.concatenate([getattr(part, name) for part in parts]) for name in names})

    @property
    def horizon(self) -> int:
        """T: the most steps a session can have."""
        return int(self.items.shape[1])

    @property
    def mask(self) -> NDArray[np.bool_]:
        """(N, T), true where a step counts."""
        return np.arange(self.items.shape[1]) < self.length[:, None]

    @property
    def history_mask(self) -> NDArray[np.bool_]:
        """(N, H), true where a step of the history counts."""
        return np.arange(self.history_items.shape[1]) < self.history_length[:, None]

    @property
    def rewards(self) -> NDArray[np.float32]:
        """(N, T) reward of each step, 0 in the padding."""
        table = np.asarray(self.behaviour_set.rewards, np.float32)
        return np.where(self.mask, table[self.behaviours], np.float32(0))

    @property
    def history(self) -> History:
        return History(self.user, self.history_items, self.history_behaviours, self.history_length)

    def tensors(self, device: str | torch.device = "cpu", without: Collection[str] = ()) -> SessionTensors:
        """The same arrays as torch tensors: views of this memory on the CPU, copies on another device.

        Optional arrays named in `without` are left out.
        """
        import torch

        taken = {name: array for name, array in self.arrays() if name not in without}
        tensors = {name: torch.from_numpy(np.ascontiguousarray(array)).to(device) for name, array in taken.items()}
        return SessionTensors(self.catalog, self.behaviour_set, **tensors, origin=self.origin)


class History(NamedTuple):
    """What is known of users (B,) when a session begins; arrays or tensors."""

    user: Any  # (B,)
    items: Any  # (B, H)
    behaviours: Any  # (B, H)
    length: Any  # (B,)


@dataclass(frozen=True, eq=False)
class SessionTensors(_Rows):
    """`Sessions` as tensors on one device; see there for shapes. What is made of valid sessions is taken to be valid."""

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
        """Some sessions; a slice shares memory."""
        return self._map(lambda tensor: tensor[rows])

    def to(self, device: str | torch.device) -> Self:
        """The same sessions on another device."""
        return self._map(lambda tensor: tensor.to(device))

    def without(self, *names: str) -> Self:
        """The same sessions lacking these optional tensors."""
        nothing: dict[str, Any] = dict.fromkeys(names)
        return dataclasses.replace(self, **nothing)

    def sessions(self) -> Sessions:
        """The same sessions as arrays."""
        return _unchecked(self, {name: tensor.cpu().numpy() for name, tensor in self.tensors()})

    @classmethod
    def concat(cls, parts: Sequence[SessionTensors]) -> SessionTensors:
        """One after another; all over one catalogue, with the same optional tensors."""
        import torch

        names = [name for name, _ in parts[0].tensors()]
        joined: dict[str, Any] = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
        return dataclasses.replace(parts[0], **joined)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every tensor that is present, by name."""
        for name in _FIELDS:
            tensor = getattr(self, name)
            if tensor is not None:
                yield name, tensor

    def _map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Self:
        changed: dict[str, Any] = {name: change(tensor) for name, tensor in self.tensors()}
        return dataclasses.replace(self, **changed)

    @property
    def horizon(self) -> int:
        """T: the most steps a session can have."""
        return self.items.shape[1]

    @property
    def device(self) -> torch.device:
        return self.items.device

    @property
    def history(self) -> History:
        return History(self.user, self.history_items, self.history_behaviours, self.history_length)

    @property
    def offered(self) -> torch.Tensor:
        """(B, C): the candidates, for whom they cannot be missing."""
        if self.candidates is None:
            raise InputError("sessions: these have no candidates; draw them first")
        return self.candidates

    @property
    def mask(self) -> torch.Tensor:
        """(B, T), true where a step counts."""
        import torch

        return torch.arange(self.items.shape[1], device=self.items.device) < self.length.unsqueeze(1)

    @property
    def rewards(self) -> torch.Tensor:
        """(B, T) reward of each step, 0 in the padding."""
        import torch

        table = self.behaviour_set.reward_table(self.items.device)
        return torch.where(self.mask, table[self.behaviours.long()], 0)


def _unchecked(like: Sessions | SessionTensors, arrays: Mapping[str, NDArray[Any]]) -> Sessions:
    """Sessions of the same origin, of arrays that come from valid ones."""
    made = object.__new__(Sessions)
    for field in dataclasses.fields(Sessions):
        object.__setattr__(made, field.name, arrays.get(field.name))
    for name in ("catalog", "behaviour_set", "origin"):
        object.__setattr__(made, name, getattr(like, name))
    return made


def _require_range(name: str, array: NDArray[Any], size: int) -> None:
    if array.size and not 0 <= int(array.min()) <= int(array.max()) < size:
        raise InputError(f"sessions: {name} must lie in 0..{size - 1}, got {int(array.min())}..{int(array.max())}")
