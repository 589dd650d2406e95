"""The headline claims no more than the numbers: level, ahead, too small for the judge, trainings that overlap."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from mbcal.environments.trust import Trust
from mbcal.metrics import Mean
from mbcal.report.formats import format_interval, format_mean, format_p, format_value
from mbcal.report.standing import Standing, baseline_of, compare, standing

USERS = np.arange(400)
NOISE = np.random.default_rng(0).normal(size=400)
OTHER_NOISE = np.random.default_rng(1).normal(size=400)


def close_names(found: Standing) -> list[str]:
    """Methods that the best one is not distinguishable from."""
    return [gap.other for gap in found.close]


def rewards(*levels: float, noise: NDArray[np.float64] = NOISE) -> NDArray[np.float64]:
    """Rewards (seeds, 400) around one level per seed."""
    return np.stack([level + noise for level in levels])


def test_equal_methods_are_level() -> None:
    """A gap of 0.000, and a gap whose interval contains zero."""
    same = standing({"gru4rec": rewards(5.0), "mbcal": rewards(5.0)}, USERS, "gru4rec")
    assert close_names(same) == ["mbcal"]
    assert same.sentence() == "gru4rec is level with mbcal (+0.00 [+0.00, +0.00] per session against mbcal)."
    close = standing(
        {"mbcal": rewards(5.02), "gru4rec": rewards(5.0, noise=OTHER_NOISE), "x": rewards(1.0)}, USERS, "gru4rec"
    )
    assert close_names(close) == ["gru4rec"]
    assert close.sentence().startswith("mbcal is level with gru4rec (")
    assert "ahead" not in close.sentence()


def test_the_quoted_gap_is_that_to_the_method_that_is_level() -> None:
    """A noisy third method is level, the steady runner-up is not."""
    steady = rewards(4.0) + 0.1 * OTHER_NOISE
    noisy = rewards(3.9, noise=25 * (OTHER_NOISE - OTHER_NOISE.mean()))
    found = standing({"a": rewards(5.0), "b": steady, "c": noisy}, USERS, "b")
    assert (found.best, close_names(found)) == ("a", ["c"])
    assert found.runner_up is not None
    assert found.runner_up.other == "b"
    text = found.sentence()
    assert text.startswith("a is level with c (+1.")
    low, high = text.split("[")[1].split("]")[0].split(", ")
    assert float(low) < 0 < float(high)
    assert "per session against c), and ahead of b by " in text


def test_a_few_equal_gaps_and_gaps_that_are_no_numbers_are_no_lead() -> None:
    for count, relation in ((2, "level"), (5, "level"), (6, "ahead")):
        constant = {"x": np.full((1, count), 5.0), "y": np.full((1, count), 4.0)}
        assert compare("x", "y", constant, np.arange(count)).relation == relation
    damaged = {"x": np.full((3, 9), 5.0), "y": np.full((3, 9), 5.0)}
    damaged["y"][0, 0] = np.nan
    found = standing(damaged, np.arange(9), "y")
    assert len(found.close) == 1
    assert " is level with " in found.sentence()


def test_the_best_is_compared_with_the_runner_up_and_with_the_baseline() -> None:
    found = standing(
        {"mbcal": rewards(5.0), "dqn": rewards(4.0, noise=OTHER_NOISE), "gru4rec": rewards(2.0, noise=OTHER_NOISE)},
        USERS,
        "gru4rec",
    )
    assert (found.best, found.close, found.leaders) == ("mbcal", (), {"mbcal"})
    assert found.runner_up is not None
    assert found.baseline is not None
    assert (found.runner_up.other, found.baseline.other) == ("dqn", "gru4rec")
    assert found.baseline.gap.mean == pytest.approx(found.runner_up.gap.mean + 2, abs=1e-9)
    text = found.sentence()
    assert text.startswith("mbcal is ahead of the runner-up dqn by ")
    assert ", and ahead of gru4rec by " in text
    alone = standing({"mbcal": rewards(5.0)}, USERS, None)
    assert alone.sentence() == "mbcal is the only method, so there is nothing to compare it with."


def test_a_gap_below_what_the_judge_can_be_trusted_for_is_no_lead() -> None:
    trust = Trust(1.5, 0.1, 1.0, "")
    found = standing({"mbcal": rewards(5.0), "gru4rec": rewards(4.0, noise=OTHER_NOISE)}, USERS, "gru4rec", trust)
    assert found.runner_up is not None
    assert found.runner_up.relation == "untrusted"
    assert found.leaders == {"mbcal", "gru4rec"}
    assert found.sentence().startswith("mbcal is not distinguishable from gru4rec (+1.0")
    assert found.sentence().endswith(" per session against gru4rec; this judge can be trusted for 1.5 or more).")
    useless = standing({"x": rewards(9.0), "y": rewards(1.0)}, USERS, None, Trust(np.inf, np.inf, 0.0, "It knows nothing."))
    assert useless.sentence().endswith("; this judge can be trusted for nothing).")
    assert compare("gru4rec", "mbcal", {"mbcal": rewards(9.0), "gru4rec": rewards(4.0)}, USERS, trust).relation == "behind"


def test_all_methods_that_the_best_is_not_distinguishable_from_are_named() -> None:
    """The second is within the judge's error, the third, noisy, is level."""
    trust, noisy = Trust(0.5, 0.1, 0.5, ""), 25 * (OTHER_NOISE - OTHER_NOISE.mean())
    found = standing(
        {"a": rewards(5.0), "b": rewards(4.8), "c": rewards(4.7, noise=noisy), "d": rewards(1.0)}, USERS, "d", trust
    )
    assert [(gap.other, gap.relation) for gap in found.close] == [("b", "untrusted"), ("c", "level")]
    assert found.sentence() == (
        "a is not distinguishable from b and c (+0.20 [+0.20, +0.20] per session against b; this judge can be trusted for "
        "0.5 or more), and ahead of d by 4.00 per session [4.00, 4.00]."
    )


