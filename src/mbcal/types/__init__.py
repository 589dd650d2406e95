"""The nouns everything passes around: Behaviours, Catalog, Sessions.

Arrays are numpy here, so that reading logs and serving never import torch; `Sessions.tensors` gives the same memory as
torch tensors. Padding sits at the end of a row, holds zeros and is told by the length; nothing may depend on it.
"""

from mbcal.types.catalog import FIRST_ITEM_ROW, MASK_ROW, UNKNOWN_ROW, Behaviours, Catalog, Feature
from mbcal.types.names import Name, Steps, to_name, to_names, to_steps
from mbcal.types.sessions import LOG_ORIGIN, History, Index, Sessions, SessionTensors

__all__ = [
    "LOG_ORIGIN",
    "MASK_ROW",
    "FIRST_ITEM_ROW",
    "UNKNOWN_ROW",
    "Behaviours",
    "Catalog",
    "Feature",
    "History",
    "Index",
    "Name",
    "SessionTensors",
    "Sessions",
    "Steps",
    "to_name",
    "to_names",
    "to_steps",
]
