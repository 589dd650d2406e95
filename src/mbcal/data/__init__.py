"""Raw logs to stores: a reader for each layout, one ingestion for all, and the store itself."""

from __future__ import annotations

from mbcal.data.behaviour_rules import Labels, Levels
from mbcal.data.cutting import SessionConfig
from mbcal.data.preparation import prepare
from mbcal.data.readers.kuairand import KuaiRand
from mbcal.data.readers.mind import Mind
from mbcal.data.readers.movielens import MovieLens
from mbcal.data.readers.netflix import Netflix
from mbcal.data.readers.recbole import RecBole
from mbcal.data.readers.retailrocket import RetailRocket
from mbcal.data.readers.table import ItemTable, TableLog
from mbcal.data.readers.user_table import UserTable
from mbcal.data.readers.yoochoose import Yoochoose
from mbcal.data.store import Store
from mbcal.data.store_format import PARTS, Part

__all__ = [
    "PARTS",
    "ItemTable",
    "KuaiRand",
    "Labels",
    "Levels",
    "Mind",
    "MovieLens",
    "Netflix",
    "Part",
    "RecBole",
    "RetailRocket",
    "SessionConfig",
    "Store",
    "TableLog",
    "UserTable",
    "Yoochoose",
    "prepare",
]
