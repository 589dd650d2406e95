"""Logs of clicks alone: behaviours that are derived or added, and what such a log cannot tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mbcal.data.behaviour_rules import Labels, Levels, NextClick, behaviour_rule
from mbcal.data.cutting import SessionConfig
from mbcal.errors import OptionError
from mbcal.types import Behaviours

CLICK, NONE = "click", "none"
"""Behaviour of every row of a log without a behaviour column, and of items that were added to it."""
NEXT_CLICK = "next-click"
"""What is given in place of a behaviour column to derive dwell from the next click."""
CLICKS_ONLY = "clicks_only"
"""Entry among the manifest's options of logs without a behaviour column."""
ONE_BEHAVIOUR = 0.99
"""If more of all rows have the same behaviour, and it is not that of the lowest reward, the log is one of clicks alone."""


def click_rule(
    behaviour: str | None, rewards: Mapping[str, float] | Sequence[float] | None, levels: Sequence[float] | None
) -> Labels | Levels | NextClick:
    """Return the rule of a log whose behaviour may be derived, or the same for every row.

    Args:
        behaviour: A column; `next-click`; or None if every row is a click.
        rewards: Label -> reward; with `levels`, the reward of each level.
        levels: Ascending cut points, in seconds for `next-click`.

    Raises:
        OptionError: If they do not fit together.
    """
    if behaviour == NEXT_CLICK:
        if levels is None or isinstance(rewards, Mapping):
            raise OptionError(f"behaviour: {NEXT_CLICK} needs cut points in seconds, --levels 5,30,120, and no labels")
        return NextClick(tuple(map(float, levels)), None if rewards is None else tuple(map(float, rewards)))
    if behaviour is None and rewards is None and levels is None:
        return Labels({CLICK: 1.0})
    if behaviour is None and (levels is not None or not isinstance(rewards, Mapping) or set(rewards) != {CLICK}):
        raise OptionError(f"behaviour: missing; name the column, or leave out --levels and give --rewards {CLICK}=1 at most")
    return behaviour_rule(rewards, levels)


def code_behaviours(rule: Labels | Levels | NextClick, config: SessionConfig) -> tuple[Behaviours, SessionConfig]:
    """Return the behaviours of a store, and the config that tells how rows are turned into them.

    Args:
        rule: The rule of the log.
        config: With `negatives`, the behaviour `none` is added after all others, unless the rule has it.

    Raises:
        OptionError: If there is only one behaviour.
    """
    if isinstance(rule, NextClick):
        config = replace(config, next_click=True, level_cuts=rule.cuts)
    if isinstance(rule, Labels) and len(rule.rewards) == 1 and not config.negatives:
        raise OptionError(
            f"rewards: at least two behaviours are needed, got {next(iter(rule.rewards))!r} alone; add --negatives K, or "
            f"derive dwell with --behaviour {NEXT_CLICK} --levels 5,30,120 (docs/clicks.md)"
        )
    if not config.negatives:
        return rule.behaviours(), config
    if isinstance(rule, Labels):
        names, rewards = tuple(rule.rewards), tuple(map(float, rule.rewards.values()))
    else:
        levels = rule.behaviours()
        names, rewards, config = levels.names, levels.rewards, replace(config, level_cuts=rule.cuts)
    if NONE in names:  # readers of clicks alone declare it
        return Behaviours(names, rewards), config
    return Behaviours((*names, NONE), (*rewards, config.none_reward)), config


def is_extended(behaviours: Behaviours, other: Behaviours) -> bool:
    """Whether others are the same behaviours as labels, with or without `none` after them."""
    names, rewards, count = other.names, other.rewards, len(behaviours)
    is_same = (names[:count], rewards[:count]) == (behaviours.names, behaviours.rewards)
    return is_same and names[count:] in ((), (NONE,))


def only_reranks(manifest: Mapping[str, Any]) -> str | None:
    """Return a sentence if a store's log tells nothing about items that users passed over; None if it does."""
    options, labels, rewards = manifest["options"], manifest["counts"].get("labels", ()), manifest["behaviours"]["rewards"]
    common = max(zip(labels, rewards, strict=False), default=(0, 0.0))
    # a common behaviour of the lowest reward is no click: few clicks among many impressions are no clicks alone
    is_one = common[0] > ONE_BEHAVIOUR * sum(labels) and common[1] > min(rewards)
    if options.get("negatives") or not (options.get(CLICKS_ONLY) or is_one):
        return None
    return (
        "The log holds clicks alone: what users did with items they chose, and nothing about items they passed over. A "
        "model of it can re-rank a short list, not rank a whole catalogue; for that, prepare with --negatives K "
        "(docs/clicks.md)."
    )


def negative_rate(manifest: Mapping[str, Any]) -> float:
    """Return how many negatives a store has for each pair of a row and an item not chosen; 1 if none were sampled."""
    counts = manifest["counts"]
    added = counts.get("negatives", 0)
    return added / counts["negatives_population"] if added else 1.0
