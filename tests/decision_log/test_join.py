"""Joining records to sessions: what a step is, and that the order of the records does not matter."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mbcal import Behaviours, Catalog
from mbcal.data.user_split import stable_hash
from mbcal.decision_log import Decision, Feedback, Joined, candidate_width
from mbcal.decision_log.join import join_sessions
from mbcal.decision_log.records import Record
from mbcal.decision_log.visits import newest_time
from mbcal.errors import OptionError

CATALOG = Catalog(("a", "b", "c", "d"))  # rows 2, 3, 4, 5
BEHAVIOURS = Behaviours(("skip", "click"), (0.0, 1.0))


def decided(name: str, session: str = "s", user: str = "u", step: int = 0, time: int = 10, **changes: Any) -> Decision:
    values: dict[str, Any] = {"version": "v", "epsilon": 0.0, "history": [], "shown": [], "candidates": ["a", "b", "c"]}
    values |= {"items": ["b"], "propensities": [0.5], **changes}
    return Decision(id=name, session=session, user=user, step=step, time=time, **values)


def answered(decision: str, item: str = "b", behaviour: str = "click", time: int = 20, name: str = "f") -> Feedback:
    return Feedback(decision, item, behaviour, time, name)


def joined(*records: Record, horizon: int = 4, history: int = 3) -> Joined:
    return join_sessions(records, CATALOG, BEHAVIOURS, horizon=horizon, history=history)


def same(one: Joined, other: Joined) -> bool:
    arrays = zip(one.sessions.arrays(), other.sessions.arrays(), strict=True)
    alike = all(a[0] == b[0] and a[1].tobytes() == b[1].tobytes() and a[1].shape == b[1].shape for a, b in arrays)
    rest = ((found.users, found.session_names, found.counts, found.sessions.origin) for found in (one, other))
    return alike and next(rest) == next(rest)


def test_a_session_by_hand() -> None:
    found = joined(
        decided("d1", history=[("a", "skip"), ("new", "click")], items=["b", "c"], propensities=[0.5, 0.25], time=10),
        answered("d1", "c", "skip", time=40),
        answered("d1", "b", "click", time=50),
        decided(
            "d2", step=2, time=60, candidates=["d", "unheard of"], items=["d"], propensities=[0.75], history=[("d", "skip")]
        ),
        answered("d2", "d", "click", time=61),
    )
    sessions = found.sessions
    assert sessions.items.tolist() == [[3, 4, 5, 0]]  # as ranked, not as the feedback came
    assert sessions.behaviours.tolist() == [[1, 0, 1, 0]]
    assert sessions.propensities is not None
    assert sessions.propensities.tolist() == [[0.5, 0.25, 0.75, 0.0]]
    assert sessions.timestamps is not None
    assert sessions.timestamps.tolist() == [[10, 10, 60, 0]]
    assert sessions.candidates is not None
    assert sessions.candidates.tolist() == [[[2, 3, 4], [2, 4, 0], [5, 1, 0], [0, 0, 0]]]  # b was gone when c was chosen
    assert sessions.history_items.tolist() == [[2, 1, 0]]
    assert sessions.history_behaviours.tolist() == [[0, 1, 0]]
    assert (sessions.length.tolist(), sessions.history_length.tolist(), sessions.user.tolist()) == ([3], [2], [0])
    assert (found.users, found.session_names) == (("u",), ("s",))
    assert asdict(found.counts) == {
        "decisions": 2,
        "feedback": 3,
        "sessions": 1,
        "steps": 3,
        "unanswered": 0,
        "repeated_decisions": 0,
        "repeated_feedback": 0,
        "changed_feedback": 0,
        "orphans": 0,
        "other_versions": 0,
        "unknown_behaviours": {},
        "unknown_history": 0,
        "missing_start": 0,
        "unattributed": 0,
        "unmatched": 0,
        "since": None,
        "narrowed": 0,
        "lost": [],
        "new_items": 0,
    }


def test_the_first_of_repeated_feedback_counts() -> None:
    found = joined(
        decided("d1"),
        answered("d1", behaviour="click", time=30, name="a"),
        answered("d1", behaviour="skip", time=20, name="z"),
        answered("d1", behaviour="click", time=20, name="zz"),
        answered("d1", behaviour="skip", time=20, name="z"),
    )
    assert found.sessions.behaviours.tolist() == [[0, 0, 0, 0]]
    assert found.sessions.length.tolist() == [1]
    assert (found.counts.repeated_feedback, found.counts.changed_feedback) == (3, 1)
    rewards = found.sessions.behaviour_set.rewards
    origin, difference = found.origins[0][0], rewards[1] - rewards[0]
    assert (origin.raised, origin.lowered) == (max(difference, 0), max(-difference, 0))
    assert difference != 0
    again = joined(decided("d1"), answered("d1", time=20, name="z"), answered("d1", time=30, name="y"))
    assert (again.counts.repeated_feedback, again.counts.changed_feedback) == (1, 0)
    assert (again.origins[0][0].raised, again.origins[0][0].lowered) == (0, 0)


def test_the_latest_of_decisions_with_one_id_counts() -> None:
    early, late = decided("d1", time=5, propensities=[0.25]), decided("d1", time=6, propensities=[1.0])
    for records in ([early, late], [late, early], [late, early, late]):
        found = joined(*records, answered("d1"))
        assert found.sessions.propensities is not None
        assert found.sessions.propensities[0, 0] == 1.0
        assert found.counts.repeated_decisions == len(records) - 1


def test_unused_records_are_counted() -> None:
    found = joined(
        decided("d1", history=[("a", "stared at")]),
        decided("d2", step=1),
        decided("d3", session="silent"),
        answered("d1"),
        answered("d1", "a"),
        answered("d9"),
        answered("d9"),
        answered("d2", behaviour="licked"),
        answered("d2", behaviour="licked", time=1),
        answered("d2", behaviour="bitten"),
    )
    assert found.sessions.items.tolist() == [[3, 0, 0, 0]]
    assert found.session_names == ("s",)
    counts = found.counts
    assert (counts.decisions, counts.feedback, counts.sessions, counts.steps) == (3, 7, 1, 1)
    assert (counts.unanswered, counts.orphans, counts.repeated_feedback, counts.unknown_history) == (2, 3, 0, 1)
    assert counts.unknown_behaviours == {"bitten": 1, "licked": 2}


def test_feedback_of_other_versions_is_no_orphan() -> None:
    """The versions of a log that are not joined, such as a canary's, are known: only what has no decision is an orphan."""
    records = [
        answered("d2"),  # before its decision
        decided("d1"),
        decided("d2", session="t", version="canary"),
        answered("d1"),
        answered("d2", "c"),
        answered("d9"),
    ]
    found = join_sessions(records, CATALOG, BEHAVIOURS, horizon=4, history=3, versions={"v"})
    assert found.session_names == ("s",)
    counts = found.counts
    assert (counts.decisions, counts.feedback, counts.steps) == (1, 4, 1)
    assert (counts.orphans, counts.other_versions) == (1, 2)
    assert join_sessions(records, CATALOG, BEHAVIOURS, horizon=4, history=3).counts.orphans == 2  # d2 did not return c


