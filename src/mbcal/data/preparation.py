"""`prepare`: from a log, as files or as a data frame, to a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mbcal.data.clicks import click_rule
from mbcal.data.continuation import known_kinds
from mbcal.data.cutting import SessionConfig
from mbcal.data.files import Paths
from mbcal.data.frames import Frame, is_frame
from mbcal.data.ingest import Ingestion, LocalIngest, LogReader
from mbcal.data.ingest_distributed import DistributedIngest
from mbcal.data.readers.table import ItemTable, TableLog
from mbcal.data.readers.user_table import UserTable
from mbcal.data.sql import TimeUnit
from mbcal.data.store import Store
from mbcal.data.workspace import Workspace
from mbcal.errors import OptionError
from mbcal.progress import SILENT, Progress

if TYPE_CHECKING:
    from mbcal.distributed.engines import Engine


def prepare(
    source: LogReader | Paths | Frame,
    out: str | Path,
    config: SessionConfig | None = None,
    *,
    user: str | None = None,
    item: str | None = None,
    time: str | None = None,
    behaviour: str | None = None,
    rewards: Mapping[str, float] | Sequence[float] | None = None,
    levels: Sequence[float] | None = None,
    session: str | None = None,
    propensity: str | None = None,
    items: ItemTable | None = None,
    context: Sequence[str] | None = None,
    users: UserTable | None = None,
    time_unit: TimeUnit = "auto",
    time_format: str | None = None,
    like: Store | str | Path | None = None,
    engine: Engine | None = None,
    memory_limit: str = "1.5GB",
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> Store:
    """Read a log, cut it into sessions, split it by user and write it as a store.

    The arguments from `user` to `time_format` are those of `mbcal prepare table`. They belong to a log given as a path or a
    data frame; a reader has its own.

    Examples:
        `prepare(frame, "store", user="uid", item="doc", time="ts", behaviour="action", rewards={"skip": 0, "click": 1})`

        `prepare(MovieLens("ml-20m.zip"), "ml-20m", SessionConfig(horizon=10))`

    Args:
        source: The log. A path or several (Parquet or CSV files, folders or zips of them); a data frame (pandas, polars, a
            pyarrow Table or RecordBatchReader, or anything else with the Arrow PyCapsule interface); or a reader. A
            RecordBatchReader is consumed.
        out: Folder to write.
        config: How sessions are cut and users are split.
        user: Column that names the user.
        item: Column that names the item.
        time: Column with the time: timestamps, dates, ISO text or epoch numbers.
        behaviour: Column with the user's behaviour: a label or a number; `next-click` derives dwell from the next row of the
            session, with `levels` in seconds. May be left out with `negatives` (`SessionConfig`): every row is then a click.
        rewards: Label -> reward. With `levels`: the reward of each level, one more than cut points.
        levels: Ascending cut points that turn a number into levels, with rewards 1, 2, 3, … unless `rewards` is given.
        session: Column that names the session, if the log has one.
        propensity: Column with the probability with which the item was shown, if the log has one.
        items: Table of item features and titles.
        context: Columns of the log that describe steps, with their kinds if these are not to be inferred:
            `["device", "hour:number"]`.
        users: Table of the fields of users.
        time_unit: Unit of epoch numbers; `auto` decides for each value by its size.
        time_format: strptime format of the time, if it is text in another form than ISO 8601.
        like: A store that this log continues. Its items keep their rows and features their kinds and codes; new items and
            values are appended, so that a model of that store can be fitted further on this one.
        engine: Its workers read and cut the log, to the same store. The log and `out` must be on storage that all of them
            share. None works on this machine alone.
        memory_limit: Memory to stay within, such as `1.5GB`. Workers share it.
        overwrite: Replace an existing store.
        progress: Receives the phases and how far they are.

    Returns:
        The store, open for reading.

    Raises:
        OptionError: If an argument is missing or out of range.
        InputError: If the log cannot be read, lacks a column, holds no rows, or has too many rejected rows.
        OutputError: If `out` exists, or cannot be written.
        EngineError: If the workers do not share the storage, or are lost again and again.
    """
    columns = {"user": user, "item": item, "time": time, "behaviour": behaviour}
    optional = {
        "session": session,
        "propensity": propensity,
        "items": items,
        "context": context,
        "users": users,
        "time_format": time_format,
    }
    for name, table, kind in (("items", items, ItemTable), ("users", users, UserTable)):
        if table is not None and not isinstance(table, kind):
            raise OptionError(
                f"{name}: got a {type(table).__name__}; write {name}=mbcal.{kind.__name__}(TABLE, ['COLUMN', …])"
            )
    if is_frame(source) or isinstance(source, str | Path | Sequence):
        _require_columns(columns, clicks_only=config is not None and config.negatives > 0)
        named: dict[str, Any] = {**columns, **optional, "context": context or ()}
        rule = click_rule(behaviour, rewards, levels)
        reader: LogReader = TableLog(source, rule=rule, time_unit=time_unit, **named)
    else:
        unit = None if time_unit == "auto" else time_unit
        reader = _require_reader(source, {**columns, **optional, "rewards": rewards, "levels": levels, "time_unit": unit})
    like = Store.open(like) if isinstance(like, str | Path) else like
    if like is not None and isinstance(reader, TableLog) and reader.items is not None:
        reader = replace(reader, items=replace(reader.items, default_kinds=known_kinds(like)))
    with Workspace(Path(out), memory_limit, overwrite) as work:
        progress.phase("finding and unpacking files")
        log = reader.read(work)
        backend = LocalIngest(work) if engine is None else DistributedIngest(work, engine)
        Ingestion(log, config or SessionConfig(), work, backend, progress, like).run()
        work.publish()
    return Store.open(out)


def _require_columns(columns: Mapping[str, str | None], clicks_only: bool) -> None:
    for name, column in columns.items():
        if column is None and not (clicks_only and name == "behaviour"):
            raise OptionError(f"{name}: missing; name the column of the log, {name}='…'")


def _require_reader(source: object, table_options: Mapping[str, object]) -> LogReader:
    """Return the source if it is a reader and no options of tables are given."""
    kind = type(source).__name__
    if not isinstance(source, LogReader):
        raise OptionError(f"source: {kind} is not a log; give a path, a data frame (pandas, polars, Arrow) or a reader")
    for name, value in table_options.items():
        if value is not None:
            raise OptionError(f"{name}: belongs to a path or data frame; {kind} has its own columns")
    return source
