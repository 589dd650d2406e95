"""The Triton kernels against their reference implementations: on a GPU if there is one, else in Triton's interpreter."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
import torch

from mbcal.environments.model import ModelEnvironment
from mbcal.kernels import triton
from mbcal.nn.config import NetConfig
from mbcal.nn.embeddings import EmbeddingLookup
from mbcal.nn.recurrent import RecurrentNet, ValueNet
from mbcal.scoring.choice import epsilon_greedy
from mbcal.scoring.scorers import ScoreTerm
from mbcal.training.labels import counterfactual_future_advantage
from mbcal.training.noise_labels import noise_counterfactual_advantage
from tests.support.batches import CATALOG, LABELS, REWARDS, net, sessions
from tests.training.test_leaving import ending

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
launches: Any = pytest.importorskip("mbcal.kernels.triton.launches", reason="Triton is not installed")
GRU: Any = pytest.importorskip("mbcal.kernels.triton.recurrence").GRU

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in divide:RuntimeWarning")

COUNT = 70
"""Not a multiple of a tile."""
SIZES = [16, 32]


@pytest.fixture(autouse=True)
def reference_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference implementations must not call the kernels themselves."""
    monkeypatch.setenv("MBCAL_FUSED", "0")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def random(*shape: int, below: int | None = None) -> torch.Tensor:
    """Uniform numbers in [0, 1), or integers below a bound."""
    generator = torch.Generator().manual_seed(sum(shape))
    numbers = torch.rand(shape, generator=generator) if below is None else torch.randint(below, shape, generator=generator)
    return numbers.to(DEVICE)


def batch() -> Any:
    return sessions(count=COUNT).tensors(DEVICE)


@pytest.mark.parametrize("size", SIZES)
@torch.no_grad()
def test_read_encodes_histories(size: int) -> None:
    logged, tables = batch(), net(hidden=size).to(DEVICE).scoring_tables()
    assert tables.history is not None
    assert int(logged.history_length.min()) < logged.history_items.shape[1]
    slow = tables.begin(*logged.history)
    zeros = torch.zeros_like(slow)
    fast = launches.read(tables.history, zeros, logged.history_items, logged.history_behaviours, logged.history_length)
    assert torch.allclose(fast, slow, atol=1e-5)


@pytest.mark.parametrize("size", SIZES)
@torch.no_grad()
def test_read_observes_one_step(size: int) -> None:
    tables = net(hidden=size).to(DEVICE).scoring_tables()
    hidden = random(COUNT, size) - 0.5
    item, behaviour = random(COUNT, below=CATALOG.n_rows), random(COUNT, below=LABELS.start + 1)
    fast = launches.read(tables.cell, hidden, item[:, None], behaviour[:, None], None)
    assert torch.allclose(fast, tables.cell.observe(hidden, item, behaviour), atol=1e-5)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("values", [True, False])
@pytest.mark.parametrize("kind", [torch.int64, torch.uint8])
@torch.no_grad()
def test_score_equals_the_reference(values: bool, size: int, kind: torch.dtype) -> None:
    model: RecurrentNet = net(hidden=size)
    if values:
        model = ValueNet(CATALOG, LABELS, NetConfig(hidden=size, embedding=5))
        model.label_scaler.shift.fill_(3.0)
        model.label_scaler.scale.fill_(2.0)
    term = ScoreTerm(model.to(DEVICE).scoring_tables(), None if values else REWARDS.to(DEVICE))
    hidden, previous = random(COUNT, size) - 0.5, random(COUNT, below=LABELS.start + 1).to(kind)
    assert LABELS.start * 3 * SIZES[-1] > 255, "offsets into the table must not fit a byte"
    candidates = random(COUNT, 9, below=CATALOG.n_rows).int()
    fast = launches.score(term.tables, term.rewards, hidden, previous, candidates)
    assert torch.allclose(fast, term.score(hidden, previous, candidates), atol=1e-5)