def test_an_unknown_behaviour_does_not_hide_a_known_one() -> None:
    found = joined(decided("d1"), answered("d1", behaviour="licked", time=1), answered("d1", behaviour="click", time=2))
    assert found.sessions.behaviours[0, 0] == 1


def test_no_feedback_gives_no_sessions() -> None:
    found = joined()
    assert len(found.sessions) == 0
    assert found.sessions.items.shape == (0, 4)
    assert len(joined(decided("d1")).sessions) == 0


def test_late_feedback_is_ordered_by_its_decision() -> None:
    first, second = decided("d1", step=0, time=10), decided("d2", step=1, time=20, items=["c"])
    late = joined(first, second, answered("d2", "c", time=25), answered("d1", "b", time=10_000))
    assert same(late, joined(first, answered("d1", "b", time=10_000), second, answered("d2", "c", time=25)))
    assert late.sessions.items.tolist() == [[3, 4, 0, 0]]


def test_long_sessions_are_cut_and_keep_their_history() -> None:
    names = ["a", "b", "c", "d", "a"]
    records: list[Record] = []
    for step, name in enumerate(names):
        records += [decided(f"d{step}", step=step, time=step, items=[name], candidates=[name], history=[("d", "click")] * 2)]
        records += [answered(f"d{step}", name, "click" if step % 2 else "skip")]
    found = joined(*records, horizon=2, history=3)
    assert found.sessions.items.tolist() == [[2, 3], [4, 5], [2, 0]]
    assert found.sessions.length.tolist() == [2, 2, 1]
    assert found.sessions.history_items.tolist() == [[5, 5, 0], [5, 2, 3], [3, 4, 5]]
    assert found.sessions.history_behaviours.tolist() == [[1, 1, 0], [1, 0, 1], [1, 0, 1]]
    assert found.session_names == ("s",) * 3
    assert joined(*records, horizon=2, history=0).sessions.history_items.shape == (3, 0)
    with pytest.raises(OptionError, match=r"horizon: must lie in 1\.\.10000, got 0"):
        joined(horizon=0)


