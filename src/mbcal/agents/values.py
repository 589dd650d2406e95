"""Shared by methods that learn values: the discount, returns of logged sessions, target networks, terms of a score."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mbcal.agents.config import AgentConfig
from mbcal.errors import OptionError
from mbcal.nn.label_scaler import LabelScaler
from mbcal.nn.recurrent import RecurrentNet, ValueNet
from mbcal.scoring.scorers import ScoreTerm
from mbcal.training.device_data import DeviceSessions
from mbcal.training.labels import discounted_returns, return_bounds
from mbcal.training.losses import huber
from mbcal.types import Behaviours

MAX_RENEWALS = 40
"""Most renewals of a target network in a fit."""
MIN_RENEWAL_INTERVAL = 20
"""Fewest updates between two renewals, as in the paper."""


@dataclass(frozen=True)
class ValueConfig(AgentConfig):
    """Settings of methods that learn values."""

    gamma: float = 0.95
    """Discount of future rewards, in [0, 1]."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_discount(self.gamma)


def require_discount(gamma: float) -> None:
    """Raise OptionError unless gamma is in [0, 1]."""
    if not 0 <= gamma <= 1:
        raise OptionError(f"gamma: must be in [0, 1], got {gamma}")


def session_returns(data: DeviceSessions, gamma: float) -> Tensor:
    """Compute the discounted return from every step of N logged sessions on, (N, T), block by block."""
    return data.map_blocks(lambda batch: discounted_returns(batch.rewards, batch.mask, gamma))


def reward_term(net: RecurrentNet, behaviours: Behaviours) -> ScoreTerm:
    """Create a score term: the reward that a network of behaviours expects at the next step."""
    return ScoreTerm(net.scoring_tables(), behaviours.reward_table(net.behaviours.weight.device))


def value_term(net: ValueNet, weight: float = 1.0) -> ScoreTerm:
    """Create a score term: the value that a network predicts, in reward units, times a weight."""
    return ScoreTerm(net.scoring_tables(weight), None)


def largest_loss(behaviours: Behaviours, horizon: int, gamma: float, scaler: LabelScaler) -> float:
    """Compute the Huber loss of an error as wide as the bounds of a return.

    Targets lie within the bounds, so a mean loss above it shows predictions that do not: the network has diverged.

    Args:
        behaviours: The behaviours and their rewards.
        horizon: Most steps of a session.
        gamma: Discount.
        scaler: The network's label scaler.

    Returns:
        The loss, in normalised units.
    """
    lowest, highest = return_bounds(behaviours.rewards, horizon, gamma)
    return float(huber((highest[0] - lowest[0]) / scaler.scale.cpu()))


def renewal_interval(planned_updates: int) -> int:
    """Choose the updates between two renewals of a target network.

    A network starts from the mean logged return of every step (`LabelScaler`), so value need not travel back from the end
    of a session. Each renewal is one step of improvement over the logging policy, and adds the bias of another maximum. A
    fit therefore has at most `MAX_RENEWALS`, and a short one fewer, so that each is followed by enough updates.

    Args:
        planned_updates: Updates of the whole fit.

    Returns:
        The interval in updates.
    """
    return max(MIN_RENEWAL_INTERVAL, planned_updates // MAX_RENEWALS)


class TargetCopy(nn.Module):
    """A network and its target network, which is made equal to it every few updates.

    The number of updates is part of the state dict, so that a resumed fit renews the target network at the same updates.

    Args:
        online: The network that learns.
        target: A second network of the same architecture. Its weights are overwritten and get no gradients.
        every: Updates between two renewals; None: chosen by `renewal_interval`.
    """

    def __init__(self, online: nn.Module, target: nn.Module, every: int | None) -> None:
        super().__init__()
        self.online, self.target, self.every = online, target.requires_grad_(False), every
        self.updates = 0

    def begin_update(self, planned_updates: int) -> None:
        """Count an update, and renew the target network if that is due. Call before every update.

        Args:
            planned_updates: Updates of the whole fit.
        """
        if self.updates % (self.every or renewal_interval(planned_updates)) == 0:
            self.renew()
        self.updates += 1

    @torch.no_grad()
    def renew(self) -> None:
        """Copy the online weights into the memory of the target network, which a CUDA graph goes on reading."""
        for target, online in zip(self.target.state_dict().values(), self.online.state_dict().values(), strict=True):
            target.copy_(online)

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.updates)

    def set_extra_state(self, state: Tensor) -> None:
        self.updates = int(state)
