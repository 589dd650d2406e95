"""A folder with a store, runs, models, a registry and a decision log, some of them damaged."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from mbcal import NetConfig, TrainingConfig
from mbcal.agents import AGENTS
from mbcal.data import Store
from mbcal.decision_log.writer import DecisionLog
from mbcal.evaluation.experiment.config import experiment_config
from mbcal.evaluation.experiment.run import Run
from mbcal.registry.registry import Registry
from tests.support.browser import Browser, browsing

RUN = {
    "agents": ["popular", "random"], "seeds": 1, "protocols": ["batch"], "judges": ["truth"], "log_sessions": 300,
    "test_sessions": 40, "items": 100, "gamma": 0.95,
}  # fmt: skip
HOSTILE = "<!--<script>document.title='broken'</script>"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("studio")
    run = Run.create(root / "runs" / "one", experiment_config(RUN), "cpu")
    run.prepare()
    for cell in run.cells:
        run.execute(cell)
    (run.folder / "report.html").write_text(
        "<!doctype html><title>report</title><script>document.title += ' ' + origin</script>"
    )
    shutil.copytree(run.folder, root / "runs" / "two")
    shutil.copytree(run.folder / "data", root / "feed")
    shutil.copytree(run.folder, root / "runs" / "elsewhere")
    settings = json.loads((root / "runs" / "elsewhere" / "settings.json").read_text())
    (root / "runs" / "elsewhere" / "settings.json").write_text(json.dumps({**settings, "data": "/nowhere/feed"}))
    kind = AGENTS["mbcal"]
    config = kind.Config(net=NetConfig(hidden=8, embedding=8), training=TrainingConfig(epochs=2, batch=64), gamma=0.95)
    agent = kind(config, "cpu").fit(Store.open(root / "feed"))
    agent.provenance = {"data": Store.open(root / "feed").manifest["content_hash"]}
    agent.save(root / "models" / "mbcal")
    registry = Registry(root / "live")
    registry.publish(root / "models" / "mbcal", metrics={"reward": 81.25})
    (root / "live" / "updates").mkdir()
    update = {
        "live": "v000001", "version": None, "answer": "worse", "action": "refused", "reason": HOSTILE, "estimates": [],
        "counts": None, "checks": [{"name": "log", "answer": "worse", "detail": HOSTILE}],
    }  # fmt: skip
    (root / "live" / "updates" / "000001.json").write_text(json.dumps(update))
    (root / "live" / "updates" / "000001.html").write_text("<!doctype html><title>update</title>")
    DecisionLog(root / "decisions").close()
    _damage(root)
    return root


def _damage(root: Path) -> None:
    """Add a flipped bit, a missing file, a manifest that is not JSON, links out of the folder, and a secret."""
    for name in ("flipped", "missing", "garbled", "linked"):
        shutil.copytree(root / "models" / "mbcal", root / "models" / name)
    weights = root / "models" / "flipped" / "weights.safetensors"
    data = bytearray(weights.read_bytes())
    data[-3] ^= 1
    weights.write_bytes(bytes(data))
    (root / "models" / "missing" / "items.parquet").unlink()
    (root / "models" / "garbled" / "manifest.json").write_text("[" * 100_000)
    outside = root.parent / f"{root.name}-outside"
    shutil.copytree(root / "models" / "mbcal", outside)
    (root / "models" / "linked" / "weights.safetensors").unlink()
    os.symlink(outside / "weights.safetensors", root / "models" / "linked" / "weights.safetensors")
    os.symlink(outside, root / "models" / "outside")
    (root / "secret.txt").write_text("secret")


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("browser")) as browser:
        yield browser
