"""A split by time: parts in order of time, and nothing from after a cut in what comes before it."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mbcal import SessionConfig, Store, prepare
from mbcal.agents.lookup import agent_class
from mbcal.data.behaviour_rules import Quantiles
from mbcal.data.describe import describe
from mbcal.data.ingest import Ingestion, LocalIngest
from mbcal.data.store_format import PARTS
from mbcal.data.time_split import first_reaching
from mbcal.data.workspace import Workspace
from mbcal.distributed.group import SINGLE_WORKER
from mbcal.distributed.worker_slice import WorkerSlice
from mbcal.environments.candidates import sample_candidates
from mbcal.errors import InputError, OptionError
from mbcal.evaluation.sampling import sample_test_sessions
from tests.support.logs import Row, content, expected, read_back, table, write_csv, write_rows

BEGIN = 1_700_000_040  # a whole minute
BY_TIME = SessionConfig(horizon=4, history=3, split_by_time=True)
LABELS = ("skip", "click", "like")


def _rows(count: int = 1500, seed: int = 0) -> list[Row]:
    """Items arrive over time, and users too; three minutes a row on average."""
    random_ = random.Random(seed)
    rows = []
    for k in range(count):
        item = max(0, k // 5 - int(random_.expovariate(0.05)))
        user = random_.randrange(1 + k // 10)
        rows.append(Row(f"u{user}", f"i{item}", BEGIN + k * 180 + random_.randrange(60), random_.choice(LABELS)))
    return rows


def _store(folder: Path, rows: list[Row], config: SessionConfig = BY_TIME, name: str = "store") -> Store:
    return prepare(table(write_rows(folder / f"{name}.csv", rows)), folder / name, config)


def _cuts(store: Store) -> tuple[int, int]:
    first, second = store.manifest["options"]["time_cuts"]
    return first // 1_000_000, second // 1_000_000


def test_parts_are_those_of_the_reference_cut_by_time(tmp_path: Path) -> None:
    rows = _rows()
    store = _store(tmp_path, rows)
    first, second = _cuts(store)
    times = sorted(row.time for row in rows)
    assert sum(time < first for time in times) == pytest.approx(0.4 * len(rows), abs=2)
    assert sum(time < second for time in times) == pytest.approx(0.8 * len(rows), abs=2)
    by_user = replace(BY_TIME, split_by_time=False)
    part_of = {session.user: session.part for session in expected(rows, by_user)}
    close = {"simulator": first, "train": second, "test": 10**12}
    used = [row for row in rows if row.time < close[part_of[row.user]]]
    kept = expected([row for row in used if part_of[row.user] != "test"], by_user)
    # windows of test users begin anew at the cut, but histories go on across it
    early = [row for row in used if part_of[row.user] == "test" and row.time < second]
    for user in {row.user for row in used if part_of[row.user] == "test"}:
        before = [
            step
            for s in expected([r for r in early if r.user == user], replace(by_user, horizon=10_000))
            for step in s.steps
        ]
        for session in expected([r for r in used if r.user == user and r.time >= second], by_user):
            past = [(item, behaviour) for item, behaviour, _ in before]
            history = tuple([*past, *session.history][-3:])
            kept.append(replace(session, history=history))
            before_now = [(item, behaviour) for item, behaviour, _ in session.steps]
            assert len(before_now) <= 4
    assert read_back(store) == sorted(kept)
    assert {session.part for session in kept} == set(PARTS)
    assert [datetime.fromisoformat(cut).timestamp() for cut in describe(store)["time_cuts"]] == [first, second]
    assert store.manifest["counts"]["outside_parts"] == len(rows) - len(used)


def _change_after(rows: list[Row], cut: int, seed: int = 1) -> list[Row]:
    """Everything from the cut on happens otherwise: other times, items and users (also new ones), behaviours."""
    random_ = random.Random(seed)
    changed = [row for row in rows if row.time < cut]
    for row in rows:
        if row.time >= cut:
            user = row.user if random_.random() < 0.5 else f"new{random_.randrange(40)}"
            item = row.item if random_.random() < 0.5 else f"fresh{random_.randrange(60)}"
            changed.append(Row(user, item, cut + random_.randrange(10**7), random_.choice(LABELS)))
    return changed


@pytest.mark.parametrize("options", [{}, {"alive": 0.2}, {"negatives": 2, "max_per_user": 12, "ends": ("like",)}])
def test_nothing_after_a_cut_changes_what_is_before_it(tmp_path: Path, options: dict[str, Any]) -> None:
    rows, config = _rows(), replace(BY_TIME, **options)
    store = _store(tmp_path, rows, config)
    for number, parts in enumerate((("simulator",), ("simulator", "train"))):
        cut = _cuts(store)[number]
        given = replace(config, time_cuts=tuple(store.manifest["options"]["time_cuts"]))
        other = _store(tmp_path, _change_after(rows, cut), given, f"changed-{number}")
        assert content(other.path) != content(store.path)
        for part in parts:
            for kind in ("steps", "sessions"):
                name = f"{kind}-{part}-0000.parquet"
                assert (other.path / name).read_bytes() == (store.path / name).read_bytes()
            ours, theirs = store.sessions(part), other.sessions(part)
            assert len(ours) > 20
            np.testing.assert_array_equal(sample_candidates(ours, 3), sample_candidates(theirs, 3))
            users = [store.users[user] for user in ours.user]
            assert users == [other.users[user] for user in theirs.user]
        early = [name for name, time in _first_seen(store).items() if time < cut * 1_000_000]
        assert len(early) > 50
        assert [_first_seen(other)[name] for name in early] == [_first_seen(store)[name] for name in early]
        assert other.catalog.items[: len(early)] == store.catalog.items[: len(early)] == tuple(early)


def test_nothing_of_the_test_changes_the_context_of_the_others(tmp_path: Path) -> None:
    """Vocabularies, means and deviations of fields are of rows before the cut of the test part."""
    rows = _rows()
    cut = _cuts(_store(tmp_path, rows))[1]
    stores = []
    for name, changed in (("one", rows), ("two", _change_after(rows, cut))):
        path = tmp_path / f"{name}.csv"
        values = [
            (r.user, r.item, r.time, r.behaviour, f"d{len(r.item) if r.time < cut else r.time % 9}", r.time % 50)
            for r in changed
        ]
        write_csv(path, values, ("user", "item", "time", "behaviour", "device", "hour"))
        log = replace(table(path), context={"device": None, "hour": "number"})
        stores.append(
            prepare(log, tmp_path / f"store-{name}", replace(BY_TIME, time_cuts=(BEGIN * 10**6 + 10**11, cut * 10**6)))
        )
    for part in ("simulator", "train"):
        for kind in ("steps", "sessions"):
            first, second = ((store.path / f"{kind}-{part}-0000.parquet").read_bytes() for store in stores)
            assert first == second


def _first_seen(store: Store) -> dict[str, int]:
    life = store.catalog.life
    assert life is not None
    return dict(zip(store.catalog.items, life.first_seen[2:].tolist(), strict=True))


def test_the_cuts_depend_on_what_is_before_them_and_the_number_of_rows(tmp_path: Path) -> None:
    rows, times = _rows(500), []
    for later in (0, 5_000, 10**7):
        second = sorted(row.time for row in rows)[399] // 60 * 60 + 60
        moved = [replace(row, time=row.time + later) if row.time >= second else row for row in rows]
        times.append(_cuts(_store(tmp_path, moved, name=f"later-{later}")))
        assert times[-1] == times[0]
        assert times[-1][1] == second
        before = sum(row.time < times[-1][0] for row in moved)
        assert 200 <= before < 203  # rows are three minutes apart
        assert times[-1][0] % 60 == 0
    with pytest.raises(InputError, match="no rows are left for part train"):
        _store(tmp_path, [replace(row, time=BEGIN + k // 400) for k, row in enumerate(rows)], name="one")
    with pytest.raises(OptionError, match="time_cuts"):
        SessionConfig(time_cuts=(1, 2))


def test_counts_up_to_a_target() -> None:
    counts = np.array([3, 1, 6])
    assert [first_reaching(counts, target) for target in (1, 3, 4, 4.5, 10)] == [(0, 0), (0, 0), (1, 3), (2, 4), (2, 4)]


def test_levels_are_cut_before_the_first_cut(tmp_path: Path) -> None:
    """Cut points by quantiles see no row from after the simulator's time."""
    cuts = []
    for late in (1, 1000):
        folder = tmp_path / str(late)
        folder.mkdir()
        rows = [
            Row(f"u{k % 50}", f"i{k % 7}", BEGIN + 60 * k, str(k % 10 if k < 400 else late * (k % 10))) for k in range(1000)
        ]
        with Workspace(folder / "store") as work:
            log = table(write_rows(folder / "log.csv", rows)).read(work)
            Ingestion(replace(log, rule=Quantiles(3)), BY_TIME, work, LocalIngest(work), _Silent()).run()
            work.publish()
        cuts.append(Store.open(folder / "store").behaviours.cuts)
    assert cuts[0] == cuts[1]


