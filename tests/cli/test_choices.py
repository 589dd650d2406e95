"""What commands say: their help, and what `fit` chose from data."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from mbcal.agents import AGENTS
from mbcal.agents.advantage_choice import AdvantageChoice, AdvantageTrial
from mbcal.cli.fit import describe_advantage, fit_agent
from mbcal.cli.simulator import simulator_command
from mbcal.config import to_dict
from mbcal.environments.simulator import SimulatorConfig
from mbcal.nn.config import HIDDEN, NetConfig
from tests.support.command_line import mbcal


def test_help_teaches() -> None:
    for command, options in {
        "fit": ("--agent", "--epochs", "--device", "--features", "--from", "kill -9"),
        "rank": ("--history", "--candidates", "--shown", "--json", "--allow-unknown"),
        "evaluate": ("--simulator", "--data", "--truth", "--epsilon"),
        "simulator": ("--family", "transformer", "report-card"),
    }.items():
        said = mbcal(command, "--help").stdout
        for option in options:
            assert option in said, f"{command}: {option}"


@pytest.mark.parametrize(
    ("command", "config"),
    [
        (fit_agent, AGENTS["mbcal-plan"].Config(net=NetConfig(hidden=HIDDEN))),
        (fit_agent, AGENTS["mbcal"].Config(net=NetConfig(hidden=HIDDEN))),
        (simulator_command, SimulatorConfig()),
    ],
)
def test_help_shows_the_defaults_of_the_library(command: Callable[..., None], config: Any) -> None:
    defaults: dict[str, Any] = {}
    for name, value in to_dict(config).items():
        defaults |= value if isinstance(value, dict) else {name: value}
    checked = set()
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        shown = parameter.annotation.__metadata__[0].show_default if hasattr(parameter.annotation, "__metadata__") else None
        if isinstance(shown, str) and defaults.get(name) is not None:
            default = defaults[name]
            expected = f"{default:g}" if isinstance(default, float) else str(default)
            assert shown.replace(";", " ").split()[0] == expected, name
            checked.add(name)
    assert {"epochs", "patience", "learning_rate", "hidden", "embedding"} <= checked


def test_fit_says_why_an_advantage_was_chosen() -> None:
    trials = (
        AdvantageTrial(3.0, kind="counterfactual"),
        AdvantageTrial(2.5, -0.5, -0.9, -0.1, kind="none"),
        AdvantageTrial(3.2, 0.2, 0.1, 0.3, kind="planned"),
    )
    said = describe_advantage(AdvantageChoice("planned", 1_024, trials).record())
    assert said.startswith("advantage: planned, chosen from data (counterfactual earns 3.00 in 1,024")
    assert "none -0.5 [-0.9, -0.1]; planned +0.2 [+0.1, +0.3]; one is taken if" in said
    few = describe_advantage(AdvantageChoice("counterfactual", 0, ()).record())
    assert few == "advantage: counterfactual, since there are too few users to choose it from data"
