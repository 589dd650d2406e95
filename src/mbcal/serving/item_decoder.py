"""Candidates with features, decoded by the types that a version declares: what is decoded has been checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from mbcal.serving.messages import CandidateItem, FeatureValue, RequestName
from mbcal.types.feature_values import LARGEST_NUMBER, FeatureDeclaration, ItemValues, read_values

Number = Annotated[float, Meta(ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)]


class ItemDecoder:
    """Decodes objects like `{"item": "a17", "features": {"words": 310}}`.

    Args:
        declared: The features that objects may have.
    """

    def __init__(self, declared: Mapping[str, FeatureDeclaration]) -> None:
        self._declared = declared
        self._texts = [declaration.read if declaration.kind == "category" else None for declaration in declared.values()]
        attributes = {f"feature_{number}": name for number, name in enumerate(declared)}  # names may be any text
        features = msgspec.defstruct(
            "Features",
            [
                (attribute, _json_type(declaration), None)
                for attribute, declaration in zip(attributes, declared.values(), strict=True)
            ],
            rename=attributes,
            forbid_unknown_fields=True,
        )
        item = msgspec.defstruct("Item", [("item", RequestName), ("features", features)], forbid_unknown_fields=True)
        self._decode = msgspec.json.Decoder(item).decode
        self._decode_any = msgspec.json.Decoder(CandidateItem).decode

    def decode(self, json: bytes) -> tuple[str | int, ItemValues]:
        """Return the name of an item, as it was sent, and its features.

        Raises:
            msgspec.MsgspecError: If the JSON is not an item with features.
            InputError: If a feature is not declared, or a value is not of its kind.
        """
        try:
            item: Any = self._decode(json)
        except msgspec.MsgspecError:  # what is wrong, if anything, `read_values` says
            candidate = self._decode_any(json)
            return candidate.item, read_values(candidate.features, self._declared)
        values: ItemValues = {}
        for name, read, value in zip(self._declared, self._texts, msgspec.structs.astuple(item.features), strict=True):
            if value is not None:
                checked = value if read is None else read(value)
                if checked is not None:
                    values[name] = checked
        return item.item, values


def _json_type(declaration: FeatureDeclaration) -> Any:
    """The type of a feature's values in JSON; null is missing."""
    if declaration.kind == "number":
        return Number | None
    if declaration.kind == "vector":
        return Annotated[list[Number], Meta(min_length=declaration.length, max_length=declaration.length)] | None
    return FeatureValue
