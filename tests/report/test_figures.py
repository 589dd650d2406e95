"""Figures of a run: what they name, and what they mark."""

from __future__ import annotations

import re

import numpy as np
import pytest
from numpy.typing import NDArray

from mbcal.environments.trust import Trust
from mbcal.report.figures import draw_figures
from tests.support.summaries import summary_of

NOISE = np.random.default_rng(0).normal(size=60)


def rewards(level: float) -> NDArray[np.float64]:
    return (level + NOISE)[None]


@pytest.fixture(scope="module")
def texts() -> dict[str, list[str]]:
    """By figure: its texts, which SVG keeps as comments."""
    methods = {"mbcal": rewards(7.0), "gru4rec": rewards(5.0), "random": rewards(3.0)}
    batch = {"truth": {**methods, "oracle": rewards(9.0)}, "lstm": methods}
    trust = {"lstm": Trust(1.25, 0.1, 1.0, "", "drift: it drifts")}
    summary = summary_of(batch, {"truth": methods, "lstm": methods}, trust=trust, logged=4.0 + NOISE)
    figures = draw_figures(summary)
    return {name: re.findall(r"<!-- (.*?) -->", svg.decode()) for name, svg in figures.items() if name.endswith(".svg")}


def test_figures_name_the_protocol_and_mark_a_judge_with_a_warning(texts: dict[str, list[str]]) -> None:
    for name, title in (("batch", "Batch-RL"), ("growing", "Growing Batch-RL")):
        for kind in ("", "-gaps"):
            found = texts[f"{name}{kind}.svg"]
            assert {title, "judged by truth", "judged by lstm (!)", "trusted for differences of 1.25 or more"} <= set(found)
    assert texts["batch-gaps.svg"].count("grey: within the simulator's own error; gaps to the log may be further off") == 1
    assert texts["curves.svg"].count("Growing Batch-RL, judged by truth") == 1


def test_a_panel_has_rows_for_what_its_judge_tested_alone(texts: dict[str, list[str]]) -> None:
    for name in ("batch.svg", "batch-gaps.svg"):
        assert [texts[name].count(row) for row in ("oracle", "mbcal", "random", "the log")] == [1, 2, 2, 2], name
    assert (texts["batch.svg"].count("gru4rec"), texts["batch-gaps.svg"].count("gru4rec")) == (2, 0)


def test_curves_have_lines_for_the_oracle_chance_and_the_log(texts: dict[str, list[str]]) -> None:
    assert sorted(text for text in texts["curves.svg"] if text[0].isalpha()) == sorted(
        [
            "round",
            "reward per session",
            "Growing Batch-RL, judged by truth",
            "mbcal",
            "gru4rec",
            "oracle",
            "random",
            "the log",
        ]
    )
