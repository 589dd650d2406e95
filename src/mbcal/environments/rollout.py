"""Roll-outs: a policy serves the users of an environment.

::

    users, candidates, noise ──▶ policy scores ──▶ choice ──▶ environment responds ──▶ policy observes ──▶ …

Where some behaviours are terminal, users leave with them: the length of a session is then an outcome, up to the horizon, and
not that of the logged session.

Candidates and noise depend only on the seed and the session's index, never on the policy: two policies rolled out with one
seed meet the same users, the same candidates and the same noise (common random numbers), and the size of blocks has no
effect on the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mbcal.environments.base import Environment, require_sessions
from mbcal.environments.candidates import SessionsT, session_candidates
from mbcal.errors import InputError, OptionError
from mbcal.progress import SILENT, Progress
from mbcal.scoring.choice import candidates_at, epsilon_greedy, softmax
from mbcal.scoring.fields import FieldReader
from mbcal.training.random import derive_seed, uniform
from mbcal.types import MASK_ROW, Sessions, SessionTensors

CPU_BLOCK, GPU_BLOCK = 1024, 65_536
"""Sessions served at a time: few enough for a CPU's cache, enough to keep a GPU busy."""


class Policy(Protocol):
    """What can be rolled out: an agent, a scorer, or anything else with these three methods."""

    def begin(self, user: Any, history_items: Any, history_behaviours: Any, history_length: Any) -> Any:
        """Return the state before the first step of users (B,) with histories (B, H) of lengths (B,)."""

    def score(self, state: Any, candidates: Any) -> Any:
        """Return scores (B, C) of candidates (B, C), given as catalogue rows."""

    def observe(self, state: Any, item: Any, behaviour: Any) -> Any:
        """Return the state after item (B,) was shown and behaviour (B,) was observed."""


