"""The records of a decision log: a decision for every answered ranking, feedback for every observed behaviour."""

from __future__ import annotations

from typing import Any

from mbcal.errors import InputError, OptionError

try:
    import msgspec
except ModuleNotFoundError as error:
    raise OptionError("msgspec is not installed, the decision log needs it; pip install 'mbcal[serve]'") from error

SKEW = 60.0
"""Seconds by which the clocks of servers, and of their disks, may differ."""
LoggedSteps = list[tuple[str, str]]
"""(item, behaviour) pairs, oldest first."""


# Encoded as arrays, a third smaller than maps. New fields go last and need a default, so that old records stay readable.
class Decision(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """One answered ranking, with everything needed to learn from it and to evaluate other policies on it.

    Raises:
        ValueError: If items and propensities differ in number, a propensity is outside (0, 1], or the time needs more than
            64 bits with a sign.
    """

    id: str
    time: int
    """Microseconds since 1970, UTC."""
    session: str
    user: str
    step: int
    """Steps of the session before this decision."""
    version: str
    """Version of the model that ranked."""
    epsilon: float
    """Probability of a random choice, with which the items were chosen."""
    history: LoggedSteps
    """Steps before the session."""
    shown: LoggedSteps
    """Steps of the session so far, as the server knew them."""
    candidates: list[str]
    items: list[str]
    """The ranking, as returned."""
    propensities: list[float]
    """Probability of each item at its position, given the items before it."""
    request: str = ""
    """Hash of the request, if the client gave it an id. With the three fields below, a repeated request gets its answer
    after a restart, and another request with the same id is recognised."""
    scores: list[float] = []
    """Score of each item, if the client gave an id."""
    parts: dict[str, list[float]] = {}
    """Terms of the scores by name, each with a value per item, if the client gave an id."""
    seen: list[bool] = []
    """Whether each item occurred in training, if the client gave an id."""

    repeats: bool = False
    """Whether items that were shown in the session could be chosen again. If not, the choice was among the other
    candidates, or among all if all had been shown."""
    features: dict[str, dict[str, Any]] = {}
    """Features that the request gave to items the version does not know, by item (`types.feature_values.ItemValues`)."""
    context: dict[str, Any] = {}
    """Raw values of the fields of the step, as the request gave them."""
    user_features: dict[str, Any] = {}
    """Raw values of the fields of the user, as the session's first request gave them."""
    shown_context: list[str] = []
    """The context of each step in `shown`, as JSON; empty if none has any."""

    def __post_init__(self) -> None:
        _require_time(self.time, f"decision {self.id!r}")
        if len(self.propensities) != len(self.items):
            rule = f"{len(self.items)} items but {len(self.propensities)} propensities"
            raise ValueError(f"decision {self.id!r}: {rule}; give one each")
        for propensity in self.propensities:
            if not 0 < propensity <= 1:
                raise ValueError(f"decision {self.id!r}: propensities must be in (0, 1], got {propensity}")


class Feedback(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The behaviour of a user on one item of a decision.

    Raises:
        ValueError: If the time needs more than 64 bits with a sign.
    """

    decision: str
    """Id of the decision that returned the item."""
    item: str
    behaviour: str
    time: int
    """Microseconds since 1970, UTC."""
    id: str

    def __post_init__(self) -> None:
        _require_time(self.time, f"feedback {self.id!r}")


def _require_time(time: int, record: str) -> None:
    if not -(2**63) <= time < 2**63:
        raise ValueError(f"{record}: time must be microseconds since 1970 in 64 bits with a sign, got {time}")


Record = Decision | Feedback

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)


def encode(record: Record) -> bytes:
    """Encode a record as MessagePack: an array whose first element is the kind.

    Raises:
        InputError: If a text is not valid Unicode or a number needs more than 64 bits.
    """
    try:
        return _encoder.encode(record)
    except (TypeError, OverflowError, UnicodeEncodeError) as error:
        raise InputError(f"record {record.id!r}: cannot be written ({error}); give plain text and 64-bit numbers") from error


def decode(payload: bytes) -> Record:
    """Decode what `encode` returned.

    Raises:
        ValueError: If the bytes are no record.
    """
    try:
        return _decoder.decode(payload)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error


def fields(record: Record) -> dict[str, Any]:
    """Return a record's values by field name."""
    return {name: getattr(record, name) for name in record.__struct_fields__}
