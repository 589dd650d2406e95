"""Branches of imagined sessions: futures against enumeration, common noise, who is compared, and when."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mbcal import Behaviours, Catalog, Sessions
from mbcal.environments.branches import branch_items, imagine_branches
from mbcal.training.branches import Branches, masked_mean

ITEMS, STEPS, GAMMA = 3, 3, 0.5
CATALOG = Catalog(tuple(f"item {k}" for k in range(ITEMS)))
CLICKS = Behaviours(("skip", "click"), (0.0, 2.0))
LEAVING = Behaviours(("skip", "click"), (0.0, 2.0), terminal=("skip",))


@dataclass
class Moods:
    """Item k is clicked with probability (k + 1) / 8, twice that after a click; the state is the number of clicks."""

    behaviours: Behaviours = CLICKS
    device = torch.device("cpu")
    catalog = CATALOG

    def begin(self, user: Tensor, *_: Tensor) -> Tensor:
        return torch.zeros(len(user), dtype=torch.long)

    def chance(self, clicks: Tensor, item: Tensor) -> Tensor:
        return (item - 1.0) / 8 * torch.where(clicks > 0, 2, 1)

    def predict(self, clicks: Tensor, item: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        chance = self.chance(clicks, item)
        return torch.stack([1 - chance, chance], 1), lambda behaviour: clicks + behaviour

    def respond(self, clicks: Tensor, item: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        behaviour = (uniform < self.chance(clicks, item)).to(torch.uint8)
        return behaviour, clicks + behaviour

    def observe(self, clicks: Tensor, item: Tensor, behaviour: Tensor) -> Tensor:
        return clicks + behaviour

    def merge(self, mask: Tensor, yes: Tensor, no: Tensor) -> Tensor:
        return torch.where(mask, yes, no)


class Preference:
    """Prefers items by their rows, the largest first; after a click the smallest first."""

    device = torch.device("cpu")

    def begin(self, user: Tensor, *_: Tensor) -> Tensor:
        return torch.zeros(len(user), dtype=torch.long)

    def score(self, clicks: Tensor, candidates: Tensor) -> Tensor:
        return candidates.float() * torch.where(clicks > 0, -1.0, 1.0).unsqueeze(1)

    def observe(self, clicks: Tensor, item: Tensor, behaviour: Tensor) -> Tensor:
        return clicks + behaviour


def begun(count: int, length: int = STEPS, behaviours: Behaviours = CLICKS, candidates: Any = None) -> Any:
    rows = np.tile(np.arange(2, 2 + ITEMS, dtype=np.int32), (count, 1)) if candidates is None else candidates
    sessions = Sessions(
        CATALOG,
        behaviours,
        items=np.full((count, STEPS), 2, np.int32) * (np.arange(STEPS) < length),
        behaviours=(np.arange(STEPS) < length).astype(np.uint8) * np.ones((count, 1), np.uint8),
        length=np.full(count, length, np.int32),
        user=np.arange(count, dtype=np.int32),
        history_items=np.zeros((count, 0), np.int32),
        history_behaviours=np.zeros((count, 0), np.uint8),
        history_length=np.zeros(count, np.int32),
        candidates=rows,
    )
    return sessions.tensors()


def imagine(sessions: Any, width: int = ITEMS, world: Moods | None = None, **more: Any) -> Branches:
    index = torch.arange(len(sessions))
    settings: dict[str, Any] = {"gamma": GAMMA, "width": width, "seed": 3, **more}
    return imagine_branches(Preference(), world or Moods(), sessions, sessions.candidates, index, **settings)


def enumerated(item: int, clicks: int, shown: tuple[int, ...], steps: int, terminal: bool) -> float:
    """The expected future after an item, all behaviours summed: the policy goes on with what is left."""
    world, total = Moods(), 0.0
    for behaviour in (0, 1):
        chance = float(world.chance(torch.tensor([clicks]), torch.tensor([item])))
        probability = chance if behaviour else 1 - chance
        if steps and not (terminal and behaviour == 0):
            left = [row for row in range(2, 2 + ITEMS) if row not in (*shown, item)]
            following = min(left) if clicks + behaviour else max(left)
            reward = 2 * float(world.chance(torch.tensor([clicks + behaviour]), torch.tensor([following])))
            future = enumerated(following, clicks + behaviour, (*shown, item), steps - 1, terminal)
            total += probability * GAMMA * (reward + future)
    return total


@pytest.mark.parametrize("terminal", [False, True])
def test_mean_futures_are_those_of_exact_enumeration(terminal: bool) -> None:
    behaviours = LEAVING if terminal else CLICKS
    branches = imagine(begun(30_000, behaviours=behaviours), world=Moods(behaviours))
    seen: set[tuple[int, int]] = set()
    for step, item in itertools.product(range(STEPS), range(2, 2 + ITEMS)):
        at_step = branches.step == step
        for past in {tuple(row) for row in branches.sessions.items[at_step, :step].tolist()}:
            for answers in itertools.product((0, 1), repeat=step):
                same = at_step & (branches.sessions.items[:, :step] == torch.tensor(past, dtype=torch.int32)).all(1)
                same &= (branches.sessions.behaviours[:, :step] == torch.tensor(answers, dtype=torch.uint8)).all(1)
                chosen = same.unsqueeze(1) & (branches.items == item) & branches.is_item
                if chosen.sum() < 500:
                    continue
                expected = enumerated(item, sum(answers), past, STEPS - 1 - step, terminal)
                values = branches.futures[chosen]
                error = float(values.std() / len(values) ** 0.5)
                assert float(values.mean()) == pytest.approx(expected, abs=4 * error + 1e-6)
                seen.add((step, item))
    assert len(seen) >= 6


def test_the_same_item_has_the_same_future_to_the_bit() -> None:
    twice = np.tile(np.array([2, 3, 4, 2, 3, 4], np.int32), (500, 1))
    branches = imagine(begun(500, candidates=twice), width=6)
    assert (branches.step < STEPS - 1).any()
    for row in range(2, 5):
        futures = torch.where(branches.items == row, branches.futures, torch.nan)
        low, high = futures.nan_to_num(torch.inf).amin(1), futures.nan_to_num(-torch.inf).amax(1)
        assert torch.equal(low[(branches.items == row).sum(1) == 2], high[(branches.items == row).sum(1) == 2])


def test_noise_belongs_to_the_session_not_to_the_batch() -> None:
    together = imagine(begun(300))
    rows = torch.arange(299, 0, -7)
    sessions = begun(300)[rows]
    alone = imagine_branches(Preference(), Moods(), sessions, sessions.candidates, rows, gamma=GAMMA, width=ITEMS, seed=3)
    for name in ("step", "items", "futures", "is_item"):
        assert torch.equal(getattr(alone, name), getattr(together[rows], name))
    other = imagine(begun(300), seed=4)
    assert not torch.equal(other.step, together.step)


def test_nobody_leaves_but_every_step_counts_with_the_chance_to_be_there() -> None:
    branches = imagine(begun(2_000, behaviours=LEAVING), world=Moods(LEAVING), width=1)
    assert (branches.sessions.behaviours == (torch.arange(STEPS) < branches.step.unsqueeze(1))).all()  # clicks go on
    assert branches.is_item.all()
    assert {int(step): set(branches.futures[branches.step == step].flatten().tolist()) for step in range(STEPS)} == {
        0: {GAMMA * 3 / 8 * 4 / 8 + GAMMA**2 * 3 / 8 * 2 / 8 * 8 / 8},  # items 4, 2, 3: chances 3/8, then 2/8 and 4/8
        1: {GAMMA * 2 / 8 * 8 / 8},
        2: {0.0},
    }


def test_steps_after_the_end_do_not_count() -> None:
    short = imagine(begun(200, length=2))
    assert int(short.step.max()) == 1
    assert torch.equal(short.futures[short.step == 1], torch.zeros_like(short.futures[short.step == 1]))
    assert (short.futures[short.step == 0] > 0).all()


def test_exploration_reaches_states_beside_the_path() -> None:
    def first_items(branches: Branches) -> set[int]:
        return set(branches.sessions.items[branches.step > 0, 0].tolist())

    assert first_items(imagine(begun(300))) == {4}
    greedy, explored = imagine(begun(300)), imagine(begun(300), epsilon=1.0)
    assert first_items(explored) == {2, 3, 4}
    at_once = greedy.step == 0  # nothing before the branch, so nothing to explore
    assert torch.equal(explored.futures[at_once], greedy.futures[at_once])


def test_the_best_is_compared_with_random_others() -> None:
    scores, available = torch.tensor([[1.0, 9.0, 3.0, 4.0]]).expand(4_000, -1), torch.tensor([[True, False, True, True]])
    order = torch.rand(4_000, 4, generator=torch.Generator().manual_seed(0))
    columns, is_item = branch_items(scores, available.expand(4_000, -1), order, 2)
    assert (columns[:, 0] == 3).all()
    shares = columns[:, 1].bincount(minlength=4) / 4_000
    assert shares.tolist() == pytest.approx([0.5, 0, 0.5, 0], abs=0.03)
    assert is_item.all()
    _, is_item = branch_items(scores, available.expand(4_000, -1), order, 4)
    assert is_item.sum(1).tolist() == [3] * 4_000


def test_sessions_branch_at_all_their_steps_alike() -> None:
    counts = imagine(begun(6_000), width=2).step.bincount()
    assert counts.tolist() == pytest.approx([2_000] * STEPS, abs=150)


def test_advantages_compare_within_a_session() -> None:
    futures = torch.tensor([[1.0, 3.0, 8.0], [5.0, 5.0, 2.0]])
    is_item = torch.tensor([[True, True, False], [True, True, True]])
    branches = replace(imagine(begun(2)), futures=futures, is_item=is_item)
    assert branches.advantages().tolist() == [[-1.0, 1.0, 0.0], [1.0, 1.0, -2.0]]
    assert branches.scale() == pytest.approx((8 / 5) ** 0.5)
    assert replace(branches, futures=futures * 0).scale() == 1.0
    assert masked_mean(futures, ~is_item).tolist() == [[8.0], [0.0]]
