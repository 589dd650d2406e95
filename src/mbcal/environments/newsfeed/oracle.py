"""Planning in a world whose truth is known: what regret is measured against.

The best policy of the newsfeed cannot be enumerated (40 candidates, 20 steps). The oracle plans to the end of the session by
beam search on the *mean* user: behaviours are replaced by their expectation, which is exact for the linear parts of the
dynamics. It shows the first item of the best plan, observes the response, and plans again. In worlds small enough for
exhaustive search it comes within one per cent of the optimum (see the tests). At full size it is a lower bound of the
optimum, and better than every method that was tried.

`Oracle` plans; `OraclePolicy` is the same as a policy (begin, score, observe) for roll-outs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mbcal.environments.newsfeed.world import LEVELS, Newsfeed, UserState
from mbcal.types import MASK_ROW

NAME = "oracle"
"""What experiments and reports call the oracle."""


@dataclass(frozen=True)
class Oracle:
    """Beam search on the mean user."""

    world: Newsfeed
    width: int = 4
    """Plans kept at every step."""

    def choose(self, state: UserState, candidates: Tensor, available: Tensor, steps_left: int) -> Tensor:
        """Choose the candidate to show now.

        A partial plan is valued by its expected rewards so far plus what its mood will add to the steps that remain. Without
        that estimate the beam would fill with bait, which is always ahead at first. Where users can leave, rewards count
        with the probability that the user is still there, and the steps that remain with the best reward of this step.

        Args:
            state: State of B users.
            candidates: Catalogue rows, (B, C).
            available: Which of them can be shown, (B, C) bool; at least one per user.
            steps_left: Steps to plan for, this one included. Plans are no longer than there are available candidates.

        Returns:
            Index of the chosen candidate, (B,).

        Raises:
            ValueError: If no step is left, or a user has no available candidate.
        """
        size, count = candidates.shape
        steps_left = min(steps_left, int(available.sum(1).min()))
        if steps_left < 1:
            raise ValueError("nothing to choose: no step is left, or no candidate is available")
        rows = torch.arange(size, device=candidates.device).unsqueeze(1)
        plans, width = state, 1  # states of B * W plans, W per user; one empty plan to begin with
        earned = torch.zeros(size, 1, device=candidates.device)  # (B, W) expected reward of each plan
        open_candidates = available.unsqueeze(1)  # (B, W, C)
        first_action = torch.zeros(size, 1, dtype=torch.int64, device=candidates.device)  # (B, W)
        survival = torch.ones_like(earned)  # (B, W) probability that the user is still there
        for step in range(steps_left):
            items = candidates.unsqueeze(1).expand(size, width, count).reshape(size * width, count)
            rewards = self.world.expected_reward(plans, items).view(size, width, count)
            future = self._future(plans, items, steps_left - step - 1).view(size, width, count)
            if self.world.leaving is not None:
                stay = 1 - self.world.leaving_probability(plans, items).view(size, width, count)
                rewards, future = survival.unsqueeze(2) * rewards, (survival.unsqueeze(2) * stay) * future
            values = (earned.unsqueeze(2) + rewards + future).masked_fill(~open_candidates, -torch.inf).flatten(1)
            best_values, best = values.topk(min(self.width, values.shape[1]), 1)  # (B, new W), best first
            plan, action = best // count, best % count
            first_action = action if step == 0 else first_action.gather(1, plan)
            if step == steps_left - 1:
                break
            reward = rewards.flatten(1).gather(1, best)
            earned = torch.where(best_values.isneginf(), -torch.inf, earned.gather(1, plan) + reward)
            item = candidates.gather(1, action).flatten()
            if self.world.leaving is not None:
                reward = reward / survival.gather(1, plan)
                survival = survival.gather(1, plan) * stay.flatten(1).gather(1, best)
            engagement = (reward.flatten() - 1) / (LEVELS - 1)
            plans = self.world.update_state(plans[(rows * width + plan).flatten()], item, engagement)
            open_candidates = open_candidates.gather(1, plan.unsqueeze(2).expand(-1, -1, count))
            open_candidates = open_candidates.scatter(2, action.unsqueeze(2), False)
            width = best.shape[1]
        return first_action[:, 0]

    def _future(self, state: UserState, items: Tensor, steps: int) -> Tensor:
        """What the mood after each item (B, C) adds to `steps` further steps, a level of mood taken as a level of reward.

        Where users can leave: the whole reward of these steps, the best reward now plus mood at each, while the user stays
        in that mood.
        """
        calm, leaving = self.world.constants.calm, self.world.leaving
        mood = self.world.next_mood(state, items)
        if leaving is None:
            return mood * sum(calm**step for step in range(steps))
        best = self.world.expected_reward(state, items).max(1, keepdim=True).values
        future, survival = torch.zeros_like(mood), torch.ones_like(mood)
        for _ in range(steps):
            future = future + survival * (best + mood)
            mood = calm * mood
            survival = survival * (1 - torch.sigmoid(leaving.base - leaving.mood * mood))
        return future


@dataclass(frozen=True)
class OracleState:
    """The state of `OraclePolicy` in B sessions."""

    user: UserState
    shown: Tensor
    """(B, t) items shown in the t steps so far."""

    def __repr__(self) -> str:
        return f"<OracleState: {self.shown.shape[0]} sessions after {self.shown.shape[1]} steps>"


class OraclePolicy:
    """A policy that knows the true state of every user and plans to the end of the session.

    Args:
        world: The world it serves.
        horizon: Steps it plans for; T of the sessions.
    """

    def __init__(self, world: Newsfeed, horizon: int) -> None:
        self.world, self.horizon = world, horizon
        self._oracle = Oracle(world)

    def begin(self, user: Tensor, history_items: Tensor, history_behaviours: Tensor, history_length: Tensor) -> OracleState:
        """See `rollout.Policy`."""
        state = self.world.begin(user, history_items, history_behaviours, history_length)
        return OracleState(state, history_items.new_zeros(len(user), 0))

    def score(self, state: OracleState, candidates: Tensor) -> Tensor:
        """Return scores (B, C) of candidates (B, C): 1 for the item it would show, 0 for all others."""
        was_shown = (candidates.unsqueeze(2) == state.shown.unsqueeze(1)).any(2)
        available = ~(was_shown | (candidates == MASK_ROW))
        chosen = self._oracle.choose(state.user, candidates, available, self.horizon - state.shown.shape[1])
        return torch.nn.functional.one_hot(chosen, candidates.shape[1]).float()

    def observe(self, state: OracleState, item: Tensor, behaviour: Tensor) -> OracleState:
        """See `rollout.Policy`."""
        shown = torch.cat([state.shown, item.unsqueeze(1).to(state.shown.dtype)], 1)
        return OracleState(self.world.observe(state.user, item, behaviour), shown)

    def __repr__(self) -> str:
        return f"<OraclePolicy: plans {self.horizon} steps in {self.world!r}>"
