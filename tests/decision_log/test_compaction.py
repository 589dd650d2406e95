"""Compaction changes the size of a log and nothing else, wherever it is interrupted."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mbcal.decision_log import Feedback, Record, compaction
from mbcal.decision_log.archive import read_parquet, to_parquet
from mbcal.decision_log.compaction import compact_log
from mbcal.decision_log.reader import read_log, segment_records
from mbcal.decision_log.records import decode, encode
from mbcal.decision_log.segments import (
    parquet_paths,
)
from mbcal.errors import LogError
from mbcal.storage import atomic
from tests.support.decision_records import decision, feedback, mixed_records, write_log


def test_compaction_changes_nothing_but_the_size(folder: Path) -> None:
    bare = decision(500, history=[], shown=[], items=[], propensities=[], candidates=[], version="v2")
    records = [bare, feedback(501), *mixed_records(200)]
    write_log(folder / "single", records[:4], segment_bytes=1)  # one record per segment: empty lists and empty files
    assert compact_log(folder / "single").records == 3
    assert list(read_log(folder / "single")) == records[:4]
    write_log(folder, records, segment_bytes=8000)
    before = len(list(folder.glob("*.log")))
    result = compact_log(folder)
    assert (result.segments, result.left) == (before - 1, [])
    assert result.records == sum(1 for _ in read_log(folder)) - len([*records_of_last(folder)])
    assert [path.name for path in folder.glob("*.log")] == [f"segment-{before:06d}.log"]
    assert list(read_log(folder)) == records
    assert compact_log(folder).segments == 0
    write_log(folder, [decision(900)])
    assert list(read_log(folder)) == [*records, decision(900)]
    (folder / f"segment-{before:06d}.log").unlink()  # a number is never used twice, even if the last segment is missing
    write_log(folder, [decision(901)], segment_bytes=8000)
    (created,) = folder.glob("*.log")
    assert created.name == f"segment-{before + 1:06d}.log"


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
steps = st.lists(st.tuples(texts, texts), max_size=3)
decisions = st.builds(
    lambda number, user, history, shown, candidates, ranking: decision(
        number,
        user=user,
        history=history,
        shown=shown,
        candidates=candidates,
        items=[item for item, _ in ranking],
        propensities=[propensity for _, propensity in ranking],
        request=user,
        scores=[propensity - 0.5 for _, propensity in ranking],
        parts={user: [1.0, 2.0], "future": []} if shown else {},
        seen=[propensity > 0.5 for _, propensity in ranking],
    ),
    st.integers(0, 2**40),
    texts,
    steps,
    steps,
    st.lists(texts, max_size=4),
    st.lists(st.tuples(texts, st.floats(0, 1, exclude_min=True)), max_size=3),
)
any_feedback = st.builds(Feedback, texts, texts, texts, st.integers(0, 2**62), texts)


@given(st.lists(st.one_of(decisions, any_feedback), max_size=8))
def test_any_records_come_back_from_bytes_and_from_parquet(records: list[Record]) -> None:
    assert [decode(encode(record)) for record in records] == records
    numbered = list(enumerate(records, 7))
    with tempfile.TemporaryDirectory() as folder:
        for path, content in zip(parquet_paths(Path(folder), 1), to_parquet(numbered), strict=True):
            path.write_bytes(content)
        assert list(read_parquet(Path(folder), 1)) == numbered


def records_of_last(folder: Path) -> list[tuple[int, Record]]:
    (path,) = folder.glob("*.log")
    number = int(path.stem.split("-")[1])
    return list(segment_records(path, number, path.read_bytes(), True, None))


class Stopped(Exception):  # noqa: N818  # stands for a kill
    pass


@pytest.mark.parametrize("step", range(9))
def test_compaction_may_stop_anywhere(folder: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """The process ends before each of its renames, removals and fsyncs in turn."""
    records = mixed_records(60)
    write_log(folder, records, segment_bytes=1500)
    counter = [0]

    def stopping(real: Callable[..., Any]) -> Callable[..., Any]:
        def stop(*args: Any, **kwargs: Any) -> Any:
            counter[0] += 1
            if counter[0] > step:
                raise Stopped
            return real(*args, **kwargs)

        return stop

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", stopping(os.replace))
        patch.setattr(Path, "unlink", stopping(Path.unlink))
        patch.setattr(atomic, "fsync", stopping(atomic.fsync))
        patch.setattr(compaction, "fsync", stopping(compaction.fsync))
        with pytest.raises(Stopped):
            compact_log(folder)
    assert list(read_log(folder)) == records
    write_log(folder, [decision(99)], segment_bytes=1500)
    assert list(read_log(folder)) == [*records, decision(99)]
    assert compact_log(folder).left == []
    assert list(read_log(folder)) == [*records, decision(99)]
    names = sorted(path.name for path in folder.iterdir())
    assert not [name for name in names if "partial" in name]
    assert len([name for name in names if name.startswith("segment")]) == 1


def test_one_compaction_at_a_time(folder: Path) -> None:
    write_log(folder, mixed_records(60), segment_bytes=1500)
    with (folder / "compaction.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(LogError, match=r"another process compacts this decision log"):
            compact_log(folder)
    assert compact_log(folder).segments > 0
