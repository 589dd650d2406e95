"""The candidates of a request: their names, and their rows in a version's catalogue.

They come as JSON and go into the log as MessagePack. Where C was compiled both are done there, and no name becomes an object
unless it is chosen; else, and for names that are not plain text, they are decoded and looked up one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from mbcal.errors import InputError
from mbcal.kernels.native.names import NameFinder, name_finder
from mbcal.serving.messages import RankRequest
from mbcal.types import Catalog

_decoder = msgspec.json.Decoder(RankRequest)


class NameList:
    """Names as objects."""

    def __init__(self, names: Sequence[str], catalog: Catalog) -> None:
        self._names, self.rows = names, catalog.rows_of(names)

    def at(self, places: Iterable[int]) -> list[str]:
        """The names at these places."""
        return [self._names[place] for place in places]

    def logged(self) -> list[str]:
        """All names, as the log takes them."""
        return list(self._names)


class JsonNames:
    """Names where they stand in the JSON; until the next are read."""

    def __init__(self, json: bytes, rows: NDArray[np.int32], finder: NameFinder) -> None:
        self._json, self.rows, self._finder = json, rows, finder

    def at(self, places: Iterable[int]) -> list[str]:
        return [self._json[begin:end].decode() for begin, end in self._finder.spans(places)]

    def logged(self) -> list[str]:
        # the encoder writes what is encoded already as it is
        return msgspec.Raw(self._finder.packed())  # type: ignore[return-value]


Candidates = NameList | JsonNames


class JsonReader:
    """Candidates from JSON, for one version."""

    def __init__(self, catalog: Catalog, rows: NDArray[np.int32] | None) -> None:
        """`rows` is where C leaves what it has found; None where there is no C."""
        self._catalog, self._rows = catalog, rows
        self._finder = None if rows is None else name_finder(catalog.items, rows)

    def read(self, json: msgspec.Raw | Sequence[str], k: int, most: int) -> Candidates:
        """The candidates in a JSON list, or in one already decoded, to choose k from; what has no answer is refused."""
        if isinstance(json, msgspec.Raw):
            text = bytes(json)
            count = 0 if self._finder is None else self._finder.find(text)
            if 0 < count <= most >= k >= 1 and self._finder is not None and self._rows is not None:
                return JsonNames(text, self._rows[:count], self._finder)
            json = _decoder.decode(b'{"candidates":' + text + b"}").candidates  # as part of a request, for what it may say
        require_askable(json, k, most)
        return NameList(json, self._catalog)


def require_askable(candidates: Sequence[str], k: int, most: int) -> None:
    """Refuse what has no answer."""
    if not candidates:
        raise InputError("candidates: none were given; name at least one item to rank")
    if len(candidates) > most:
        raise InputError(f"candidates: {len(candidates)} were given, at most {most} are ranked at a time")
    if len(set(candidates)) != len(candidates):
        raise InputError("candidates: an item is there twice; name every item once")
    if not 1 <= k <= most:
        raise InputError(f"k: must be from 1 to {most}, got {k}")
