"""The help of `mbcal prepare`: it teaches, and every option is in a panel."""

from __future__ import annotations

import inspect
from typing import get_args

import pytest
from typer.models import CommandInfo, OptionInfo

from mbcal.cli import prepare
from mbcal.cli.prepare_help import HELP, PANELS

COMMANDS = {command.name: command for command in prepare.app.registered_commands}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=lambda command: command.name)
def test_every_option_is_in_a_panel_and_has_help(command: CommandInfo) -> None:
    assert command.rich_help_panel
    assert command.callback is not None
    parameters = inspect.signature(command.callback).parameters
    options = {name: info for name, each in parameters.items() for info in get_args(each.annotation)[1:]}
    for name, info in options.items():
        assert info.help, name
        assert not isinstance(info, OptionInfo) or info.rich_help_panel, name
    assert options["out"].rich_help_panel == list(PANELS)[-1]


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in ("newsfeed", "table")])
def test_every_layout_has_an_example(command: str) -> None:
    assert f"Example: mbcal prepare {command} " in inspect.getdoc(COMMANDS[command].callback)  # type: ignore[operator]


def test_the_help_tells_the_kinds_of_logs_apart() -> None:
    assert [line.split(":")[0].split(",")[0] for line in HELP.splitlines() if line.startswith("- ")] == [
        "- Ratings",
        "- Impressions with actions",
        "- Clicks alone",
        "- Dwell",
    ]
    assert all(f"'mbcal prepare {name}" in HELP or f"'{name}'" in HELP for name in ("newsfeed", "table"))
