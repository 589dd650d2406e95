"""What a summary concludes from the rewards of a run."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from mbcal.environments.trust import Trust
from tests.support.summaries import summary_of

NOISE = np.random.default_rng(0).normal(size=400)
OTHER_NOISE = np.random.default_rng(1).normal(size=400)


def rewards(level: float, noise: NDArray[np.float64] = NOISE) -> NDArray[np.float64]:
    """Rewards (1, 400) around a level."""
    return (level + noise)[None]


def test_protocols_disagree_only_if_one_can_tell() -> None:
    first, second = {"a": rewards(5.2), "b": rewards(5.0)}, {"a": rewards(5.0), "b": rewards(5.2)}
    real = summary_of({"lstm": first}, {"lstm": second})
    assert real.after_rounds() == (
        "Growing Batch-RL disagrees: there b is ahead of the runner-up a by 0.20 per session [0.20, 0.20]."
    )
    within = summary_of({"lstm": first}, {"lstm": second}, trust={"lstm": Trust(0.5, 0.1, 0.5, "")})
    assert within.after_rounds().startswith("After the last round of Growing Batch-RL, b is not distinguishable from a (")
    assert summary_of({"lstm": first}).after_rounds() == ""


def test_warnings_are_those_of_the_judge_they_concern() -> None:
    found = {"a": rewards(5.2), "b": rewards(5.0)}
    trust = {"lstm": Trust(0.5, 0.1, 0.5, "", "drift: it drifts")}
    warnings = summary_of({"truth": found, "lstm": found}, trust=trust).warnings()
    assert list(warnings) == ["lstm"]
    assert warnings["lstm"].startswith("The LSTM simulator: Large drift: it drifts. ")


def test_the_headline_says_that_no_method_earns_more_than_the_log() -> None:
    found = {"lstm": {"mbcal": rewards(5.0), "random": rewards(3.0)}}
    logged = 6.0 + NOISE
    assert summary_of(found, logged=logged).result() == (
        "mbcal is ahead of the runner-up random by 2.00 per session [2.00, 2.00]. "
        f"No method earns more than the log ({logged.mean():.2f})."
    )
    close = summary_of(found, logged=4.99 + OTHER_NOISE + NOISE.mean() - OTHER_NOISE.mean()).result()
    assert re.search(
        r" Whether mbcal earns more than the log \(\d\.\d\d\) cannot be told: \+0\.01\d? \[-.*\] per session\.$", close
    )
    assert "the log" not in summary_of(found, logged=4.0 + NOISE).result()
    assert "the log" not in summary_of(found).result()


def test_a_simulator_does_not_judge_gaps_to_the_log() -> None:
    found, trust = {"lstm": {"mbcal": rewards(5.0), "random": rewards(3.0)}}, {"lstm": Trust(0.5, 0.1, 0.5, "")}
    for level in (3.0, 7.0):
        result = summary_of(found, logged=level + NOISE, trust=trust).result()
        assert f"mbcal against the log ({(level + NOISE).mean():.2f}): {5 - level:+.2f} [" in result
        assert "which a simulator cannot judge" in result
        assert "No method earns more" not in result
