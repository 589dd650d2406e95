"""The data types that all other modules exchange: Behaviours, Catalog, Fields, Sessions.

Arrays are numpy here, so that reading logs and serving never import torch; `Sessions.tensors` returns the same memory as
torch tensors. Padding is at the end of a row and holds zeros. Lengths say where it begins, and no result may depend on it.
"""

from mbcal.types.catalog import Behaviours, Catalog
from mbcal.types.features import (
    FIRST_ITEM_ROW,
    MASK_ROW,
    UNKNOWN_ROW,
    AnyFeature,
    Feature,
    NumberFeature,
    VectorFeature,
)
from mbcal.types.field import Field
from mbcal.types.fields import NO_FIELDS, Fields, SessionFields
from mbcal.types.kinds import FeatureKind
from mbcal.types.names import Name, Steps, to_name, to_names, to_steps
from mbcal.types.session_base import History
from mbcal.types.session_tensors import SessionTensors
from mbcal.types.sessions import LOG_ORIGIN, Index, Sessions

__all__ = [
    "FIRST_ITEM_ROW",
    "LOG_ORIGIN",
    "MASK_ROW",
    "NO_FIELDS",
    "UNKNOWN_ROW",
    "AnyFeature",
    "Behaviours",
    "Catalog",
    "Feature",
    "FeatureKind",
    "Field",
    "Fields",
    "History",
    "Index",
    "Name",
    "NumberFeature",
    "SessionFields",
    "SessionTensors",
    "Sessions",
    "Steps",
    "VectorFeature",
    "to_name",
    "to_names",
    "to_steps",
]
