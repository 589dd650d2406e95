"""The same on a GPU as on a CPU. Skipped where there is none; run by hand with `python -m pytest tests/test_gpu.py`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from mbcal import NetConfig, Newsfeed, Simulator, SimulatorConfig, Training, load
from mbcal.agents import AGENTS
from mbcal.data.sessions import Cut
from mbcal.evaluation import evaluate
from mbcal.labels import counterfactual_future_advantage
from mbcal.rollout import rollout
from mbcal.training import Resident
from mbcal.worlds.logs import generate_sessions
from tests import batches
from tests.toys import DelayedPrize, logged, starts

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")

GPU = torch.device("cuda")


@pytest.mark.parametrize("name", AGENTS)
def test_agents_fit_serve_save_and_load(name: str, tmp_path: Path) -> None:
    kind = AGENTS[name]
    config = kind.Config(net=NetConfig(hidden=16, embedding=16), training=Training(epochs=4, batch=64))
    agent = kind(config, "cuda").fit(logged(400)).fit(logged(400, seed=1))
    served = rollout(agent, DelayedPrize(device=GPU), starts(100), epsilon=0.1, seed=1)
    agent.save(tmp_path / "model")
    on_cpu = load(tmp_path / "model", "cpu")
    batch = served.tensors()
    assert batch.candidates is not None
    far = agent.score(agent.begin(*served.tensors(GPU).history), batch.candidates.to(GPU)).cpu()
    near = on_cpu.score(on_cpu.begin(*batch.history), batch.candidates)
    assert torch.allclose(far, near, atol=1e-4)
    again = rollout(on_cpu, DelayedPrize(), starts(100), epsilon=0.1, seed=1)
    assert (served.items == again.items).mean() > 0.97  # the same luck; a near-tie may fall either way
    agent.rank([], ["key 1", "sweet 2"])


@pytest.mark.parametrize("family", ["lstm", "transformer"])
def test_simulators_fit_and_judge(family: str, tmp_path: Path) -> None:
    world = Newsfeed(users=200, items=150, seed=2, device=GPU)
    known = generate_sessions(Newsfeed(users=200, items=150, seed=2), Cut(horizon=6, history=6), 0)
    config = SimulatorConfig(family, hidden=16, embedding=8, training=Training(epochs=2, batch=64))  # type: ignore[arg-type]
    simulator = Simulator.fit(known[known.user < 100], config, device="cuda")
    test = known[known.user >= 100]
    card = simulator.judge(test)
    simulator.save(tmp_path / "sim")
    assert Simulator.load(tmp_path / "sim", "cpu").judge(test).nll == pytest.approx(card.nll, rel=1e-4)
    policy = AGENTS["random"](device="cuda").fit(test)
    for users in (simulator, world):
        assert np.isfinite(evaluate(policy, users, test).mean.mean)


def test_labels_are_the_same() -> None:
    model, batch = batches.net(), batches.sessions(count=50).tensors()
    near = counterfactual_future_advantage(model, batches.REWARDS, batch, 0.9)
    far = counterfactual_future_advantage(model.to(GPU), batches.REWARDS.to(GPU), batch.to(GPU), 0.9)
    assert torch.allclose(near, far.cpu(), atol=1e-3)  # cuDNN reads histories in TF32


def test_data_that_does_not_fit_is_sent_batch_by_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10, 10))
    data = Resident(batches.sessions(count=50), GPU)
    assert data.tensors.items.device.type == "cpu"
    assert data[torch.tensor([1, 2], device=GPU)].items.device.type == "cuda"
