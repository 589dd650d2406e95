"""What methods with value networks share: the discount, returns, target copies, and terms of a score."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mbcal.agents.base import AgentConfig
from mbcal.errors import OptionError
from mbcal.nn.recurrent import RecurrentNet, ValueNet
from mbcal.scoring.scorers import ScoreTerm
from mbcal.training.device_data import DeviceSessions
from mbcal.training.targets import discounted_returns
from mbcal.types import Behaviours


@dataclass(frozen=True)
class ValueConfig(AgentConfig):
    """Settings of methods that learn a value."""

    gamma: float = 0.95
    """Discount of future rewards, in [0, 1]."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.gamma <= 1:
            raise OptionError(f"gamma: must be in [0, 1], got {self.gamma}")


def session_returns(data: DeviceSessions, gamma: float) -> Tensor:
    """Discounted return from every step of N logged sessions on, (N, T), computed block by block."""
    return data.map_blocks(lambda batch: discounted_returns(batch.rewards, batch.mask, gamma))


def reward_term(net: RecurrentNet, behaviours: Behaviours) -> ScoreTerm:
    """A score term: the reward that a network of behaviours expects of the next step."""
    return ScoreTerm(net.scoring_tables(), behaviours.reward_table(net.behaviours.weight.device))


def value_term(net: ValueNet, weight: float = 1.0) -> ScoreTerm:
    """A score term: the value a network predicts, times a weight."""
    return ScoreTerm(net.scoring_tables(weight), None)


class TargetCopy(nn.Module):
    """A network, a copy of it that is renewed every few updates, and the number of updates so far.

    The number is part of the state dict, so that a resumed fit renews the copy at the same updates.

    Args:
        online: The network that learns.
        target: A second one of the same architecture. Its weights are overwritten and get no gradients.
        every: Updates between copies.
    """

    def __init__(self, online: nn.Module, target: nn.Module, every: int) -> None:
        super().__init__()
        self.online, self.target, self.every = online, target.requires_grad_(False), every
        self.updates = 0

    def begin_update(self) -> None:
        """Count an update, and renew the copy if it is due. Call before every update."""
        if self.updates % self.every == 0:
            self.renew()
        self.updates += 1

    @torch.no_grad()
    def renew(self) -> None:
        """Copy the weights into the target's own memory, which a CUDA graph goes on reading."""
        for target, online in zip(self.target.state_dict().values(), self.online.state_dict().values(), strict=True):
            target.copy_(online)

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.updates)

    def set_extra_state(self, state: Tensor) -> None:
        self.updates = int(state)
