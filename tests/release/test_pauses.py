"""Sessions that go on after a pause of hours: the log shows how long to wait for them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from mbcal import Behaviours
from mbcal.decision_log import Decision, Feedback, Joined, Record
from mbcal.decision_log.join import join_sessions
from mbcal.release.obstacles import ended_rows, longest_pause, partial_visits_problem
from tests.release.test_obstacles import judged
from tests.support.landing import BEHAVIOURS, CATALOG, LIVE, MINUTE, visits, whole


def paused(lengths: list[list[int]], *, horizon: int = 4, names: Behaviours = BEHAVIOURS) -> Joined:
    """A session for each list of minutes at which decisions were made, all of them clicked."""
    records: list[Record] = []
    for session, minutes in enumerate(lengths):
        for step, minute in enumerate(minutes):
            name, time = f"d{session}-{step}", minute * MINUTE
            said = [("plain", "click")] * step
            records.append(
                Decision(
                    name,
                    time,
                    f"s{session}",
                    f"u{session}",
                    step,
                    LIVE,
                    0.5,
                    [],
                    said,
                    ["plain"],
                    ["plain"],
                    [1.0],
                    repeats=True,
                )
            )
            records.append(Feedback(name, "plain", "click", time + 1, f"f{name}"))
    return join_sessions(records, CATALOG, names, horizon=horizon)


def by_session(joined: Joined, rows: NDArray[np.int64]) -> list[str]:
    return sorted({joined.session_names[row] for row in rows.tolist()})


def test_the_longest_pause_up_to_each_step_is_found_across_windows() -> None:
    joined = paused([[10, 70, 75, 200, 201], [20, 30]], horizon=3)
    pauses = {
        (joined.session_names[row], len(origins)): (joined.pauses()[row] // MINUTE).tolist()
        for row, origins in enumerate(joined.origins)
    }
    assert pauses == {("s0", 3): [0, 60, 60], ("s0", 2): [125, 125, 0], ("s1", 2): [0, 10, 0]}


@pytest.mark.parametrize(
    ("pauses", "tolerance", "expected"),
    [
        ([5] * 10, 0.0, 30),  # as long as servers remember a session
        ([5] * 9 + [200], 0.0, 200),
        ([5] * 9 + [200], 0.1, 30),  # a tenth of the sessions, and less of the reward
        ([5] * 8 + [100, 200], 0.1, 100),
    ],
)
def test_pauses_of_few_sessions_are_left_out(pauses: list[int], tolerance: float, expected: int) -> None:
    joined = paused([[1, 1 + pause] for pause in pauses])
    assert longest_pause(joined, np.arange(10), tolerance) == expected * MINUTE


def test_pauses_before_much_of_the_reward_count() -> None:
    """One session of ten has a tenth of the pauses, and two thirds of the reward after it."""
    joined = paused([[1]] * 9 + [[1, *range(201, 221)]], horizon=30)
    assert longest_pause(joined, np.arange(10), 0.1) == 200 * MINUTE
    assert longest_pause(joined, np.arange(10), 0.7) == 30 * MINUTE


def test_sessions_are_waited_for_as_long_as_others_pause() -> None:
    """All pause for three hours; those that began in the last three have not come back."""
    joined = paused([[minute, *([minute + 180] if minute <= 420 else [])] for minute in range(0, 601, 10)])
    judging, early = np.arange(len(joined.sessions)), np.flatnonzero([row[0].time <= 420 * MINUTE for row in joined.origins])
    assert longest_pause(joined, judging, 0.0) == 180 * MINUTE
    ended = ended_rows(joined, judging, 0.0)
    assert set(ended) < set(early)
    assert len(ended) == 25  # all that came back three hours before the end
    assert partial_visits_problem(joined, ended, 0.0) == ""
    assert partial_visits_problem(joined, judging, 0.0) == (
        f"{len(judging) - 25} of {len(judging)} judging sessions may still be going on, as others do after 180 minutes: "
        "update later"
    )


def test_whether_a_user_left_is_not_known_before_that() -> None:
    """Where the length of a session shows it, the last step says so after half an hour."""
    joined = paused([[0, 180], [300], [360]], names=BEHAVIOURS.with_leaving())
    assert joined.sessions.left.tolist() == [name != "s2" for name in joined.session_names]
    assert by_session(joined, np.flatnonzero(joined.may_go_on())) == ["s2"]
    assert by_session(joined, np.flatnonzero(joined.may_go_on(181 * MINUTE))) == ["s0", "s1", "s2"]
    ends = Behaviours(("skip", "click"), (0.0, 1.0), terminal=("click",))
    assert not paused([[360]], names=ends).may_go_on(181 * MINUTE).any()


def test_what_comes_after_hours_is_not_missing_from_what_the_gate_sees(tmp_path: Path) -> None:
    """All visits go on after five to eight hours, and the bait costs only then: most of a log of eight does not show it."""
    records: list[Record] = []
    for record in visits(2000, whole, pages=3):
        visit, page = map(int, record.id.removeprefix("f-")[1:].split("-"))
        minutes = visit / 4 + (300 + visit * 37 % 180 + page if page else 0)
        if minutes <= 500:
            records.append(msgspec.structs.replace(record, time=int(minutes * MINUTE) + isinstance(record, Feedback)))
    verdict = judged(tmp_path, records)
    assert verdict.difference is not None
    assert verdict.difference.low > 0
    assert (verdict.answer, verdict.action) == ("cannot tell", "canary")
    assert "judging sessions may still be going on, as others do after 4" in verdict.reason
