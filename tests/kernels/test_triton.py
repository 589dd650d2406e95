"""The kernels against the plain code they stand for: on a GPU where there is one, else in Triton's interpreter."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from mbcal.environments.model import ModelEnvironment
from mbcal.kernels import triton as fused
from mbcal.nn.config import NetConfig
from mbcal.nn.embeddings import EmbeddingLookup
from mbcal.nn.recurrent import RecurrentNet, ValueNet
from mbcal.scoring.choice import epsilon_greedy
from mbcal.scoring.scorers import ScoreTerm
from mbcal.training.targets import counterfactual_future_advantage
from tests.support.batches import CATALOG, LABELS, REWARDS, net, sessions

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # before the first import
kernels: Any = pytest.importorskip("mbcal.kernels.triton.kernels", reason="there is no Triton here")
GRU: Any = pytest.importorskip("mbcal.kernels.triton.recurrence").GRU

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in divide:RuntimeWarning")

COUNT = 70
"""No multiple of a tile."""
SIZES = [16, 32]


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twins must not be what they are compared with."""
    monkeypatch.setenv("MBCAL_FUSED", "0")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def draws(*shape: int, below: int | None = None) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    made = torch.rand(shape, generator=generator) if below is None else torch.randint(below, shape, generator=generator)
    return made.to(DEVICE)


def batch() -> Any:
    return sessions(count=COUNT).tensors(DEVICE)


@pytest.mark.parametrize("size", SIZES)
@torch.no_grad()
def test_histories_are_read(size: int) -> None:
    known, tables = batch(), net(hidden=size).to(DEVICE).scoring_tables()
    assert tables.history is not None
    assert int(known.history_length.min()) < known.history_items.shape[1]
    slow = tables.begin(*known.history)
    nothing = torch.zeros_like(slow)
    fast = kernels.read(tables.history, nothing, known.history_items, known.history_behaviours, known.history_length)
    assert torch.allclose(fast, slow, atol=1e-5)


@pytest.mark.parametrize("size", SIZES)
@torch.no_grad()
def test_one_step_is_observed(size: int) -> None:
    tables = net(hidden=size).to(DEVICE).scoring_tables()
    hidden = draws(COUNT, size) - 0.5
    item, behaviour = draws(COUNT, below=CATALOG.n_rows), draws(COUNT, below=LABELS.start + 1)
    fast = kernels.read(tables.cell, hidden, item[:, None], behaviour[:, None], None)
    assert torch.allclose(fast, tables.cell.observe(hidden, item, behaviour), atol=1e-5)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("values", [True, False])
@torch.no_grad()
def test_candidates_are_scored(values: bool, size: int) -> None:
    made: RecurrentNet = net(hidden=size)
    if values:
        made = ValueNet(CATALOG, LABELS, NetConfig(hidden=size, embedding=5))
        made.label_scaler.shift.fill_(3.0)
        made.label_scaler.scale.fill_(2.0)
    term = ScoreTerm(made.to(DEVICE).scoring_tables(), None if values else REWARDS.to(DEVICE))
    hidden, previous = draws(COUNT, size) - 0.5, draws(COUNT, below=LABELS.start + 1)
    candidates = draws(COUNT, 9, below=CATALOG.n_rows).int()
    fast = kernels.score(term.tables, term.rewards, hidden, previous, candidates)
    assert torch.allclose(fast, term.score(hidden, previous, candidates), atol=1e-5)


@pytest.mark.parametrize("epsilon", [0.0, 0.4, 1.0])
def test_choices_are_made(epsilon: float) -> None:
    scores, available = (draws(COUNT, 9) * 4).round(), draws(COUNT, 9, 1)[..., 0] < 0.4  # with ties
    available[:, 3] = True
    scores[0] = -torch.inf
    uniform = draws(COUNT, 5, 3)[:, 2, :2]
    slow, fast = (
        epsilon_greedy(scores, available, epsilon, uniform),
        kernels.epsilon_greedy(scores, available, epsilon, uniform),
    )
    assert torch.equal(fast[0], slow[0])
    assert torch.allclose(fast[1], slow[1].float())
    assert bool(available.gather(1, fast[0][:, None]).all())


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@torch.no_grad()
def test_users_answer(cell: str) -> None:
    known, made = batch(), net(cell=cell, hidden=16).to(DEVICE)
    users = ModelEnvironment(made, CATALOG, LABELS)
    state, uniform = users.begin(*known.history), draws(COUNT, 5, 3)[:, 1, 2]
    behaviour, after = users.respond(state, known.items[:, 0], uniform)
    fast, states = kernels.respond(made.to_tables(), state.hidden, known.items[:, 0], state.previous, uniform)
    assert torch.equal(fast, behaviour)
    assert len(set(behaviour.tolist())) == len(LABELS)
    for mine, theirs in zip(states, after.hidden, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-5)


@pytest.mark.parametrize("size", SIZES)
@torch.no_grad()
def test_advantages_are_labelled(size: int) -> None:
    known, made = batch(), net(hidden=size).to(DEVICE)
    rewards = REWARDS.to(DEVICE)
    slow = counterfactual_future_advantage(made, rewards, known, 0.9)
    fast = kernels.advantage(made.scoring_tables(), rewards, made.begin(*known.history)[0], known, 0.9)
    assert float(slow.abs().max()) > 0.1
    assert torch.allclose(fast, slow, rtol=1e-4, atol=1e-4)
    assert torch.equal(fast[~known.mask], torch.zeros_like(fast[~known.mask]))


@pytest.mark.parametrize("size", SIZES)
def test_a_gru_learns(size: int) -> None:
    """Outputs and every gradient are torch's."""
    layer = torch.nn.GRU(5, size, batch_first=True).to(DEVICE)
    inputs, begin = draws(COUNT, 6, 5) - 0.5, draws(COUNT, size) - 0.5
    weigh = draws(COUNT, 6, size) - 0.5
    weights = [layer.get_parameter(f"{name}_l0") for name in ("weight_ih", "bias_ih", "weight_hh", "bias_hh")]
    found = []
    for fast in (False, True):
        given = [inputs.clone().requires_grad_(), begin.clone().requires_grad_()]
        if fast:
            hidden = GRU.apply(torch.nn.functional.linear(given[0], *weights[:2]), given[1], *weights[2:])
        else:
            hidden = layer(given[0], given[1].unsqueeze(0))[0]
        found.append([hidden, *torch.autograd.grad((hidden * weigh).sum(), [*given, *weights])])
    for slow_part, fast_part in zip(*found, strict=True):
        assert torch.allclose(fast_part, slow_part, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [7, 500])
def test_embeddings_learn(rows: int) -> None:
    """However few or many rows there are, the gradient is torch's."""
    weight = (draws(rows, 4) - 0.5).requires_grad_()
    places, weigh = draws(30, 6, below=rows), draws(30, 6, 4)
    slow = torch.autograd.grad((torch.nn.functional.embedding(places, weight) * weigh).sum(), weight)[0]
    fast = torch.autograd.grad((EmbeddingLookup.apply(weight, places) * weigh).sum(), weight)[0]  # type: ignore[no-untyped-call]
    assert torch.allclose(fast, slow, atol=1e-5)


def test_the_seams_are_functions_though_modules_lie_beside_them() -> None:
    assert all(callable(seam) for seam in (fused.gru, fused.score, fused.read, fused.respond, fused.advantage))
