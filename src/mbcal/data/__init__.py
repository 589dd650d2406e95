"""Raw logs to sessions on disk: one reader a layout, one way from there."""

from __future__ import annotations

from mbcal.data.cutting import SessionConfig
from mbcal.data.ingest import prepare
from mbcal.data.readers.kuairand import KuaiRand
from mbcal.data.readers.movielens import MovieLens
from mbcal.data.readers.netflix import Netflix
from mbcal.data.readers.table import ItemTable, TableLog
from mbcal.data.source import Labels, Levels
from mbcal.data.store import Store
from mbcal.data.store_format import PARTS, Part

__all__ = [
    "PARTS",
    "SessionConfig",
    "ItemTable",
    "KuaiRand",
    "Labels",
    "Levels",
    "MovieLens",
    "Netflix",
    "Part",
    "Store",
    "TableLog",
    "prepare",
]
