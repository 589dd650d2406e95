"""What the decision log holds: a decision when a ranking is answered, feedback when a user has met one of its items."""

from __future__ import annotations

from typing import Any

from mbcal.errors import InputError, OptionError

try:
    import msgspec
except ModuleNotFoundError as error:
    raise OptionError("msgspec is not installed, the decision log needs it; pip install 'mbcal[serve]'") from error

Steps = list[tuple[str, str]]
"""(item, behaviour) pairs, oldest first."""


# as arrays, not maps: a third smaller. New fields go last and have a default, so that old records stay readable.
class Decision(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """One answered ranking, with everything needed to learn from it and to judge other policies by it."""

    id: str
    time: int
    """Microseconds since 1970, UTC."""
    session: str
    user: str
    step: int
    """Steps of this session seen before."""
    version: str
    """Which model ranked."""
    epsilon: float
    history: Steps
    """Known before the session."""
    shown: Steps
    """Of this session so far, as the server knew it."""
    candidates: list[str]
    items: list[str]
    """Ranked, as returned."""
    propensities: list[float]
    """Probability with which each item was chosen given those before it."""

    def __post_init__(self) -> None:
        if len(self.propensities) != len(self.items):
            rule = f"{len(self.items)} items but {len(self.propensities)} propensities"
            raise ValueError(f"decision {self.id!r}: {rule}; give one each")
        for propensity in self.propensities:
            if not 0 < propensity <= 1:
                raise ValueError(f"decision {self.id!r}: propensities must lie in (0, 1], got {propensity}")


class Feedback(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """What a user did with one item of a decision."""

    decision: str
    item: str
    behaviour: str
    time: int
    id: str


Record = Decision | Feedback

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)


def encode(record: Record) -> bytes:
    """As msgpack, the kind first."""
    try:
        return _encoder.encode(record)
    except (TypeError, OverflowError, UnicodeEncodeError) as error:
        raise InputError(f"record {record.id!r}: cannot be written ({error}); give plain text and 64-bit numbers") from error


def decode(payload: bytes) -> Record:
    """The record these bytes were made of; ValueError where they were made of none."""
    try:
        return _decoder.decode(payload)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error


def fields(record: Record) -> dict[str, Any]:
    """A record's values by name."""
    return {name: getattr(record, name) for name in record.__struct_fields__}
