"""From the records of a decision log to finished sessions, counted in the order in which they began."""

from __future__ import annotations

import random
from itertools import permutations
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mbcal.decision_log import DecisionLog, Feedback, Record, read_log
from mbcal.decision_log.follow import LogFollower
from mbcal.decision_log.reader import read_logs
from mbcal.errors import OptionError
from mbcal.release.counted_ids import CountedDecisions, CountedIds
from mbcal.release.ignored import Ignored, PartialVisits
from mbcal.release.outcomes import OutcomeReader, Outcomes, SessionRule
from tests.support.decision_records import decision
from tests.support.trials import SECOND, session_records

REWARDS = {"skip": 0.0, "click": 1.0, "like": 3.0}
RULE = SessionRule(horizon=3, idle=10, longest=60)


def outcomes_of(records: list[Record], now: int = 10**12, since: int = 0) -> Outcomes:
    reader = OutcomeReader(REWARDS, RULE, since)
    for record in records:
        reader.add(record)
    return reader.outcomes(now)


def rows(outcomes: Outcomes) -> list[tuple[str, str, float, int]]:
    return [
        (outcomes.users[user], outcomes.versions[version], reward, length)
        for user, version, reward, length in zip(
            outcomes.user.tolist(),
            outcomes.version.tolist(),
            outcomes.reward.tolist(),
            outcomes.length.tolist(),
            strict=True,
        )
    ]


def test_one_long_session_does_not_change_what_others_may_earn() -> None:
    short = [record for number in range(200) for record in session_records(f"s{number}", "v1", ["click", "skip"])]
    found = outcomes_of([*short, *session_records("bot", "v1", ["skip"] * 50)])
    assert (found.length.max(), found.min_reward, found.max_reward) == (
        50,
        0.0,
        3 * 3.0,
    )  # the horizon times the largest reward
    assert outcomes_of([*short, *session_records("keen", "v1", ["like"] * 50)]).max_reward == 3 * 3.0
    long = [record for number in range(5) for record in session_records(f"l{number}", "v1", ["skip"] * 50)]
    assert outcomes_of([*short, *long]).max_reward == 50 * 3.0  # more than 1% of sessions


def test_rewards_and_lengths_of_sessions() -> None:
    records = [
        *session_records("s1", "v1", ["like", "skip"], user="ann"),
        *session_records("s2", "v2", ["click", "click", "like", "like", "like"], user="amy", began=2 * SECOND),
        *session_records("s3", "v2", ["unknown"], began=3 * SECOND),
        decision(9, session="", id="alone", user="bob", time=4 * SECOND, version="v1", step=0, items=["c", "a"]),
        Feedback("alone", "a", "click", 4 * SECOND, "f1"),
        Feedback("alone", "a", "like", 4 * SECOND, "f2"),  # the first feedback on an item counts
        Feedback("alone", "c", "like", 4 * SECOND, "f3"),
    ]
    expected = [
        ("ann", "v1", 3.0, 2),
        ("amy", "v2", 11.0, 5),
        ("user of s3", "v2", 0.0, 1),
        ("bob", "v1", 4.0, 2),
    ]
    assert rows(outcomes_of(records)) == expected
    assert outcomes_of(records).size.tolist() == [3.0, 11.0, 0.0, 4.0]
    offered = outcomes_of(records).offered
    assert offered is not None
    assert offered.tolist() == [2, 5, 1, 2]
    assert outcomes_of(records).began.tolist() == [1 * SECOND, 2 * SECOND, 3 * SECOND, 4 * SECOND]
    repeated = [*records, *records]
    assert rows(outcomes_of(repeated)) == expected
    shuffled = [record for record in records if isinstance(record, Feedback) and record.id != "f2"]
    random.Random(0).shuffle(shuffled)  # feedback before its decisions, as from the log of another worker
    decisions = [record for record in records if not isinstance(record, Feedback)]
    assert sorted(rows(outcomes_of([*shuffled, *decisions]))) == sorted(expected)


def test_a_session_counts_for_the_version_of_its_first_decision() -> None:
    first, second = session_records("s", "v1", ["click"]), list(session_records("s", "v2", ["click", "like"]))[2:]
    assert rows(outcomes_of([*first, *second])) == [("user of s", "v1", 4.0, 2)]


