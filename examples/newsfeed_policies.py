"""What chance, the log, chasing the next click and looking ahead are worth in the generated newsfeed.

Run:  python examples/newsfeed_policies.py [STORE]      (default: generate the demo's store in a temporary folder)
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch

from mbcal import Newsfeed, NewsfeedConfig, Oracle, Store, prepare_newsfeed


def mean_reward(world: Newsfeed, store: Store, policy: str) -> tuple[float, float]:
    """Mean reward per session, and its standard error, on the test users with the same candidates and noise for all."""
    test = store.sessions("test").tensors()
    assert test.candidates is not None
    state = world.begin(test.user, test.history_items, test.history_behaviours, test.history_length)
    draw = torch.Generator().manual_seed(0)
    noise = torch.rand(store.horizon, len(test.user), generator=draw)
    available = torch.ones_like(test.candidates, dtype=torch.bool)
    total = torch.zeros(len(test.user))
    oracle = Oracle(world)
    for step in range(store.horizon):
        utility = world.utility(state, test.candidates)
        if policy == "oracle":
            chosen = oracle.choose(state, test.candidates, available, store.horizon - step)
        elif policy == "myopic":
            chosen = utility.masked_fill(~available, -torch.inf).argmax(1)
        elif policy == "logging":
            chosen = torch.multinomial(world.logging_probabilities(utility, available), 1, generator=draw).squeeze(1)
        else:
            chosen = torch.multinomial(available.float(), 1, generator=draw).squeeze(1)
        behaviour, state = world.respond(state, test.candidates.gather(1, chosen[:, None]).squeeze(1), noise[step])
        available = available.scatter(1, chosen[:, None], False)
        total += behaviour + 1.0
    return float(total.mean()), float(total.std() / len(total) ** 0.5)


def main() -> None:
    """Print one line a policy."""
    with tempfile.TemporaryDirectory() as folder:
        given = Store.open(sys.argv[1]) if len(sys.argv) > 1 else prepare_newsfeed(Path(folder) / "feed", NewsfeedConfig())
        world = Newsfeed.from_options(dict(given.manifest["options"]))
        for policy in ("random", "logging", "myopic", "oracle"):
            mean, error = mean_reward(world, given, policy)
            print(f"{policy:8} {mean:6.2f} ± {1.96 * error:.2f}")


if __name__ == "__main__":
    main()
