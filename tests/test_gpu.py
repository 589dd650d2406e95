"""The same on a GPU as on a CPU. Skipped where there is none; run by hand with `python -m pytest tests/test_gpu.py`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from mbcal import NetConfig, Newsfeed, Simulator, SimulatorConfig, TrainingConfig, load
from mbcal.agents import AGENTS
from mbcal.data.cutting import SessionConfig
from mbcal.environments.candidates import sample_candidates
from mbcal.environments.model import ModelEnvironment
from mbcal.environments.newsfeed.log import generate_sessions
from mbcal.environments.rollout import rollout
from mbcal.evaluation.evaluator import evaluate
from mbcal.evaluation.experiment.config import experiment_config
from mbcal.evaluation.experiment.run import Cell, Run
from mbcal.evaluation.experiment.workers import execute_all
from mbcal.training.cuda_graph import GraphedStep
from mbcal.training.device_data import DeviceSessions
from mbcal.training.labels import counterfactual_future_advantage
from mbcal.training.random import permutation, uniform
from tests.support import batches
from tests.support.agents import MORE
from tests.support.toys import DelayedPrize, logged, starts

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")

GPU = torch.device("cuda")


@pytest.mark.parametrize("name", AGENTS)
def test_agents_fit_serve_save_and_load(name: str, tmp_path: Path) -> None:
    kind = AGENTS[name]
    config = kind.Config(
        net=NetConfig(hidden=16, embedding=16), training=TrainingConfig(epochs=4, batch=64), **MORE.get(name, {})
    )
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
    assert (served.items == again.items).mean() > 0.97  # the same noise; a near-tie may fall either way
    agent.rank([], ["key 1", "sweet 2"])


@pytest.mark.parametrize("family", ["lstm", "transformer"])
def test_simulators_fit_and_judge(family: str, tmp_path: Path) -> None:
    world = Newsfeed(users=200, items=150, seed=2, device=GPU)
    known = generate_sessions(Newsfeed(users=200, items=150, seed=2), SessionConfig(horizon=6, history=6), 0)
    config = SimulatorConfig(family, hidden=16, embedding=8, training=TrainingConfig(epochs=2, batch=64))  # type: ignore[arg-type]
    simulator = Simulator(config, "cuda").fit(known[known.user < 100])
    test = known[known.user >= 100]
    card = simulator.evaluate(test)
    simulator.save(tmp_path / "sim")
    assert Simulator.load(tmp_path / "sim", "cpu").evaluate(test).nll == pytest.approx(card.nll, rel=1e-4)
    policy = AGENTS["random"](device="cuda").fit(test)
    for users in (simulator, world):
        assert np.isfinite(evaluate(policy, users, test).reward.mean)


@pytest.mark.parametrize("hidden", [16, 32, 64])
def test_labels_are_the_same(hidden: int) -> None:
    model, batch = batches.net(hidden=hidden), batches.sessions(count=50).tensors()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_((8 / hidden) ** 0.5)  # a wide network of large weights is chaos, and blows up every last digit
    near = counterfactual_future_advantage(model, batches.REWARDS, batch, 0.9)
    far = counterfactual_future_advantage(model.to(GPU), batches.REWARDS.to(GPU), batch.to(GPU), 0.9)
    assert torch.allclose(near, far.cpu(), atol=1e-3)  # cuDNN reads histories in TF32


def weights_of(name: str, device: str, epochs: int = 1) -> dict[str, torch.Tensor]:
    kind = AGENTS[name]
    config = kind.Config(
        net=NetConfig(hidden=16, embedding=16),
        training=TrainingConfig(epochs=epochs, batch=64, validation=0.0),
        **MORE.get(name, {}),
    )
    agent = kind(config, device).fit(logged(1000))
    return {f"{net}.{key}": value.cpu() for net, made in agent.nets.items() for key, value in made.state_dict().items()}


@pytest.mark.parametrize("name", AGENTS)
def test_a_recorded_fit_equals_the_plain_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = weights_of(name, "cuda", epochs=2)
    monkeypatch.setattr(GraphedStep, "__call__", lambda self: self._step())
    plain = weights_of(name, "cuda", epochs=2)
    for key, value in plain.items():
        assert torch.allclose(recorded[key].float(), value.float(), atol=2e-4), key


@pytest.mark.parametrize("name", ["mbcal", "mbcal-no-vr", "gru4rec", "dqn", "ddqn", "mcpe", "popular", "linucb"])
def test_a_fit_sees_the_same_batches_and_noise(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    far, near = weights_of(name, "cuda"), weights_of(name, "cpu")
    for key, value in near.items():
        assert torch.allclose(far[key].float(), value.float(), atol=2e-3), key


def test_a_recording_replays_the_step_it_was_given() -> None:
    number, seen = torch.zeros(1, dtype=torch.int64, device=GPU), torch.zeros(10, device=GPU)

    def step() -> None:
        seen.index_copy_(0, number, number.float() ** 2)
        number.add_(1)

    recorded = GraphedStep(step, record=True)
    for _ in range(10):
        recorded()
    assert seen.tolist() == [float(n * n) for n in range(10)]


@pytest.mark.parametrize("cell", ["lstm"])
def test_roll_outs_with_and_without_kernels(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = batches.sessions(count=300)
    config = AGENTS["mbcal"].Config(net=NetConfig(hidden=16, embedding=16), training=TrainingConfig(epochs=2, batch=64))
    agent = AGENTS["mbcal"](config, "cuda").fit(known)
    users = ModelEnvironment(batches.net(cell=cell, hidden=32).to(GPU), batches.CATALOG, batches.LABELS)
    fast = rollout(agent, users, known, epsilon=0.2, seed=3)
    monkeypatch.setenv("MBCAL_FUSED", "0")
    slow = rollout(agent, users, known, epsilon=0.2, seed=3)
    assert (fast.items == slow.items).mean() > 0.99
    assert (fast.behaviours == slow.behaviours).mean() > 0.99


def test_candidates_and_luck_are_the_same() -> None:
    known = batches.sessions(count=200)
    assert torch.equal(sample_candidates(known.tensors(GPU), 3).cpu(), torch.from_numpy(sample_candidates(known, 3)))
    assert torch.equal(uniform(7, (50, 3), GPU, 5).cpu(), uniform(7, (50, 3), "cpu", 5))
    assert torch.equal(permutation(7, 1000, GPU).cpu(), permutation(7, 1000))


def test_cells_side_by_side_end_as_one_after_another(tmp_path: Path) -> None:
    tiny = {"agents": ["mbcal", "dqn"], "seeds": 2, "log_sessions": 400, "items": 120, "test_sessions": 60}
    sizes = {"hidden": 16, "embedding": 16}
    tiny |= {"rounds": 2, "round_sessions": 100, "training": {"epochs": 2}, "futures": 4, "future_states": 4}
    means = []
    for workers in (1, 3):
        run = Run.create(tmp_path / str(workers), experiment_config({**tiny, "net": sizes, "simulator": sizes}), "cuda")
        run.prepare()
        execute_all(run, run.missing, workers, SilentObserver())
        means.append({result.cell: result.record["judges"]["truth"]["mean"] for result in run.results()})
        unused = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        assert unused < 64 << 20, "memory that other processes on the GPU could use"
    assert len(means[0]) == 9  # with the oracle
    assert means[0] == pytest.approx(means[1], rel=0.02)


class SilentObserver:
    def phase(self, cell: Cell, title: str, total: int | None) -> None: ...

    def advance(self, cell: Cell, amount: int) -> None: ...

    def done(self, cell: Cell) -> None: ...


def test_data_that_does_not_fit_is_sent_batch_by_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10, 10))
    data = DeviceSessions(batches.sessions(count=50), GPU)
    assert data.tensors.items.device.type == "cpu"
    assert data[torch.tensor([1, 2], device=GPU)].items.device.type == "cuda"
