"""User features and context of requests: kept as JSON text between requests, read by a version when it ranks.

A version encodes what it has declared (`types.fields`). The live version refuses what it does not know; what was remembered
under another version is read as far as it is known. The effect of a text on a scorer is cached: contexts repeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from mbcal.errors import InputError
from mbcal.scoring.fields import JointFieldTables
from mbcal.scoring.scorers import NetScorer, Scorer
from mbcal.serving.bounded import BoundedDict
from mbcal.serving.messages import RankRequest, RequestFields
from mbcal.types import NO_FIELDS, SessionFields
from mbcal.types.fields import Values

EFFECT_BYTES = 4 << 20
"""Bytes of cached effects of a version."""
ENTRY_BYTES = 600
"""Estimated size of a cached effect without its text and numbers."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_decode_fields = msgspec.json.Decoder(RequestFields).decode


class GivenFields(NamedTuple):
    """Raw values of fields, each as a JSON object; an empty text if nothing is known."""

    context: str = ""
    """Of the step to come."""
    user_features: str = ""
    shown_context: tuple[str, ...] = ()
    """Of the steps that were shown; empty if nothing is known of any."""


NOTHING_GIVEN = GivenFields()


def as_text(values: Values | None) -> str:
    """Return raw values as JSON; an empty text if there are none."""
    return _encode(values).decode() if values else ""


def from_text(text: str) -> dict[str, Any]:
    """Return what `as_text` wrote."""
    values: dict[str, Any] = _decode(text) if text else {}
    return values


def is_object(text: str) -> bool:
    """Whether a text is empty or as `as_text` writes it: JSON of fields with values that a request may have."""
    try:
        if text:
            require_64_bits(_decode_fields(text), "fields")
    except (msgspec.MsgspecError, InputError):
        return False
    return True


def given_fields(request: RankRequest) -> GivenFields:
    """Return the fields of a request.

    Raises:
        InputError: If there is a context for steps that are not given, or for some of them only.
    """
    shown_context = tuple(map(as_text, request.shown_context))
    if shown_context and len(shown_context) != len(request.shown or ()):
        steps = len(request.shown or ())
        raise InputError(f"shown_context: {len(shown_context)} for {steps} steps in shown; give one each, or none")
    return GivenFields(as_text(request.context), as_text(request.user_features), shown_context)


class _Effect(NamedTuple):
    """What a text adds, per term of the scorer."""

    terms: tuple[NDArray[np.float32], ...]
    """(1, units) each."""
    is_valid: bool
    """Whether all of it was declared."""


class ScorerFields:
    """Reads fields for one version. Not thread-safe."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer: Any = scorer
        self.fields: SessionFields = getattr(scorer, "fields", NO_FIELDS)
        self._effects: BoundedDict[tuple[str, str], _Effect] = BoundedDict(EFFECT_BYTES)
        tables = [term.tables for term in scorer.terms.values()] if isinstance(scorer, NetScorer) else []
        self._tables = {
            "context": JointFieldTables([table.context for table in tables if table.context is not None]),
            "user_features": JointFieldTables([table.user_features for table in tables if table.user_features is not None]),
        }

    def require_declared(self, given: GivenFields) -> None:
        """Raise InputError if a request has fields that the version has not declared, or wrong values of them."""
        for name, text in (("context", given.context), ("user_features", given.user_features)):
            if text:
                self._effect(name, text, strict=True)
        for text in given.shown_context:
            if text:
                self._effect("context", text, strict=True)

    def with_user(self, state: Any, text: str) -> Any:
        """The state before the first step of a user with these features."""
        if not text or not len(self.fields.user):
            return state
        if not isinstance(self.scorer, NetScorer):
            return self.scorer.with_user(state, np.array([self._encoded("user_features", text)[0]], np.float32))
        effects = self._effect("user_features", text).terms
        hidden = tuple(before + effect for before, effect in zip(state.hidden, effects, strict=True))
        return type(state)(hidden, state.previous)

    def with_context(self, state: Any, text: str) -> Any:
        """The state with the context of the next step."""
        if not text or not len(self.fields.context):
            return state
        if not isinstance(self.scorer, NetScorer):
            return self.scorer.with_context(state, np.array([self._encoded("context", text)[0]], np.float32))
        return type(state)(state.hidden, state.previous, self._effect("context", text).terms)

    def step_gates(self, texts: Sequence[str]) -> list[NDArray[np.float32]] | None:
        """What the contexts of T steps add to the gates, (T, 3H) per term; None if nothing."""
        terms_of = self._tables["context"].slices
        if not terms_of or not any(texts):
            return None
        effects = [self._effect("context", text).terms if text else None for text in texts]
        gates = [np.zeros((len(texts), columns.stop - columns.start), np.float32) for columns in terms_of]
        for step, terms in enumerate(effects):
            for number, effect in enumerate(terms or ()):
                gates[number][step] = effect
        return gates

    def _effect(self, name: str, text: str, strict: bool = False) -> _Effect:
        cached = self._effects.get((name, text))
        if cached is not None and (cached.is_valid or not strict):
            return cached
        row, is_valid = self._encoded(name, text, strict)
        effect = _Effect(self._tables[name].effect(row), is_valid)
        size = ENTRY_BYTES + len(text) + sum(array.nbytes for array in effect.terms)
        self._effects.put((name, text), effect, size)
        return effect

    def _encoded(self, name: str, text: str, strict: bool = False) -> tuple[Sequence[float], bool]:
        """The encoded row of W numbers, and whether all of it was declared; raises InputError if not, and `strict`."""
        fields = self.fields.context if name == "context" else self.fields.user
        values = from_text(text)
        if strict:
            require_64_bits(values, name)
        try:
            return fields.encoded(values, name), True
        except InputError:
            if strict:
                raise
            return fields.encode_known(values, name).tolist(), False


def require_64_bits(values: Values, subject: str) -> None:
    """Raise InputError if there is a whole number that the decision log cannot hold."""
    for name, value in values.items():
        for number in value if isinstance(value, list) else (value,):
            if type(number) is int and not -(2**63) <= number < 2**64:
                raise InputError(f"{subject}: {name!r} has a whole number beyond 64 bits; send a smaller one, or text")
