"""Branches of imagined sessions: what would have followed if another item had been shown, under the same noise.

A policy serves users in an environment. At one step of every session the session branches: several items are shown in turn,
and each branch is continued by the same policy to the end::

    noise      u_0   u_1   u_2   u_3   …            one sequence for all branches of a session
    session    a_0   a_1   a_2   a_3   …            the policy's own choices: branch 0
    branch 1             ╰ b_2   b_3   …            another item at the step of the branch, then the policy's choices
    branch 2             ╰ c_2   c_3   …

Branches differ by the item alone, so that the difference of their futures is free of most of the noise: two branches with
the same item are equal to the bit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from mbcal.environments.base import Environment
from mbcal.environments.rollout import CPU_BLOCK, GPU_BLOCK, Availability, Exploration, Policy
from mbcal.progress import SILENT, Progress
from mbcal.scoring.fields import FieldReader
from mbcal.training.branches import Branches
from mbcal.training.random import Noise, derive_seed, random_integers, uniform
from mbcal.types import SessionTensors

MAX_STEPS = 16
"""Steps at which sessions branch in one imagination, at most: sessions that branch at one step are served together."""


class RewardingEnvironment(Environment, Protocol):
    """An environment that knows the expected reward of an item: a network of behaviours, or a generated world."""

    def expected_reward(self, state: Any, items: Tensor) -> Tensor:
        """Return E[reward | state, item], (B, C), of items (B, C)."""


@dataclass
class _Serving:
    """A block of B sessions in progress: states of policy and users, candidates left, who has not left yet."""

    batch: SessionTensors
    policy: FieldReader
    users: FieldReader
    policy_state: Any
    user_state: Any
    availability: Availability
    present: Tensor
    """(B,) bool: the session goes on."""

    @classmethod
    def begin(cls, policy: Policy, environment: Environment, batch: SessionTensors) -> _Serving:
        """Before the first step."""
        readers = FieldReader(policy, batch), FieldReader(environment, batch)
        present = torch.ones(len(batch), dtype=torch.bool, device=batch.device)
        states = readers[0].begin(), readers[1].begin()
        return cls(batch, *readers, *states, Availability(batch.require_candidates()), present)

    def copy(self) -> _Serving:
        """The same block, to go on in another way: states are immutable, availability is not."""
        return replace(self, availability=self.availability.copy())

    def rank(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """Candidates, which of them are available, and their scores at a step, (B, C) each."""
        self.policy_state = self.policy.at(self.policy_state, step)
        self.user_state = self.users.at(self.user_state, step)
        candidates, available = self.availability.at(step)
        return candidates, available, self.policy.reader.score(self.policy_state, candidates)

    def choose(self, step: int, noise: Tensor, exploration: Exploration) -> Tensor:
        """The item (B,) that the policy shows at a step, by noise (B, T, 3)."""
        candidates, available, scores = self.rank(step)
        chosen, _ = exploration.choose(scores, available, noise[:, step, :2])
        return candidates.gather(1, chosen.unsqueeze(1)).squeeze(1)

    def show(self, step: int, item: Tensor, noise: Tensor) -> Tensor:
        """Show item (B,), and return the behaviour (B,) that noise (B, T, 3) decides."""
        behaviour: Tensor
        behaviour, self.user_state = self.users.reader.respond(self.user_state, item, noise[:, step, 2])
        self.policy_state = self.policy.reader.observe(self.policy_state, item, behaviour)
        self.availability.mark_shown(item)
        if self.batch.behaviour_set.terminal:
            self.present = self.present & ~self.batch.behaviour_set.terminal_table(item.device).bool()[behaviour.long()]
        else:
            self.present = step + 1 < self.batch.length
        return behaviour


@torch.no_grad()
def imagine_branches(
    policy: Policy,
    environment: RewardingEnvironment,
    sessions: SessionTensors,
    candidates: Tensor,
    index: Tensor,
    *,
    width: int = 4,
    gamma: float = 1.0,
    epsilon: float = 0.0,
    seed: int = 0,
    title: str = "imagining",
    progress: Progress = SILENT,
) -> Branches:
    """Serve users in an environment, branch every session at one step, and value every branch.

    Args:
        policy: Chooses the items: before the branch with exploration, after it by the best score alone.
        environment: Responds, and knows the expected reward of an item.
        sessions: N sessions whose users, histories and lengths are reused.
        candidates: (N, C) or (N, T, C), see `rollout`.
        index: (N,) int64 numbers of the sessions, by which noise is indexed: the same for any number of workers.
        width: M, items at the branch: the policy's choice and M - 1 random ones of those available.
        gamma: Discount of the steps after the branch.
        epsilon: Probability of a random candidate at each step before the branch.
        seed: Names all noise.
        title: Name of the phase that progress reports.
        progress: Notified of sessions.

    Returns:
        The branches, in the order of the sessions. Their futures are sum_{tau > t} gamma^(tau - t) r_tau: rewards that the
        environment expects, not sampled ones.
    """
    device, horizon = environment.device, sessions.horizon
    seeds = {purpose: torch.tensor(derive_seed(seed, "branches", purpose), device=device) for purpose in ("noise", "items")}
    index, length = index.to(device), sessions.length.to(device)
    step = branch_steps(
        index, torch.full_like(length, horizon) if sessions.behaviour_set.terminal else length, horizon, seed
    )
    order = step.argsort(stable=True)  # sessions that branch at one step are served together
    counts = step.bincount(minlength=horizon).tolist()
    size = CPU_BLOCK if device.type == "cpu" else GPU_BLOCK
    parts = []
    progress.phase(title, len(sessions))
    for at, group in enumerate(torch.split(order, counts)):
        for rows in torch.split(group, size) if len(group) else ():
            local = rows.to(sessions.device)
            batch = sessions[local].without("propensities", "timestamps", "candidates").to(device)
            batch = replace(batch, candidates=candidates[local].to(device))
            noise = Noise(seeds["noise"], index[rows]).uniform((len(rows), horizon, 3))
            items = Noise(seeds["items"], index[rows]).uniform((len(rows), candidates.shape[-1]))
            parts.append(_branch(policy, environment, batch, at, noise, items, width, gamma, epsilon))
            progress.advance(len(rows))
    return Branches.concat(parts)[order.argsort()]


def branch_steps(index: Tensor, length: Tensor, horizon: int, seed: int) -> Tensor:
    """Choose the step at which each session branches: one of `MAX_STEPS` steps, spread over the session.

    Args:
        index: (N,) int64 numbers of the sessions.
        length: (N,) their steps.
        horizon: T, the most steps of a session.
        seed: Names the choice.

    Returns:
        (N,) int64, at least 0 and below the length.
    """
    count = min(horizon, MAX_STEPS)
    number = random_integers(derive_seed(seed, "branches", "step"), index, count)
    offset = uniform(derive_seed(seed, "branches", "offset"), (count,), index.device)
    step = ((number + offset[number]) * horizon / count).long()
    return step % length.long()


def _branch(
    policy: Policy,
    environment: RewardingEnvironment,
    batch: SessionTensors,
    step: int,
    noise: Tensor,
    order: Tensor,
    width: int,
    gamma: float,
    epsilon: float,
) -> Branches:
    """Serve B sessions that all branch at one step, by noise (B, T, 3); order (B, C) decides between the other items."""
    exploring, greedy = Exploration(epsilon, 0.0), Exploration(0.0, 0.0)
    serving = _Serving.begin(policy, environment, batch)
    items, behaviours = torch.zeros_like(batch.items), torch.zeros_like(batch.behaviours)
    for past in range(step):
        items[:, past] = serving.choose(past, noise, exploring)
        behaviours[:, past] = serving.show(past, items[:, past], noise)
    candidates, available, scores = serving.rank(step)
    columns, is_item = branch_items(scores, available, order, width)
    shown = candidates.gather(1, columns)
    futures = torch.zeros(shown.shape, device=batch.device)
    for number in range(shown.shape[1]):
        branch = serving.copy()
        branch.show(step, shown[:, number], noise)
        for later in range(step + 1, batch.horizon):
            item = branch.choose(later, noise, greedy)
            reward = environment.expected_reward(branch.user_state, item.unsqueeze(1)).squeeze(1)
            futures[:, number] += torch.where(branch.present, gamma ** (later - step) * reward, 0)
            branch.show(later, item, noise)
    items[:, step], length = shown[:, 0], torch.full_like(batch.length, step + 1)
    sessions = replace(batch, items=items, behaviours=behaviours, length=length, candidates=None)
    return Branches(sessions, length.long() - 1, shown, is_item & serving.present.unsqueeze(1), futures)


def branch_items(scores: Tensor, available: Tensor, order: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Choose the candidates of a branch: the best, and others at random.

    Args:
        scores: (B, C).
        available: (B, C) bool.
        order: (B, C) random numbers in [0, 1): those with the largest are taken.
        width: M.

    Returns:
        Columns (B, min(M, C)), the best available candidate first; and whether each is an available candidate.
    """
    best = scores.masked_fill(~available, -torch.inf).argmax(1, keepdim=True)
    order = order.masked_fill(~available, -1.0).scatter(1, best, 2.0)
    largest, columns = order.topk(min(width, scores.shape[1]), 1)
    return columns, largest >= 0
