"""MBCAL with planning: that it finds the best answer, and that a fit is the same however it is run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mbcal import NetConfig, NewsfeedConfig, SessionConfig, Sessions, TrainingConfig, prepare_newsfeed
from mbcal.agents import MBCALPlan, PlanConfig
from mbcal.distributed.group import Group
from mbcal.environments.branches import PredictingEnvironment, imagine_branches
from mbcal.environments.candidates import session_candidates
from mbcal.environments.newsfeed.oracle import OraclePolicy
from mbcal.environments.rollout import rollout
from mbcal.errors import OptionError
from mbcal.evaluation.evaluator import evaluate
from mbcal.evaluation.judges import true_environment
from mbcal.nn.base import expected_reward
from mbcal.storage.checkpoints import Checkpoints
from mbcal.training.branches import Branches
from mbcal.training.losses import LEVEL_WEIGHT, branch_mse
from mbcal.training.random import Noise
from tests.support.batches import sessions
from tests.support.progress import Interrupt
from tests.support.toys import BEST, DelayedPrize, logged, starts
from tests.support.workers import together

QUICK = TrainingConfig(epochs=2, batch=64, validation=0.2)
SMALL = NetConfig(hidden=8, embedding=8)


def agent(**more: Any) -> MBCALPlan:
    settings = {"net": SMALL, "training": QUICK, "advantage": "planned", "iterations": 2, "branches": 150}
    return MBCALPlan(PlanConfig(**{**settings, **more}), "cpu")


def weights(model: MBCALPlan) -> dict[str, torch.Tensor]:
    return {f"{name}/{key}": value for name, net in model.nets.items() for key, value in net.state_dict().items()}


def same(first: MBCALPlan, second: MBCALPlan, atol: float = 0.0) -> bool:
    other = weights(second)
    return all(torch.allclose(value, other[name], rtol=0, atol=atol) for name, value in weights(first).items())


def test_growing_rounds_stay_at_the_best_answer() -> None:
    """Where a policy hardly varies, logged continuations stop to tell what an item is worth; imagined ones do not."""
    training = TrainingConfig(epochs=12, batch=32, warmup=10, learning_rate=5e-3)
    net = NetConfig(hidden=16, embedding=16)
    model = agent(net=net, training=training, iterations=2, branches=600, models=1).fit(logged(600))
    world, shrunk = DelayedPrize(), replace(training, shrink=0.5)
    collected = [logged(600)]
    for number in range(2):
        assert evaluate(model, world, starts(200, seed=90 + number)).reward.mean >= 0.95 * BEST
        collected.append(rollout(model, world, starts(600, seed=number + 1), epsilon=0.1, seed=number))
        model.fit(
            Sessions.concat([part.tensors().without("propensities").sessions() for part in collected]), training=shrunk
        )
    assert evaluate(model, world, starts(200, seed=99)).reward.mean >= 0.95 * BEST


def test_in_the_true_world_planning_approaches_the_oracle(tmp_path: Path) -> None:
    """With the true behaviours in its imagination, only the instant reward and the policy can err."""
    store = prepare_newsfeed(tmp_path / "feed", NewsfeedConfig(3_000, 100), SessionConfig(horizon=8))
    world = true_environment(store, "cpu")

    class TrueWorldPlan(MBCALPlan):
        def environment(self, name: str = "environment") -> PredictingEnvironment:
            return world

    shared: Any = {
        "net": NetConfig(hidden=16, embedding=16),
        "training": TrainingConfig(epochs=6, batch=64, warmup=20, learning_rate=5e-3),
        "models": 1,
    }
    myopic = MBCALPlan(PlanConfig(**shared, advantage="none"), "cpu").fit(store)
    planned = TrueWorldPlan(PlanConfig(**shared, advantage="planned", iterations=2, branches=800), "cpu").fit(store)
    policies = (myopic, planned, OraclePolicy(world, 8))
    least, earned, most = (evaluate(policy, world, store.sessions("test")).reward.mean for policy in policies)
    assert most - least > 3
    assert (earned - least) / (most - least) > 0.35


def test_the_ensemble_corrects_the_first_model() -> None:
    """Without an advantage, g learns by how much the mean of the models differs from the first."""
    known = sessions(count=200, seed=4)
    training = TrainingConfig(epochs=25, batch=32, learning_rate=5e-3, validation=0.0)
    model = agent(advantage="none", models=3, training=training, net=NetConfig(hidden=16, embedding=8)).fit(known)
    batch = known.tensors()
    rewards = known.behaviour_set.reward_table("cpu")
    with torch.no_grad():
        expected = torch.stack([expected_reward(net.forward_batch(batch), rewards) for net in model._models])
        wanted = (expected.mean(0) - expected[0])[batch.mask]
        learned = model.nets["advantage"].values(batch)[batch.mask]
    assert float((wanted - learned).square().mean()) < 0.5 * float(wanted.var())
    assert set(model.fitted_scorer.terms) == {"instant", "future"}
    assert set(agent(advantage="none", models=1).fit(known).fitted_scorer.terms) == {"instant"}


def imagined(model: MBCALPlan, known: Sessions) -> Branches:
    """Branches of the known sessions by the model's policy, in its first environment model."""
    batch, width = known.tensors(), 3
    candidates = session_candidates(batch, 0)
    index = torch.arange(len(known))
    return imagine_branches(model.fitted_scorer, model.environment(), batch, candidates, index, width=width)