def test_sessions_that_began_before_do_not_count() -> None:
    records = list(session_records("s", "v1", ["click", "click"], began=1 * SECOND))
    assert rows(outcomes_of(records, since=SECOND)) == [("user of s", "v1", 2.0, 2)]
    assert rows(outcomes_of(records, since=2 * SECOND)) == []  # its second step is no session of its own


def test_an_unfinished_session_holds_up_those_after_it() -> None:
    slow = session_records("slow", "v1", ["like", "like"], began=1 * SECOND, step_seconds=8)
    quick = session_records("quick", "v2", ["like", "like", "like"], began=2 * SECOND)
    records = [*slow, *quick]
    assert len(outcomes_of(records, now=15 * SECOND)) == 0
    assert len(outcomes_of(records, now=19 * SECOND)) == 0  # the slow one is idle for 9.5 seconds
    assert rows(outcomes_of(records, now=20 * SECOND)) == [("user of slow", "v1", 6.0, 2), ("user of quick", "v2", 9.0, 3)]


def test_a_session_is_finished_after_the_longest_time() -> None:
    endless = list(session_records("endless", "v1", ["click"] * 30, step_seconds=9))
    reader = OutcomeReader(REWARDS, RULE)
    for record in endless:
        reader.add(record)
    assert len(reader.outcomes(50 * SECOND)) == 0
    assert rows(reader.outcomes(62 * SECOND)) == [("user of endless", "v1", 7.0, 7)]


def test_a_name_that_is_used_again_is_another_session() -> None:
    again = [replace_id(record) for record in session_records("s", "v2", ["like"], began=60 * SECOND)]
    records = [*session_records("s", "v1", ["click"]), *again]
    assert rows(outcomes_of(records)) == [("user of s", "v1", 1.0, 1), ("user of s", "v2", 3.0, 1)]


def replace_id(record: Record) -> Record:
    if isinstance(record, Feedback):
        return msgspec.structs.replace(record, decision=f"again-{record.decision}", id=f"again-{record.id}")
    return msgspec.structs.replace(record, id=f"again-{record.id}")


def test_reading_bit_by_bit_gives_the_same() -> None:
    records = [
        record
        for number in range(40)
        for record in session_records(f"s{number}", f"v{number % 2}", ["like", "click"], began=number * SECOND)
    ]
    records.sort(key=lambda record: record.time)
    reader = OutcomeReader(REWARDS, RULE)
    for record in records:
        reader.add(record)
        reader.outcomes(record.time)
    assert rows(reader.outcomes(10**12)) == rows(outcomes_of(records))
    assert len(rows(outcomes_of(records))) == 40


@st.composite
def logged_sessions(draw: st.DrawFn) -> list[Record]:
    """Sessions of a few names with steps in any distance, several items, repeated and foreign feedback; unique times."""
    records: list[Record] = []
    gaps, names = st.integers(1, 25), st.sampled_from(["s1", "s2", "s3", ""])
    clock, steps = SECOND, {"s1": 0, "s2": 0, "s3": 0, "": 0}
    for number in range(draw(st.integers(1, 14))):
        clock += draw(gaps) * SECOND // 2 + 1
        name = draw(names)
        steps[name] = 0 if draw(st.booleans()) else steps[name] + 1
        version = draw(st.sampled_from(["v1", "v2"]))
        step = steps[name] if name else 0
        made = decision(number, id=f"d{number}", session=name, user="", step=step, version=version, time=clock)
        records.append(made)
        for answer in range(draw(st.integers(0, 4))):
            item, behaviour = draw(st.sampled_from(["a", "c", "foreign"])), draw(st.sampled_from([*REWARDS, "bye", "other"]))
            when = clock + draw(gaps) * SECOND // 3 + answer
            records.append(Feedback(f"d{number}", item, behaviour, when, f"f{number}-{answer}"))
    return records


