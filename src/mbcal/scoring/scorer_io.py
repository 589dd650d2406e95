"""Scorers as named arrays and a few words of JSON, and back: what a service needs of a model, without torch or pickle.

::

    {"kind": "net", "start": 3,                          instant/rewards            (behaviours,)
     "terms": [{"name": "instant", "user": "history"},   instant/cell/items         (rows, 3H)
               {"name": "future", "user": "history"}]}   instant/head/0 … future/history/bias
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbcal.errors import ModelError
from mbcal.scoring.scorers import (
    N_CONTEXT,
    ItemScorer,
    LinUCBScorer,
    NearestScorer,
    NetScorer,
    RandomScorer,
    Scorer,
    ScoreTerm,
)
from mbcal.scoring.tables import CellTables, Tables

Arrays = dict[str, NDArray[Any]]

KINDS: dict[type, str] = {
    NetScorer: "net",
    ItemScorer: "item",
    RandomScorer: "chance",
    NearestScorer: "nearest",
    LinUCBScorer: "linear",
}


def scorer_to_arrays(scorer: Scorer) -> tuple[dict[str, Any], Arrays]:
    """What to write as JSON and as arrays, of a scorer made of numpy arrays."""
    if type(scorer) not in KINDS:  # one derived from a known kind may score otherwise
        rule = f"scorer: a {type(scorer).__name__} cannot be written; known are {', '.join(k.__name__ for k in KINDS)}"
        raise ModelError(f"{rule}; let the agent's scorer() answer with one of these")
    said: dict[str, Any] = {"kind": KINDS[type(scorer)]}
    arrays: Arrays = {}
    match scorer:
        case NetScorer():
            said |= {"start": scorer.start, "terms": []}
            for name, term in scorer.terms.items():
                said["terms"].append({"name": name, "rewards": term.rewards is not None, "user": _user(term.tables)})
                arrays |= _tables_to_arrays(name, term.tables)
                if term.rewards is not None:
                    arrays[f"{name}/rewards"] = term.rewards
        case ItemScorer():
            arrays["values"] = scorer.values
        case RandomScorer():
            said["seed"] = scorer.seed
        case NearestScorer():
            said |= {"start": scorer.start, "user": _user(scorer.actor)}
            arrays = {**_tables_to_arrays("actor", scorer.actor), "points": scorer.points}
        case LinUCBScorer():
            said["alpha"] = scorer.alpha
            arrays = {name: getattr(scorer, name) for name in ("values", "weights", "spread", "cross", "within", "rewards")}
    return said, arrays


def scorer_from_arrays(said: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], rows: int, behaviours: int) -> Scorer:
    """The scorer for this many item rows and behaviours; arrays missing, misshapen or not finite are refused by name."""
    taken = _Arrays(arrays, rows, behaviours)
    try:
        scorer = _read(said, taken)
    except (KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"scorer: the manifest does not describe one ({type(error).__name__}: {error})") from error
    if taken.left:
        raise ModelError(f"scorer: {taken.left[0]!r} belongs to no part of it")
    return scorer


def _read(said: Mapping[str, Any], taken: _Arrays) -> Scorer:
    rows, behaviours = taken.rows, taken.behaviours
    match said["kind"]:
        case "net":
            terms = {str(one["name"]): _term(one, taken) for one in said["terms"]}
            if not terms:
                raise ModelError("scorer: has no terms, so there is nothing to rank by")
            return NetScorer(terms, _start(said, behaviours))
        case "item":
            return ItemScorer(taken.take("values", rows))
        case "chance":
            return RandomScorer(_whole(said, "seed", 2**31))
        case "nearest":
            points = taken.take("points", rows, None)
            actor = taken.tables("actor", points.shape[1], said["user"])
            return NearestScorer(actor, points, _start(said, behaviours))
        case "linear":
            alpha = said["alpha"]
            if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not np.isfinite(alpha):
                raise ModelError(f"scorer: alpha must be a finite number, got {alpha!r}")
            return LinUCBScorer(
                values=taken.take("values", rows),
                weights=taken.take("weights", N_CONTEXT),
                spread=taken.take("spread", rows),
                cross=taken.take("cross", rows, N_CONTEXT),
                within=taken.take("within", N_CONTEXT, N_CONTEXT),
                rewards=taken.take("rewards", behaviours),
                alpha=float(alpha),
            )
        case other:
            raise ModelError(f"scorer: kind {other!r} is unknown; known are {', '.join(KINDS.values())}")


class _Arrays:
    """Arrays by name, each checked when it is taken."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]], rows: int, behaviours: int) -> None:
        self._arrays, self._taken = arrays, set[str]()
        self.rows, self.behaviours = rows, behaviours

    @property
    def left(self) -> list[str]:
        """Those nobody asked for."""
        return sorted(set(self._arrays) - self._taken)

    def take(self, name: str, *shape: int | None) -> NDArray[Any]:
        """The array of this name; None stands for any size from 1 on."""
        if name not in self._arrays:
            raise ModelError(f"scorer: {name!r} is missing")
        array = self._arrays[name]
        sizes = zip(array.shape, shape, strict=False)
        if len(array.shape) != len(shape) or any(size < 1 if wanted is None else size != wanted for size, wanted in sizes):
            wanted_shape = ", ".join("any" if wanted is None else str(wanted) for wanted in shape)
            raise ModelError(f"scorer: {name!r} has shape {array.shape}, it must be ({wanted_shape})")
        if array.dtype.kind != "f":
            raise ModelError(f"scorer: {name!r} holds {array.dtype}, it must hold floating-point numbers")
        if not np.isfinite(array).all():
            raise ModelError(f"scorer: {name!r} holds NaN or infinity")
        self._taken.add(name)
        return array

    def cell(self, path: str, hidden: int | None) -> CellTables:
        """A cell of this hidden size, or of any."""
        size = hidden or self.take(f"{path}/weight", None, None).shape[1]
        return CellTables(
            items=self.take(f"{path}/items", self.rows, 3 * size),
            behaviours=self.take(f"{path}/behaviours", self.behaviours + 1, 3 * size),
            weight=self.take(f"{path}/weight", 3 * size, size),
            bias=self.take(f"{path}/bias", 3 * size),
        )

    def tables(self, path: str, outputs: int, user: str) -> Tables:
        """A network with this many outputs that knows its user by history, by id or not at all."""
        cell = self.cell(f"{path}/cell", None)
        size = cell.weight.shape[1]
        first = self.take(f"{path}/head/0", None, size)
        inner = first.shape[0]
        head = (
            first,
            self.take(f"{path}/head/1", inner),
            self.take(f"{path}/head/2", outputs, inner),
            self.take(f"{path}/head/3", outputs),
        )
        if user not in ("history", "id", "none"):
            raise ModelError(f"scorer: {path} knows its user by {user!r}; known are history, id, none")
        history = self.cell(f"{path}/history", size) if user == "history" else None
        return Tables(cell, head, history, self.take(f"{path}/users", None, size) if user == "id" else None)