@dataclass(frozen=True)
class Exploration:
    """How an item is chosen by its score: epsilon-greedy or softmax."""

    epsilon: float
    temperature: float

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon <= 1:
            raise OptionError(f"epsilon: must be in [0, 1], got {self.epsilon}")
        if not self.temperature >= 0 or (self.temperature and self.epsilon):
            raise OptionError("temperature: must be 0 or more, and not together with epsilon")

    def choose(self, scores: Tensor, available: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Index and propensity (B,) of the chosen candidate, by scores and availability (B, C) and noise (B, 2)."""
        if self.temperature:
            return softmax(scores, available, self.temperature, noise[:, 0])
        return epsilon_greedy(scores, available, self.epsilon, noise)


def rollout(
    policy: Policy,
    environment: Environment,
    sessions: SessionsT,
    *,
    epsilon: float = 0.0,
    temperature: float = 0.0,
    seed: int = 0,
    candidates: NDArray[np.int32] | Tensor | None = None,
    keep_until: NDArray[np.int64] | None = None,
    block: int | None = None,
    first_index: int = 0,
    title: str = "roll-outs",
    progress: Progress = SILENT,
) -> SessionsT:
    """Serve the users of `sessions` again, items chosen by `policy`.

    Args:
        policy: Anything with begin, score and observe: an agent, a scorer, an oracle.
        environment: The users who respond. Must be on the policy's device.
        sessions: N sessions whose users, histories, lengths and candidates are reused; their items and behaviours are not.
            Lengths are not reused if some behaviours are terminal.
        epsilon: Probability of a uniformly random candidate at each step.
        temperature: If above 0, candidates are sampled in proportion to exp(score / temperature) instead.
        seed: Seed of all noise. Two policies with one seed meet the same users, candidates and noise.
        candidates: (N, C), or (N, T, C) for one set per step; by default the logged ones, or a sample. An item shown is not
            shown again before every candidate has been.
        keep_until: (N,) a session keeps its logged steps before this one, and the item of this one; only what follows is
            new. Propensities are then those of the policy's own choices, also where a logged item was kept.
        block: Sessions at a time; by default what suits the device.
        first_index: Index of the first session among all, if `sessions` is a part of many; noise is indexed by it.
        title: Name of the phase that progress reports.
        progress: Notified of sessions.

    Returns:
        N sessions with the new items, behaviours and the true propensity of every choice, (N, T): arrays or tensors, like
        `sessions`.

    Raises:
        OptionError: If epsilon is outside [0, 1], the temperature is negative or given with epsilon, `block` is below 1, or
            the devices differ.
        InputError: If an argument has the wrong type, there are no sessions, a session (or a step) has no candidates, or
            they have another shape.
    """
    exploration = Exploration(epsilon, temperature)
    if block is not None and block < 1:
        raise OptionError(f"block: must be at least 1, got {block}")
    _require_methods("policy", policy, "begin", "score", "observe")
    _require_methods("environment", environment, "begin", "respond", "observe")
    require_sessions(sessions)
    device = environment.device
    _require_same_device(policy, device)
    logged: SessionTensors = sessions.tensors() if isinstance(sessions, Sessions) else sessions
    if candidates is None:
        candidates = session_candidates(logged, seed)
    candidate_rows = torch.from_numpy(candidates) if isinstance(candidates, np.ndarray) else candidates
    _require_candidates(logged, candidate_rows)
    size = block or (CPU_BLOCK if device.type == "cpu" else GPU_BLOCK)
    noise_seed, horizon = derive_seed(seed, "roll-out"), logged.horizon
    served = []
    progress.phase(title, len(logged))
    for begin in range(0, len(logged), size):
        rows = slice(begin, begin + size)
        batch = replace(logged[rows].without("propensities", "timestamps"), candidates=candidate_rows[rows]).to(device)
        # per step, two numbers for the choice and one for the response
        noise = uniform(noise_seed, (len(batch), horizon, 3), device, (first_index + begin) * horizon * 3)
        kept = None if keep_until is None else torch.from_numpy(keep_until[rows]).to(device)
        served.append(_serve(policy, environment, batch, noise, exploration, kept).to(logged.device))
        progress.advance(len(batch))
    result = served[0] if len(served) == 1 else SessionTensors.concat(served)
    return result.sessions() if isinstance(sessions, Sessions) else result


@torch.no_grad()
def _serve(
    policy: Policy,
    environment: Environment,
    batch: SessionTensors,
    noise: Tensor,
    exploration: Exploration,
    keep_until: Tensor | None,
) -> SessionTensors:
    """Serve one block of B sessions, by noise (B, T, 3)."""
    policy_reader, user_reader = FieldReader(policy, batch), FieldReader(environment, batch)
    policy_state, user_state = policy_reader.begin(), user_reader.begin()
    availability = Availability(batch.require_candidates())
    steps: list[tuple[Tensor, Tensor, Tensor]] = []
    ending = _Ending(batch) if batch.behaviour_set.terminal else None
    for step in range(batch.items.shape[1]):
        policy_state, user_state = policy_reader.at(policy_state, step), user_reader.at(user_state, step)
        candidates, available = availability.at(step)
        chosen, propensity = exploration.choose(policy.score(policy_state, candidates), available, noise[:, step, :2])
        item = candidates.gather(1, chosen.unsqueeze(1)).squeeze(1)
        if keep_until is not None:
            item = torch.where(step <= keep_until, batch.items[:, step], item)
        behaviour, next_state = environment.respond(user_state, item, noise[:, step, 2])
        if keep_until is not None:
            past, logged = step < keep_until, batch.behaviours[:, step]
            behaviour = torch.where(past, logged, behaviour)
            next_state = environment.merge(past, environment.observe(user_state, item, logged), next_state)
        user_state, policy_state = next_state, policy.observe(policy_state, item, behaviour)
        availability.mark_shown(item)
        steps.append((item, behaviour, propensity.float()))
        if ending is not None:
            ending.observe(step, behaviour)
    if ending is not None:
        batch = replace(batch, length=ending.length, context=batch.continued_context(ending.length))
    items, behaviours, propensities = (torch.stack(part, 1) * batch.mask for part in zip(*steps, strict=True))
    return replace(batch, items=items, behaviours=behaviours, propensities=propensities)


class _Ending:
    """When the users of B sessions leave: with a terminal behaviour, at the horizon, or at the last step with candidates."""

    def __init__(self, batch: SessionTensors) -> None:
        self.is_terminal = batch.behaviour_set.terminal_table(batch.device).bool()
        self.length = longest(batch)
        """(B,) steps of each session, as far as is known."""

    def observe(self, step: int, behaviour: Tensor) -> None:
        """Take note of the behaviours (B,) at a step."""
        left = self.is_terminal[behaviour.long()] & (self.length > step + 1)
        self.length = torch.where(left, step + 1, self.length)


def longest(batch: SessionTensors) -> Tensor:
    """Return how long B sessions can become, (B,): where users can leave, up to the last step with candidates."""
    if not batch.behaviour_set.terminal:
        return batch.length
    candidates = batch.require_candidates()
    if candidates.dim() == 2:
        return torch.full_like(batch.length, batch.horizon)
    return (candidates != MASK_ROW).any(2).cumprod(1).sum(1).to(batch.length.dtype)


class Availability:
    """Which candidates of B sessions can still be shown, of one set per session (B, C) or one per step (B, T, C).

    If none is left (a session longer than its candidates, or one that has ended), all are available again.
    """

    def __init__(self, candidates: Tensor, available: Tensor | None = None, shown: Sequence[Tensor] = ()) -> None:
        self.candidates = candidates
        self.available = candidates != MASK_ROW if available is None else available
        self.shown = list(shown)

    def __getitem__(self, rows: Tensor) -> Availability:
        """The same for other rows (R,), which may repeat."""
        return Availability(self.candidates[rows], self.available[rows], [item[rows] for item in self.shown])

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        """Candidates (B, C) of a step, and which of them are available (B, C)."""
        candidates = candidates_at(self.candidates, step)
        if self.candidates.dim() == 2:
            everything = candidates != MASK_ROW
        else:
            self.available = candidates != MASK_ROW
            everything = self.available | ~self.available.any(1, keepdim=True)
            for item in self.shown:
                self.available = self.available & (candidates != item.unsqueeze(1))
        self.available = torch.where(self.available.any(1, keepdim=True), self.available, everything)
        return candidates, self.available

    def mark_shown(self, item: Tensor) -> None:
        """Item (B,) is gone for the steps that follow."""
        if self.candidates.dim() == 2:
            self.available = self.available & (self.candidates != item.unsqueeze(1))
        else:
            self.shown.append(item)


def _require_methods(argument: str, value: object, *methods: str) -> None:
    """Raise unless a policy or an environment has its methods."""
    missing = [method for method in methods if not callable(getattr(value, method, None))]
    if missing:
        problem = f"{argument}: must have {', '.join(methods)}; {type(value).__name__} has no {', '.join(missing)}"
        raise InputError(problem)


def _require_same_device(policy: Policy, device: torch.device) -> None:
    """Raise unless the policy is on this device; policies without a `device` are assumed to be."""
    policy_device: torch.device = getattr(policy, "device", device)
    both_have_index = policy_device.index is not None and device.index is not None
    if policy_device.type != device.type or (both_have_index and policy_device.index != device.index):
        problem = f"the policy is on {policy_device}, the environment on {device}"
        raise OptionError(f"device: {problem}; create both on one device")


def _require_candidates(sessions: SessionTensors, candidates: Tensor) -> None:
    """Raise unless every session, or every step where steps have their own sets, has candidates of the catalogue."""
    count, horizon = len(sessions), sessions.horizon
    shape = tuple(candidates.shape)
    if not (len(shape) == 2 and shape[0] == count) and not (len(shape) == 3 and shape[:2] == (count, horizon)):
        raise InputError(f"candidates: must be ({count}, C) or ({count}, {horizon}, C), got {shape}")
    if not count:
        raise InputError("roll-out: there are no sessions to serve")
    if not 0 <= int(candidates.min()) <= int(candidates.max()) < sessions.catalog.n_rows:
        raise InputError(f"candidates: must lie in 0..{sessions.catalog.n_rows - 1}")
    is_empty = ~(candidates != MASK_ROW).any(-1)  # (N,) or (N, T)
    if is_empty.dim() == 2:
        is_empty &= sessions.mask.to(is_empty.device)  # the padding may have none
    if bool(is_empty.any()):
        session, *step = is_empty.nonzero()[0].tolist()
        raise InputError(f"candidates: session {session} has none{f' at step {step[0]}' if step else ''}; give at least one")