@settings(max_examples=150, deadline=None)
@given(records=logged_sessions(), seed=st.integers(0, 2**32 - 1), logs=st.integers(1, 4))
def test_the_order_of_records_and_their_split_over_logs_do_not_matter(records: list[Record], seed: int, logs: int) -> None:
    """Looks happen in between; at each of them all records older than the look are there, in any order."""
    expected, noise = OutcomeReader(REWARDS, RULE, terminal=["bye"]), random.Random(seed)
    for record in sorted(records, key=lambda record: record.time):
        expected.add(record)
    final = rows(expected.outcomes(10**12))
    one_after_the_other = [record for log in range(logs) for record in records if hash(record.id) % logs == log]
    looks = sorted(noise.randrange(0, 250) * SECOND for _ in range(3))
    reader, before = OutcomeReader(REWARDS, RULE, terminal=["bye"]), -1
    for look in [*looks, 10**12]:
        new = [record for record in one_after_the_other if before < record.time <= look]
        repeated = [record for record in records if record.time <= look and noise.random() < 0.2]
        if noise.random() < 0.5:
            noise.shuffle(new)
        for record in [*new, *repeated]:
            reader.add(record)
        seen, before = rows(reader.outcomes(look)), look
        assert seen == final[: len(seen)]
    assert seen == final


def test_a_reward_after_a_terminal_behaviour_is_late_whenever_it_is_read() -> None:
    """A user leaves, and what was bought in the visit is reported a minute later."""
    visit = [
        decision(1, id="d1", session="s", user="ann", step=0, time=SECOND, items=["a", "b"]),
        Feedback("d1", "a", "bye", 2 * SECOND, "f1"),
    ]
    purchase = Feedback("d1", "b", "like", 62 * SECOND, "f2")
    for looks in ([10**12], [3 * SECOND, 10**12]):  # a watcher started later, and one that had counted the visit before
        reader = OutcomeReader(REWARDS, RULE, terminal=["bye"])
        for look in looks:
            for record in [*visit, purchase]:
                if record.time <= look:
                    reader.add(record)
            found = reader.outcomes(look)
        assert rows(found) == [("ann", found.versions[0], 0.0, 1)]
        assert reader.ignored.partial_visits == {found.versions[0]: PartialVisits(late=1, reward=3.0)}


def test_steps_that_other_workers_logged_count(tmp_path: Path) -> None:
    logs = [DecisionLog(tmp_path / f"worker-{number}") for number in range(4)]
    noise = random.Random(0)
    records: list[Record] = []
    for number in range(50):
        records += session_records(f"s{number}", "v1", ["click", "like", "like"], began=number * SECOND)
    records.sort(key=lambda record: record.time)
    for waiting in [noise.choice(logs).append(record) for record in records]:
        waiting.result(10)
    for log in logs:
        log.close()
    for read in (LogFollower(tmp_path).read(), read_log(tmp_path), read_logs([tmp_path])):
        outcomes = outcomes_of(list(read))
        assert outcomes.reward.tolist() == [7.0] * 50
        assert outcomes.length.tolist() == [3] * 50
    times = [record.time for record in LogFollower(tmp_path).read()]
    assert times == sorted(times)


def test_only_feedback_on_items_of_the_decision_counts_and_the_earliest_of_it() -> None:
    made = decision(0, id="d", session="", user="u", step=0, time=SECOND, items=["a"], propensities=[1.0])
    foreign = [Feedback("d", f"never-shown-{number}", "like", 2 * SECOND, f"f{number}") for number in range(30)]
    late, early = Feedback("d", "a", "like", 3 * SECOND, "f-late"), Feedback("d", "a", "click", 2 * SECOND, "f-early")
    for records in ([made, *foreign, late, early], [late, *foreign, early, made]):
        reader = OutcomeReader(REWARDS, RULE)
        for record in records:
            reader.add(record)
        assert rows(reader.outcomes(10**12)) == [("u", made.version, 1.0, 1)]
        further = PartialVisits(changed=1, reward=2.0)  # a like after a click
        assert reader.ignored == Ignored(not_shown=30, partial_visits={made.version: further})


@pytest.mark.parametrize(
    ("first", "further", "lowered"), [("like", "skip", 3.0), ("like", "click", 2.0), ("click", "like", 0.0)]
)
@pytest.mark.parametrize("is_late", [False, True])
def test_a_further_behaviour_counts_by_how_it_would_change_the_reward(
    first: str, further: str, lowered: float, is_late: bool
) -> None:
    """As an order that is cancelled: its reward is 0, and what it takes back is not."""
    made = decision(0, id="d", session="s", user="u", step=0, time=SECOND, items=["a"], propensities=[1.0])
    reader = OutcomeReader(REWARDS, RULE)
    for record in (made, Feedback("d", "a", first, 2 * SECOND, "f")):
        reader.add(record)
    if is_late:
        assert len(reader.outcomes(10**12)) == 1
    reader.add(Feedback("d", "a", further, 3 * SECOND, "g"))
    assert rows(reader.outcomes(10**12)) == [("u", made.version, REWARDS[first], 1)]
    change = abs(REWARDS[further] - REWARDS[first])
    assert reader.ignored.total() == PartialVisits(changed=1, reward=change, lowered=lowered)