@pytest.mark.parametrize("epsilon", [0.0, 0.4, 1.0])
def test_epsilon_greedy_equals_the_reference(epsilon: float) -> None:
    scores, available = (random(COUNT, 9) * 4).round(), random(COUNT, 9, 1)[..., 0] < 0.4  # with ties
    available[:, 3] = True
    scores[0] = -torch.inf
    uniform = random(COUNT, 5, 3)[:, 2, :2]
    slow, fast = (
        epsilon_greedy(scores, available, epsilon, uniform),
        launches.epsilon_greedy(scores, available, epsilon, uniform),
    )
    assert torch.equal(fast[0], slow[0])
    assert torch.allclose(fast[1], slow[1].float())
    assert bool(available.gather(1, fast[0][:, None]).all())


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@torch.no_grad()
def test_respond_equals_the_reference(cell: str) -> None:
    logged, model = batch(), net(cell=cell, hidden=16).to(DEVICE)
    environment = ModelEnvironment(model, CATALOG, LABELS)
    state, uniform = environment.begin(*logged.history), random(COUNT, 5, 3)[:, 1, 2]
    slow, slow_after = environment.respond(state, logged.items[:, 0], uniform)
    fast, fast_after = launches.respond(model.to_tables(), state.hidden, logged.items[:, 0], state.previous, uniform)
    assert torch.equal(fast, slow)
    assert len(set(slow.tolist())) == len(LABELS)
    for fast_part, slow_part in zip(fast_after, slow_after.hidden, strict=True):
        assert torch.allclose(fast_part, slow_part, atol=1e-5)


