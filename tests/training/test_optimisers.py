"""Optimisers without torch's compiler against those of torch. That none imports it: test_resume.py."""

from __future__ import annotations

import pytest
import torch

from mbcal.training import optimisers


@pytest.mark.parametrize("fused", [False, True])
def test_adam_is_that_of_torch_to_the_same_bits(fused: bool) -> None:
    weights = [torch.linspace(-1, 2, 5).requires_grad_() for _ in range(2)]
    ours, reference = (
        kind([weight], lr=0.1, fused=fused)
        for kind, weight in zip((optimisers.Adam, torch.optim.Adam), weights, strict=True)
    )
    for _ in range(4):
        for optimiser, weight in zip((ours, reference), weights, strict=True):
            optimiser.zero_grad()
            torch.autograd.backward((weight**2 + weight.sin()).sum())
            optimiser.step()
    assert torch.equal(*weights)
    assert not torch.equal(weights[0], torch.linspace(-1, 2, 5))
    state, expected = ours.state_dict(), reference.state_dict()
    assert state["param_groups"] == expected["param_groups"]
    assert all(torch.equal(state["state"][0][name], expected["state"][0][name]) for name in expected["state"][0])
    again = optimisers.Adam([torch.zeros(5, requires_grad=True)])
    again.load_state_dict(state)
    assert again.state_dict()["param_groups"] == state["param_groups"]


def test_lbfgs_is_that_of_torch_to_the_same_bits() -> None:
    found = minimum(optimisers.LBFGS)
    assert found == minimum(torch.optim.LBFGS) == pytest.approx(2.43, abs=0.01)


def minimum(kind: type[torch.optim.LBFGS]) -> float:
    weight = torch.ones((), dtype=torch.float64, requires_grad=True)
    optimiser = kind([weight], max_iter=20, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        value = (weight - 3) ** 2 + weight.exp() / 10
        torch.autograd.backward(value)
        return value

    optimiser.step(loss)
    return weight.item()
