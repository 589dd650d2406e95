"""From a Gymnasium environment to items, item features and behaviours. Gymnasium is imported when an environment is made."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbcal.errors import InputError, OptionError
from mbcal.types import Behaviours, Feature

PREFIX = "gym:"
"""On the command line: what comes before the ID of an environment."""
PACKAGES = {"sardine": "mbcal[worlds]"}
"""Namespaces of IDs that are registered by importing the package of that name -> what to install."""
FEATURE_ATTRIBUTES = {"item_comp": "topic"}
"""Attributes of environments that hold one value per item -> name of the feature; `item_comp` is SARDINE's."""
MAX_LABELS = 20
"""Most distinct rewards that are behaviours of their own; more are grouped into levels."""
LEVELS = 10
"""Levels of a reward with more distinct values, about equally frequent in random episodes."""

ItemFeatures = Mapping[str, Iterable[Any]] | Callable[[Any], Mapping[str, Iterable[Any]]]
"""Feature -> one value per item; or a function of the unwrapped environment that returns it."""


def reward_behaviours(rewards: NDArray[np.float64], owner: str) -> Behaviours:
    """Return the behaviours that stand for rewards.

    Args:
        rewards: (N,) rewards that were paid.
        owner: Subject of the message.

    Returns:
        One behaviour per distinct reward; if there are more than `MAX_LABELS`, levels of about equally many rewards, each
        worth their mean.

    Raises:
        OptionError: If all rewards are the same.
    """
    distinct = np.unique(rewards)
    if len(distinct) < 2:
        raise OptionError(
            f"{owner}: always pays {distinct[0]:g} in random episodes, so there is nothing to learn; "
            "give its rewards with GymnasiumWorld(…, behaviours=…)"
        )
    if len(distinct) <= MAX_LABELS:
        return Behaviours(tuple(f"{reward:.15g}" for reward in distinct), tuple(distinct.tolist()))
    # cuts are rewards that were paid, and above the lowest, so no level is empty
    cuts = np.unique(np.quantile(rewards, np.arange(1, LEVELS) / LEVELS, method="higher"))
    cuts = cuts[cuts > distinct[0]]
    level = np.searchsorted(cuts, rewards, side="right")
    return Behaviours.from_cuts(cuts.tolist(), [float(rewards[level == number].mean()) for number in range(len(cuts) + 1)])


def make_environment(name: str) -> Any:
    """Create an environment by its ID; raises OptionError if that is not possible."""
    try:
        import gymnasium
    except ImportError as error:
        raise OptionError(f"{PREFIX}{name}: Gymnasium is not installed; run pip install 'mbcal[gym]'") from error
    package = name.partition("/")[0]
    try:
        if package in PACKAGES:
            importlib.import_module(package)
        return gymnasium.make(name, disable_env_checker=True)
    except ModuleNotFoundError as error:
        advice = f"run pip install '{PACKAGES[package]}'" if package in PACKAGES else "install it, or check the name"
        raise OptionError(f"{PREFIX}{name}: needs the module {error.name or name.partition(':')[0]}; {advice}") from error
    except gymnasium.error.DependencyNotInstalled as error:
        raise OptionError(f"{PREFIX}{name}: needs a package that is not installed ({error})") from error
    except gymnasium.error.Error as error:
        advice = f"install its package and name the module that registers it, {PREFIX}MODULE:{name.rpartition(':')[2]}"
        raise OptionError(f"{PREFIX}{name}: not registered in Gymnasium; check the ID, or {advice}") from error


def item_actions(space: Any, owner: str) -> tuple[int, Callable[[int], Any]]:
    """The number of items, and the action that shows an item by number; raises OptionError if actions are not items."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        count, start = int(space.n), int(space.start)
        to_action: Callable[[int], Any] = lambda number: start + number  # noqa: E731
    elif isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        if len(space.nvec) != 1:
            raise OptionError(f"{owner}: shows {len(space.nvec)} items at a time; only worlds that show one can be played")
        count, first = int(space.nvec[0]), int(space.start[0])
        to_action = lambda number: np.asarray([first + number], space.dtype)  # noqa: E731
    elif isinstance(space, spaces.Box):
        raise OptionError(f"{owner}: has a continuous action; only worlds whose action is an item (Discrete) can be played")
    else:
        problem = f"{owner}: has {type(space).__name__} actions"
        raise OptionError(f"{problem}; only worlds whose action is an item (Discrete) can be played")
    if count < 2:
        raise OptionError(
            f"{owner}: has no items to choose from (its action space has {count} action); at least 2 are needed"
        )
    return count, to_action


def read_features(environment: Any, count: int, item_features: ItemFeatures | None) -> dict[str, Feature]:
    """Features of all items, by name, from what the caller gave or the environment has."""
    if item_features is None:
        listed = {
            name: getattr(environment, attribute)
            for attribute, name in FEATURE_ATTRIBUTES.items()
            if hasattr(environment, attribute)
        }
        item_features = getattr(environment, "item_features", listed)
    values_by_name = item_features(environment) if callable(item_features) else item_features
    features = {}
    for name, values in values_by_name.items():
        listed_values = [str(value) for value in values]
        if len(listed_values) != count:
            raise InputError(f"item feature {name!r}: has {len(listed_values)} values, but there are {count} items")
        features[name] = Feature.single(name, listed_values)
    return features