def test_sessions_belong_to_users_and_users_come_in_hashed_order() -> None:
    records: list[Record] = []
    for number in range(20):
        records += [decided(f"d{number}", session="main", user=f"u{number}", time=number), answered(f"d{number}")]
    found = joined(*records)
    assert len(found.sessions) == 20  # one name of a session, twenty users
    assert list(found.users) == sorted((f"u{number}" for number in range(20)), key=lambda name: stable_hash(name, 0, "user"))
    assert found.sessions.user.tolist() == list(range(20))
    later = joined(*records, decided("x", session="again", user="u3", time=3), answered("x"))
    assert len(later.sessions) == 21
    assert later.sessions.origin == found.sessions.origin


def test_a_clock_set_back_and_tiny_propensities_are_survived() -> None:
    found = joined(
        decided("d1", step=0, time=100, propensities=[1e-60]), decided("d2", step=1, time=50), answered("d1"), answered("d2")
    )
    assert found.sessions.timestamps is not None
    assert found.sessions.timestamps[0, :2].tolist() == [100, 100]
    assert found.sessions.propensities is not None
    assert found.sessions.propensities[0, 0] == np.finfo(np.float32).tiny


def test_a_session_whose_steps_begin_anew_cannot_be_judged_by_its_order() -> None:
    """A reload, or a server that forgot the session: what followed the second decision has a smaller number."""
    orderly = [
        decided("d1", step=0, time=10),
        decided("d2", step=1, time=20, items=["c"]),
        answered("d1"),
        answered("d2", "c"),
    ]
    again = [decided("d3", step=0, time=30, items=["a"]), answered("d3", "a")]
    assert joined(*orderly).counts.missing_start == 0
    assert joined(*orderly, *again).counts.missing_start == 0  # clocks may differ by so much
    late = [decided("d3", step=0, time=20 + 60_000_001, items=["a"]), answered("d3", "a")]
    assert joined(*orderly, *late).counts.missing_start == 1


@pytest.mark.parametrize(("item", "behaviour", "missing_start"), [("b", "click", 0), ("a", "click", 1), ("b", "skip", 1)])
def test_what_was_shown_tells_a_session_that_began_anew_from_clocks_that_differ(
    item: str, behaviour: str, missing_start: int
) -> None:
    """Two decisions after one step, the later of which is younger than one after two: by its clock, or since it forgot."""
    second = 10**6
    records = [
        decided("d1", time=second),
        decided("d2", step=1, time=4 * second, shown=[("b", "click")]),
        decided("d3", step=1, time=20 * second, shown=[(item, behaviour)]),
        decided("d4", step=2, time=8 * second, shown=[("b", "click"), ("c", "skip")]),
    ]
    answers = [answered(record.id, name=record.id) for record in records]
    assert joined(*records, *answers).counts.missing_start == missing_start


