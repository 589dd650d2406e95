"""Training that was stopped or killed goes on from its checkpoint, to the identical result."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from mbcal.errors import TrainingError
from mbcal.storage.checkpoints import Checkpoints
from mbcal.training.config import TrainingConfig
from mbcal.training.random import Noise
from mbcal.training.state import load_state_arrays, state_to_arrays
from tests.support.lines import fit, line


class KilledError(Exception):
    pass


@pytest.mark.parametrize("at", [1, 4, 5, 9, 13, 24])
def test_resumed_after_any_step_the_result_is_identical(at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = TrainingConfig(epochs=6, batch=8, learning_rate=0.05, warmup=3, patience=2)
    held = np.arange(30, 40)
    straight, objective = line()
    record = fit(straight, objective, config, rows=30, held=held)

    model, objective = line()
    calls = []

    def killed(batch: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        calls.append(batch)
        if len(calls) == at + 1:
            raise KilledError
        return objective(batch, noise)

    monkeypatch.setattr("mbcal.training.loop.LOSS_CHECK_INTERVAL", 1)
    with pytest.raises(KilledError):
        fit(model, killed, config, rows=30, held=held, checkpoints=Checkpoints(tmp_path / "kept", {"a": 1}, every=-1))
    again, objective = line()
    kept = Checkpoints(tmp_path / "kept", {"a": 1}, every=-1)
    assert kept.latest is not None
    assert fit(again, objective, config, rows=30, held=held, checkpoints=kept) == record
    assert torch.equal(again.weight, straight.weight)
    assert torch.equal(again.bias, straight.bias)


def test_a_finished_stage_is_not_run_again(tmp_path: Path) -> None:
    config = TrainingConfig(epochs=3, batch=8)
    model, objective = line()
    fit(model, objective, config, checkpoints=Checkpoints(tmp_path / "kept", {}))
    again, _ = line()

    def never(batch: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        raise AssertionError("the stage is finished")

    fit(again, never, config, checkpoints=Checkpoints(tmp_path / "kept", {}))
    assert torch.equal(again.weight, model.weight)


def test_checkpoints_of_other_settings_are_refused(tmp_path: Path) -> None:
    model, objective = line()
    fit(model, objective, TrainingConfig(epochs=1), checkpoints=Checkpoints(tmp_path / "kept", {"seed": 0, "pair": (1, 2)}))
    assert Checkpoints(tmp_path / "kept", {"seed": 0, "pair": (1, 2)}).latest  # a pair comes back from JSON as a list
    with pytest.raises(TrainingError, match="other settings or data"):
        Checkpoints(tmp_path / "kept", {"seed": 1})


def test_a_torn_checkpoint_gives_way_to_the_one_before(tmp_path: Path) -> None:
    model, objective = line()
    kept = Checkpoints(tmp_path / "kept", {})
    fit(model, objective, TrainingConfig(epochs=1), checkpoints=kept)
    assert kept.latest is not None
    torn = kept.latest.parent / "000009"
    torn.mkdir()
    (torn / "manifest.json").write_text('{"half": ')
    assert Checkpoints(tmp_path / "kept", {}).latest == kept.latest
    (kept.latest.parent / "2024-thesis").mkdir()
    fit(model, objective, TrainingConfig(epochs=2), checkpoints=Checkpoints(tmp_path / "kept", {}, every=-1))
    kept = Checkpoints(tmp_path / "kept", {})
    kept.remove()
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [
        "000009",
        "2024-thesis",
    ]  # no checkpoints, so not removed


def test_the_first_checkpoint_may_be_torn(tmp_path: Path) -> None:
    torn = tmp_path / "kept" / "000000"
    torn.mkdir(parents=True)
    (torn / "manifest.json").write_text('{"half": ')
    kept = Checkpoints(tmp_path / "kept", {})
    assert kept.latest is None
    model, objective = line()
    fit(model, objective, TrainingConfig(epochs=1), checkpoints=kept)
    assert kept.latest == tmp_path / "kept" / "000001"


def test_optimiser_state_goes_to_arrays_and_back() -> None:
    model, objective = line()
    config = TrainingConfig(epochs=3, batch=8)
    optimiser = config.create_optimiser(model.parameters())
    fit(model, objective, config, optimiser=optimiser)
    arrays = state_to_arrays(model, optimiser)
    assert {name for name in arrays if name.startswith("adam/weight/")} == {
        "adam/weight/step", "adam/weight/exp_avg", "adam/weight/exp_avg_sq",
    }  # fmt: skip
    again, objective_again = line()
    optimiser_again = config.create_optimiser(again.parameters())
    load_state_arrays(again, optimiser_again, arrays)
    fit(model, objective, config, optimiser=optimiser)
    fit(again, objective_again, config, optimiser=optimiser_again)
    assert torch.equal(again.weight, model.weight)


FORKED = """
import os, signal, sys

folder, killed_at = sys.argv[1], [int(number) for number in sys.argv[2].split(",")]
checkpoints, model, operations, count = "", "", 0, 0

def kill(event, arguments):
    global count
    if operations and event in ("open", "os.mkdir", "os.rename", "os.remove") and str(arguments[0]).startswith(checkpoints):
        count += 1
        if count == operations:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(kill)

from mbcal import Store
import mbcal.training.loop
mbcal.training.loop.LOSS_CHECK_INTERVAL = 1
from mbcal.agents import MBCAL, MBCALConfig
from mbcal.nn.config import NetConfig
from mbcal.storage.checkpoints import Checkpoints
from mbcal.training.config import TrainingConfig

def fit():
    config = MBCALConfig(net=NetConfig(hidden=8, embedding=8), training=TrainingConfig(epochs=4, batch=64))
    agent = MBCAL(config, "cpu")
    agent.fit(Store.open(f"{folder}/feed").sessions("train"), checkpoints=Checkpoints(checkpoints, {}, every=-1))
    agent.save(model)
    assert "torch._dynamo" not in sys.modules, "torch's compiler was imported"

for name, operations in [("straight", 0), *[("disturbed", number) for number in killed_at], ("disturbed", 0)]:
    checkpoints, model = f"{folder}/{name}-checkpoints", f"{folder}/{name}"
    child = os.fork()
    if not child:
        fit()
        sys.stdout.flush()
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Fits an agent several times, each in a process of its own, forked since torch is slow to import. Those of `killed_at` kill
themselves at the n-th file operation on their checkpoints."""


def test_kill_minus_nine_and_resume_gives_the_identical_model(tmp_path: Path) -> None:
    from mbcal import NewsfeedConfig, prepare_newsfeed

    prepare_newsfeed(tmp_path / "feed", NewsfeedConfig(sessions=600, items=120))
    command = [sys.executable, "-c", FORKED, str(tmp_path), "7,60,101,202"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["0", *[str(-signal.SIGKILL)] * 4, "0"], done.stderr
    files = [json.loads((tmp_path / name / "manifest.json").read_text())["files"] for name in ("straight", "disturbed")]
    assert files[0] == files[1]
