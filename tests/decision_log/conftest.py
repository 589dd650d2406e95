"""A folder for a decision log, and a slow disk."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def slow_sync(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make every fdatasync take 20 ms; the list has one entry per call."""
    calls: list[int] = []
    sync = os.fdatasync

    def slowly(file: int) -> None:
        calls.append(file)
        time.sleep(0.02)
        sync(file)

    monkeypatch.setattr(os, "fdatasync", slowly)
    return calls