def test_the_latest_of_decisions_with_one_id_counts() -> None:
    """A worker was killed after it had logged the first, which nobody saw."""
    changes = {"id": "d", "session": "", "user": "u", "step": 0, "propensities": [1.0]}
    unseen = decision(0, **changes, time=SECOND, items=["a"], version="v1")
    seen = decision(0, **changes, time=2 * SECOND, items=["b"], version="v2")
    answer = Feedback("d", "b", "like", 3 * SECOND, "f")
    for records in permutations([unseen, seen, answer]):
        reader = OutcomeReader(REWARDS, RULE)
        for record in records:
            reader.add(record)
        assert rows(reader.outcomes(10**12)) == [("u", "v2", REWARDS["like"], 1)]
        assert reader.ignored == Ignored(repeated=1)


def test_a_decision_counts_once_however_often_it_is_read() -> None:
    records = [record for n in range(30) for record in session_records(f"s{n}", "v1", ["like", "skip"], began=n * SECOND)]
    reader = OutcomeReader(REWARDS, RULE)
    for now in (100, 200, 10**4):
        for record in records:
            reader.add(record)
        assert len(reader.outcomes(now * SECOND)) == 30
    assert reader.ignored.repeated == 120
    assert not reader._decisions
    counted = CountedIds()
    for number in range(200_000):
        counted.add(f"d{number}")
    assert all(f"d{number}" in counted for number in range(0, 200_000, 997))
    assert "d200000" not in counted


def test_of_decisions_with_one_id_the_latest_counts() -> None:
    """A worker was killed after it logged a decision; the request was ranked and logged again, and that was answered."""
    lost = decision(1, id="d", session="s", user="ann", step=0, time=SECOND, version="v1", items=["a", "b"])
    answered = decision(1, id="d", session="s", user="ann", step=0, time=3 * SECOND, version="v2", items=["b", "c"])
    feedback = [Feedback("d", item, "like", 4 * SECOND, f"f{item}") for item in "bc"]
    for records in ([lost, answered, *feedback], [answered, lost, *feedback], [*feedback, answered, lost]):
        found = outcomes_of(records)
        assert rows(found) == [("ann", "v2", 6.0, 2)]
        assert found.began.tolist() == [3 * SECOND]


def test_records_that_wait_for_others_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mbcal.release.early_feedback.MOST_BYTES", 100_000)
    reader = OutcomeReader(REWARDS, RULE)
    for number in range(2000):  # of one decision that never comes, and of many
        reader.add(Feedback("never", f"item-{number}", "like", SECOND, f"f{number}"))
        reader.add(Feedback(f"unknown-{number}", "c", "like", SECOND, f"g{number}"))
        assert reader._early.used_bytes <= 100_000
    assert len(reader._early) < 340
    assert reader.ignored.dropped > 3600
    for number in range(100):  # long names take memory as well
        reader.add(Feedback(f"{number}" + "x" * 500, "i" * 500, "like", SECOND, f"h{number}"))
    assert len(reader._early) < 100_000 / 4000
    reader.outcomes(10**12)
    assert (reader._early.used_bytes, reader._bytes, len(reader._groups)) == (0, 0, 0)


def test_feedback_whose_decision_is_read_too_late_leaves_a_trace() -> None:
    made = decision(1, id="d", session="s", user="u", step=0, time=SECOND, items=["a", "b"])
    reader = OutcomeReader(REWARDS, RULE)
    for item in "ab":
        reader.add(Feedback("d", item, "like", 2 * SECOND, f"f{item}"))
    reader.outcomes(61 * SECOND)
    assert not reader.ignored
    reader.outcomes(63 * SECOND)  # longer than a session may last
    reader.add(made)
    assert rows(reader.outcomes(10**12)) == [("u", "v1", 0.0, 0)]
    assert reader.ignored == Ignored(dropped=2)
    assert "2 feedback whose decision did not come" in str(reader.ignored)


