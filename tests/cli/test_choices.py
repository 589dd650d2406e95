"""What commands say: their help, and what `fit` chose from data."""

from __future__ import annotations

import pytest

from mbcal.agents.advantage_choice import AdvantageChoice, AdvantageTrial
from mbcal.agents.gamma_choice import Candidate, GammaChoice
from mbcal.cli.fit import describe_advantage, describe_gamma
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
    ("low", "high", "reason"),
    [
        (-0.01, 0.11, "the interval of the difference, +0.05 [-0.01, +0.11], includes 0, so the smaller stays)"),
        (0.02, 0.08, "the interval of the difference, +0.05 [+0.02, +0.08], lies above 0, so the larger is taken)"),
        (-0.09, -0.02, "the interval of the difference, -0.05 [-0.09, -0.02], lies below 0)"),
    ],
)
def test_fit_says_why_a_gamma_was_chosen(low: float, high: float, reason: str) -> None:
    """3.07 with 0.95 and 3.12 with 1 would otherwise look like the wrong choice."""
    gain = 0.05 if high > 0 else -0.05
    candidates = (Candidate(3.07, gamma=0.95), Candidate(3.07 + gain, gain, low, high, gamma=1.0))
    said = describe_gamma(GammaChoice(1.0 if low > 0 else 0.95, 724, candidates).record())
    assert said.endswith(f"{3.07 + gain:.2f} with 1; {reason}")


def test_fit_says_why_an_advantage_was_chosen() -> None:
    trials = (
        AdvantageTrial(3.0, kind="counterfactual", gamma=0.95),
        AdvantageTrial(2.5, -0.5, -0.9, -0.1, kind="none", gamma=1.0),
        AdvantageTrial(3.2, 0.2, 0.1, 0.3, kind="planned", gamma=1.0),
    )
    said = describe_advantage(AdvantageChoice("planned", 1.0, 1_024, trials).record())
    assert said.startswith(
        "advantage: planned with gamma 1, chosen from data (counterfactual with gamma 0.95 earns 3.00 in 1,024"
    )
    assert "none -0.5 [-0.9, -0.1]; planned with gamma 1 +0.2 [+0.1, +0.3]; one is taken if" in said
    few = describe_advantage(AdvantageChoice("counterfactual", 0.95, 0, ()).record())
    assert few == "advantage: counterfactual with gamma 0.95, since there are too few users to choose it from data"