def _term(said: Mapping[str, Any], taken: _Arrays) -> ScoreTerm:
    name = said["name"]
    rewards = taken.take(f"{name}/rewards", taken.behaviours) if said["rewards"] else None
    return ScoreTerm(taken.tables(name, 1 if rewards is None else taken.behaviours, said["user"]), rewards)


def _tables_to_arrays(path: str, tables: Tables) -> Arrays:
    made = _cell_to_arrays(f"{path}/cell", tables.cell)
    made |= {f"{path}/head/{place}": array for place, array in enumerate(tables.head)}
    if tables.history is not None:
        made |= _cell_to_arrays(f"{path}/history", tables.history)
    if tables.users is not None:
        made[f"{path}/users"] = tables.users
    return made


def _cell_to_arrays(path: str, cell: CellTables) -> Arrays:
    return {f"{path}/{name}": getattr(cell, name) for name in ("items", "behaviours", "weight", "bias")}


def _user(tables: Tables) -> str:
    if tables.users is not None:
        return "id"
    return "none" if tables.history is None else "history"


def _start(said: Mapping[str, Any], behaviours: int) -> int:
    return _whole(said, "start", behaviours + 1)


def _whole(said: Mapping[str, Any], name: str, below: int) -> int:
    value = said[name]
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < below:
        raise ModelError(f"scorer: {name} must be a whole number in 0..{below - 1}, got {value!r}")
    return value
