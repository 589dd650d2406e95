"""Who a client is: an address, or for IPv6 the network of 64 bits that a provider gives to one customer."""

from __future__ import annotations

import ipaddress
from contextvars import ContextVar
from functools import lru_cache

current_client: ContextVar[str] = ContextVar("current_client", default="")
"""The client whose request is being handled; empty where nobody asks, as when answers are recovered from the log."""


@lru_cache(4096)
def client_of(address: str) -> str:
    """Return the client of an address: an IPv4 address, an IPv6 network, or what is neither as it is."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    return str(parsed.ipv4_mapped or ipaddress.ip_network((int(parsed) >> 64 << 64, 64)))