def test_the_loss_compares_the_items_of_a_state() -> None:
    known = sessions(count=30, seed=4)
    model = agent(models=1).fit(known)
    branches, net = imagined(model, known), model.nets["advantage"]
    rows = torch.arange(5, 25)
    loss, count = branch_mse(net, branches)(rows, Noise(torch.tensor(0), rows))
    total = 0.0
    with torch.no_grad():
        values = net.outputs_at(branches.sessions, branches.step, branches.items).squeeze(-1)
        for row in rows.tolist():
            here = branches.is_item[row]
            value, future = values[row, here], branches.futures[row, here] / net.label_scaler.scale
            level = value.mean()
            total += float(((value - level - future + future.mean()) ** 2 + LEVEL_WEIGHT * level**2).sum())
    assert int(count) == int(branches.is_item[rows].sum())
    assert float(loss.detach()) == pytest.approx(total, rel=1e-4)


def test_branches_are_corrected_by_the_ensemble() -> None:
    known = sessions(count=30, seed=4)
    model = agent(models=3).fit(known)
    branches, rewards = imagined(model, known), known.behaviour_set.reward_table("cpu")
    with torch.no_grad():
        outputs = [net.outputs_at(branches.sessions, branches.step, branches.items) for net in model._models]
        expected = torch.stack([expected_reward(one, rewards) for one in outputs])
    added = model._corrected(branches).futures - branches.futures
    assert torch.allclose(added, expected.mean(0) - expected[0], atol=1e-5)
    assert float(added.abs().max()) > 1e-3


def test_every_iteration_imagines_with_the_policy_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    policies: list[Any] = []

    def record(policy: Any, *others: Any, **settings: Any) -> Branches:
        policies.append(policy)
        return imagine_branches(policy, *others, **settings)

    monkeypatch.setattr("mbcal.agents.plan.imagine_branches", record)
    known = sessions(count=60, seed=4)
    model = agent(models=1, iterations=3, branches=60).fit(known)
    assert [set(policy.terms) for policy in policies] == [{"instant"}, {"instant", "future"}, {"instant", "future"}]
    before = model.fitted_scorer
    model.fit(known)
    assert [id(policy) for policy in policies[3:]] == [id(before)]  # later fits go on from their policy, once


# ---- the same fit, however it is run


def test_a_killed_fit_resumes_to_the_identical_result(tmp_path: Path) -> None:
    known = sessions(count=100, seed=2)
    straight = agent().fit(known)
    interrupt = Interrupt("advantage, iteration 2: epoch 2")
    with pytest.raises(KeyboardInterrupt):
        agent().fit(known, progress=interrupt, checkpoints=Checkpoints(tmp_path / "checkpoints", {}, every=-1))
    resumed = agent().fit(known, checkpoints=Checkpoints(tmp_path / "checkpoints", {}))
    assert same(straight, resumed)


def test_workers_agree_with_one_worker() -> None:
    known = sessions(count=120, seed=2)

    def job(group: Group) -> Any:
        return agent().fit(known[:50] if group.rank == 0 else known[50:], group=group)

    alone = agent().fit(known)
    for model in together(2, job):
        assert same(alone, model, atol=1e-4)


def test_settings_out_of_range_are_refused() -> None:
    for name, value in (("models", 0), ("iterations", 0), ("width", 1), ("branches", 0), ("gamma", 2.0), ("mask_rate", 1.0)):
        with pytest.raises(OptionError, match=name):
            PlanConfig(**{name: value})
    with pytest.raises(OptionError, match="known are auto, counterfactual, none, planned"):
        PlanConfig(advantage="imagined")
