"""The candidates of a request: their names, and their rows in a version's catalogue.

Candidates arrive as JSON and are logged as MessagePack. Where the C kernel was compiled, it does both, and only names
that are chosen become Python objects. Otherwise, and for names the C parser leaves to Python (escapes, text beyond ASCII,
many unknown names), they are decoded and looked up one by one, with the same result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from mbcal.errors import InputError
from mbcal.kernels.native.names import NameFinder, name_finder
from mbcal.serving.messages import RankRequest
from mbcal.types import Catalog, Name, to_names

_decoder = msgspec.json.Decoder(RankRequest)
_pack = msgspec.msgpack.Encoder().encode


class NameList:
    """Candidates as Python texts, with their catalogue rows (C,)."""

    def __init__(self, names: Sequence[str], catalog: Catalog) -> None:
        self._names, self.rows = names, catalog.rows_of(names)

    def at(self, positions: Iterable[int]) -> list[str]:
        """Return the names at these positions."""
        return [self._names[position] for position in positions]

    def logged(self) -> list[str]:
        """Return all names in the form the decision log encodes."""
        return list(self._names)

    def packed(self) -> bytes:
        """Return all names as MessagePack, one after another: the same bytes for every class of candidates."""
        return b"".join(map(_pack, self._names))


class JsonNames:
    """Candidates as spans of their JSON, with their catalogue rows (C,); valid until the next request is read."""

    def __init__(self, json: bytes, rows: NDArray[np.int32], finder: NameFinder) -> None:
        self._json, self.rows, self._finder = json, rows, finder

    def at(self, positions: Iterable[int]) -> list[str]:
        """Return the names at these positions."""
        return [self._json[begin:end].decode() for begin, end in self._finder.spans(positions)]

    def logged(self) -> list[str]:
        """Return all names in the form the decision log encodes: MessagePack, which its encoder copies."""
        return msgspec.Raw(self._finder.packed())  # type: ignore[return-value]

    def packed(self) -> bytes:
        """Return all names as MessagePack, one after another: the same bytes for every class of candidates."""
        return self._finder.packed()[3:]  # without the length of the list


Candidates = NameList | JsonNames


class CandidateReader:
    """Reads candidates and finds their rows in one version's catalogue."""

    def __init__(self, catalog: Catalog, rows: NDArray[np.int32] | None) -> None:
        """Prepare for a catalogue.

        Args:
            catalog: The version's catalogue.
            rows: (most,) array the C kernel writes rows to; None to do without it.
        """
        self._catalog, self._rows = catalog, rows
        self._finder = None if rows is None else name_finder(catalog.items, rows)

    def read(self, candidates: msgspec.Raw | Sequence[Name], k: int, most: int) -> Candidates:
        """Read the candidates of a request.

        Args:
            candidates: A JSON list of names, or the names themselves.
            k: Number of items asked for.
            most: Maximum number of candidates.

        Returns:
            The candidates with their rows; unknown names have the row `UNKNOWN_ROW`.

        Raises:
            InputError: If there are no candidates or more than `most`, a name repeats, or k is outside [1, most].
            msgspec.DecodeError: If the JSON is invalid.
            msgspec.ValidationError: If the JSON is not a list of names.
        """
        if isinstance(candidates, msgspec.Raw):
            json = bytes(candidates)
            count = 0 if self._finder is None else self._finder.find(json)
            if 0 < count <= most >= k >= 1 and self._finder is not None and self._rows is not None:
                return JsonNames(json, self._rows[:count], self._finder)
            # decoded as part of a request, so that errors name the field
            candidates = _decoder.decode(b'{"candidates":' + json + b"}").candidates
        names = to_names(candidates)
        require_rankable(names, k, most)
        return NameList(names, self._catalog)


def require_rankable(candidates: Sequence[str], k: int, most: int) -> None:
    """Raise InputError if there are no candidates or more than `most`, one repeats, or k is outside [1, most]."""
    if not candidates:
        raise InputError("candidates: none were given; name at least one item to rank")
    if len(candidates) > most:
        raise InputError(f"candidates: {len(candidates)} were given, at most {most} are ranked at a time; send fewer")
    if len(set(candidates)) != len(candidates):
        raise InputError("candidates: an item is there twice; name every item once")
    if not 1 <= k <= most:
        raise InputError(f"k: must be from 1 to {most}, got {k}")
