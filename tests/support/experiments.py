"""Experiments small enough for tests."""

from __future__ import annotations

from typing import Any

TINY: dict[str, Any] = {
    "agents": ["mbcal", "gru4rec", "random"], "seeds": 2, "log_sessions": 400, "test_sessions": 60, "epochs": 2, "rounds": 2,
    "round_sessions": 80, "hidden": 8, "embedding": 8, "futures": 4, "future_states": 4, "xray": 2,
    "simulator": {"hidden": 8, "embedding": 8, "training": {"epochs": 1}},
}  # fmt: skip
