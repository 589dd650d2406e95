"""From the records of a decision log to finished sessions, counted in the order in which they began."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from mbcal.decision_log import DecisionLog, Feedback, Record, compact_log
from mbcal.decision_log.follow import LogFollower
from mbcal.errors import OptionError
from mbcal.release.outcomes import OutcomeReader, Outcomes, SessionRule
from tests.support.decision_records import decision, mixed_records, write_log
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


def test_rewards_and_lengths_of_sessions() -> None:
    records = [
        *session_records("s1", "v1", ["like", "skip"], user="ann"),
        *session_records("s2", "v2", ["click", "click", "like", "like", "like"], user="ann", began=2 * SECOND),
        *session_records("s3", "v2", ["unknown"], began=3 * SECOND),
        decision(9, session="", id="alone", user="", time=4 * SECOND, version="v1", step=7, items=["c", "a"]),
        Feedback("alone", "a", "click", 4 * SECOND, "f1"),
        Feedback("alone", "a", "like", 4 * SECOND, "f2"),  # the first feedback on an item counts
        Feedback("alone", "c", "like", 4 * SECOND, "f3"),
    ]
    expected = [
        ("ann", "v1", 3.0, 2),
        ("ann", "v2", 5.0, 3),
        ("user of s3", "v2", 0.0, 1),
        ("anonymous:alone", "v1", 4.0, 2),
    ]
    assert rows(outcomes_of(records)) == expected
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


def test_nothing_counts_after_the_longest_time() -> None:
    endless = list(session_records("endless", "v1", ["click"] * 30, step_seconds=9))
    reader = OutcomeReader(REWARDS, replace(RULE, horizon=100))
    for record in endless:
        reader.add(record)
    assert len(reader.outcomes(50 * SECOND)) == 0
    assert rows(reader.outcomes(62 * SECOND)) == [("user of endless", "v1", 7.0, 7)]


def test_a_name_that_is_used_again_is_another_session() -> None:
    again = [replace_id(record) for record in session_records("s", "v2", ["like"], began=60 * SECOND)]
    records = [*session_records("s", "v1", ["click"]), *again]
    assert rows(outcomes_of(records)) == [("user of s", "v1", 1.0, 1), ("user of s", "v2", 3.0, 1)]


def replace_id(record: Record) -> Record:
    import msgspec

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


def test_wrong_rules_are_refused() -> None:
    for settings in ({"horizon": 0}, {"idle": 0}, {"idle": 9, "longest": 8}):
        with pytest.raises(OptionError, match="session rule"):
            SessionRule(**settings)  # type: ignore[arg-type]


def test_a_follower_reads_every_record_once(tmp_path: Path) -> None:
    records, folder = mixed_records(60), tmp_path / "log"
    follower = LogFollower(folder)
    assert list(follower.read()) == []
    with DecisionLog(folder, segment_bytes=1500) as log:
        read: list[Record] = []
        for number, record in enumerate(records):
            log.append(record).result(10)
            if number % 7 == 0:
                read += follower.read()
            if number == 40:
                assert compact_log(folder).segments > 1
    read += follower.read()
    assert read == records
    assert list(follower.read()) == []
    assert list(LogFollower(folder).read()) == records  # a restart begins anew
    write_log(folder / "worker-1", mixed_records(4))
    assert list(follower.read()) == mixed_records(4)


def test_a_follower_waits_for_the_rest_of_a_record_and_skips_damage(tmp_path: Path) -> None:
    records = mixed_records(6)
    write_log(tmp_path, records)
    (segment,) = tmp_path.glob("segment-*.log")
    content = segment.read_bytes()
    segment.write_bytes(content[:-3])
    follower = LogFollower(tmp_path)
    assert list(follower.read()) == records[:-1]
    segment.write_bytes(content)
    assert list(follower.read()) == records[-1:]
    damaged = bytearray(content)
    damaged[40] ^= 1  # in the first record
    segment.write_bytes(damaged)
    assert list(LogFollower(tmp_path).read()) == records[1:]
