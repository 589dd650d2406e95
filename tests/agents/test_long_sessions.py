"""Value methods on sessions of 100 steps without discount, where errors that are bootstrapped can grow a hundred times.

Before targets were bounded, DQN reached a loss of 21,929 here, predicted 2,094 clicks where at most 100 are possible, and
earned less than random items (docs/methods/dqn.md).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mbcal.agents import DDQN, DQN, DynaQ
from mbcal.environments.rollout import rollout
from mbcal.training.labels import return_bounds
from tests.support.toys import CLICKS, LONG_STEPS, Boredom, long_log, long_starts

RANDOM = 12.7
"""Clicks per session of random items."""


def test_dqn_stays_within_the_bounds_and_beats_random_items() -> None:
    log = long_log(60)
    agent = DQN(gamma=1.0, hidden=16, epochs=24, features=("topic",), device="cpu").fit(log)
    assert max(epoch["loss"] for epoch in agent.records["value"].curve) < 1
    _, predicted = agent.value_regression(log.tensors())
    lowest, highest = return_bounds(CLICKS.rewards, LONG_STEPS, 1.0)
    assert bool(((predicted > lowest - 2) & (predicted < highest + 2)).all())
    served = rollout(agent, Boredom(), long_starts(200), seed=1)
    assert float(served.rewards.sum(1).mean()) > RANDOM + 2


@pytest.mark.parametrize("kind", [DQN, DDQN, DynaQ])
@torch.no_grad()
def test_a_network_that_is_far_off_cannot_give_targets_out_of_bounds(kind: Any) -> None:
    log = long_log(8)
    agent = kind(gamma=1.0, hidden=8, epochs=1, device="cpu").fit(log)
    net = agent.nets["value"]
    for sign in (1, -1):
        for part in (net.online, net.target):
            part.head[2].bias.fill_(sign * 1e6)
        net.set_extra_state(net.get_extra_state())  # as after loading: what was derived from the old weights is dropped
        targets = agent.label(log.tensors())
        lowest, highest = return_bounds(CLICKS.rewards, LONG_STEPS, 1.0)
        assert bool(((targets >= lowest) & (targets <= highest)).all())
        rewards = log.tensors().rewards
        following = torch.nn.functional.pad((highest if sign > 0 else lowest)[1:], (0, 1))
        assert torch.allclose(targets, rewards + following)
