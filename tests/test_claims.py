"""Verdicts on claims: computed from result files, over users, trainings, judges and data."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.logs import ROOT

sys.path.append(str(ROOT / "benchmarks"))

from results_claims import CLAIMS, evidence, overall_verdict
from results_comparisons import TESTS, paired_gap
from results_evidence import FAILS, HOLDS, UNKNOWN, Claim, Evidence
from results_experiments import EXPERIMENTS, PAGES, ResultFiles
from results_page import cell_text

from mbcal.agents import AGENTS

BATCH = "judge,agent,reward per session,spread over seeds,seeds"
GAPS = "judge,method,against,gap,low,high"


def write(folder: Path, name: str, *lines: str) -> None:
    (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")


def claim(table: str = "batch", *, more: str = "mbcal", less: str = "gru4rec", margin: float = 0.0) -> Claim:
    return Claim("ours", "", table, ("newsfeed", "netflix"), tuple(more.split()), tuple(less.split()), margin)


def test_an_interval_covers_users_and_trainings(tmp_path: Path) -> None:
    write(tmp_path, "newsfeed-batch-batch", BATCH, "truth,mbcal,12,0.3,3", "truth,gru4rec,10,0.3,3")
    write(tmp_path, "newsfeed-batch-gaps", GAPS, "truth,gru4rec,mbcal,-2,-2.1,-1.9")
    gap = paired_gap(ResultFiles(tmp_path), "newsfeed-batch", "truth", "mbcal", "gru4rec")
    assert gap is not None
    trainings = 2.776 * (2 * 0.3**2 / 3) ** 0.5  # Student's t, four degrees of freedom
    assert gap.value == 2
    assert gap.high - 2 == pytest.approx((0.1**2 + trainings**2) ** 0.5, rel=2e-3)
    assert (gap.verdict, gap.trainings) == (HOLDS, 3)


def test_one_training_tells_nothing(tmp_path: Path) -> None:
    write(tmp_path, "newsfeed-batch-batch", BATCH, "truth,mbcal,12,,1", "truth,gru4rec,10,0.3,3")
    write(tmp_path, "newsfeed-batch-gaps", GAPS, "truth,mbcal,gru4rec,2,1.9,2.1")
    found = evidence(claim(), "newsfeed", ResultFiles(tmp_path))
    assert found is not None
    assert found.verdict == UNKNOWN
    assert evidence(claim(), "netflix", ResultFiles(tmp_path)) is None


@pytest.mark.parametrize(
    ("lstm", "transformer", "verdict", "judge"),
    [(2, 1, HOLDS, "transformer"), (-1, -2, FAILS, "transformer"), (-1, 2, UNKNOWN, "lstm"), (0, 2, UNKNOWN, "lstm")],
)
def test_both_simulators_must_agree(tmp_path: Path, lstm: float, transformer: float, verdict: str, judge: str) -> None:
    judges = {"lstm": lstm, "transformer": transformer}
    rewards = [f"{name},{agent},80,0,3" for name in judges for agent in ("mbcal", "gru4rec")]
    write(tmp_path, "netflix-batch-batch", BATCH, *rewards)
    write(
        tmp_path,
        "netflix-batch-gaps",
        GAPS,
        *(f"{name},mbcal,gru4rec,{g},{g - 0.5},{g + 0.5}" for name, g in judges.items()),
    )
    found = evidence(claim(), "netflix", ResultFiles(tmp_path))
    assert found is not None
    assert (found.judge, found.value, found.verdict) == (judge, judges[judge], verdict)
    assert found.disputed == (lstm == -1 and transformer == 2)


def test_a_claim_about_several_methods_is_decided_by_the_strongest(tmp_path: Path) -> None:
    agents = ("mbcal", "dqn", "mcpe")
    write(tmp_path, "newsfeed-batch-batch", BATCH, *(f"truth,{agent},100,0,3" for agent in agents))
    write(tmp_path, "newsfeed-batch-gaps", GAPS, "truth,mbcal,dqn,1,0.9,1.1", "truth,mbcal,mcpe,-3,-3.1,-2.9")
    files = ResultFiles(tmp_path)
    found = evidence(claim(less="dqn mcpe"), "newsfeed", files)
    assert found is not None
    assert (found.verdict, found.against, str(found)) == (FAILS, "mcpe", "-3.00 [-3.10, -2.90]")
    partial = evidence(claim(less="dqn ddqn"), "newsfeed", files)  # ddqn was not measured
    assert partial is not None
    assert (partial.verdict, partial.partial) == (UNKNOWN, True)
    allowed = evidence(claim(less="mcpe", margin=0.04), "newsfeed", files)  # four of a hundred may be lost
    assert allowed is not None
    assert (allowed.verdict, allowed.limit_text) == (HOLDS, "-4")


def test_errors_are_compared_by_their_factor(tmp_path: Path) -> None:
    write(
        tmp_path,
        "newsfeed-batch-variance",
        "agent,seeds,MSE,lowest MSE,highest MSE",
        "mbcal,3,2,1,4",
        "dqn,3,10,8,12",
        "mcpe,3,3,3,3",
    )
    found = evidence(claim("variance", less="dqn"), "newsfeed", ResultFiles(tmp_path))
    assert found is not None
    assert (found.verdict, found.value, found.low, found.high) == (HOLDS, 5, 2, 12)
    overlapping = evidence(claim("variance", less="dqn mcpe"), "newsfeed", ResultFiles(tmp_path))
    assert overlapping is not None
    assert (overlapping.verdict, overlapping.against) == (UNKNOWN, "mcpe")


def test_regret_of_a_choice_is_a_mean_over_seeds(tmp_path: Path) -> None:
    columns = "data,seed,judge,reward,regret,regret low,regret high"
    rows = [f"newsfeed,{seed},truth,100,{regret},{regret},{regret}" for seed, regret in enumerate((0.1, 0.2, 0.3))]
    write(tmp_path, "planning-choice", columns, *rows, "netflix,0,lstm,80,,,")
    files = ResultFiles(tmp_path)
    found = evidence(claim("choice", margin=0.01), "newsfeed", files)
    assert found is not None
    assert (found.value, found.bound, found.verdict) == (pytest.approx(-0.2), -1.0, HOLDS)
    assert found.high - found.value == pytest.approx(4.303 * 0.1 / 3**0.5, rel=1e-3)
    assert (str(found), found.limit_text) == ("0.20 [-0.05, 0.45]", "1")  # readers see the regret itself
    assert evidence(claim("choice"), "netflix", files) is None


def test_a_fall_in_growing_rounds_is_the_largest_of_any_training(tmp_path: Path) -> None:
    write(tmp_path, "newsfeed-growing-curves", "agent,seeds,round,fall", "mbcal,3,1,0", "mbcal,3,2,3.5", "dqn,3,2,9")
    found = evidence(claim("steady", margin=3), "newsfeed", ResultFiles(tmp_path))
    assert found is not None
    assert (found.value, found.verdict, str(found), found.limit_text) == (-3.5, FAILS, "3.5", "3")
    assert cell_text(found) == "✗\N{NO-BREAK SPACE}3.5<br>limit:\N{NO-BREAK SPACE}3"


def test_the_papers_number_stands_beside_ours(tmp_path: Path) -> None:
    write(tmp_path, "paper", *(ROOT / "docs" / "results" / "paper.csv").read_text().splitlines())
    for data, judge in (("netflix", "lstm"), ("newsfeed", "truth")):
        write(tmp_path, f"{data}-batch-batch", BATCH, f"{judge},mbcal,12,0.3,3", f"{judge},gru4rec,10,0.3,3")
        write(tmp_path, f"{data}-batch-gaps", GAPS, f"{judge},mbcal,gru4rec,2,1.9,2.1")
        write(tmp_path, f"{data}-batch-variance", "agent,seeds,MSE", "mbcal,3,1", "dqn,3,10")
    files, own = ResultFiles(tmp_path), claim()
    papers = replace(own, by="paper")
    texts = [found.paper_text for data in own.data for found in [evidence(papers, data, files)] if found is not None]
    assert texts == ["", "+0.08"]  # newsfeed, whose scale is another, and netflix
    errors = evidence(replace(papers, table="variance", less=("dqn",)), "newsfeed", files)
    assert errors is not None
    assert errors.paper_text == f"{4.29 / 0.07:.0f}×"
    ours = evidence(own, "netflix", files)
    assert ours is not None
    assert ours.paper is None


def test_a_gap_below_the_error_of_its_judge_tells_nothing() -> None:
    small = Evidence(0.2, 0.1, 0.3, trusted=0.5)
    assert (small.is_small, small.verdict, cell_text(small).split("<br>")[0]) == (True, UNKNOWN, "?°\N{NO-BREAK SPACE}+0.20")
    assert Evidence(-0.2, -0.3, -0.1, trusted=0.5).verdict == UNKNOWN
    large = Evidence(0.6, 0.5, 0.7, trusted=0.5)
    assert (large.is_small, large.verdict) == (False, HOLDS)
    assert Evidence(0.2, 0.1, 0.3).verdict == HOLDS  # a judge that knows the truth
    assert Evidence(0.1, 0.0, 0.2, bound=-0.3, trusted=0.5).verdict == UNKNOWN  # 0.4 from the bound
    assert Evidence(0.3, 0.2, 0.4, bound=-0.3, trusted=0.5).verdict == HOLDS


def test_a_claim_that_untrusted_gaps_alone_speak_for_is_inconclusive(tmp_path: Path) -> None:
    judges = {"lstm": 1, "transformer": 2}
    write(tmp_path, "netflix-batch-batch", BATCH, *(f"{j},{agent},80,0,3" for j in judges for agent in ("mbcal", "gru4rec")))
    write(tmp_path, "netflix-batch-gaps", GAPS, *(f"{j},mbcal,gru4rec,{g},{g - 0.1},{g + 0.1}" for j, g in judges.items()))
    for trusted, verdict in ((1.5, UNKNOWN), (0.5, HOLDS)):  # the lstm's error is above its gap, then below
        write(tmp_path, "netflix-batch-simulators", "family,trusted from", f"lstm,{trusted}", f"transformer,{trusted}")
        found = evidence(claim(), "netflix", ResultFiles(tmp_path))
        assert found is not None
        assert (found.judge, found.verdict) == ("lstm", verdict)


@pytest.mark.parametrize(
    ("value", "low", "high", "text"),
    [
        (0.177, 0.0026, 0.3514, "+0.177 [0.003, 0.351]"),
        (0.17, -0.0004, 0.34, "+0.1700 [-0.0004, 0.3400]"),
        (-0.0012, -0.12, 0.117, "0.00 [-0.12, 0.12]"),
        (1.876, -2.9, 6.65, "+1.9 [-2.9, 6.7]"),
        (0.177, 0.0, 0.354, "+0.18 [0.00, 0.35]"),
    ],
)
def test_an_interval_shows_on_which_side_of_zero_it_ends(value: float, low: float, high: float, text: str) -> None:
    assert str(Evidence(value, low, high)) == text


def test_one_data_set_refutes_a_claim() -> None:
    holds, fails, unknown = Evidence(2, 1, 3), Evidence(-2, -3, -1), Evidence(0, -1, 1)
    assert overall_verdict([holds, None, holds]) == HOLDS
    assert overall_verdict([holds, unknown]) == UNKNOWN
    assert overall_verdict([holds, unknown, fails]) == FAILS
    assert overall_verdict([None]) is None


@pytest.mark.parametrize("entry", CLAIMS, ids=lambda entry: entry.says)
def test_claims_name_what_exists(entry: Claim) -> None:
    assert entry.table in TESTS
    assert set(entry.data) <= set(PAGES["data"])
    if entry.table in ("batch", "growing", "size", "variance"):
        assert {*entry.more, *entry.less} <= set(AGENTS)
        kind = "batch" if entry.table == "variance" else entry.table
        assert {f"{data}-{kind}" for data in entry.data} <= set(EXPERIMENTS)