def test_trainings_that_overlap_are_named() -> None:
    steady = {"mbcal": rewards(5.0, 5.2), "gru4rec": rewards(4.0, 4.9, noise=OTHER_NOISE)}
    shaky = {"mbcal": rewards(5.0, 9.0), "gru4rec": rewards(5.5, 5.6)}
    assert "another training" not in standing(steady, USERS, "gru4rec").sentence()
    assert "though another training could turn it around" in standing(shaky, USERS, "gru4rec").sentence()
    one_training = {"mbcal": rewards(5.0), "gru4rec": rewards(4.0)}
    assert not compare("mbcal", "gru4rec", one_training, USERS).overlap


def test_many_level_methods_are_counted() -> None:
    found = standing({name: rewards(5.0) for name in "abcdef"}, USERS, None)
    assert found.sentence().startswith("a is level with b, c, d and 2 more (")


def test_the_baseline_of_a_run() -> None:
    assert baseline_of(["mbcal", "random", "gru4rec"]) == "gru4rec"
    assert baseline_of(["mbcal", "random", "popular"]) == "popular"
    assert baseline_of(["mbcal"]) is None


def test_numbers_for_readers() -> None:
    assert [format_value(value) for value in (None, 12345, 3.14159, 123.456, 0.2, 1e-6, True, "x")] == [
        "–", "12,345", "3.14", "123.46", "0.200", "0", "yes", "x",
    ]  # fmt: skip
    assert [format_value(value) for value in (0.9994, 0.9996, -0.09996, 9.994, 9.996, 10.0)] == [
        "0.999", "1.00", "-0.100", "9.99", "10.0", "10.00",
    ]  # fmt: skip
    assert [format_p(p) for p in (0.0, 3.154e-06, 0.001, 0.0234, 0.5, 1.0)] == [
        "<0.001", "<0.001", "0.001", "0.023", "0.50", "1.00",
    ]  # fmt: skip
    mean = Mean(15.2404, 14.8912, 15.5896, 400, 0.18)
    assert format_mean(mean, sign=True) == "+15.24"
    assert format_interval(mean, sign=True) == "[+14.89, +15.59]"
    assert format_interval(Mean(3.0, -np.inf, np.inf, 1, np.inf)) == ""
