"""Logs of a policy that knew more than the log holds: ratios and weights by hand, and a world where they decide."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from mbcal import GRU4Rec, Sessions
from mbcal.distributed.worker_slice import WorkerSlice
from mbcal.environments.rollout import rollout
from mbcal.errors import InputError
from mbcal.training.device_data import DeviceSessions
from mbcal.training.losses import base_nll, behaviour_nll
from mbcal.training.propensities import exploration_ratios, step_weights
from mbcal.training.random import Noise
from mbcal.training.selection import ShownEvidence, ratio_of_sums, shown_evidence
from mbcal.types import MASK_ROW
from tests.support import batches, privileged


def with_propensities(sessions: Sessions, value: float) -> Sessions:
    return replace(sessions, propensities=np.where(sessions.mask, value, 0).astype(np.float32))


def test_ratios_compare_with_a_uniform_choice_of_what_is_left() -> None:
    log = privileged.logged(6, epsilon=1.0)
    ratios = exploration_ratios(replace(log, propensities=np.full((6, 4), 0.2, np.float32)).tensors())
    assert ratios is not None
    assert ratios[0].tolist() == pytest.approx([1 / (10 * 0.2), 1 / (9 * 0.2), 1 / (8 * 0.2), 1 / (7 * 0.2)])


def test_ratios_without_candidates_compare_with_the_catalogue_and_are_zero_in_the_padding() -> None:
    sessions = with_propensities(batches.sessions(), 0.5)
    ratios = exploration_ratios(sessions.tensors())
    assert ratios is not None
    assert torch.allclose(ratios, torch.from_numpy(sessions.mask / (len(sessions.catalog) * 0.5)).float())


def test_ratios_with_candidates_by_step_count_each_step() -> None:
    log = privileged.logged(2, epsilon=1.0)
    assert log.candidates is not None
    by_step = np.repeat(log.candidates[:, None], 4, 1)
    by_step[:, 2, 5:] = MASK_ROW
    ratios = exploration_ratios(replace(log, candidates=by_step, propensities=np.full((2, 4), 0.5, np.float32)).tensors())
    assert ratios is not None
    assert ratios[1].tolist() == pytest.approx([0.2, 0.2, 0.4, 0.2])


def test_no_propensities_no_ratios() -> None:
    assert exploration_ratios(batches.sessions().tensors()) is None


def test_equal_ratios_give_equal_weights() -> None:
    mask = torch.tensor([[True, True], [True, False]])
    weights = step_weights(torch.where(mask, 3.0, 0.0), mask)
    assert weights[mask].tolist() == pytest.approx([1.0, 1.0, 1.0])


def test_random_choices_count_and_the_others_hardly_do() -> None:
    ratios = torch.tensor([[2.0, 0.02], [2.0, 0.02]])
    weights = step_weights(ratios, torch.ones(2, 2, dtype=torch.bool))
    assert weights[:, 0].tolist() == pytest.approx([1.0, 1.0], abs=0.03)
    assert weights[:, 1].tolist() == pytest.approx([0.01, 0.01], rel=0.03)


def test_rare_large_ratios_are_clipped_at_ten_times_the_mean() -> None:
    ratios = torch.full((1, 1000), 0.1)
    ratios[0, 0] = 10_000.0  # mean 10.1, so the bound is 101
    weights = step_weights(ratios, torch.ones(1, 1000, dtype=torch.bool))
    assert float(weights[0, 0]) == 1.0
    assert float(weights[0, 1]) == pytest.approx(0.1 / 101, rel=0.01)


def test_weighted_items_are_independent_of_what_the_policy_knew() -> None:
    """By weight, items are uniform for either type of user, though the log shows each its own."""
    log = privileged.logged(20_000, epsilon=0.5)
    ratios = exploration_ratios(log.tensors())
    assert ratios is not None
    weights = step_weights(ratios, torch.from_numpy(log.mask)).numpy()
    for kind in (0, 1):
        shares = np.bincount(log.items[kind::2, 0], weights[kind::2, 0], minlength=12)[2:]
        assert shares / shares.sum() == pytest.approx(np.full(10, 0.1), abs=0.015)
    logged_shares = np.bincount(log.items[::2, 0], minlength=12)[2:] / 10_000
    assert logged_shares[:3].sum() == pytest.approx(0.65, abs=0.02)


@torch.no_grad()
def test_the_loss_counts_steps_by_weight() -> None:
    log = batches.sessions(count=4, horizon=3)
    data, net = DeviceSessions(log, torch.device("cpu")), batches.net()
    rows, noise = torch.arange(4), Noise(torch.tensor(7))
    weights = torch.tensor([0.0, 0.5, 0.0]) * torch.from_numpy(log.mask)
    loss, steps = behaviour_nll(net, data, weights=weights)(rows, noise)
    batch = log.tensors()
    logits = net(net.begin(*batch.history), batch.items, batch.behaviours)
    nll = torch.nn.functional.cross_entropy(logits[:, 1], batch.behaviours[:, 1].long(), reduction="none")
    assert float(steps) == 0.5 * int(batch.mask[:, 1].sum())
    assert float(loss) == pytest.approx(0.5 * float((nll * batch.mask[:, 1]).sum()), rel=1e-5)


def test_base_loss_counts_steps_by_weight() -> None:
    log = privileged.logged(2, epsilon=1.0)
    behaviours = np.array([[1, 0, 0, 0], [0, 0, 0, 0]], np.uint8)
    data = DeviceSessions(replace(log, behaviours=behaviours), torch.device("cpu"))
    weights = torch.zeros(2, 4)
    weights[0, 0], weights[1, 0] = 0.75, 0.25
    expected = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
    assert base_nll(data, weights, np.arange(2), WorkerSlice(0, 2, 2)) == pytest.approx(expected)


def test_ratio_of_sums_by_hand() -> None:
    x, y = np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 8.0])
    ratio, stderr = ratio_of_sums(x.sum(), y.sum(), x @ x, x @ y, y @ y, 3)
    residual = x - x.sum() / y.sum() * y
    assert ratio == pytest.approx(6 / 14)
    assert stderr == pytest.approx(np.sqrt(residual @ residual * 3 / 2) / 14)
    assert ratio_of_sums(0, 0, 0, 0, 0, 0) == (0.0, float("inf"))


def test_a_warning_needs_a_large_certain_and_effective_slope() -> None:
    assert ShownEvidence(0.3, 0.05, 0.02).is_large
    assert not ShownEvidence(0.05, 0.001, 0.02).is_large
    assert not ShownEvidence(0.3, 0.2, 0.02).is_large
    assert not ShownEvidence(0.3, 0.05, 0.001).is_large
    assert not ShownEvidence(-0.7, 0.02, -0.05).is_large
    assert "counts for 30% of what the best response to it counts for" in ShownEvidence(0.3, 0.05, 0.02).warning()


def test_weights_need_logged_propensities() -> None:
    with pytest.raises(InputError, match="these sessions have no propensities"):
        GRU4Rec(device="cpu", propensity_weights=True).fit(replace(privileged.logged(60, 0.5), propensities=None))


QUICK = {"hidden": 16, "embedding": 8, "epochs": 25, "learning_rate": 6e-3, "device": "cpu"}


def reward(agent: GRU4Rec) -> float:
    served = rollout(agent, privileged.TwoTypes(), privileged.logged(1_000, 1.0, seed=9), seed=1)
    return float(served.rewards.sum(1).mean())


def first_choice(agent: GRU4Rec, log: Sessions) -> int:
    candidates = log.tensors().require_candidates()[:1]
    return int(candidates[0, agent.score(agent.begin(*log.tensors()[:1].history), candidates).argmax()])


def test_propensities_find_the_best_item_in_the_log_of_a_policy_that_knew_the_user() -> None:
    log = privileged.logged(2_500, epsilon=0.5)
    plain = GRU4Rec(**QUICK).fit(log)
    weighted = GRU4Rec(propensity_weights=True, **QUICK).fit(log)
    assert first_choice(plain, log) not in privileged.BEST
    assert first_choice(weighted, log) in privileged.BEST
    assert reward(plain) < privileged.CHANCE < 1.6 < reward(weighted)
    assert shown_evidence(plain.nets["behaviour"], log.tensors(), 0).is_large
    assert "seem to know more about users than the log holds" in plain.warnings[0]
    assert "propensity_weights" in plain.warnings[0]
    assert weighted.warnings == ()


def test_a_random_log_gives_no_warning_and_weights_change_nothing() -> None:
    log, short = privileged.logged(1_000, epsilon=1.0), {**QUICK, "epochs": 5}
    plain, weighted = GRU4Rec(**short).fit(log), GRU4Rec(propensity_weights=True, **short).fit(log)
    assert plain.warnings == ()
    losses = [agent.records["behaviour"].held_out_loss for agent in (plain, weighted)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
