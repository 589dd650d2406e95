"""Saved models of every agent, an empty registry, and one with two versions."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from mbcal.agents import AGENTS
from mbcal.registry.registry import Registry
from tests.support import batches
from tests.support.agents import NET, QUICK, small


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model of every agent; not to be changed."""
    folder = tmp_path_factory.mktemp("models")
    for name in AGENTS:
        small(name).save(folder / name)
    kind = AGENTS["mbcal"]
    by_id = kind(kind.Config(net=dataclasses.replace(NET, user="id"), training=QUICK), "cpu")
    by_id.fit(batches.sessions(count=60, seed=3)).save(folder / "by-id")
    return folder


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "registry")


@pytest.fixture(scope="session")
def two(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A registry with one version live and one waiting; not to be changed."""
    two_versions = Registry(tmp_path_factory.mktemp("two") / "registry")
    two_versions.publish(models / "popular")
    two_versions.publish(models / "mbcal", activate=False)
    return two_versions.path
