"""Raw logs to sessions on disk: one reader a layout, one way from there."""

from __future__ import annotations

from mbcal.data.cutting import Cut
from mbcal.data.ingest import prepare
from mbcal.data.readers.kuairand import KuaiRand
from mbcal.data.readers.movielens import MovieLens
from mbcal.data.readers.netflix import Netflix
from mbcal.data.readers.table import Items, Table
from mbcal.data.source import Labels, Levels
from mbcal.data.store import Store
from mbcal.data.store_format import PARTS, Part

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
