"""Fixtures and small logs shared by the tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# one thread a worker: pytest already runs two, and the machine has two cores
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile(
    "mbcal", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
settings.load_profile("mbcal")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "store"