def test_sessions_may_go_on_until_they_are_idle_or_left() -> None:
    hour = 3600 * 10**6
    records: list[Record] = [
        decided("old", session="old", user="a", time=1),
        decided("new", session="new", user="b", time=hour),
    ]
    records += [
        decided(f"full{k}", session="full", user="c", step=k, time=hour + k, items=[item]) for k, item in enumerate("ab")
    ]
    records += [answered("old"), answered("new"), answered("full0", "a"), answered("full1", "b")]
    found = joined(*records, horizon=2)
    assert dict(zip(found.session_names, found.may_go_on().tolist(), strict=True)) == {
        "old": False,
        "new": True,
        "full": True,  # in another row
    }


def test_a_clock_that_runs_ahead_does_not_end_all_sessions() -> None:
    """One of 201 records is a day ahead; all others are of the same minute."""
    minute = 60 * 10**6
    times = [minute + number for number in range(200)]
    assert newest_time(np.asarray(times, np.int64)) == times[-2]  # 0.5% left out
    assert newest_time(np.asarray([5, 3], np.int64)) == 5
    assert newest_time(np.zeros(0, np.int64)) == 0
    records: list[Record] = []
    for number, time in enumerate([*times, 86_400 * 10**6]):
        records += [decided(f"d{number}", session=f"s{number}", user=f"u{number}", time=time), answered(f"d{number}")]
    assert joined(*records).may_go_on().all()


def test_one_request_with_many_candidates_does_not_widen_all_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = ["d", *(f"unheard of {number}" for number in range(500))]
    records: list[Record] = [
        record for number in range(200) for record in (decided(f"d{number}", session=f"s{number}"), answered(f"d{number}"))
    ]
    records += [decided("wide", session="wide", candidates=wide, items=["d"]), answered("wide", "d")]
    found = joined(*records)
    assert found.sessions.tensors().require_candidates().numpy().shape == (201, 4, 501)
    assert found.counts.narrowed == 0
    monkeypatch.setattr(candidate_width, "MAX_BYTES", 201 * 4 * 4 * 10)  # room for ten
    found = joined(*records)
    candidates = found.sessions.tensors().require_candidates().numpy()
    assert (candidates.shape, found.counts.narrowed) == ((201, 4, 10), 1)
    row = found.session_names.index("wide")
    assert candidates[row, 0].tolist() == [5, *[1] * 9]  # d, and nine that are unknown
    assert np.array_equal(joined(*reversed(records)).sessions.tensors().require_candidates().numpy(), candidates)
    monkeypatch.setattr(candidate_width, "MAX_BYTES", 0)
    assert joined(*records).sessions.tensors().require_candidates().numpy().shape == (201, 4, 3)  # what 99% of steps have


def test_all_sessions_begun_during_a_long_one_follow_it() -> None:
    """One of eleven hours, and three of a minute in it; another user's is alone."""
    hour = 3600 * 10**6
    times = [("long", "u", 0), ("long", "u", 11), *((f"s{number}", "u", number) for number in (1, 3, 5)), ("s9", "v", 2)]
    records: list[Record] = []
    for number, (session, user, at) in enumerate(times):
        step = int(number == 1)
        records += [
            decided(f"d{number}", session=session, user=user, step=step, time=at * hour + 1, items=["a" if step else "b"]),
            answered(f"d{number}", "a" if step else "b"),
        ]
    found = joined(*records)
    precedes, follows = found.sessions_followed_soon()
    names = np.asarray(found.session_names)
    assert set(names[precedes]) == {"long"}
    assert set(names[follows]) == {"s1", "s3", "s5"}


