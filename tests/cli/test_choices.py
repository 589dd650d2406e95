"""What commands say: their help, and what `fit` chose from data."""

from __future__ import annotations

from mbcal.agents.advantage_choice import AdvantageChoice, AdvantageTrial
from mbcal.cli.fit import describe_advantage
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
