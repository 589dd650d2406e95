"""The kinds of features: of items, of users and of steps alike."""

from __future__ import annotations

from typing import Literal, get_args

from mbcal.errors import OptionError, nearest

FeatureKind = Literal["category", "number", "vector"]
"""One or several values of a vocabulary, a number, or a list of numbers of one length."""


def require_kind(kind: str, feature: str) -> FeatureKind:
    """Return a kind of feature; raises OptionError if there is none of that name."""
    known = get_args(FeatureKind)
    if kind not in known:
        hint = nearest(kind, known)
        raise OptionError(f"features: kind {kind!r} of {feature!r} is unknown; known are {', '.join(known)}.{hint}")
    return kind  # type: ignore[return-value]  # mypy does not know `known`
