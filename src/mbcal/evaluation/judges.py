"""The true environment of a store, where there is one."""

from __future__ import annotations

from mbcal.data.store import Store
from mbcal.environments.newsfeed.world import Newsfeed
from mbcal.errors import OptionError

TRUTH = "truth"
"""As a judge: the generated newsfeed itself, in place of a simulator."""


def true_environment(store: Store, device: str = "cpu") -> Newsfeed:
    """Return the generated newsfeed that a store was sampled from.

    Raises:
        OptionError: If the store was not generated, so that its truth is unknown.
    """
    if store.manifest["source"] != "newsfeed":
        raise OptionError(f"truth: only the generated newsfeed knows its truth; this store is {store.manifest['source']}")
    return Newsfeed.from_options(dict(store.manifest["options"]), device)
