"""Verdicts on claims: computed from result files, over users, trainings, judges and data."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.logs import ROOT

sys.path.append(str(ROOT / "benchmarks"))

from results_claims import ANSWERS, CLAIMS, evidence, overall_verdict
from results_comparisons import TESTS, paired_gap, planned_note
from results_evidence import FAILS, HOLDS, UNKNOWN, Claim, Evidence
from results_experiments import EXPERIMENTS, PAGES, ResultFiles
from results_page import STALE, answer_line, cell_text, verdict_text

from mbcal.agents import AGENTS

BATCH = "judge,agent,reward per session,spread over seeds,seeds"
GAPS = "judge,method,against,gap,low,high"
SIZED = ((25, "mbcal", 9), (25, "dqn", 10), (12, "mbcal", 8), (12, "dqn", 6))
"""Rewards by size of the log."""


def write(folder: Path, name: str, *lines: str) -> None:
    (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")


def claim(table: str = "batch", *, more: str = "mbcal", less: str = "gru4rec", margin: float = 0.0) -> Claim:
    return Claim("ours", "", table, ("newsfeed", "netflix", "leaving"), tuple(more.split()), tuple(less.split()), margin)


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
    assert cell_text(found).split("<br>") == [
        "✓\N{NO-BREAK SPACE}5.0×",
        "2.0×\N{NO-BREAK SPACE}to\N{NO-BREAK SPACE}12×",
        "(dqn)",
    ]
    overlapping = evidence(claim("variance", less="dqn mcpe"), "newsfeed", ResultFiles(tmp_path))
    assert overlapping is not None
    assert (overlapping.verdict, overlapping.against) == (UNKNOWN, "mcpe")


def test_regret_of_a_choice_is_a_mean_over_seeds(tmp_path: Path) -> None:
    columns = "data,seed,judge,reward,regret,regret low,regret high,chosen"
    rows = [f"newsfeed,{seed},truth,100,{regret},{regret},{regret},planned" for seed, regret in enumerate((0.1, 0.2, 0.3))]
    best = [f"leaving,{seed},truth,90,0.0,0.0,0.0,{kind}" for seed, kind in enumerate(("none", "planned"))]
    write(tmp_path, "planning-choice", columns, *rows, *best, "netflix,0,lstm,80,,,,")
    files = ResultFiles(tmp_path)
    found = evidence(claim("choice", margin=0.01), "newsfeed", files)
    assert found is not None
    assert (found.value, found.bound, found.verdict) == (pytest.approx(-0.2), -1.0, HOLDS)
    assert found.high - found.value == pytest.approx(4.303 * 0.1 / 3**0.5, rel=1e-3)
    assert (str(found), found.limit_text) == ("0.20 [-0.05, 0.45]", "1")  # readers see the regret itself
    assert found.note == "planned in 3 of 3"
    assert evidence(claim("choice"), "netflix", files) is None
    none = evidence(claim("choice", margin=0.01), "leaving", files)
    assert none is not None
    said = "✓\N{NO-BREAK SPACE}0<br>(planned in 1 of 2, the choice was the best in all trainings)"
    assert cell_text(none).startswith(said)


def test_a_cell_of_mbcal_plan_says_how_often_it_planned(tmp_path: Path) -> None:
    for table in ("batch", "growing"):
        write(tmp_path, f"newsfeed-{table}-{table}", BATCH, "truth,mbcal-plan,12,0.3,3", "truth,mbcal,10,0.3,3")
        write(tmp_path, f"newsfeed-{table}-gaps", GAPS, "truth,mbcal-plan,mbcal,2,1.9,2.1")
    write(tmp_path, "newsfeed-batch-variance", "agent,seeds,MSE", "mbcal-plan,2,1", "mbcal,3,1")  # none where it planned
    chosen = [
        f"growing,mbcal-plan,{seed},{kind},{kind == ('planned' if seed else 'none')}"
        for seed in range(3)
        for kind in ("none", "planned")
    ]
    write(tmp_path, "newsfeed-growing-choices", "protocol,agent,seed,advantage,chosen", *chosen)
    for table, note in (("batch", "planned in 1 of 3"), ("growing", "planned in 2 of 3")):
        found = evidence(claim(table, more="mbcal-plan", less="mbcal"), "newsfeed", ResultFiles(tmp_path))
        assert found is not None
        assert found.note == note
        assert cell_text(found).endswith(f"<br>({note})")
    (tmp_path / "newsfeed-batch-variance.csv").unlink()
    unknown = evidence(claim(more="mbcal-plan", less="mbcal"), "newsfeed", ResultFiles(tmp_path))
    assert unknown is not None
    assert unknown.note == ""


def test_ranks_are_compared_on_logs_of_every_size(tmp_path: Path) -> None:
    ranks = {(100, "plan"): 0.9, (100, "cfa"): 0.8, (10, "plan"): 0.5, (10, "cfa"): 0.7}
    rows = [f"{size},{name},{seed},{rank}" for (size, name), rank in ranks.items() for seed in range(2)]
    write(tmp_path, "newsfeed-advantages", 'sessions,estimate,seed,"rank, logging"', *rows)
    found = evidence(claim("ranking", more="plan", less="cfa"), "newsfeed", ResultFiles(tmp_path))
    assert found is not None
    assert (found.value, found.verdict) == (pytest.approx(-0.2), FAILS)
    assert cell_text(found) == "✗\N{NO-BREAK SPACE}-0.2<br>(10 sessions, +0.100 with 100)"
    write(tmp_path, "newsfeed-advantages", 'sessions,estimate,seed,"rank, logging"', *rows[:-2])  # one size without cfa
    part = evidence(claim("ranking", more="plan", less="cfa"), "newsfeed", ResultFiles(tmp_path))
    assert part is not None
    assert (part.verdict, part.partial) == (UNKNOWN, True)


def test_sample_efficiency_is_about_a_sixteenth_of_the_log(tmp_path: Path) -> None:
    columns = "log sessions,judge,agent,reward per session,spread over seeds,seeds,low,high"
    rows = [f"{size},truth,{agent},{reward},0,3,{reward},{reward}" for size, agent, reward in SIZED]
    write(tmp_path, "newsfeed-size-size", columns, *rows)
    own, record = claim("size", less="dqn"), {"settings": {"log_sessions": 25}}
    (tmp_path / "newsfeed-size.json").write_text(json.dumps({"1-8": record}))
    assert evidence(own, "newsfeed", ResultFiles(tmp_path)) is None  # the smallest share there is an eighth
    (tmp_path / "newsfeed-size.json").write_text(json.dumps({"1-8": record, "1-16": {"settings": {"log_sessions": 12}}}))
    found = evidence(own, "newsfeed", ResultFiles(tmp_path))
    assert found is not None
    assert (found.value, found.verdict) == (2, HOLDS)


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
    large = Evidence(0.6, 0.55, 0.65, trusted=0.5)
    assert (large.is_small, large.verdict) == (False, HOLDS)
    wide = Evidence(0.6, 0.4, 0.8, trusted=0.5)  # more than the error, but not with the whole interval
    assert (wide.is_small, wide.verdict) == (True, UNKNOWN)
    assert Evidence(-0.6, -0.8, -0.4, trusted=0.5).verdict == UNKNOWN
    assert Evidence(-0.6, -0.65, -0.55, trusted=0.5).verdict == FAILS
    assert Evidence(0.2, 0.1, 0.3).verdict == HOLDS  # a judge that knows the truth
    assert Evidence(0.1, 0.0, 0.2, bound=-0.3, trusted=0.5).verdict == UNKNOWN  # 0.4 from the bound
    assert Evidence(0.3, 0.25, 0.4, bound=-0.3, trusted=0.5).verdict == HOLDS


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


def test_a_verdict_says_how_much_was_measured() -> None:
    holds, unknown = Evidence(2, 1, 3), Evidence(0, -1, 1)
    assert verdict_text(HOLDS, [holds, holds]) == "**holds**"
    assert verdict_text(HOLDS, [holds, None, None]) == "**holds**<br>(1 of 3 measured)"
    assert (
        verdict_text(UNKNOWN, [holds, unknown, None]) == "**inconclusive**<br>(2 of 3 measured)<br>✓\N{NO-BREAK SPACE}1 of 2"
    )
    assert verdict_text(None, [None]) == "not measured"


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
    if entry.table in ("batch", "discount", "growing", "size", "variance"):
        kind = "batch" if entry.table == "variance" else entry.table
        for data in entry.data:
            given = EXPERIMENTS[f"{data}-{kind}"]["agents"]
            assert {*entry.more, *entry.less} <= {*given, *(AGENTS if "all" in given else ())}


def test_the_answer_stands_as_long_as_its_claims_do(tmp_path: Path) -> None:
    write(tmp_path, "newsfeed-batch-batch", BATCH, "truth,mbcal,12,0.3,3", "truth,gru4rec,10,0.3,3")
    write(tmp_path, "newsfeed-batch-gaps", GAPS, "truth,mbcal,gru4rec,2,1.9,2.1")
    files = ResultFiles(tmp_path)
    assert answer_line("more: {✓ next-step.newsfeed}, {– next-step.leaving}.", files) == "more: +2.00 (✓), not measured yet."
    for stale in ("{? next-step.newsfeed}", "{?+ next-step.newsfeed}", "{– next-step.newsfeed}", "{✓ next-step.leaving}"):
        assert answer_line(stale, files) == STALE
    write(tmp_path, "newsfeed-growing-growing", BATCH, "truth,mbcal-plan,12,0.3,3", "truth,mbcal,10,0.3,3")
    write(tmp_path, "newsfeed-growing-gaps", GAPS, "truth,mbcal-plan,mbcal,2,1.9,2.1")
    assert answer_line("{?+ plan-growing.newsfeed}", ResultFiles(tmp_path)) == "+2.00 (in part)"


def test_the_answer_is_what_the_results_say() -> None:
    files = ResultFiles(ROOT / "docs" / "results")
    assert len(ANSWERS) == 5
    assert STALE not in [answer_line(line, files) for line in ANSWERS]
    for data in ("netflix", "ml1m", "kuairand"):  # where it never chose to plan
        notes = [planned_note(files, f"{data}-{kind}") for kind in ("batch", "growing")]
        assert all(note.startswith("planned in 0 of ") for note in notes if note)
        assert notes[0]
        values = evidence(next(entry for entry in CLAIMS if entry.name == "values"), data, files)
        assert values is not None  # where the simulators cannot tell
        assert (values.verdict, values.is_small) == (UNKNOWN, True)