@pytest.mark.parametrize(("begun", "last"), [(False, "click"), (True, "click"), (True, "nothing that the model knows")])
@pytest.mark.parametrize(("minutes", "is_one_visit"), [(29, True), (31, False)])
def test_a_visit_goes_on_after_the_end_of_a_film(minutes: int, is_one_visit: bool, begun: bool, last: str) -> None:
    """Films of an hour; feedback comes at their end, and the next one is chosen some minutes later."""
    minute = 60 * 10**6
    times = [1, 61 * minute + minutes * minute]

    def watched(name: str, session: str) -> list[Record]:
        place = int(name[1])
        item, end = "ab"[place], times[place] + 61 * minute - 1
        return [
            decided(name, session=session, user="u", step=0, time=times[place], items=[item]),
            *([answered(name, item, time=times[place] + 1)] if begun else []),  # what counts, since it is the first
            answered(name, item, behaviour=last, time=end, name=f"end of {name}"),
            *([answered(name, item, time=end + 300 * minute, name=f"rated {name}")] if begun else []),
        ]

    found = joined(*watched("d0", "s0"), *watched("d1", "s1"))
    assert [rows.tolist() for rows in found.sessions_followed_soon()] == [[is_one_visit, False], [False, is_one_visit]]
    found = joined(*watched("d0", ""), *watched("d1", ""))
    assert found.sessions.length.tolist() == ([2] if is_one_visit else [1, 1])


def test_feedback_that_comes_after_the_next_session_began_says_nothing_of_when_the_first_ended() -> None:
    hour = 3600 * 10**6
    records = [
        decided("d0", session="s0", user="u", step=0, time=1),
        answered("d0", time=9 * hour),
        decided("d1", session="s1", user="u", step=0, time=5 * hour),
        answered("d1", time=5 * hour + 1),
    ]
    assert not any(rows.any() for rows in joined(*records).sessions_followed_soon())


def test_what_was_served_before_feedback_came() -> None:
    """A list of two, then two lists of one; the feedback on the second list comes after the third was served."""
    found = joined(
        decided("d1", time=10, items=["a", "b"], propensities=[0.5, 0.5]),
        answered("d1", "a", time=11),
        answered("d1", "b", time=12),
        decided("d2", time=20, step=2, items=["c"]),
        decided("d3", time=30, step=2, items=["d"], candidates=["d"]),
        answered("d2", "c", time=40),
        answered("d3", "d", time=41),
        horizon=5,
    )
    assert found.last_served().tolist() == [[1, 1, 3, 3, 4]]


@pytest.mark.parametrize(("known", "last"), [(1, 0), (0, 1)])
def test_feedback_that_a_server_did_not_know_may_be_younger_than_its_clock_says(known: int, last: int) -> None:
    found = joined(
        decided("d1", time=10), answered("d1", time=19), decided("d2", time=20, step=known, items=["a"]), answered("d2", "a")
    )
    assert found.last_served()[0, 0] == last
    minute = 60 * 10**6
    later = joined(
        decided("d1", time=10), answered("d1", time=19), decided("d2", time=2 * minute, items=["a"]), answered("d2", "a")
    )
    assert later.last_served()[0, 0] == 0  # clocks do not differ by so much


def test_candidates_are_those_that_were_chosen_from() -> None:
    """Items shown before are left out, unless the server repeats items or none would be left."""
    shown = [("b", "click"), ("c", "skip")]

    def candidates(**changes: Any) -> list[int]:
        found = joined(
            decided("d", items=["a"], step=2, **{"shown": shown, **changes}), answered("d", "a")
        ).sessions.candidates
        assert found is not None
        return found[0, 0].tolist()

    assert candidates() == [2]
    assert candidates(repeats=True) == [2, 3, 4]
    assert candidates(shown=[*shown, ("a", "skip")]) == [2, 3, 4]


def test_rows_name_the_version_that_decided_them() -> None:
    records = [decided("d1"), answered("d1"), decided("d2", step=1, version="w"), answered("d2", name="g")]
    records += [decided("d3", session="t", version="w"), answered("d3", name="h")]
    found = joined(*records)
    assert dict(zip(found.session_names, found.versions, strict=True)) == {"s": None, "t": "w"}
    assert found.decided_by("w").tolist() == [found.session_names.index("t")]
    assert joined(*records, horizon=1).versions.count("w") == 2


def test_an_item_returned_twice_is_one_step() -> None:
    found = joined(decided("d1", items=["b", "b"], propensities=[0.5, 0.1]), answered("d1"))
    assert found.sessions.length.tolist() == [1]
    assert found.sessions.propensities is not None
    assert found.sessions.propensities[0, 0] == 0.5


