"""Batches: several requests in one body, `{"batch": [...]}`."""

from __future__ import annotations

import msgspec


class _Members(msgspec.Struct):
    """A batch whose members are counted, not decoded."""

    batch: list[msgspec.Raw]


_count_members = msgspec.json.Decoder(_Members).decode


def is_batch(body: bytes) -> bool:
    """Whether the first key is `batch`; a single request has no such key."""
    return body[:64].lstrip(b" \t\r\n{").startswith(b'"batch"')


def members_of(body: bytes) -> int:
    """Return the number of requests in a body; 1 for a single request.

    Raises:
        msgspec.DecodeError: If the body is a batch but not valid JSON.
    """
    return max(len(_count_members(body).batch), 1) if is_batch(body) else 1
