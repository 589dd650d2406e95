"""Model-Based Counterfactual Advantage Learning: long-term recommendation from ordinary logs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mbcal.data import Cut, Items, KuaiRand, Labels, Levels, MovieLens, Netflix, Store, Table, prepare
from mbcal.errors import MbcalError
from mbcal.types import Behaviours, Catalog, Feature, Sessions
from mbcal.version import __version__

if TYPE_CHECKING:
    from mbcal.worlds.logs import NewsfeedLog, prepare_newsfeed
    from mbcal.worlds.newsfeed import Newsfeed
    from mbcal.worlds.oracle import Oracle

__all__ = [
    "Behaviours",
    "Catalog",
    "Cut",
    "Feature",
    "Items",
    "KuaiRand",
    "Labels",
    "Levels",
    "MbcalError",
    "MovieLens",
    "Netflix",
    "Newsfeed",
    "NewsfeedLog",
    "Oracle",
    "Sessions",
    "Store",
    "Table",
    "__version__",
    "prepare",
    "prepare_newsfeed",
]

# These need torch, which takes a second to import; they are fetched when first named.
_WITH_TORCH = {
    "Newsfeed": "mbcal.worlds.newsfeed",
    "NewsfeedLog": "mbcal.worlds.logs",
    "Oracle": "mbcal.worlds.oracle",
    "prepare_newsfeed": "mbcal.worlds.logs",
}


def __getattr__(name: str) -> Any:
    if name in _WITH_TORCH:
        from importlib import import_module

        return getattr(import_module(_WITH_TORCH[name]), name)
    raise AttributeError(f"module 'mbcal' has no attribute {name!r}")
