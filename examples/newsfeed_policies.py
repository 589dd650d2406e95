"""Compare four policies in the generated newsfeed: random, the logging policy, myopic, and looking ahead.

Run:  python examples/newsfeed_policies.py [STORE]      (default: generate 20,000 sessions in a temporary folder)
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from mbcal import Newsfeed, NewsfeedConfig, Oracle, Store, prepare_newsfeed

POLICIES = ("random", "logging", "myopic", "oracle")


def mean_reward(world: Newsfeed, store: Store, policy: str) -> tuple[float, float]:
    """Return the mean reward per session of the test users and its standard error; noise is the same for every policy."""
    test = store.sessions("test").tensors()
    candidates = test.require_candidates()
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(store.horizon, len(test), generator=generator)
    state = world.begin(test.user, test.history_items, test.history_behaviours, test.history_length)
    available = torch.ones_like(candidates, dtype=torch.bool)
    total = torch.zeros(len(test))

    def choose(steps_left: int) -> Tensor:
        """Index of the candidate to show, (B,)."""
        if policy == "oracle":
            return Oracle(world).choose(state, candidates, available, steps_left)
        utility = world.utility(state, candidates)
        if policy == "myopic":
            return utility.masked_fill(~available, -torch.inf).argmax(1)
        probabilities = world.logging_probabilities(utility, available) if policy == "logging" else available.float()
        return torch.multinomial(probabilities, 1, generator=generator).squeeze(1)

    for step in range(store.horizon):
        chosen = choose(store.horizon - step).unsqueeze(1)
        behaviour, state = world.respond(state, candidates.gather(1, chosen).squeeze(1), noise[step])
        available = available.scatter(1, chosen, False)
        total += behaviour + 1.0
    return float(total.mean()), float(total.std() / len(total) ** 0.5)


def main() -> None:
    """Print one line per policy: mean reward per session and its 95% interval."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(sys.argv[1]) if len(sys.argv) > 1 else prepare_newsfeed(Path(folder) / "feed", NewsfeedConfig())
        world = Newsfeed.from_options(store.manifest["options"])
        for policy in POLICIES:
            mean, error = mean_reward(world, store, policy)
            print(f"{policy:8} {mean:6.2f} ± {1.96 * error:.2f}")


if __name__ == "__main__":
    main()
