"""Branches of imagined sessions: what would have followed if another item had been shown, under the same noise.

A policy serves users in an environment. At one step of every session the session branches: several items are shown in turn,
and each branch is continued by the same policy to the end::

    noise      u_0   u_1   u_2   u_3   …            one sequence for all branches of a session
    session    a_0   a_1   a_2   a_3   …            the policy's own choices: branch 0
    branch 1             ╰ b_2   b_3   …            another item at the step of the branch, then the policy's choices
    branch 2             ╰ c_2   c_3   …

Branches differ by the item alone, so that the difference of their futures is free of most of the noise: two branches with
the same item are equal to the bit. Rewards are expected ones, not sampled. Where users can leave, nobody does: every step
counts with the probability that the user is still there, and behaviours are sampled among those that go on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from mbcal.environments.base import Environment
from mbcal.environments.rollout import CPU_BLOCK, GPU_BLOCK, Availability, Exploration, Policy, longest
from mbcal.nn.base import sample_behaviour
from mbcal.progress import SILENT, Progress
from mbcal.scoring.fields import FieldReader
from mbcal.training.branches import Branches
from mbcal.training.random import Noise, derive_seed, random_integers
from mbcal.types import SessionTensors

GPU_CANDIDATES = 1 << 25
"""Candidates that a GPU scores at a time, at most, in all branches together."""


class PredictingEnvironment(Environment, Protocol):
    """An environment that knows the probabilities of behaviours: a network of behaviours, or a generated world."""

    def predict(self, state: Any, item: Tensor) -> tuple[Tensor, Callable[[Tensor], Any]]:
        """Return P(behaviour | state, item) of items (B,), (B, K), and a function from behaviours (B,) to the next state."""


@dataclass(frozen=True)
class _Serving:
    """R rows in progress, each a branch of one of N sessions: first branch 0 of every session, then the others."""

    policy: FieldReader
    users: FieldReader
    session: Tensor
    """(R,) the session of each row."""
    branch: Tensor
    """(R,) its branch, 0 to M - 1."""
    policy_state: Any
    user_state: Any
    availability: Availability
    weight: Tensor
    """(R,) how much the next reward after the branch counts: discount and probability that the user is still there."""

    @classmethod
    def begin(cls, policy: Policy, environment: PredictingEnvironment, batch: SessionTensors) -> _Serving:
        """Before the first step, with one row per session."""
        readers = FieldReader(policy, batch), FieldReader(environment, batch)
        session = torch.arange(len(batch), device=batch.device)
        availability, weight = Availability(batch.require_candidates()), torch.ones(len(batch), device=batch.device)
        return cls(*readers, session, session * 0, readers[0].begin(), readers[1].begin(), availability, weight)

    def at(self, step: int) -> _Serving:
        """The same, with the context of a step."""
        policy_state = self.policy.at(self.policy_state, step, self.session)
        return replace(self, policy_state=policy_state, user_state=self.users.at(self.user_state, step, self.session))

    def fork(self, sessions: Tensor, count: int) -> tuple[_Serving, Tensor]:
        """The same with count further branches of some sessions (S,), and the old row of every row."""
        old = torch.arange(len(self.session), device=self.session.device)
        rows = torch.cat([old, sessions.repeat_interleave(count)])
        names = ("session", "branch", "policy_state", "user_state", "availability", "weight")
        forked = replace(self, **{name: getattr(self, name)[rows] for name in names})
        forked.branch[len(old) :] = torch.arange(1, count + 1, device=old.device).repeat(len(sessions))
        return forked, rows

    def show(self, item: Tensor, uniform: Tensor, begun: Tensor, gamma: float) -> tuple[_Serving, Tensor, Tensor]:
        """Show items (R,).

        Args:
            item: Catalogue rows.
            uniform: (R,) numbers that decide the behaviours.
            begun: (R,) bool: the session has branched.
            gamma: Discount of what follows.

        Returns:
            Rows after the step, the reward of the step as it counts (R,), and the behaviours (R,).
        """
        behaviours = self.users.reader.behaviours
        probabilities, observe = self.users.reader.predict(self.user_state, item)
        reward = self.weight * (probabilities @ behaviours.reward_table(item.device))
        going_on, decay = probabilities, torch.full_like(reward, gamma)
        if behaviours.terminal:
            going_on = probabilities * (1 - behaviours.terminal_table(item.device))
            decay = gamma * going_on.sum(-1)
        behaviour = sample_behaviour(going_on, uniform).to(torch.uint8)
        self.availability.mark_shown(item)
        after = replace(
            self,
            policy_state=self.policy.reader.observe(self.policy_state, item, behaviour),
            user_state=observe(behaviour),
            weight=torch.where(begun, self.weight * decay, self.weight),
        )
        return after, reward, behaviour


@torch.no_grad()
def imagine_branches(
    policy: Policy,
    environment: PredictingEnvironment,
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
        policy: Chooses the items: before the branch with exploration, after it by the best score alone. Its states can be
            indexed by rows.
        environment: Responds, and knows the probabilities of behaviours.
        sessions: N sessions whose users, histories and lengths are reused.
        candidates: (N, C) or (N, T, C), see `rollout`.
        index: (N,) int64 numbers of the sessions, by which noise is indexed: the same for any number of workers.
        width: M, items at the branch: the policy's choice and M - 1 random ones of those available.
        gamma: Discount of the steps after the branch.
        epsilon: Probability of a random candidate at each step before the branch.
        seed: Seed of all noise.
        title: Name of the phase that progress reports.
        progress: Notified of sessions.

    Returns:
        The branches, in the order of the sessions. Their futures are sum_{tau > t} gamma^(tau - t) p_tau r_tau: the rewards
        that the environment expects, times the probability that the user is still there.
    """
    device, horizon, count = environment.device, sessions.horizon, candidates.shape[-1]
    seeds = {name: derive_seed(seed, "branches", name) for name in ("noise", "items", "step")}
    noise_seed, items_seed = (torch.tensor(seeds[name], device=device) for name in ("noise", "items"))
    index, width = index.to(device), min(width, count)
    size = CPU_BLOCK if device.type == "cpu" else max(1, min(GPU_BLOCK, GPU_CANDIDATES // (count * width)))
    parts = []
    progress.phase(title, len(sessions))
    for rows in torch.split(torch.arange(len(sessions), device=sessions.device), size):
        batch = sessions[rows].without("propensities", "timestamps", "candidates").to(device)
        batch = replace(batch, candidates=candidates[rows].to(device))
        numbers = index[rows.to(device)]
        step = random_integers(seeds["step"], numbers, longest(batch).long())
        noise = Noise(noise_seed, numbers).uniform((len(rows), horizon, 3))
        order = Noise(items_seed, numbers).uniform((len(rows), count))
        parts.append(_branch(_Serving.begin(policy, environment, batch), batch, step, noise, order, width, gamma, epsilon))
        progress.advance(len(rows))
    return Branches.concat(parts)


def _branch(
    serving: _Serving,
    batch: SessionTensors,
    step: Tensor,
    noise: Tensor,
    order: Tensor,
    width: int,
    gamma: float,
    epsilon: float,
) -> Branches:
    """Serve N sessions that branch at steps (N,), by noise (N, T, 3); order (N, C) decides between the other items."""
    size, exploration, length = len(batch), Exploration(epsilon, 0.0), longest(batch)
    items, behaviours = torch.zeros_like(batch.items), torch.zeros_like(batch.behaviours)
    compared = batch.items.new_zeros(size, width)
    is_item, futures = torch.zeros_like(compared, dtype=torch.bool), torch.zeros_like(compared, dtype=torch.float32)
    branching = torch.split(step.argsort(stable=True), step.bincount(minlength=batch.horizon).tolist())
    for now, forking in enumerate(branching):
        serving = serving.at(now)
        candidates, available = serving.availability.at(now)
        scores, uniform = serving.policy.reader.score(serving.policy_state, candidates), noise[serving.session, now]
        uniform[:, 0].masked_fill_(now >= step[serving.session], 1.0)  # from the branch on, the best score alone
        chosen, _ = exploration.choose(scores, available, uniform[:, :2])
        if len(forking):
            columns, is_item[forking] = branch_items(scores[forking], available[forking], order[forking], width)
            compared[forking] = candidates[forking].gather(1, columns)
            serving, rows = serving.fork(forking, width - 1)
            candidates, chosen = candidates[rows], torch.cat([chosen, columns[:, 1:].flatten()])
        item = candidates.gather(1, chosen.unsqueeze(1)).squeeze(1)
        begun = now >= step[serving.session]
        serving, reward, behaviour = serving.show(item, noise[serving.session, now, 2], begun, gamma)
        counts = (now > step[serving.session]) & (now < length[serving.session])
        futures[serving.session, serving.branch] += torch.where(counts, reward, 0)
        items[:, now], behaviours[:, now] = item[:size], behaviour[:size]
    is_past = torch.arange(batch.horizon, device=step.device) < step.unsqueeze(1)
    items = (items * is_past).scatter(1, step.unsqueeze(1), compared[:, :1])
    until = (step + 1).to(batch.length.dtype)
    sessions = replace(
        batch,
        items=items,
        behaviours=behaviours * is_past,
        length=until,
        context=batch.continued_context(until),
        candidates=None,
    )
    return Branches(sessions, step, compared, is_item, futures)


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