@pytest.mark.parametrize("leaving", [False, True])
@torch.no_grad()
def test_advantage_with_noise_equals_the_reference(leaving: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels are means over draws, of which hardly any falls so close to an edge that rounding decides the answer."""
    logged, model = ending(batch()) if leaving else batch(), net(hidden=16).to(DEVICE)
    rewards, asked = REWARDS.to(DEVICE), []

    def kernel(*arguments: Any, **keywords: Any) -> torch.Tensor:
        asked.append(launches.advantage(*arguments, **keywords))
        return asked[-1]

    slow = noise_counterfactual_advantage(model, rewards, logged, 0.9, 3)
    monkeypatch.setattr(triton, "runs_on", lambda array: True)  # in place of a GPU
    monkeypatch.setattr(triton, "advantage", kernel)
    fast = noise_counterfactual_advantage(model, rewards, logged, 0.9, 3)
    assert fast is asked[0]
    assert float(slow.abs().max()) > 0.1
    is_close = torch.isclose(fast, slow, rtol=1e-4, atol=1e-4)
    assert float(is_close.float().mean()) > 0.99
    assert torch.equal(fast[~logged.mask], torch.zeros_like(fast[~logged.mask]))


@pytest.mark.parametrize("ends", [(), ("like",), ("skip", "like")], ids=str)
@pytest.mark.parametrize("size", SIZES)
@torch.no_grad()
def test_advantage_equals_the_reference(size: int, ends: tuple[str, ...]) -> None:
    logged, model = replace(batch(), behaviour_set=replace(LABELS, terminal=ends)), net(hidden=size).to(DEVICE)
    rewards, terminal = REWARDS.to(DEVICE), logged.behaviour_set.terminal_table(DEVICE) if ends else None
    slow = counterfactual_future_advantage(model, rewards, logged, 0.9)
    fast = launches.advantage(model.scoring_tables(), rewards, model.begin(*logged.history)[0], logged, 0.9, terminal)
    assert float(slow.abs().max()) > 0.1
    assert torch.allclose(fast, slow, rtol=1e-4, atol=1e-4)
    assert torch.equal(fast[~logged.mask], torch.zeros_like(fast[~logged.mask]))


@pytest.mark.parametrize("size", SIZES)
def test_gru_outputs_and_gradients_equal_torchs(size: int) -> None:
    layer = torch.nn.GRU(5, size, batch_first=True).to(DEVICE)
    inputs, begin = random(COUNT, 6, 5) - 0.5, random(COUNT, size) - 0.5
    loss_weights = random(COUNT, 6, size) - 0.5
    weights = [layer.get_parameter(f"{name}_l0") for name in ("weight_ih", "bias_ih", "weight_hh", "bias_hh")]
    results = []
    for fast in (False, True):
        arguments = [inputs.clone().requires_grad_(), begin.clone().requires_grad_()]
        if fast:
            hidden = GRU.apply(torch.nn.functional.linear(arguments[0], *weights[:2]), arguments[1], *weights[2:])
        else:
            hidden = layer(arguments[0], arguments[1].unsqueeze(0))[0]
        results.append([hidden, *torch.autograd.grad((hidden * loss_weights).sum(), [*arguments, *weights])])
    for slow_part, fast_part in zip(*results, strict=True):
        assert torch.allclose(fast_part, slow_part, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [7, 500])
def test_embedding_gradients_equal_torchs_for_small_and_large_tables(rows: int) -> None:
    weight = (random(rows, 4) - 0.5).requires_grad_()
    looked_up, loss_weights = random(30, 6, below=rows), random(30, 6, 4)
    slow = torch.autograd.grad((torch.nn.functional.embedding(looked_up, weight) * loss_weights).sum(), weight)[0]
    embedded: Any = EmbeddingLookup.apply(weight, looked_up)  # type: ignore[no-untyped-call]
    fast = torch.autograd.grad((embedded * loss_weights).sum(), weight)[0]
    assert torch.allclose(fast, slow, atol=1e-5)


@pytest.mark.parametrize("size", [64, 128])
@torch.no_grad()
def test_wide_networks_are_scored_and_labelled_right_or_left_to_the_reference(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MBCAL_FUSED")
    logged, model, rewards = batch(), net(hidden=size).to(DEVICE), REWARDS.to(DEVICE)
    tables, begin = model.scoring_tables(), model.begin(*logged.history)[0]
    candidates = random(COUNT, 9, below=CATALOG.n_rows).int()
    previous = logged.behaviours[:, 0]
    fast_scores = triton.score(tables, rewards, begin, previous, candidates)
    fast_labels = triton.advantage(tables, rewards, begin, logged, 0.9)
    monkeypatch.setenv("MBCAL_FUSED", "0")
    if fast_scores is not None:
        slow_scores = ScoreTerm(tables, rewards).score(begin, previous.long(), candidates)
        assert torch.allclose(fast_scores, slow_scores, atol=1e-4)
    if fast_labels is not None:
        slow_labels = counterfactual_future_advantage(model, rewards, logged, 0.9)
        assert torch.allclose(fast_labels, slow_labels, rtol=1e-3, atol=1e-3)


def test_no_submodule_hides_a_function_of_the_package() -> None:
    functions = (triton.gru, triton.score, triton.read, triton.epsilon_greedy, triton.respond, triton.advantage)
    assert all(callable(function) for function in functions)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@torch.no_grad()
def test_context_is_added_to_the_row_of_the_behaviour(cell: str) -> None:
    from tests.support.fields import FIELDS, with_fields

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = RecurrentNet(CATALOG, LABELS, NetConfig(cell=cell, hidden=16, embedding=8), 3, fields=FIELDS)  # type: ignore[arg-type]
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.6)
    model, logged, rewards = model.to(DEVICE), with_fields(count=COUNT).tensors(DEVICE), REWARDS.to(DEVICE)
    tables, state, item = model.to_tables(), model.begin_batch(logged), logged.items[:, 0]
    previous, uniform = random(COUNT, below=LABELS.start + 1), random(COUNT)
    gates = tables.context_gates(logged.context[:, 0])
    in_context, row = tables.cell.in_context(previous, gates)
    behaviour, after = launches.respond(replace(tables, cell=in_context), state, item, row, uniform)
    logits, expected = model.forward_step(state, item, previous, logged.context[:, 0])
    assert all(torch.allclose(fast, slow, atol=1e-5) for fast, slow in zip(after, expected, strict=True))
    cumulative = torch.softmax(logits, -1).cumsum(1)
    assert torch.equal(behaviour.long(), (cumulative <= uniform.unsqueeze(1) * cumulative[:, -1:]).sum(1).clamp(max=2))
    if cell == "lstm":
        return
    candidates = random(COUNT, 9, below=CATALOG.n_rows)
    slow = ScoreTerm(tables, rewards).score(state[0], previous, candidates, gates)
    fast = launches.score(replace(tables, cell=in_context), rewards, state[0], row, candidates)
    assert torch.allclose(fast, slow, atol=1e-5)
    labels = counterfactual_future_advantage(model, rewards, logged, 0.9)
    step_gates = tables.context_gates(logged.context)
    fast_labels = launches.advantage(tables, rewards, state[0], logged, 0.9, None, step_gates)
    assert torch.allclose(fast_labels, labels, rtol=1e-4, atol=1e-4)
    without = launches.advantage(tables, rewards, state[0], logged, 0.9)
    assert not torch.allclose(without, labels, atol=1e-2)
