"""A registry with a weak model, and a log of what it decided."""

from __future__ import annotations

from pathlib import Path

import pytest

from mbcal.registry.registry import Registry
from tests.support.releases import agent, served


@pytest.fixture(scope="session")
def weak_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has learned next to nothing."""
    return agent(30, epochs=1).save(tmp_path_factory.mktemp("weak") / "model")


@pytest.fixture
def weak(weak_model: Path, tmp_path: Path) -> Registry:
    """A registry whose live version v000001 is the weak model."""
    registry = Registry(tmp_path / "registry")
    registry.publish(weak_model)
    return registry


@pytest.fixture(scope="session")
def log(weak_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decision log of 150 sessions of the weak model as v000001; only to be read."""
    folder = tmp_path_factory.mktemp("served")
    registry = Registry(folder / "registry")
    registry.publish(weak_model)
    served(registry, folder / "log", 150)
    return folder / "log"
