"""Optimisers that do not import torch's compiler.

torch's optimisers exclude themselves from compilation, and import `torch._dynamo` in order to do so: two seconds in every
process that trains. Nothing here is compiled, so these classes call the same methods without that wrapper.
"""

from __future__ import annotations

from inspect import unwrap

import torch


class _Eager(torch.optim.Optimizer):
    """The methods that all optimisers share, as torch wrote them."""

    add_param_group = unwrap(torch.optim.Optimizer.add_param_group)
    load_state_dict = unwrap(torch.optim.Optimizer.load_state_dict)
    state_dict = unwrap(torch.optim.Optimizer.state_dict)
    zero_grad = unwrap(torch.optim.Optimizer.zero_grad)


class Adam(_Eager, torch.optim.Adam):
    """`torch.optim.Adam`, to the same bits."""

    step = torch.no_grad()(unwrap(torch.optim.Adam.step))


class LBFGS(_Eager, torch.optim.LBFGS):
    """`torch.optim.LBFGS`, to the same bits."""
