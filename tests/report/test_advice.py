"""What the report advises to do next, and how sure it says to be."""

from __future__ import annotations

import re
import shlex

import numpy as np
import pytest
from numpy.typing import NDArray

from mbcal.environments.trust import Trust
from mbcal.report.advice import certainty, next_steps
from tests.support.command_line import mbcal
from tests.support.summaries import summary_of

NOISE = np.random.default_rng(0).normal(size=400)
OTHER_NOISE = np.random.default_rng(1).normal(size=400)


def rewards(level: float, noise: NDArray[np.float64] = NOISE) -> NDArray[np.float64]:
    """Rewards (3, 400) around a level."""
    return np.stack([level + noise - noise.mean()] * 3)


def test_real_users_decide_by_a_canary_and_not_by_a_version_that_is_live_for_all() -> None:
    found = {"lstm": {"mbcal": rewards(5.0), "random": rewards(3.0)}}
    text, command = next_steps(summary_of(found, logged=4.0 + NOISE))[-1]
    assert text.startswith("Let real users decide: publish mbcal beside the live version, and make it the canary.")
    assert [shlex.split(line) for line in command.splitlines()] == [
        ["mbcal", "registry", "publish", "RUN/models/batch/mbcal", "--registry", "REGISTRY", "--no-activate"],
        ["mbcal", "registry", "canary", "VERSION", "--registry", "REGISTRY"],
    ]
    for unfit in (
        summary_of(found, logged=6.0 + NOISE),
        summary_of(found, logged=4.0 + NOISE, is_generated=True),
        summary_of({"lstm": {"random": rewards(5.0)}}, logged=4.0 + NOISE),
    ):
        assert not [text for text, _ in next_steps(unfit) if "real users" in text]


def test_the_advised_commands_exist() -> None:
    """Their words are options of the command line."""
    assert "--no-activate" in mbcal("registry", "publish", "--help").stdout
    assert "VERSION" in mbcal("registry", "canary", "--help").stdout


def test_the_sessions_that_would_show_a_gap_do_so_four_times_in_five() -> None:
    found = {"truth": {"mbcal": rewards(5.05), "dqn": rewards(5.0, OTHER_NOISE), "random": rewards(1.0)}}
    texts = [text for text, _ in next_steps(summary_of(found)) if "chance of 80%" in text]
    assert len(texts) == 1
    assert texts[0].startswith("If mbcal earns 0.05 per session more than dqn, about ")
    needed = int(re.search(r"about ([\d,]+) test", texts[0])[1].replace(",", ""))  # type: ignore[index]
    assert needed == pytest.approx(((1.960 + 0.8416) * (NOISE - OTHER_NOISE).std(ddof=1) / 0.05) ** 2, rel=0.01)
    generator = np.random.default_rng(2)
    draws = generator.normal(0.05, (NOISE - OTHER_NOISE).std(), (400, needed))
    seen = draws.mean(1) > 1.96 * draws.std(1) / np.sqrt(needed)
    assert seen.mean() == pytest.approx(0.8, abs=0.06)


def test_judges_agree_on_the_pairs_that_both_can_tell_apart() -> None:
    truth = {"a": rewards(9.0), "b": rewards(6.0), "c": rewards(5.9), "d": rewards(1.0)}
    lstm = {"a": rewards(9.0), "b": rewards(6.0), "c": rewards(6.1), "d": rewards(7.0)}
    summary = summary_of({"truth": truth, "lstm": lstm}, trust={"lstm": Trust(0.5, 0.1, 0.5, "")})
    judges = [text for text in certainty(summary) if text.startswith("Judges:")]
    # all but b and c; d is wrongly before b and c
    assert len(judges) == 1
    assert judges[0].endswith(" can both tell 5 of 6 pairs of methods apart, and rank 3 of these alike.")
    blind = summary_of({"truth": truth, "lstm": lstm}, trust={"lstm": Trust(np.inf, np.inf, 0.0, "no card")})
    assert certainty(blind)[-1].endswith(" can both tell 0 of 6 pairs of methods apart.")


def test_certainty_in_words() -> None:
    found = {"truth": {"mbcal": rewards(5.0), "random": rewards(3.0)}}
    texts = certainty(summary_of(found))
    assert (
        "mbcal against random: +2.00 [+2.00, +2.00] per session, a lead that would hold with other test users (95%)."
        in texts
    )
    assert "judged by the generated users themselves, 400 test sessions" in summary_of(found).measured()
