"""Models and a registry for the tests of the service."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mbcal.registry.registry import Registry
from tests.support.redis import RedisServer
from tests.support.versions import fitted


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two small models that differ by their seed."""
    folder = tmp_path_factory.mktemp("models")
    return [fitted(seed=seed).save(folder / str(seed)) for seed in range(2)]


@pytest.fixture
def registry(models: list[Path], tmp_path: Path) -> Registry:
    """A registry of both models; the first is live."""
    registry = Registry(tmp_path / "registry")
    for path in models:
        registry.publish(path, activate=True)
    registry.activate(registry.versions()[0])
    return registry


@pytest.fixture(scope="module")
def shared_registry(models: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Registry:
    """A registry with one live version, for servers that several tests share."""
    registry = Registry(tmp_path_factory.mktemp("shared") / "registry")
    registry.publish(models[0])
    return registry


@pytest.fixture(scope="module")
def redis_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Redis server on a free port."""
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server.address
    server.kill()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate of localhost and its key, made as docs/service.md shows."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("there is no openssl program here")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    names = ["-subj", "/CN=ranker.example", "-addext", "subjectAltName=DNS:ranker.example,DNS:localhost"]
    command = [program, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names, "-keyout", key, "-out", cert]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key
