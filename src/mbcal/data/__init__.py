"""Raw logs to sessions on disk: one reader a layout, one way from there."""

from __future__ import annotations

from mbcal.data.ingest import prepare
from mbcal.data.kuairand import KuaiRand
from mbcal.data.log import Labels, Levels
from mbcal.data.movielens import MovieLens
from mbcal.data.netflix import Netflix
from mbcal.data.sessions import Cut
from mbcal.data.store import PARTS, Part, Store
from mbcal.data.table import Items, Table

__all__ = [
    "PARTS",
    "Cut",
    "Items",
    "KuaiRand",
    "Labels",
    "Levels",
    "MovieLens",
    "Netflix",
    "Part",
    "Store",
    "Table",
    "prepare",
]
