"""Scorers as named arrays and a JSON description, and back: what the service loads of a model, without torch or pickle.

::

    {"kind": "net", "start": 3,                          instant/rewards            (behaviours,)
     "terms": [{"name": "instant", "user": "history"},   instant/cell/items         (rows, 3H)
               {"name": "future", "user": "history"}],   instant/head/0 … future/history/bias
     "fields": {"user": […], "context": […]}}            instant/context/codes … future/user_bias; only if it reads any
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbcal.errors import ModelError
from mbcal.scoring.fields import FieldTables
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
from mbcal.types import Fields, SessionFields

Arrays = dict[str, NDArray[Any]]

KINDS: dict[type, str] = {
    NetScorer: "net",
    ItemScorer: "item",
    RandomScorer: "chance",
    NearestScorer: "nearest",
    LinUCBScorer: "linear",
}
"""Scorers that can be written, and what a description calls them."""


# ---- to arrays


def scorer_to_arrays(scorer: Scorer) -> tuple[dict[str, Any], Arrays]:
    """Describe a scorer.

    Args:
        scorer: A scorer of numpy arrays (`backend.to_numpy`).

    Returns:
        Its description, to be written as JSON, and its arrays by name.

    Raises:
        ModelError: If its class is not one of `KINDS`. Derived classes are not: they may score differently.
    """
    if type(scorer) not in KINDS:
        known = ", ".join(kind.__name__ for kind in KINDS)
        raise ModelError(
            f"scorer: a {type(scorer).__name__} cannot be written; known are {known}; return one of these from build_scorer"
        )
    description: dict[str, Any] = {"kind": KINDS[type(scorer)]}
    arrays: Arrays = {}
    match scorer:
        case NetScorer():
            description |= {"start": scorer.start, "terms": []}
            for name, term in scorer.terms.items():
                has_rewards = term.rewards is not None
                description["terms"].append({"name": name, "rewards": has_rewards, "user": _user_encoder(term.tables)})
                arrays |= _tables_to_arrays(name, term.tables)
                if term.rewards is not None:
                    arrays[f"{name}/rewards"] = term.rewards
        case ItemScorer():
            arrays["values"] = scorer.values
        case RandomScorer():
            description["seed"] = scorer.seed
        case NearestScorer():
            description |= {"start": scorer.start, "user": _user_encoder(scorer.actor)}
            arrays = {**_tables_to_arrays("actor", scorer.actor), "points": scorer.points}
        case LinUCBScorer():
            description["alpha"] = scorer.alpha
            arrays = {name: getattr(scorer, name) for name in ("values", "weights", "spread", "cross", "within", "rewards")}
    if isinstance(scorer, NetScorer | NearestScorer) and scorer.fields:
        description["fields"] = scorer.fields.record()
    return description, arrays


def _tables_to_arrays(path: str, tables: Tables) -> Arrays:
    arrays = _cell_to_arrays(f"{path}/cell", tables.cell)
    arrays |= {f"{path}/head/{index}": array for index, array in enumerate(tables.head)}
    if tables.history is not None:
        arrays |= _cell_to_arrays(f"{path}/history", tables.history)
    if tables.users is not None:
        arrays[f"{path}/users"] = tables.users
    for name, field_tables in (("context", tables.context), ("user_features", tables.user_features)):
        if field_tables is not None:
            arrays |= {f"{path}/{name}/codes": field_tables.codes, f"{path}/{name}/floats": field_tables.floats}
    if tables.user_bias is not None:
        arrays[f"{path}/user_bias"] = tables.user_bias
    return arrays


def _cell_to_arrays(path: str, cell: CellTables) -> Arrays:
    return {f"{path}/{name}": getattr(cell, name) for name in ("items", "behaviours", "weight", "bias")}


def _user_encoder(tables: Tables) -> str:
    if tables.users is not None:
        return "id"
    return "none" if tables.history is None else "history"


# ---- from arrays


def scorer_from_arrays(
    description: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], rows: int, behaviours: int
) -> Scorer:
    """Build the scorer that `scorer_to_arrays` described.

    Args:
        description: Its description.
        arrays: Its arrays by name.
        rows: Rows of the catalogue it must fit.
        behaviours: Number of behaviours it must fit.

    Returns:
        The scorer, on the given arrays.

    Raises:
        ModelError: If the description is invalid, or an array is missing, superfluous, of the wrong shape or type, or not
            finite. The message names it.
    """
    try:
        checked = _CheckedArrays(arrays, rows, behaviours, SessionFields.from_record(description.get("fields")))
        scorer = _build_scorer(description, checked)
    except (KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"scorer: the manifest does not describe one ({type(error).__name__}: {error})") from error
    if checked.unused:
        raise ModelError(f"scorer: {checked.unused[0]!r} belongs to no part of it")
    return scorer


def _build_scorer(description: Mapping[str, Any], arrays: _CheckedArrays) -> Scorer:
    rows, behaviours = arrays.rows, arrays.behaviours
    match description["kind"]:
        case "net":
            terms = {str(term["name"]): _build_term(term, arrays) for term in description["terms"]}
            if not terms:
                raise ModelError("scorer: has no terms, so there is nothing to rank by")
            return NetScorer(terms, _start_symbol(description, behaviours), arrays.fields)
        case "item":
            return ItemScorer(arrays.take("values", rows))
        case "chance":
            return RandomScorer(_integer(description, "seed", 2**31))
        case "nearest":
            points = arrays.take("points", rows, None)
            actor = arrays.take_tables("actor", points.shape[1], description["user"])
            return NearestScorer(actor, points, _start_symbol(description, behaviours), arrays.fields)
        case "linear":
            alpha = description["alpha"]
            if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not np.isfinite(alpha):
                raise ModelError(f"scorer: alpha must be a finite number, got {alpha!r}")
            return LinUCBScorer(
                values=arrays.take("values", rows),
                weights=arrays.take("weights", N_CONTEXT),
                spread=arrays.take("spread", rows),
                cross=arrays.take("cross", rows, N_CONTEXT),
                within=arrays.take("within", N_CONTEXT, N_CONTEXT),
                rewards=arrays.take("rewards", behaviours),
                alpha=float(alpha),
            )
        case other:
            raise ModelError(f"scorer: kind {other!r} is unknown; known are {', '.join(KINDS.values())}")


def _build_term(description: Mapping[str, Any], arrays: _CheckedArrays) -> ScoreTerm:
    name = description["name"]
    rewards = arrays.take(f"{name}/rewards", arrays.behaviours) if description["rewards"] else None
    outputs = 1 if rewards is None else arrays.behaviours
    return ScoreTerm(arrays.take_tables(name, outputs, description["user"]), rewards)


def _start_symbol(description: Mapping[str, Any], behaviours: int) -> int:
    return _integer(description, "start", behaviours + 1)


def _integer(description: Mapping[str, Any], name: str, below: int) -> int:
    value = description[name]
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < below:
        raise ModelError(f"scorer: {name} must be a whole number in 0..{below - 1}, got {value!r}")
    return value


class _CheckedArrays:
    """Arrays by name, each checked when it is taken."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]], rows: int, behaviours: int, fields: SessionFields) -> None:
        self._arrays, self._taken = arrays, set[str]()
        self.rows, self.behaviours, self.fields = rows, behaviours, fields

    @property
    def unused(self) -> list[str]:
        """Names that were not taken."""
        return sorted(set(self._arrays) - self._taken)

    def take(self, name: str, *shape: int | None) -> NDArray[Any]:
        """Return an array of this shape, in which None stands for any size above 0; raise ModelError if there is none."""
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

    def take_cell(self, path: str, hidden: int | None) -> CellTables:
        """Return a cell of this hidden size, or of any if None."""
        size = hidden or self.take(f"{path}/weight", None, None).shape[1]
        return CellTables(
            items=self.take(f"{path}/items", self.rows, 3 * size),
            behaviours=self.take(f"{path}/behaviours", self.behaviours + 1, 3 * size),
            weight=self.take(f"{path}/weight", 3 * size, size),
            bias=self.take(f"{path}/bias", 3 * size),
        )

    def take_tables(self, path: str, outputs: int, user: str) -> Tables:
        """Return a network with this many outputs, whose users are encoded by `history`, `id` or `none`."""
        cell = self.take_cell(f"{path}/cell", None)
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
            raise ModelError(f"scorer: {path} encodes users by {user!r}; known are history, id, none")
        history = self.take_cell(f"{path}/history", size) if user == "history" else None
        return Tables(
            cell,
            head,
            history,
            users=self.take(f"{path}/users", None, size) if user == "id" else None,
            context=self.take_fields(f"{path}/context", self.fields.context, 3 * size),
            user_features=self.take_fields(f"{path}/user_features", self.fields.user, size),
            user_bias=self.take(f"{path}/user_bias", size) if len(self.fields.user) else None,
        )

    def take_fields(self, path: str, fields: Fields, units: int) -> FieldTables | None:
        """Return the effect of fields on this many units; None if there are no fields."""
        if not len(fields):
            return None
        *offsets, n_codes = fields.code_offsets.tolist()
        return FieldTables(
            codes=self.take(f"{path}/codes", n_codes, units),
            floats=self.take(f"{path}/floats", fields.width - fields.n_codes, units),
            offsets=np.asarray(offsets, np.int64),
        )