class _Silent:
    def phase(self, name: str, total: int | None = None) -> None: ...

    def advance(self, count: int) -> None: ...


def test_order_of_rows_never_matters_and_sessions_of_the_log_are_cut(tmp_path: Path) -> None:
    rows = [replace(row, session=f"s{k // 7}") for k, row in enumerate(_rows(600))]
    log = write_rows(tmp_path / "log.csv", rows)
    store = prepare(table(log, session=True), tmp_path / "store", BY_TIME)
    shuffled = write_rows(tmp_path / "shuffled.csv", random.Random(5).sample(rows, len(rows)))
    again = prepare(table(shuffled, session=True), tmp_path / "again", BY_TIME)
    assert content(again.path) == content(store.path)
    test = store.sessions("test")
    assert test.timestamps is not None
    assert int(test.timestamps[:, 0].min()) >= store.manifest["options"]["time_cuts"][1]
    for part, cut in (("simulator", 0), ("train", 1)):
        times = store.sessions(part).timestamps
        assert times is not None
        assert int(times.max()) < store.manifest["options"]["time_cuts"][cut]


def test_candidates_are_alive_when_the_session_begins(tmp_path: Path) -> None:
    rows = _rows()
    for alive in (None, 0.5):
        config = replace(BY_TIME, alive=alive, split_by_time=False) if alive else BY_TIME
        store = _store(tmp_path, rows, config, f"alive-{alive}")
        sessions, first_seen = store.sessions("train"), _first_seen(store)
        by_hand: dict[str, int] = {}
        for row in sorted(rows, key=lambda row: row.time):
            by_hand.setdefault(row.item, row.time * 1_000_000)
        assert first_seen == by_hand
        candidates = sample_candidates(sessions, 0)
        assert sessions.timestamps is not None
        counts = []
        for n in range(len(sessions)):
            own, begin = set(sessions.items[n, : sessions.length[n]].tolist()), int(sessions.timestamps[n, 0])
            names = [store.catalog.name_of(row) for row in candidates[n].tolist() if row and row not in own]
            assert own <= set(candidates[n].tolist())
            assert all(first_seen[name] < begin for name in names)
            assert alive is None or all(begin - first_seen[name] <= alive * 86_400e6 for name in names)
            assert len(set(names)) == len(names)
            counts.append(len(names))
        assert np.mean(counts) > 2.5  # most sessions have as many others as own items
        np.testing.assert_array_equal(candidates, sample_candidates(sessions, 0))
        assert (sample_candidates(sessions, 1) != candidates).any()
        middle = len(sessions) // 2  # however sessions are spread over workers
        for begin, end in ((0, middle), (middle, len(sessions))):
            part = WorkerSlice(begin, end - begin, len(sessions), SINGLE_WORKER)
            np.testing.assert_array_equal(
                sample_candidates(sessions[begin:end], 0, worker_slice=part), candidates[begin:end]
            )


def test_without_the_options_nothing_is_stored(tmp_path: Path) -> None:
    store = _store(tmp_path, _rows(300), SessionConfig(horizon=4))
    assert store.table("items.parquet").column_names == ["item"]
    assert store.catalog.life is None
    assert not {"split_by_time", "time_cuts", "alive"} & store.manifest["options"].keys()
    assert "outside_parts" not in store.manifest["counts"]


@pytest.mark.parametrize("name", ["dqn", "dyna-q", "mbcal"])
def test_agents_learn_from_stores_with_times_of_items(tmp_path: Path, name: str) -> None:
    store = _store(tmp_path, _rows(800), replace(BY_TIME, split=(0.1, 0.7, 0.2)))
    agent = agent_class(name)(epochs=1, hidden=8, embedding=4, device="cpu").fit(store)
    test = sample_test_sessions(store.sessions("test"), None, 0)
    assert test.candidates is not None
    assert agent.score(agent.begin(*test.history), test.candidates).shape == test.candidates.shape