def test_a_session_that_goes_on_since_before_the_trial_takes_bounded_memory() -> None:
    reader, since = OutcomeReader(REWARDS, RULE, since=100 * SECOND), 100
    for second in range(since - 60, 2000, 5):
        reader.add(decision(second, session="kiosk", user="", step=0, time=second * SECOND))
        assert len(reader.outcomes(second * SECOND)) == 0
        assert len(reader._decisions) <= 60 / 5 + 2
    reader.add(decision(3000, session="kiosk", user="", step=0, time=3000 * SECOND))  # after a pause
    assert reader.outcomes(10**12).began.tolist() == [3000 * SECOND]


def test_a_long_session_counts_in_parts() -> None:
    endless = list(session_records("endless", "v1", ["click"] * 20, step_seconds=9))
    assert rows(outcomes_of(endless)) == [("user of endless", "v1", 7.0, 7)] * 2 + [("user of endless", "v1", 6.0, 6)]


def test_sessions_without_a_beginning_do_not_count_and_are_counted() -> None:
    missing_start, begun = session_records("s1", "v1", ["like"] * 3), session_records("s2", "v1", ["like"] * 3)
    reader = OutcomeReader(REWARDS, RULE)
    for record in [*list(missing_start)[2:], *begun]:
        reader.add(record)
    paused = decision(9, id="paused", session="s2", user="user of s2", step=3, time=100 * SECOND)
    reader.add(paused)
    reader.add(Feedback("paused", "a", "click", 101 * SECOND, "f"))
    assert rows(reader.outcomes(10**12)) == [("user of s2", "v1", 9.0, 3), ("user of s2", "v1", 1.0, 1)]
    assert reader.ignored == Ignored(partial_visits={"v1": PartialVisits(missing_start=1, reward=6.0)})
    assert str(reader.ignored).endswith("1 sessions without a beginning")
    late = OutcomeReader(REWARDS, RULE, since=2 * SECOND)  # the session was going on when the trial began
    for record in session_records("s1", "v1", ["like"] * 3):
        late.add(record)
    assert (len(late.outcomes(10**12)), not late.ignored) == (0, True)


def test_rewards_that_come_after_their_session_are_counted_as_late() -> None:
    records = list(session_records("s", "v1", ["like", "skip"]))
    late = [Feedback("s-0", "a", "like", 60 * SECOND, "f9"), Feedback("s-1", "a", "skip", 60 * SECOND, "f8")]
    records = [record for record in records if not isinstance(record, Feedback)]
    at_once, in_turn = (OutcomeReader(REWARDS, RULE) for _ in range(2))
    for record in [*records, *late]:
        at_once.add(record)
    assert rows(at_once.outcomes(10**12)) == [("user of s", "v1", 0.0, 0)]
    for record in records:
        in_turn.add(record)
    assert len(in_turn.outcomes(50 * SECOND)) == 1
    for _ in range(2):  # a log that is read twice
        for record in late:
            in_turn.add(record)
        in_turn.outcomes(10**12)
    assert at_once.ignored == Ignored(partial_visits={"v1": PartialVisits(late=1, reward=3.0)})
    assert in_turn.ignored == Ignored(partial_visits={"v1": PartialVisits(late=1, reward=3.0)})


@settings(max_examples=100, deadline=None)
@given(records=logged_sessions(), seed=st.integers(0, 2**32 - 1))
def test_what_is_late_does_not_depend_on_when_it_is_read(records: list[Record], seed: int) -> None:
    """A watcher that looks often finds the same as one that reads all at once, also if records are read again."""
    at_once, in_turn, noise = *(OutcomeReader(REWARDS, RULE, terminal=["bye"]) for _ in range(2)), random.Random(seed)
    records = sorted(records, key=lambda record: record.time)
    for number, record in enumerate(records):
        at_once.add(record)
        in_turn.add(record)
        if noise.random() < 0.5:
            in_turn.outcomes(record.time)
            in_turn.add(noise.choice(records[: number + 1]))
    at_once.outcomes(10**12)
    in_turn.outcomes(10**12)
    assert in_turn.ignored.partial_visits == at_once.ignored.partial_visits


