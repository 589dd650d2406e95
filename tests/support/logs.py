"""Small logs, ways to write them, and a reference implementation of all steps from a log to its sessions."""

from __future__ import annotations

import csv
import hashlib
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from mbcal import Labels, SessionConfig, Store, TableLog
from mbcal.data.store_format import PARTS

ROOT = Path(__file__).resolve().parents[2]
REWARDS = {"skip": 0.0, "click": 1.0, "like": 5.0}
ONE_PART = SessionConfig(split=(0, 1, 0))
COLUMNS = ("user", "item", "time", "behaviour", "session")


@dataclass(frozen=True, order=True)
class Row:
    user: str
    item: str
    time: int  # seconds
    behaviour: str
    session: str = ""


def write_csv(path: Path, rows: Iterable[Sequence[object]], header: Sequence[str] = COLUMNS) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
    return path


def write_rows(path: Path, rows: Iterable[Row]) -> Path:
    listed = [(r.user, r.item, r.time, r.behaviour, r.session) for r in rows]
    if path.suffix == ".csv":
        return write_csv(path, listed)
    pq.write_table(pa.table({name: [row[k] for row in listed] for k, name in enumerate(COLUMNS)}), path)
    return path


def table(*paths: Path, session: bool = False) -> TableLog:
    return TableLog(
        paths,
        user="user",
        item="item",
        time="time",
        behaviour="behaviour",
        rule=Labels(REWARDS),
        session="session" if session else None,
    )


def content(folder: Path) -> dict[str, bytes]:
    """Every byte of a store."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*"))}


@dataclass(frozen=True, order=True)
class Session:
    part: str
    user: str
    steps: tuple[tuple[str, str, int], ...]  # item, behaviour, time
    history: tuple[tuple[str, str], ...]


def read_back(store: Store) -> list[Session]:
    """A store as plain tuples."""
    found = []
    for part in PARTS:
        if store.manifest["counts"]["parts"][part]["sessions"] == 0:
            continue
        sessions = store.sessions(part)
        names, labels = sessions.catalog.name_of, store.behaviours.names
        assert sessions.timestamps is not None
        for n in range(len(sessions)):
            steps = tuple(
                (names(sessions.items[n, t]), labels[sessions.behaviours[n, t]], int(sessions.timestamps[n, t]) // 1_000_000)
                for t in range(sessions.length[n])
            )
            history = tuple(
                (names(sessions.history_items[n, t]), labels[sessions.history_behaviours[n, t]])
                for t in range(sessions.history_length[n])
            )
            found.append(Session(part, store.users[sessions.user[n]], steps, history))
    return sorted(found)


def _md5(text: str) -> int:
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[8:], "little")


def expected(rows: Iterable[Row], how: SessionConfig, by_session: bool = False) -> list[Session]:
    """The reference implementation: one user, one row at a time, in plain Python."""
    if not by_session:
        rows = {Row(r.user, r.item, r.time, r.behaviour) for r in rows}
    by_user: dict[str, list[Row]] = {}
    for row in set(rows):
        by_user.setdefault(row.user, []).append(row)
    found = []
    for user, log in by_user.items():
        labels = list(REWARDS)
        log.sort(key=lambda r: (r.time, _md5(f"tie:{how.seed}:{r.item}"), labels.index(r.behaviour), _md5(r.session)))
        share = _md5(f"part:{how.seed}:{user}") / 2**64
        part = PARTS[(share >= how.split[0]) + (share >= how.split[0] + how.split[1])]
        groups: dict[str, list[int]] = {}  # positions in `log`, by session in order of first step
        for position, row in enumerate(log):
            groups.setdefault(row.session if by_session else "", []).append(position)
        windows = [window for group in groups.values() for window in _windows(group, log, how)]
        left = {window[-1] for window in windows if how.ends == ("length",) and len(window) < how.horizon}
        names = [row.behaviour + "+left" * (position in left) for position, row in enumerate(log)]
        for window in windows:
            before = range(max(0, window[0] - how.history), window[0])  # the latest steps before it, whoever's session
            steps = tuple((log[p].item, names[p], log[p].time) for p in window)
            found.append(Session(part, user, steps, tuple((log[p].item, names[p]) for p in before)))
    return sorted(found)


def _windows(group: list[int], log: list[Row], how: SessionConfig) -> list[list[int]]:
    windows: list[list[int]] = [[]]
    for position in group:
        last = windows[-1]
        late = last and how.gap is not None and log[position].time - log[last[-1]].time > how.gap * 60
        ended = last and log[last[-1]].behaviour in how.ends
        if late or ended or len(last) == how.horizon:
            windows.append([])
        windows[-1].append(position)
    return [window for window in windows if len(window) >= how.min_length]


def zipped(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def unpacked(path: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


def steps(store: Store) -> dict[str, list[tuple[str, str, int]]]:
    """User -> what was done, in order."""
    return {session.user: list(session.steps) for session in read_back(store)}
