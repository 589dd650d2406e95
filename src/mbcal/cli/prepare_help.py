"""How the help of `mbcal prepare` is arranged: what it says first, and its options in panels by topic."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable, Iterator
from typing import Annotated, get_args, get_origin

from typer.models import OptionInfo

HELP = "\n\n".join(
    [
        "Turn a log into a store: check the rows, cut sessions, split by user.",
        "A log has a row for every time a user met an item: who, what, when, and what the user did. What users can do are "
        "behaviours, and each has a reward, which models maximise over a session. Which kind of log do you have?",
        "- Ratings: 'table' with --behaviour rating --levels 2,3,4, or the layout of a public log.",
        "- Impressions with actions, that is what was shown and what users did: 'table' with --behaviour action "
        '--rewards "skip=0,click=1,left=0" --ends left.',
        "- Clicks alone, and nothing about what was passed over: 'table' with --negatives 4.",
        "- Dwell: 'table' with --behaviour seconds --levels 3,10,30; with --behaviour next-click if it must be derived.",
        "docs/data.md has a complete sequence of commands for each. All layouts give the same kind of folder: 'mbcal "
        "describe' shows it, and the other commands read it. Nothing at hand? 'mbcal prepare newsfeed --out feed'.",
    ]
)

OWN, PUBLIC, GENERATED = (
    "Your own log",
    "Public logs (without PATHS: where to download them, and under which terms)",
    "Generated",
)
"""Panels of the commands."""
WORLD = "The world"
"""Panel of the newsfeed's own options."""

PANELS = {
    "Columns of the log": "user item time behaviour rewards levels session propensity context time_unit time_format tags",
    "Tables of items and users": "items features items_key title separator users user_features users_key",
    "Sessions": "horizon history min_length gap ends negatives none_reward max_per_user",
    "Parts and candidates": "split alive seed like",
    "Writing the store": "out overwrite max_rejected memory_limit engine workers address",
}
"""Panel -> its options."""
_PANEL_OF = {option: panel for panel, options in PANELS.items() for option in options.split()}


def in_panels(parameters: Iterable[inspect.Parameter]) -> Iterator[inspect.Parameter]:
    """Yield the parameters of a command, options in the order of the panels and each in its panel.

    Options of no panel or of one of their own come first.
    """
    placed: list[tuple[int, inspect.Parameter]] = []
    for parameter in parameters:
        panel, annotation = _PANEL_OF.get(parameter.name), parameter.annotation
        kind, info = get_args(annotation) if get_origin(annotation) is Annotated else (annotation, None)
        if panel is not None and isinstance(info, OptionInfo) and info.rich_help_panel is None:
            info = copy.copy(info)  # other commands may share it
            info.rich_help_panel = panel
            placed.append((list(PANELS).index(panel), parameter.replace(annotation=Annotated[kind, info])))
        else:
            placed.append((-1, parameter))
    for _, parameter in sorted(placed, key=lambda pair: pair[0]):
        yield parameter
