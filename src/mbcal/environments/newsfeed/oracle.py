"""Looking ahead in a world whose truth is known: the yardstick for regret.

The best policy of the newsfeed is beyond enumeration (40 candidates, 20 steps). The oracle plans by beam search on the
*mean* user: behaviours are replaced by their expectation, which is exact for the linear parts of the dynamics. It plans to
the end of the session, takes the first step of the best plan, sees what really happened, and plans again. On worlds small
enough for exhaustive search it comes within a percent of the optimum (see the tests); at full size it is a lower bound of
the optimum and an upper bound of what anything learned has reached.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mbcal.environments.newsfeed.world import LEVELS, Newsfeed, UserState


@dataclass(frozen=True)
class Oracle:
    """Beam search of the given width."""

    world: Newsfeed
    width: int = 4

    def choose(self, state: UserState, candidates: Tensor, available: Tensor, left: int) -> Tensor:
        """Index (B,) of the candidate (B, C) to show now, with `left` steps to go, this one included.

        A partial plan is judged by what it earned plus what its mood will add to the steps that remain: without that
        estimate the beam would fill with bait, which is always ahead at first.
        """
        batch, count = candidates.shape
        left = min(left, int(available.sum(1).min()))  # a plan cannot be longer than what there is to show
        if left < 1:
            raise ValueError("nothing to choose: no step is left, or no candidate is available")
        rows = torch.arange(batch, device=candidates.device)
        plans = state  # (B·W) users, W plans each; one plan to begin with
        width = 1
        earned = torch.zeros(batch, 1, device=candidates.device)
        open_to = available.unsqueeze(1)  # (B, W, C)
        first: Tensor | None = None
        for step in range(left):
            shown = candidates.unsqueeze(1).expand(batch, width, count).reshape(batch * width, count)
            reward = self.world.expected_reward(plans, shown).view(batch, width, count)
            judged = (
                earned.unsqueeze(2) + reward + self._mood_to_come(plans, shown, left - step - 1).view(batch, width, count)
            )
            judged = judged.masked_fill(~open_to, -torch.inf).flatten(1)
            keep = min(self.width, judged.shape[1])
            value, best = judged.topk(keep, 1)  # (B, keep)
            plan, action = best // count, best % count
            first = action if first is None else first.gather(1, plan)
            if step == left - 1:
                return first[:, 0]
            got = reward.flatten(1).gather(1, best)
            earned = torch.where(value.isneginf(), -torch.inf, earned.gather(1, plan) + got)
            plans = plans[(rows.unsqueeze(1) * width + plan).flatten()]
            item = candidates.gather(1, action).flatten()
            plans = self.world.update_state(plans, item, (got.flatten() - 1) / (LEVELS - 1))
            open_to = open_to.gather(1, plan.unsqueeze(2).expand(-1, -1, count)).scatter(2, action.unsqueeze(2), False)
            width = keep
        raise AssertionError("unreachable: the loop returns at its last step")

    def _mood_to_come(self, state: UserState, items: Tensor, left: int) -> Tensor:
        """What mood after each item adds to `left` further steps, a level of mood counting as a level of reward."""
        known = self.world.constants
        mood = known.calm * state.mood.unsqueeze(1) - known.bait_later * self.world.bait[items]
        return mood * sum(known.calm**step for step in range(left))
