"""Logs of a policy that knew more than the log holds: ratios and weights by hand, and a world where they decide."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from mbcal import GRU4Rec, Sessions
from mbcal.distributed.worker_slice import WorkerSlice
from mbcal.environments.rollout import rollout
from mbcal.errors import InputError, OptionError
from mbcal.training.config import TrainingConfig
from mbcal.training.device_data import DeviceSessions
from mbcal.training.losses import base_nll, behaviour_nll, keep_items
from mbcal.training.propensities import exploration_ratios, keep_probabilities, partial_correlation
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


def test_equal_ratios_keep_everything() -> None:
    mask = torch.tensor([[True, True], [True, False]])
    keep = keep_probabilities(torch.where(mask, 3.0, 0.0), mask)
    assert keep[mask].tolist() == pytest.approx([1.0, 1.0, 1.0])


def test_half_random_choices_are_kept_and_the_others_hardly_ever() -> None:
    ratios = torch.tensor([[2.0, 0.02], [2.0, 0.02]])
    keep = keep_probabilities(ratios, torch.ones(2, 2, dtype=torch.bool))
    assert keep[:, 0].tolist() == pytest.approx([1.0, 1.0], abs=0.03)
    assert keep[:, 1].tolist() == pytest.approx([0.01, 0.01], rel=0.03)


def test_rare_large_ratios_are_clipped_at_ten_times_the_mean() -> None:
    ratios = torch.full((1, 1000), 0.1)
    ratios[0, 0] = 10_000.0  # mean 10.1, so the bound is 101
    keep = keep_probabilities(ratios, torch.ones(1, 1000, dtype=torch.bool))
    assert float(keep[0, 0]) == 1.0
    assert float(keep[0, 1]) == pytest.approx(0.1 / 101, rel=0.01)


def test_kept_items_are_independent_of_what_the_policy_knew() -> None:
    """Kept items are uniform for either type of user, though the log shows each its own."""
    log = privileged.logged(20_000, epsilon=0.5)
    ratios = exploration_ratios(log.tensors())
    assert ratios is not None
    keep = keep_probabilities(ratios, torch.from_numpy(log.mask))
    items, counted = keep_items(log.tensors(), keep, torch.rand(keep.shape, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(items == MASK_ROW, ~counted)
    first = [items[kind::2, 0][counted[kind::2, 0]].numpy() for kind in (0, 1)]
    for shown in first:
        shares = np.bincount(shown, minlength=12)[2:] / len(shown)
        assert shares == pytest.approx(np.full(10, 0.1), abs=0.015)
    logged_shares = np.bincount(log.items[::2, 0], minlength=12)[2:] / 10_000
    assert logged_shares[:3].sum() == pytest.approx(0.65, abs=0.02)


@torch.no_grad()
def test_the_loss_counts_kept_steps_and_masks_the_others() -> None:
    log = batches.sessions(count=4, horizon=3)
    data, net = DeviceSessions(log, torch.device("cpu")), batches.net()
    rows, keep = torch.arange(4), torch.zeros(4, 3)
    keep[:, 1] = 1
    noise = Noise(torch.tensor(7))
    loss, steps = behaviour_nll(net, data, keep=keep)(rows, noise)
    batch = log.tensors()
    items = batch.items.clone()
    items[:, [0, 2]] = MASK_ROW
    logits = net(net.begin(*batch.history), items, batch.behaviours)
    nll = torch.nn.functional.cross_entropy(logits[:, 1], batch.behaviours[:, 1].long(), reduction="none")
    assert int(steps) == int(batch.mask[:, 1].sum())
    assert float(loss) == pytest.approx(float((nll * batch.mask[:, 1]).sum()), rel=1e-5)
    everything, _ = behaviour_nll(net, data)(rows, noise)
    kept_all, _ = behaviour_nll(net, data, keep=torch.ones(4, 3))(rows, noise)
    assert float(kept_all) == pytest.approx(float(everything))


def test_base_loss_counts_steps_by_how_often_they_are_kept() -> None:
    log = privileged.logged(2, epsilon=1.0)
    behaviours = np.array([[1, 0, 0, 0], [0, 0, 0, 0]], np.uint8)
    data = DeviceSessions(replace(log, behaviours=behaviours), torch.device("cpu"))
    keep = torch.zeros(2, 4)
    keep[0, 0], keep[1, 0] = 0.75, 0.25
    expected = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
    assert base_nll(data, keep, np.arange(2), WorkerSlice(0, 2, 2)) == pytest.approx(expected)


def test_partial_correlation_by_hand() -> None:
    draw = np.random.default_rng(0)
    known, x, y = draw.normal(size=(3, 5_000))
    first, second = known + x, 2 * known + 0.6 * x + 0.8 * y
    design = torch.from_numpy(np.stack([np.ones(5_000), known, first, second], 1))
    assert partial_correlation(design.T @ design) == pytest.approx(0.6, abs=0.02)
    constant = torch.from_numpy(np.stack([np.ones(5_000), known, np.ones(5_000), second], 1))
    assert partial_correlation(constant.T @ constant) == 0.0


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
    assert "counts for 30% of what a like" in ShownEvidence(0.3, 0.05, 0.02).warning(has_propensities=False)


def test_settings_are_checked() -> None:
    with pytest.raises(OptionError, match="propensity_weights: 'maybe' is unknown"):
        TrainingConfig(propensity_weights="maybe")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="these sessions have no propensities"):
        GRU4Rec(device="cpu", propensity_weights="on").fit(replace(privileged.logged(60, 0.5), propensities=None))


QUICK = {"hidden": 16, "embedding": 8, "epochs": 25, "learning_rate": 6e-3, "device": "cpu"}


def reward(agent: GRU4Rec) -> float:
    served = rollout(agent, privileged.TwoTypes(), privileged.logged(1_000, 1.0, seed=9), seed=1)
    return float(served.rewards.sum(1).mean())


def first_choice(agent: GRU4Rec, log: Sessions) -> int:
    candidates = log.tensors().require_candidates()[:1]
    return int(candidates[0, agent.score(agent.begin(*log.tensors()[:1].history), candidates).argmax()])


def test_propensities_find_the_best_item_in_the_log_of_a_policy_that_knew_the_user() -> None:
    log = privileged.logged(2_500, epsilon=0.5)
    plain = GRU4Rec(propensity_weights="off", **QUICK).fit(log)
    weighted = GRU4Rec(propensity_weights="on", **QUICK).fit(log)
    assert first_choice(plain, log) not in privileged.BEST
    assert first_choice(weighted, log) in privileged.BEST
    assert reward(plain) < privileged.CHANCE < 1.6 < reward(weighted)
    assert shown_evidence(plain.nets["behaviour"], log.tensors(), 0).is_large
    assert "seem to know more about users than the log holds" in plain.warnings[0]
    assert "propensity_weights 'on'" in plain.warnings[0]
    assert weighted.warnings == ()


def test_auto_uses_propensities_that_tell_more_than_the_state() -> None:
    log, short = privileged.logged(600, epsilon=0.5), {**QUICK, "epochs": 2}
    records = {setting: GRU4Rec(propensity_weights=setting, **short).fit(log).records for setting in ("auto", "on", "off")}
    assert records["auto"] == records["on"]
    assert records["auto"] != records["off"]


def test_a_random_log_gives_no_warning_and_is_fitted_without_weights() -> None:
    log, short = privileged.logged(1_000, epsilon=1.0), {**QUICK, "epochs": 5}
    agent, plain = GRU4Rec(**short).fit(log), GRU4Rec(propensity_weights="off", **short).fit(log)
    assert agent.warnings == ()
    assert agent.records == plain.records
