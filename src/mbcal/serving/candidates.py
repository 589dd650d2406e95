"""The candidates of a request: their names, and their rows in a version's catalogue.

Candidates arrive as JSON and are logged as MessagePack. Where the C kernel was compiled, it does both, and only names
that are chosen become Python objects. Otherwise, and for names the C parser leaves to Python (escapes, text beyond ASCII,
many unknown names), they are decoded and looked up one by one, with the same result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from mbcal.errors import InputError
from mbcal.kernels.native.names import NameFinder, name_finder
from mbcal.scoring.unknown_items import UnknownItem
from mbcal.serving.bounded import BoundedDict
from mbcal.serving.item_decoder import ItemDecoder
from mbcal.serving.messages import CandidateItem, RankRequest
from mbcal.types import UNKNOWN_ROW, Catalog, Name, to_name, to_names
from mbcal.types.feature_values import FeatureDeclaration, ItemValues, read_values

OBJECT_BYTES = 16 << 20
"""Bytes of candidates with features that are remembered, since the same new items are asked for again and again."""
OBJECT_COST = 3
"""Estimated bytes in memory for each byte of their JSON, and of a thousand more."""

_decoder = msgspec.json.Decoder(RankRequest)
_to_json = msgspec.json.Encoder().encode
_pack = msgspec.msgpack.Encoder().encode


class NameList:
    """Candidates as Python texts, with their catalogue rows (C,)."""

    def __init__(self, names: Sequence[str], catalog: Catalog, features: Mapping[int, UnknownItem] | None = None) -> None:
        """Look the names up.

        Args:
            names: The candidates.
            catalog: The version's catalogue.
            features: Position -> the features that the request gave; those of known items are not used.
        """
        self._names, self.rows, self._given = names, catalog.rows_of(names), features or {}
        self.features = _of_unknown(self._given, self.rows)
        """Position -> features, of unknown items only."""

    def at(self, positions: Iterable[int]) -> list[str]:
        """Return the names at these positions."""
        return [self._names[position] for position in positions]

    def logged(self) -> list[str]:
        """Return all names in the form the decision log encodes."""
        return list(self._names)

    def packed(self) -> bytes:
        """Return what the request says, as MessagePack: all names one after another, and all features that it gave.

        The bytes are the same for every class and every catalogue.
        """
        names = b"".join(map(_pack, self._names))
        return names + _pack(_by_name(self, self._given)) if self._given else names

    def logged_features(self) -> dict[str, Any]:
        """Return the features of unknown items by name, in the form the decision log encodes."""
        return _by_name(self, self.features)


class JsonNames:
    """Candidates as spans of their JSON, with their catalogue rows (C,); valid until the next request is read.

    Args:
        json: The list of names.
        rows: Their rows.
        finder: Has found them.
        features: Position -> the features that the request gave; those of known items are not used.
    """

    def __init__(
        self,
        json: bytes,
        rows: NDArray[np.int32],
        finder: NameFinder,
        features: Mapping[int, UnknownItem] = MappingProxyType({}),
    ) -> None:
        self._json, self.rows, self._finder, self._given = json, rows, finder, features
        self.features = _of_unknown(features, rows)

    def at(self, positions: Iterable[int]) -> list[str]:
        """Return the names at these positions."""
        return [self._json[begin:end].decode() for begin, end in self._finder.spans(positions)]

    def logged(self) -> list[str]:
        """Return all names in the form the decision log encodes: MessagePack, which its encoder copies."""
        return msgspec.Raw(self._finder.packed())  # type: ignore[return-value]

    def packed(self) -> bytes:
        """Return what the request says, as `NameList.packed` does."""
        names = self._finder.packed()[3:]  # without the length of the list
        return names + _pack(_by_name(self, self._given)) if self._given else names

    def logged_features(self) -> dict[str, Any]:
        """Return the features of unknown items by name, in the form the decision log encodes."""
        return _by_name(self, self.features)


Candidates = NameList | JsonNames
_Objects = list[tuple[int, UnknownItem | None]]
"""Where items with features begin in a list of names, and the features."""


def _of_unknown(features: Mapping[int, UnknownItem], rows: NDArray[np.int32]) -> dict[int, UnknownItem]:
    """Position -> features of items that the catalogue does not have."""
    return {position: item for position, item in features.items() if rows[position] == UNKNOWN_ROW}


def _by_name(candidates: Candidates, features: Mapping[int, UnknownItem]) -> dict[str, Any]:
    """Name -> features as MessagePack."""
    if not features:
        return {}
    items = zip(candidates.at(features), features.values(), strict=True)
    return {name: msgspec.Raw(item.packed) for name, item in items}


class CandidateReader:
    """Reads candidates and finds their rows in one version's catalogue."""

    def __init__(
        self,
        catalog: Catalog,
        rows: NDArray[np.int32] | None,
        declared: Mapping[str, FeatureDeclaration] = MappingProxyType({}),
    ) -> None:
        """Prepare for a catalogue.

        Args:
            catalog: The version's catalogue.
            rows: (most,) array the C kernel writes rows to; None to do without it.
            declared: Item features that requests may give.
        """
        self._catalog, self._rows, self._declared = catalog, rows, declared
        self._item_decoder = ItemDecoder(declared)
        self._objects: BoundedDict[bytes, tuple[bytes, UnknownItem | None]] = BoundedDict(OBJECT_BYTES)
        self._finder = None if rows is None else name_finder(catalog.items, rows)

    def read(self, candidates: msgspec.Raw | Sequence[Name | CandidateItem], k: int, most: int) -> Candidates:
        """Read the candidates of a request.

        Args:
            candidates: A JSON list of names and of items with features, or these themselves.
            k: Number of items asked for.
            most: Maximum number of candidates.

        Returns:
            The candidates with their rows; unknown names have the row `UNKNOWN_ROW`.

        Raises:
            InputError: If there are no candidates or more than `most`, a name repeats, k is outside [1, most], or a feature
                is not declared or not of its kind.
            msgspec.DecodeError: If the JSON is invalid.
            msgspec.ValidationError: If the JSON is not a list of candidates.
        """
        if isinstance(candidates, msgspec.Raw):
            json = bytes(candidates)
            if self._finder is not None and self._rows is not None:
                plain, objects = self._split_objects(json, most) if b"{" in json else (json, [])
                count = self._finder.find(plain)
                if 0 < count <= most >= k >= 1:
                    rows = self._rows[:count]
                    return JsonNames(plain, rows, self._finder, self._features_at(objects, count))
            # decoded as part of a request, so that errors name the field
            candidates = _decoder.decode(b'{"candidates":' + json + b"}").candidates
        _require_few(candidates, most)  # before anything is done for each of them
        features = {
            position: unknown_item(read_values(candidate.features, self._declared))
            for position, candidate in enumerate(candidates)
            if type(candidate) is CandidateItem
        }
        names = _item_names(candidates) if features else to_names(candidates)  # type: ignore[arg-type]  # names alone
        require_rankable(names, k, most)
        described = {position: item for position, item in features.items() if item is not None}
        return NameList(names, self._catalog, described)

    def _features_at(self, objects: _Objects, count: int) -> dict[int, UnknownItem]:
        """Position -> features, given where in the JSON found last, of `count` names, each item with features begins."""
        if not objects or self._finder is None:
            return {}
        positions = self._finder.positions([begin for begin, _ in objects], count)
        return {position: item for position, (_, item) in zip(positions, objects, strict=True) if item is not None}

    def _split_objects(self, json: bytes, most: int) -> tuple[bytes, _Objects]:
        """Replace items with features by their names, so that the C parser can read the list.

        An object has at most two opening braces, its own and that of its features, and ends with as many closing ones. If
        it does not, because there are braces in its texts, or there are more than `most`, the list is returned as it is,
        which the C parser refuses.

        Returns:
            The list of names, and where in it each of these items begins.
        """
        parts: list[bytes] = []
        objects: _Objects = []
        done, length, begin = 0, 0, json.find(b"{")
        while begin >= 0:
            end = json.find(b"}", begin) + 1
            if json.count(b"{", begin, end) == 2:
                end = json.find(b"}", end) + 1
            found = self._object(json[begin:end]) if end and len(objects) < most else None
            if found is None:
                return json, []
            name, item = found
            parts += (json[done:begin], name)
            length += begin - done
            objects.append((length, item))
            length += len(name)
            done, begin = end, json.find(b"{", end)
        return b"".join([*parts, json[done:]]), objects

    def _object(self, json: bytes) -> tuple[bytes, UnknownItem | None] | None:
        """The name, as JSON, and the features of one candidate; None if this is not one. Recent ones are remembered."""
        found = self._objects.get(json)
        if found is None:
            try:
                item, values = self._item_decoder.decode(json)
            except msgspec.MsgspecError:
                return None
            found = (_to_json(item), unknown_item(values))
            self._objects.put(json, found, OBJECT_COST * (len(json) + 1000))
        return found


def unknown_item(values: ItemValues) -> UnknownItem | None:
    """An item as a request described it; None if it has no features."""
    return UnknownItem(values, _pack(values)) if values else None


def _item_names(candidates: Sequence[Name | CandidateItem]) -> list[str]:
    """The names of candidates, some of which have features."""
    return [
        candidate
        if type(candidate) is str
        else to_name(candidate.item if isinstance(candidate, CandidateItem) else candidate, "candidates")
        for candidate in candidates
    ]


def require_rankable(candidates: Sequence[str], k: int, most: int) -> None:
    """Raise InputError if there are no candidates or more than `most`, one repeats, or k is outside [1, most]."""
    if not candidates:
        raise InputError("candidates: none were given; name at least one item to rank")
    _require_few(candidates, most)
    if len(set(candidates)) != len(candidates):
        raise InputError("candidates: an item is there twice; name every item once")
    if not 1 <= k <= most:
        raise InputError(f"k: must be from 1 to {most}, got {k}")


def _require_few(candidates: Sequence[Any], most: int) -> None:
    if len(candidates) > most:
        raise InputError(f"candidates: {len(candidates)} were given, at most {most} are ranked at a time; send fewer")