def test_only_new_feedback_on_shown_items_is_late() -> None:
    """A client repeats what it sent, and makes up items, long after its visit: it cannot keep a canary from promotion."""
    reader = OutcomeReader(REWARDS, RULE)
    for record in session_records("s", "v1", ["like"]):
        reader.add(record)
    reader.add(decision(1, id="d", session="s", user="user of s", step=1, time=2 * SECOND, items=["a", "b"]))
    assert len(reader.outcomes(100 * SECOND)) == 1
    for number in range(50):
        reader.add(Feedback("s-0", "a", "like", 200 * SECOND, f"again-{number}"))
        reader.add(Feedback("d", f"made-up-{number}", "like", 200 * SECOND, f"made-up-{number}"))
    assert reader.ignored == Ignored(not_shown=50)
    for _ in range(2):
        reader.add(Feedback("d", "a", "like", 3 * SECOND, "slow"))  # from a log that was away at the last look
        reader.add(Feedback("d", "b", "skip", 300 * SECOND, "no reward"))
        reader.add(Feedback("d", "b", "like", 400 * SECOND, "second"))  # as in a session, the first counts
    further = PartialVisits(late=1, changed=1, reward=3.0 + 3.0)
    assert reader.ignored == Ignored(not_shown=50, partial_visits={"v1": further})


def test_an_app_that_sends_a_list_late_counts_as_one_decision() -> None:
    """It was offline, and sends 25 clicks on one list after its session is over; some are read with it, some later."""
    items = [f"i{number}" for number in range(30)]
    made = decision(1, id="d", session="s", user="u", step=0, time=SECOND, items=items, propensities=[1.0] * 30)
    clicks = [Feedback("d", item, "click", (60 + number) * SECOND, item) for number, item in enumerate(items[:25])]
    for n_with_it in (0, 10, 25):
        reader = OutcomeReader(REWARDS, RULE)
        for record in [made, *clicks[:n_with_it]]:
            reader.add(record)
        assert len(reader.outcomes(50 * SECOND)) == 1
        for record in clicks[n_with_it:]:
            reader.add(record)
        assert reader.ignored == Ignored(partial_visits={"v1": PartialVisits(late=1, reward=25.0)})


def test_feedback_on_decisions_from_before_the_trial_is_not_late() -> None:
    reader = OutcomeReader(REWARDS, RULE, since=50 * SECOND)
    reader.add(decision(1, id="d", session="s", user="u", step=0, time=SECOND))
    reader.outcomes(100 * SECOND)
    reader.add(Feedback("d", "a", "like", 101 * SECOND, "f"))
    assert not reader.ignored


def test_what_counted_decisions_had_shown_takes_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mbcal.release.counted_ids.MOST_SHOWN", 4000)
    monkeypatch.setattr("mbcal.release.counted_ids._FEWEST_TO_SORT", 100)
    counted = CountedDecisions()
    for number in range(10_000):
        counted.add(f"d{number}", f"v{number % 2}", ["a", "b"], {"a": ["click"]})
        ids = counted._shown
        assert len(ids._recent) + len(ids._sorted) + len(ids._older) <= 4700
    assert [counted.version_of(f"d{number}") for number in (0, 9999, 10_000)] == ["v0", "v1", None]
    recent = [counted.respond("d9999", item, "click") for item in ("a", "b", "b", "made up")]
    assert recent == ["again", "first", "again", "not shown"]
    assert [counted.respond("d9999", item, "like") for item in ("a", "a", "b")] == ["changed", "again", "changed"]
    forgotten = [counted.respond("d0", item, "click") for item in ("a", "b", "b", "made up")]
    assert forgotten == ["again", "first", "again", "again"]  # one late reward of an old decision, whatever it is about


def test_rewards_of_nameless_decisions_are_counted_once() -> None:
    unattributed = decision(1, id="d", session="", user="", items=["a", "b"], time=SECOND)
    feedback = [Feedback("d", item, "like", 2 * SECOND, f"f{item}") for item in "ab"]
    for records in (
        [unattributed, *feedback, *feedback],
        [*feedback, unattributed, *feedback],
        [unattributed, *feedback, unattributed],
    ):
        reader = OutcomeReader(REWARDS, RULE)
        for record in records:
            reader.add(record)
        assert reader.ignored == Ignored(partial_visits={"v1": PartialVisits(unattributed=1, reward=6.0)})


