"""Cutting, splitting and the order of ties, against a slow reference implementation in plain Python."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mbcal import SessionConfig, prepare
from mbcal.data.cutting import Steps, cut
from mbcal.data.store_format import PARTS
from mbcal.data.user_split import part_of, stable_hash
from mbcal.errors import OptionError
from tests.support.logs import REWARDS, Row, content, expected, read_back, table, write_rows

ROWS = st.lists(
    st.builds(
        Row,
        user=st.sampled_from(["anna", "bob", "ĉio", "7"]),
        item=st.sampled_from(["x", "y", "z", "10", "9"]),
        time=st.integers(1_600_000_000, 1_600_000_000 + 4000),
        behaviour=st.sampled_from(list(REWARDS)),
        session=st.sampled_from(["s1", "s2", "s3"]),
    ),
    min_size=1,
    max_size=60,
)
CUTS = st.builds(
    SessionConfig,
    horizon=st.integers(1, 7),
    history=st.integers(0, 5),
    gap=st.none() | st.sampled_from([0.5, 5.0]),
    seed=st.integers(0, 3),
    max_rejected=st.just(1.0),
)


@settings(max_examples=60)
@given(rows=ROWS, how=CUTS, by_session=st.booleans(), suffix=st.sampled_from([".csv", ".parquet"]), data=st.data())
def test_store_equals_the_reference_implementation(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[Row],
    how: SessionConfig,
    by_session: bool,
    suffix: str,
    data: st.DataObject,
) -> None:
    folder = tmp_path_factory.mktemp("reference")
    ends = [(), ("like",), ("skip", "like"), *([("length",)] if by_session or how.gap else [])]
    how = replace(how, min_length=data.draw(st.integers(1, how.horizon)), ends=data.draw(st.sampled_from(ends)))
    store = prepare(table(write_rows(folder / f"log{suffix}", rows), session=by_session), folder / "store", how)
    assert read_back(store) == expected(rows, how, by_session)


@settings(max_examples=25)
@given(rows=ROWS, how=CUTS, by_session=st.booleans(), seed=st.integers(0, 99))
def test_order_of_rows_and_files_never_matters(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row], how: SessionConfig, by_session: bool, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("order")
    one = write_rows(folder / "log.csv", rows)
    shuffled = rows.copy()
    random.Random(seed).shuffle(shuffled)
    half = len(shuffled) // 2
    two = [write_rows(folder / f"part{k}.csv", part) for k, part in enumerate((shuffled[:half], shuffled[half:]))]
    first = prepare(table(one, session=by_session), folder / "a", how)
    second = prepare(table(*reversed(two), session=by_session), folder / "b", how)
    assert content(first.path) == content(second.path)


@settings(max_examples=25)
@given(rows=ROWS, how=CUTS, by_session=st.booleans())
def test_no_step_twice_history_before_and_parts_disjoint(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row], how: SessionConfig, by_session: bool
) -> None:
    folder = tmp_path_factory.mktemp("properties")
    store = prepare(table(write_rows(folder / "log.csv", rows), session=by_session), folder / "store", how)
    part_of: dict[str, str] = {}
    steps: list[tuple[str, str, str, int]] = []
    for session in read_back(store):
        assert part_of.setdefault(session.user, session.part) == session.part
        steps += [(session.user, *step) for step in session.steps]
        times = [time for _, _, time in session.steps]
        assert times == sorted(times)
        earlier = {(r.item, r.behaviour) for r in rows if r.user == session.user and r.time <= times[0]}
        assert set(session.history) <= earlier
    if not by_session:
        assert len(steps) == len(set(steps)) == store.manifest["counts"]["rows"]
    assert store.manifest["counts"]["rows"] + sum(store.manifest["rejected"].values()) == len(rows)
    for part in PARTS:
        for shard in store.shards(part):
            assert shard.length.min() >= 1
            assert shard.length.max() <= how.horizon
            assert by_session or (shard.start - shard.history_length >= 0).all()
            assert (np.diff(shard.start) >= shard.length[:-1]).all()


def test_windows_by_hand() -> None:
    user = np.array([7, 7, 7, 7, 7, 8, 8])
    windows = cut(Steps(user, np.arange(7)), SessionConfig(horizon=3, history=2))
    assert windows.user.tolist() == [7, 7, 8]
    assert windows.start.tolist() == [0, 3, 5]
    assert windows.length.tolist() == [3, 2, 2]
    assert windows.history_length.tolist() == [0, 2, 0]
    assert windows.order is None


def test_short_windows_are_counted_and_remain_history() -> None:
    minutes = np.array([0, 1, 60, 120, 121]) * 60_000_000
    windows = cut(Steps(np.zeros(5, int), minutes), SessionConfig(horizon=3, history=9, min_length=2, gap=30))
    assert windows.start.tolist() == [0, 3]
    assert windows.history_length.tolist() == [0, 3]
    assert windows.dropped == 1


def test_overlapping_sessions_have_the_latest_steps_as_history() -> None:
    # one user, times 0 … 4, sessions A B B A C: kept as A A B B C
    sessions = np.array([5, 9, 9, 5, 7], np.uint64)
    windows = cut(Steps(np.zeros(5, int), np.arange(5), sessions), SessionConfig(horizon=9, history=2))
    assert windows.order is not None
    assert windows.history is not None
    assert windows.order.tolist() == [0, 3, 1, 2, 4]
    assert windows.start.tolist() == [0, 2, 4]
    assert windows.history_length.tolist() == [0, 1, 2]
    # B is preceded by time 0; C by times 2 and 3, which are kept at places 3 and 1
    assert windows.history.tolist() == [[-1, -1], [0, -1], [3, 1]]


def test_no_steps_no_windows() -> None:
    windows = cut(Steps(np.zeros(0, int), np.zeros(0, np.int64)), SessionConfig())
    assert len(windows.start) == windows.dropped == 0


def test_split_follows_shares_and_is_stable_under_growth() -> None:
    how = SessionConfig(split=(0.5, 0.3, 0.2), seed=4)
    parts = [part_of(stable_hash(f"user {k}", 4, "part"), how.split) for k in range(20_000)]
    shares = np.bincount(parts) / len(parts)
    assert np.allclose(shares, how.split, atol=4 * 0.5 / 20_000**0.5)
    assert parts[:100] == [part_of(stable_hash(f"user {k}", 4, "part"), how.split) for k in range(100)]


def test_another_seed_another_split(tmp_path: Path) -> None:
    rows = [Row(f"u{k}", "x", 1_600_000_000 + k, "click") for k in range(60)]
    log = write_rows(tmp_path / "log.csv", rows)
    parts = {}
    for seed in (0, 1):
        store = prepare(table(log), tmp_path / f"{seed}", SessionConfig(seed=seed))
        parts[seed] = {session.user: session.part for session in read_back(store)}
    assert parts[0].keys() == parts[1].keys()
    assert parts[0] != parts[1]


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("horizon", 0, r"horizon: must lie in 1\.\.10000"),
        ("history", -1, r"history: must lie in 0\.\.10000"),
        ("min_length", 21, r"min-length: must lie in 1\.\.20"),
        ("gap", 0.0, "gap: must be a positive"),
        ("split", (0.5, 0.5), "split: must be three shares"),
        ("split", (0.9, 0.2, 0.1), "add up to 1"),
        ("split", (1.2, -0.4, 0.2), "split"),
        ("max_rejected", 2.0, "max-rejected"),
        ("seed", -1, "seed: must lie"),
        ("seed", 2**63, "seed: must lie"),
    ],
)
def test_wrong_options_are_named(option: str, value: object, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        SessionConfig(**{option: value})  # type: ignore[arg-type]
