"""Fixtures and small logs shared by the tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

# one thread a worker: pytest already runs two, and the machine has two cores
os.environ.setdefault("OMP_NUM_THREADS", "1")

try:  # tests of models also run where hypothesis is not, on a machine with a GPU, say
    from hypothesis import HealthCheck, settings
except ImportError:
    pass
else:
    checks = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
    settings.register_profile("mbcal", deadline=None, suppress_health_check=checks)
    settings.load_profile("mbcal")


SLOWEST_FILES = (
    "test_docs.py",
    "test_ray_train.py",
    "test_run.py",
    "test_results.py",
    "test_contract.py",
    "test_blocks_ray.py",
    "test_models.py",
    "test_plan.py",
    "test_shared_fit.py",
    "test_cli.py",
    "test_data_page.py",
    "test_gate.py",
)
"""Run first, so that two processes that take whole files end at about the same time."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the slowest files first and keep the order otherwise."""
    order = {name: number for number, name in enumerate(SLOWEST_FILES)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture(scope="session")
def ray_engine() -> Iterator[Any]:
    """A real Ray cluster of two workers on this machine, one for all tests of a process."""
    if find_spec("ray") is None:  # not imported here: the engine says where Ray listens before it is
        pytest.skip("Ray is not installed; pip install 'mbcal[ray]'")
    from mbcal.distributed.engines.ray import RayEngine

    with RayEngine(2) as engine:
        yield engine