def test_what_is_apart_counts_for_its_version() -> None:
    """That of the session's first decision, also for rewards that are read when the session was counted."""
    reader = OutcomeReader(REWARDS, RULE)
    for record in [
        *list(session_records("missing_start", "v2", ["like"] * 2))[2:],
        *session_records("mixed", "v1", ["click"]),
        decision(1, id="d", session="mixed", user="user of mixed", step=1, time=2 * SECOND, version="v2", items=["a", "b"]),
        decision(2, id="n", session="", user="", time=SECOND, version="v1", items=["a", "b"]),
        decision(3, id="u", session="", user="u", step=0, time=3 * SECOND, version="v1"),
        decision(4, id="s", session="s", user="", step=0, time=4 * SECOND, version="v2"),
        decision(5, id="w", session="", user="w", step=0, time=5 * SECOND, version="v1"),
        Feedback("n", "a", "like", 2 * SECOND, "f1"),
    ]:
        reader.add(record)
    assert rows(reader.outcomes(100 * SECOND))[0] == ("user of mixed", "v1", 1.0, 1)
    reader.add(Feedback("n", "b", "click", 101 * SECOND, "f2"))
    reader.add(Feedback("d", "b", "like", 101 * SECOND, "f3"))
    assert reader.ignored.partial_visits == {
        "v1": PartialVisits(unattributed=1, late=1, reward=3.0 + 1.0 + 3.0),
        "v2": PartialVisits(
            missing_start=1, unmatched=1, reward=3.0
        ),  # there are fewer sessions without a user than without a session
    }
    assert reader.ignored.total() == PartialVisits(unattributed=1, late=1, missing_start=1, unmatched=1, reward=10.0)


def test_clocks_of_servers_may_differ() -> None:
    first, second = (list(session_records("s", "v1", ["like", "like"]))[n : n + 2] for n in (0, 2))
    early = [msgspec.structs.replace(record, time=record.time - 2 * SECOND) for record in second]
    reader = OutcomeReader(REWARDS, RULE)
    for record in [*early, *first]:
        reader.add(record)
    assert rows(reader.outcomes(10**12)) == [("user of s", "v1", 6.0, 2)]
    assert not reader.ignored


def test_a_large_log_is_counted_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [r for n in range(500) for r in session_records(f"s{n}", f"v{n % 2}", ["like", "click"], began=n * SECOND)]
    expected = rows(outcomes_of(records))
    monkeypatch.setattr("mbcal.release.outcomes.MOST_BYTES", 300_000)
    reader, most = OutcomeReader(REWARDS, RULE), 0
    for record in records:
        reader.add(record)
        most = max(most, reader._bytes)
    assert most < 400_000
    assert rows(reader.outcomes(10**12)) == expected


def test_wrong_rules_are_refused() -> None:
    for wrong in ({"horizon": 0}, {"idle": 0}, {"idle": 9, "longest": 8}):
        with pytest.raises(OptionError, match="session rule"):
            SessionRule(**wrong)  # type: ignore[arg-type]


def test_sessions_that_were_going_on_before_do_not_count() -> None:
    """Without feedback a session logs step 0 again: it has not begun with the trial."""
    since = 100 * SECOND
    silent = [
        decision(n, session="old", id=f"old-{n}", user="ann", time=(96 + 3 * n) * SECOND, version="v1", step=0)
        for n in range(3)
    ]
    new = session_records("new", "v1", ["click"], began=101 * SECOND)
    found = outcomes_of([*silent, *new], since=since)
    assert rows(found) == [("user of new", "v1", 1.0, 1)]
    assert rows(outcomes_of(silent, since=96 * SECOND)) == [("ann", "v1", 0.0, 0)]


@pytest.mark.parametrize(("users", "counted"), [(("", "ann"), "anonymous:s1"), (("ann", ""), "ann")])
def test_a_session_that_goes_on_after_a_login_has_one_beginning(users: tuple[str, str], counted: str) -> None:
    """All feedback comes at the end, so no decision knows that something was shown before a login or a logout."""
    pages = [
        decision(page, session="s1", id=f"d{page}", user=user, time=page * SECOND, version="v1", step=0)
        for page, user in enumerate(users, 1)
    ]
    feedback = [Feedback(f"d{page}", "a", "like", 3 * SECOND, f"f{page}") for page in (1, 2)]
    reader = OutcomeReader(REWARDS, RULE)
    for record in [*pages, *feedback, *session_records("s2", "v1", ["click"], user="ann", began=90 * SECOND)]:
        reader.add(record)
    assert rows(reader.outcomes(10**12)) == [(counted, "v1", 3.0, 1), ("ann", "v1", 1.0, 1)]
    assert reader.ignored.partial_visits == {"v1": PartialVisits(missing_start=1, reward=3.0)}
