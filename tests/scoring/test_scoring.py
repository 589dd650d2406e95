"""Tables against the full network, numpy against torch, and propensities against frequencies of choices."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from mbcal.errors import OptionError
from mbcal.scoring.backend import to_numpy
from mbcal.scoring.choice import epsilon_greedy, greedy, softmax
from tests.support.batches import CATALOG, net, sessions

SCORES = np.array([[1.0, 3.0, 3.0, 2.0], [5.0, 1.0, 0.0, 5.0]])
AVAILABLE = np.array([[True, True, True, True], [False, True, True, True]])


@pytest.mark.parametrize("config", [{}, {"features": ("kind", "tags")}, {"user": "id"}, {"user": "none"}], ids=str)
@pytest.mark.parametrize("plain", [False, True], ids=["torch", "numpy"])
@torch.no_grad()
def test_tables_equal_the_full_network(config: dict[str, object], plain: bool) -> None:
    model, known = net(**config), sessions(count=12)
    batch = known.tensors()
    tables: Any = to_numpy(model.scoring_tables()) if plain else model.scoring_tables()
    source: Any = known if plain else batch
    candidates = np.random.default_rng(0).integers(0, CATALOG.n_rows, (12, 5)).astype(np.int32)
    hidden = tables.begin(source.user, source.history_items, source.history_behaviours, source.history_length)
    previous = model.previous(batch.behaviours)  # uint8, which torch would take for a mask
    for step in range(known.horizon):
        before: Any = previous[:, step].numpy() if plain else previous[:, step]
        scores = tables.score(hidden, before, candidates if plain else torch.from_numpy(candidates))
        for c in range(5):
            items = batch.items.clone()
            items[:, step] = torch.from_numpy(candidates[:, c])
            full = model.forward_batch(dataclasses.replace(batch, items=items))[:, step]
            assert np.allclose(scores[:, c], full, atol=1e-5)
        hidden = tables.cell.observe(hidden, source.items[:, step], before)


def test_tables_are_a_snapshot() -> None:
    model = net()
    tables = model.scoring_tables()
    kept = [tables.cell.weight.clone(), tables.cell.items.clone(), tables.head[0].clone()]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert all(map(torch.equal, kept, [tables.cell.weight, tables.cell.items, tables.head[0]]))


def test_only_a_gru_has_tables() -> None:
    with pytest.raises(OptionError, match="only a GRU"):
        net(cell="lstm").scoring_tables()


def test_ties_go_to_the_first_available() -> None:
    assert greedy(SCORES, AVAILABLE).tolist() == [1, 3]
    assert greedy(torch.from_numpy(SCORES), torch.from_numpy(AVAILABLE)).tolist() == [1, 3]


def test_an_available_candidate_of_the_worst_score_beats_an_unavailable_one() -> None:
    assert greedy(np.array([[-np.inf, -np.inf]]), np.array([[False, True]])).tolist() == [1]


def test_nothing_to_choose_from_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one available"):
        greedy(SCORES, np.zeros_like(AVAILABLE))


def choose_many(policy: str, count: int, backend: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Choices and propensities for one row of scores, many times."""
    uniform: Any = np.random.default_rng(1).random((count, 2))
    scores: Any = np.repeat(SCORES[1:], count, 0)
    available: Any = np.repeat(AVAILABLE[1:], count, 0)
    if backend == "torch":
        uniform, scores, available = map(torch.from_numpy, (uniform, scores, available))
    choice = (
        epsilon_greedy(scores, available, 0.3, uniform)
        if policy == "epsilon"
        else softmax(scores, available, 2.0, uniform[:, 0])
    )
    return np.asarray(choice[0]), np.asarray(choice[1])


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("policy", ["epsilon", "softmax"])
def test_propensities_are_the_frequencies(policy: str, backend: str) -> None:
    count = 100_000
    chosen, propensity = choose_many(policy, count, backend)
    truth = np.zeros(4)
    for index in range(4):
        propensities = np.unique(propensity[chosen == index].round(12))
        assert len(propensities) <= 1
        truth[index] = propensities[0] if len(propensities) else 0.0
    assert truth[0] == 0  # not available
    assert truth.sum() == pytest.approx(1.0)
    by_hand = (
        np.array([0.1, 0.1, 0.8]) if policy == "epsilon" else np.exp(SCORES[1, 1:] / 2) / np.exp(SCORES[1, 1:] / 2).sum()
    )
    assert truth[1:] == pytest.approx(by_hand)
    frequencies = np.bincount(chosen, minlength=4)[1:]
    chi_squared = float(np.sum((frequencies - count * by_hand) ** 2 / (count * by_hand)))
    assert chi_squared < 13.8  # 0.1% of 2 degrees of freedom


@pytest.mark.parametrize("policy", ["epsilon", "softmax"])
def test_numpy_and_torch_choose_alike(policy: str) -> None:
    for plain, tensor in zip(choose_many(policy, 5000, "numpy"), choose_many(policy, 5000, "torch"), strict=True):
        assert np.allclose(plain, tensor)


def test_epsilon_at_its_ends() -> None:
    uniform = np.random.default_rng(0).random((2, 2))
    chosen, propensity = epsilon_greedy(SCORES, AVAILABLE, 0.0, uniform)
    assert chosen.tolist() == [1, 3]
    assert propensity.tolist() == [1.0, 1.0]
    _, propensity = epsilon_greedy(SCORES, AVAILABLE, 1.0, uniform)
    assert propensity.tolist() == [0.25, pytest.approx(1 / 3)]


def test_extreme_scores_and_random_numbers_stay_finite() -> None:
    scores = np.array([[1e30, -1e30, 0.0], [-np.inf, 5.0, 5.0]])
    available = np.array([[True, True, True], [True, True, False]])
    for uniform in (0.0, np.nextafter(1.0, 0.0)):
        chosen, propensity = softmax(scores, available, 1.0, np.full(2, uniform))
        assert chosen.tolist() == [0, 1]
        assert propensity.tolist() == [1.0, 1.0]
        chosen, _ = epsilon_greedy(scores, available, 1.0, np.full((2, 2), uniform))
        assert available[np.arange(2), chosen].all()