names = st.sampled_from("abcdx")
ids = st.sampled_from([f"d{number}" for number in range(6)])
decisions = st.builds(
    lambda name, session, user, step, time, items, history: decided(
        name, session, user, step, time, items=items, propensities=[0.5] * len(items), history=history
    ),
    ids,
    st.sampled_from("st"),
    st.sampled_from("uvw"),
    st.integers(0, 3),
    st.integers(0, 3),
    st.lists(names, max_size=3),
    st.lists(st.tuples(names, st.sampled_from(["skip", "click", "odd"])), max_size=3),
)
answers = st.builds(
    answered, ids, names, st.sampled_from(["skip", "click", "odd"]), st.integers(0, 3), st.sampled_from(["f", "g"])
)


record_lists = st.lists(st.one_of(decisions, answers), max_size=25)
shuffled_records = record_lists.flatmap(lambda records: st.tuples(st.just(records), st.permutations(records)))


@settings(max_examples=200)
@given(shuffled_records, st.integers(1, 3))
def test_any_order_gives_the_same_sessions(orders: tuple[list[Record], list[Record]], horizon: int) -> None:
    one, other = (joined(*records, horizon=horizon) for records in orders)
    assert same(one, other)
    counts = one.counts
    assert counts.steps == int(one.sessions.length.sum())
    unknown = sum(counts.unknown_behaviours.values())
    assert counts.feedback == counts.steps + counts.repeated_feedback + counts.orphans + unknown


@given(record_lists)
def test_repeated_records_count_once(records: list[Record]) -> None:
    once, twice = joined(*records), joined(*records, *records)
    assert [array.tobytes() for _, array in once.sessions.arrays()] == [
        array.tobytes() for _, array in twice.sessions.arrays()
    ]


def test_every_step_has_the_exploration_of_its_decision() -> None:
    first, second = decided("d1", epsilon=0.1), decided("d2", step=1, time=30, items=["a"], epsilon=0.4)
    records = [first, second, answered("d1"), answered("d2", "a", name="g")]
    assert joined(*records).epsilons.tolist() == [[0.1, 0.4, 0.0, 0.0]]


def test_decisions_without_a_session_are_joined_to_visits_of_their_user() -> None:
    minute = 60_000_000
    seen = [("b", "click")]
    records = [
        decided("d1", session="", time=10 * minute, history=[("a", "skip")]),
        decided("d2", session="", time=39 * minute),  # nothing is said to be shown, but the user was there a moment ago
        decided("d3", session="", time=99 * minute, step=1, shown=seen),  # an hour later, but it goes on
        decided("d4", session="", time=130 * minute),  # a new visit
        decided("d5", session="", time=131 * minute, user="other", step=1, shown=seen, history=[("a", "skip")]),
        decided("d6", session="s", time=131 * minute),
        decided("d7", session="", time=131 * minute, user=""),
        decided("d8", session="", time=131 * minute, user="", step=1, shown=seen),
    ]
    answers = [answered(record.id, name=f"f{record.id}", time=record.time + 1) for record in records]
    found = joined(*records, *answers)
    by_session = {
        name: (found.users[found.sessions.user[row]], [origin.decision for origin in found.origins[row]])
        for row, name in enumerate(found.session_names)
    }
    assert by_session == {
        "d1": ("u", ["d1", "d2", "d3"]),
        "d4": ("u", ["d4"]),
        "d5": ("other", ["d5"]),
        "s": ("u", ["d6"]),
        "d7": ("anonymous:d7", ["d7"]),
        "d8": ("anonymous:d8", ["d8"]),
    }
    history = {name: int(found.sessions.history_length[row]) for row, name in enumerate(found.session_names)}
    assert found.counts.missing_start == 2  # d5 and d8
    assert history == {"d1": 1, "d4": 0, "d5": 2, "s": 0, "d7": 0, "d8": 1}  # what was shown before all that is logged, too
    assert same(found, joined(*reversed(answers), *reversed(records)))
