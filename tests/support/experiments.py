"""Experiments small enough for tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

TINY: dict[str, Any] = {
    "agents": ["mbcal", "gru4rec", "random"], "seeds": 2, "log_sessions": 400, "test_sessions": 60, "gamma": 0.95,
    "rounds": 2, "round_sessions": 80, "round_epochs": 1, "replay": 1, "futures": 4, "future_states": 4, "xray": 2,
    "net": {"hidden": 8, "embedding": 8}, "training": {"epochs": 2, "batch": 64, "warmup": 0, "validation": 0.0},
    "simulator": {"hidden": 8, "embedding": 8, "training": {"epochs": 1}},
}  # fmt: skip


def set_options(values: Mapping[str, Any]) -> list[str]:
    """Settings as options of the command line: --set training.epochs=2."""
    return [part for name, value in _flat(values) for part in ("--set", f"{name}={value}")]


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
