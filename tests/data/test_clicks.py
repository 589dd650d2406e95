"""Logs of clicks alone: sampled negatives, dwell by the next click, and the sentence where a log can only be re-ranked."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mbcal import SessionConfig, Store, TableLog, prepare
from mbcal.data.behaviour_rules import Labels, Levels, NextClick
from mbcal.data.clicks import code_behaviours, negative_rate, only_reranks
from mbcal.data.derived_rows import negative_counts
from mbcal.data.describe import describe
from mbcal.data.endings import suggest_ends
from mbcal.errors import OptionError
from tests.data.test_ingest_distributed import same_store
from tests.support.logs import Row, content, steps, write_rows

BEGIN = 1_700_000_000
DAY = 86_400
ROLES = {"user": "user", "item": "item", "time": "time"}
CONFIG = SessionConfig(horizon=1000, history=0, split=(0, 1, 0), negatives=3, alive=2.0)

ONE = SessionConfig(horizon=1000, history=0, split=(0, 1, 0), gap=600.0)


def _rows(count: int = 900) -> list[Row]:
    random_ = random.Random(0)
    rows = []
    for k in range(count):
        item = max(0, k // 6 - int(random_.expovariate(0.03)))
        rows.append(Row(f"u{random_.randrange(40)}", f"i{item}", BEGIN + k * 900, "click", f"s{random_.randrange(3)}"))
    return rows


def _log(path: Path, session: bool = False) -> TableLog:
    return TableLog(path, **ROLES, behaviour=None, rule=Labels({"click": 1.0}), session="session" if session else None)


def _store(
    folder: Path, rows: list[Row], config: SessionConfig = CONFIG, name: str = "store", session: bool = False
) -> Store:
    return prepare(_log(write_rows(folder / f"{name}.csv", rows), session), folder / name, config)


@pytest.mark.parametrize("session", [False, True])
def test_negatives_were_alive_and_not_chosen(tmp_path: Path, session: bool) -> None:
    rows = _rows()
    store = _store(tmp_path, rows, session=session)
    assert store.behaviours.names == ("click", "none")
    assert store.behaviours.rewards == (1.0, 0.0)
    first: dict[str, int] = {}
    for row in rows:
        first.setdefault(row.item, row.time)
    session_at = {(row.user, row.time): row.session for row in rows}
    chosen: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        chosen.setdefault((row.user, row.session if session else ""), set()).add(row.item)
    clicks, seen, per_click, repeated = [], set(), Counter(), 0
    for session_ in _sessions(store):
        user, logged = session_
        for item, behaviour, time in logged:
            group = (user, session_at[user, time] if session else "")
            if behaviour == "click":
                clicks.append((user, item, time))
                continue
            assert first[item] < time
            assert time - first[item] <= 2 * DAY
            assert item not in chosen[group]
            repeated += (group, item) in seen and time > BEGIN + 3 * DAY
            seen.add((group, item))
            per_click[user, time] += 1
    assert sorted(clicks) == sorted((row.user, row.item, row.time) for row in rows)
    late = [per_click[row.user, row.time] for row in rows if row.time > BEGIN + 3 * DAY]
    assert len(late) > 500
    assert np.mean(late) == pytest.approx(3, abs=4 * np.sqrt(3 * 4 / len(late)))  # the mean and variance of the number
    assert np.var(late) == pytest.approx(3 * 4, rel=0.4)
    assert repeated < 0.1 * sum(late)  # an item twice in a session: only where hardly any other was left
    counts = store.manifest["counts"]
    assert counts["negatives"] == sum(per_click.values()) == counts["labels"][1]
    population = 0
    for row in rows:
        alive = {item for item, time in first.items() if time < row.time <= time + 2 * DAY}
        population += len(alive - chosen[row.user, row.session if session else ""])
    assert counts["negatives_population"] == population
    assert negative_rate(store.manifest) == counts["negatives"] / counts["negatives_population"]
    assert counts["rows"] == len(rows) + counts["negatives"]
    assert only_reranks(store.manifest) is None
    assert describe(store)["negatives"] == {"rows": counts["negatives"], "rate": negative_rate(store.manifest)}


def _sessions(store: Store) -> list[tuple[str, list[tuple[str, str, int]]]]:
    from tests.support.logs import read_back

    return [(session.user, list(session.steps)) for session in read_back(store)]


def test_negatives_are_seeded_and_never_depend_on_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = _rows()
    store = _store(tmp_path, rows)
    again = _store(tmp_path, random.Random(7).sample(rows, len(rows)), name="again")
    assert content(again.path) == content(store.path)
    other = _store(tmp_path, rows, replace(CONFIG, seed=1), "other")
    assert steps(other) != steps(store)
    monkeypatch.setattr("mbcal.data.sort.BATCH", 60)
    small = _store(tmp_path, rows, name="small")
    assert steps(small) == steps(store)


def test_negatives_on_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mbcal.data.shards.SHARD_STEPS", 200)
    write_rows(tmp_path / "a.csv", _rows()[:500])
    write_rows(tmp_path / "b.csv", _rows()[500:])
    log = TableLog(
        [tmp_path / "a.csv", tmp_path / "b.csv"],
        **ROLES,
        behaviour="next-click",
        rule=NextClick((60.0, 3600.0)),
        session="session",
    )
    same_store(log, tmp_path, replace(CONFIG, split=(0.4, 0.4, 0.2), split_by_time=True))


def test_uniform_over_what_was_alive(tmp_path: Path) -> None:
    """One item a second for a while; afterwards clicks of other users on the last of them draw from all equally."""
    rows = [Row(f"early{k}", f"i{k}", BEGIN + k, "click") for k in range(20)]
    rows += [Row(f"late{k}", "i19", BEGIN + 1000 + k, "click") for k in range(3000)]
    store = _store(tmp_path, rows, replace(CONFIG, negatives=2))
    drawn = Counter(
        item for user, logged in _sessions(store) for item, behaviour, _ in logged if behaviour == "none" and "late" in user
    )
    assert drawn.keys() == {f"i{k}" for k in range(19)}
    total = sum(drawn.values())
    assert total == pytest.approx(6000, abs=4 * np.sqrt(3000 * 2 * 3))
    assert max(abs(count - total / 19) for count in drawn.values()) < 4.5 * np.sqrt(total / 19)


def _clicks_by_run(store: Store) -> dict[tuple[bool, int], list[bool]]:
    """Whether each step is a click, by whether the session has a click before it and the number of `none` since then."""
    steps_by_run: dict[tuple[bool, int], list[bool]] = defaultdict(list)
    for logged in steps_of(store):
        has_click, run = False, 0
        for _, behaviour, _ in logged:
            is_click = behaviour == "click"
            steps_by_run[has_click, run].append(is_click)
            has_click, run = has_click or is_click, 0 if is_click else run + 1
    return steps_by_run


@pytest.mark.parametrize("count", [1, 4])
def test_the_number_of_negatives_so_far_tells_nothing(tmp_path: Path, count: int) -> None:
    """A step is a click with probability 1 / (K + 1): first in a session or later, after a click or after many `none`."""
    random_ = random.Random(1)
    rows = [Row(f"early{k}", f"i{k}", BEGIN, "click", "s") for k in range(200)]
    for k in range(4000):
        for n in range(random_.choice((1, 1, 2, 3, 5))):
            item = int(200 * random_.random() ** 2)
            rows.append(Row(f"u{k}", f"i{item}", BEGIN + 10 * k + 1 + n // 2, "click", f"s{k}"))  # some at the same time
    store = _store(tmp_path, rows, replace(CONFIG, negatives=count, alive=None), session=True)
    n_early = 200  # nothing was alive before them
    by_run = _clicks_by_run(store)
    by_run[False, 0] = sorted(by_run[False, 0])[:-n_early]
    rate, tested = 1 / (count + 1), 0
    for (has_click, run), is_click in by_run.items():
        if len(is_click) >= 200:
            allowed = 4 * np.sqrt(rate * (1 - rate) / len(is_click))
            assert np.mean(is_click) == pytest.approx(rate, abs=allowed), (has_click, run)
            tested += 1
    assert tested >= 8
    assert {True, False} == {has_click for has_click, run in by_run if run == 2 * count}


def test_the_order_of_items_does_not_tell_where_the_click_is(tmp_path: Path) -> None:
    """Neither by the seeded order of items, in which rows at the same time are stored, nor by that of first times."""
    rows = [Row(f"early{k}", f"i{k}", BEGIN + k, "click") for k in range(50)]
    random_ = random.Random(2)
    rows += [Row(f"late{k}", f"i{random_.randrange(50)}", BEGIN + 100 + k, "click") for k in range(3000)]
    store = _store(tmp_path, rows, replace(CONFIG, negatives=2, alive=None))
    late = [logged for user, logged in _sessions(store) if "late" in user]
    for order in (lambda item: store.catalog.items.index(item), lambda item: int(item[1:])):
        falls = [
            (order(before[0]) > order(after[0]), after[1] == "click")
            for logged in late
            for before, after in pairwise(logged)
        ]
        is_fall, is_click = np.array(falls).T
        assert len(falls) > 5000
        assert is_click[is_fall].mean() == pytest.approx(1 / 3, abs=0.04)
        assert is_click[~is_fall].mean() == pytest.approx(1 / 3, abs=0.04)


def test_items_are_repeated_where_too_few_are_left(tmp_path: Path) -> None:
    """Otherwise the last clicks of a long session would have no negatives, and the model would learn that."""
    rows = [Row(f"early{k}", f"i{k}", BEGIN, "click") for k in range(8)]
    rows += [Row(f"u{k}", f"i{n % 2}", BEGIN + 1 + n, "click") for k in range(60) for n in range(12)]
    store = _store(tmp_path, rows, replace(CONFIG, negatives=3, alive=None))
    late = [logged for user, logged in _sessions(store) if user[0] == "u"]
    first, last = [], []
    for logged in late:
        shown = [item for item, behaviour, _ in logged if behaviour == "none"]
        assert set(shown) <= {f"i{k}" for k in range(2, 8)}
        per_click = Counter(time for _, behaviour, time in logged if behaviour == "none")
        first.append(sum(per_click[BEGIN + 1 + n] for n in range(6)))
        last.append(sum(per_click[BEGIN + 7 + n] for n in range(6)))
    allowed = 4 * np.sqrt(3 * 4 * 6 / 60)
    assert np.mean(first) == pytest.approx(18, abs=allowed)
    assert np.mean(last) == pytest.approx(18, abs=allowed)
    counts = store.manifest["counts"]
    assert counts["negatives_population"] == 60 * 12 * 6
    assert negative_rate(store.manifest) == counts["negatives"] / (60 * 12 * 6)


def test_negative_counts_are_geometric() -> None:
    keys = np.random.default_rng(0).integers(2**64, size=200_000, dtype=np.uint64)
    for mean in (1, 4, 100):
        counts = negative_counts(keys, mean)
        assert counts.mean() == pytest.approx(mean, rel=0.015)
        for least in (1, mean, 3 * mean):
            assert (counts >= least).mean() == pytest.approx((mean / (mean + 1)) ** least, abs=0.005)


@pytest.mark.parametrize("options", [{}, {"behaviour": "next-click", "levels": (60,)}])
def test_clicks_before_which_negatives_stand_are_not_taken_for_leaving(tmp_path: Path, options: dict[str, Any]) -> None:
    """Every session ends with a row of the log. Only the label that says so, `last`, is suggested for --ends."""
    rows = [Row(f"u{k}", f"i{k % 50}", BEGIN + 60 * k, "click", f"s{k}") for k in range(400)]
    if options:
        rows += [replace(row, time=row.time + 10 * n) for row in rows for n in (1, 2, 3)]
    path = write_rows(tmp_path / "log.csv", rows)
    store = prepare(path, tmp_path / "store", replace(CONFIG, negatives=2), **ROLES, session="session", **options)
    assert [sentence.split()[-1] for sentence in suggest_ends(store)] == (["last"] if options else [])


def test_dwell_from_the_next_click(tmp_path: Path) -> None:
    rows = [
        Row("a", "x", BEGIN, "", "1"),
        Row("a", "y", BEGIN + 3, "", "1"),
        Row("a", "p", BEGIN + 4, "", "2"),  # another session, at the same time
        Row("a", "z", BEGIN + 33, "", "1"),
        Row("a", "q", BEGIN + 1000, "", "2"),
        Row("b", "x", BEGIN + 1001, "", "1"),
    ]
    log = TableLog(
        write_rows(tmp_path / "log.csv", rows),
        **ROLES,
        behaviour="next-click",
        rule=NextClick((5.0, 30.0, 120.0)),
        session="session",
    )
    config = SessionConfig(horizon=10, split=(0, 1, 0))
    store = prepare(log, tmp_path / "store", config)
    assert store.behaviours.names == ("<5", "5..30", "30..120", ">=120", "last")
    assert store.behaviours.rewards == (1.0, 2.0, 3.0, 4.0, 1.0)
    found = {(item, time): behaviour for logged in steps_of(store) for item, behaviour, time in logged}
    by_item = {item: behaviour for (item, time), behaviour in found.items() if time != BEGIN + 1001}
    assert by_item == {"x": "<5", "y": "30..120", "z": "last", "p": ">=120", "q": "last"}
    assert found["x", BEGIN + 1001] == "last"
    sentence = only_reranks(store.manifest)
    assert sentence is not None
    assert "re-rank" in sentence
    assert describe(store)["warnings"] == [sentence]
    gap = prepare(replace(log, session=None), tmp_path / "gap", replace(config, gap=1.0))
    gaps = {item: behaviour for logged in steps_of(gap) for item, behaviour, time in logged if time < BEGIN + 1001}
    assert gaps == {"x": "<5", "y": "<5", "p": "5..30", "z": "last", "q": "last"}


def steps_of(store: Store) -> list[list[tuple[str, str, int]]]:
    return [logged for _, logged in _sessions(store)]


@pytest.mark.parametrize("ends", [("last",), ("length",)])
def test_the_click_with_which_a_user_leaves_comes_after_its_negatives(tmp_path: Path, ends: tuple[str, ...]) -> None:
    path = write_rows(tmp_path / "log.csv", _rows())
    config = replace(CONFIG, ends=ends, gap=600.0)
    options = {"behaviour": "next-click", "levels": (60,)} if ends == ("last",) else {}
    store = prepare(path, tmp_path / "store", config, **ROLES, **options)
    last = [(logged[-1][1], Counter(behaviour for _, behaviour, _ in logged)) for _, logged in _sessions(store)]
    assert len(last) > 100
    assert {behaviour for behaviour, _ in last} == {"last" if options else "click+left"}
    assert all(counts[behaviour] == 1 for behaviour, counts in last)
    assert np.mean([counts["none"] > 0 for _, counts in last]) > 0.75


def test_levels_with_negatives_keep_their_levels(tmp_path: Path) -> None:
    rows = [replace(row, behaviour=str(k % 4)) for k, row in enumerate(_rows(300))]
    path = write_rows(tmp_path / "log.csv", rows)
    log = TableLog(path, **ROLES, behaviour="behaviour", rule=Levels((1.0, 3.0), (0.0, 1.0, 5.0)))
    store = prepare(log, tmp_path / "store", replace(CONFIG, none_reward=-0.5))
    assert store.behaviours.names == ("<1", "1..3", ">=3", "none")
    assert store.behaviours.rewards == (0.0, 1.0, 5.0, -0.5)
    counts = Counter(behaviour for logged in steps_of(store) for _, behaviour, _ in logged)
    assert (counts["<1"], counts["1..3"], counts[">=3"]) == (75, 150, 75)
    plain = prepare(log, tmp_path / "plain", replace(CONFIG, negatives=0))
    assert plain.manifest["source_hashes"]["log"] == store.manifest["source_hashes"]["log"]


def test_a_log_of_clicks_continues_another(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "log.csv", _rows(200))
    later = write_rows(tmp_path / "later.csv", [replace(row, time=row.time + 10 * DAY) for row in _rows(300)])
    for config, behaviour, levels in (
        (CONFIG, None, None),
        (replace(ONE, negatives=1), "next-click", (60, 600)),
        (ONE, "next-click", (60, 600)),
    ):
        folder = tmp_path / f"{config.negatives}{behaviour}"
        store = prepare(path, folder / "store", config, **ROLES, behaviour=behaviour, levels=levels)
        more = prepare(later, folder / "more", config, **ROLES, behaviour=behaviour, levels=levels, like=store)
        assert more.behaviours == store.behaviours
        assert more.catalog.items[: len(store.catalog)] == store.catalog.items


def test_what_does_not_fit_is_one_sentence(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "log.csv", _rows(50))
    with pytest.raises(OptionError, match="at least two behaviours are needed, got 'click' alone; add --negatives K"):
        prepare(path, tmp_path / "store", **ROLES, behaviour="behaviour", rewards={"click": 1})
    with pytest.raises(OptionError, match="behaviour: missing"):
        prepare(path, tmp_path / "store", **ROLES)
    with pytest.raises(OptionError, match="next-click needs cut points in seconds"):
        prepare(path, tmp_path / "store", **ROLES, behaviour="next-click")
    assert code_behaviours(Labels({"none": 0.0, "click": 1.0}), CONFIG)[0].names == ("none", "click")
    with pytest.raises(OptionError, match="next-click needs sessions; give --session or --gap"):
        prepare(path, tmp_path / "store", **ROLES, behaviour="next-click", levels=(5,))
    with pytest.raises(OptionError, match="log with propensities"):
        prepare(path, tmp_path / "store", CONFIG, **ROLES, propensity="session")
    with pytest.raises(OptionError, match=r"negatives: must lie in 0\.\.100"):
        SessionConfig(negatives=101)
    assert prepare(path, tmp_path / "store", CONFIG, **ROLES).behaviours.names == ("click", "none")


def test_one_behaviour_for_nearly_all_rows_is_clicks_alone() -> None:
    behaviours = {"behaviours": {"rewards": [0.0, 1.0]}, "options": {}}
    assert only_reranks({**behaviours, "counts": {"labels": [50, 9_950]}}) is not None
    assert only_reranks({**behaviours, "counts": {"labels": [9_950, 50]}}) is None  # impressions, few of them clicked
    assert only_reranks({**behaviours, "counts": {"labels": [100, 900]}}) is None
    assert only_reranks({**behaviours, "counts": {"sessions": 3}}) is None
