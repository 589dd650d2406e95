"""From a described log to a store: DuckDB scans, joins and sorts out of core, numpy cuts what streams past.

The sort is total (user, time, a seeded rank of the item, behaviour, session), so neither the order of rows nor that of
files can be seen in the result, and equal rows meet and are told as duplicates for free. Python holds a few blocks and
shards at a time, though never less than one whole user.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mbcal.data.log import KEY, Labels, Log, Quantiles, name, parquet_sql, parsed_sql
from mbcal.data.sessions import Cut, key, key_sql
from mbcal.data.shards import Block, Index, Tally, write_shards
from mbcal.data.store import PARTS, Store, StoreWriter
from mbcal.data.workspace import Workspace
from mbcal.errors import InputError
from mbcal.progress import SILENT, Progress
from mbcal.types import SPECIAL, Behaviours

if TYPE_CHECKING:
    import duckdb

BATCH = 1 << 18
"""Rows taken from DuckDB at a time."""
USUAL_HISTORY = 20
"""Steps of history for which shards and batches are sized."""
DUPLICATE = "exact duplicate"
MALFORMED = "line has the wrong shape"
MALFORMED_ITEM = "line of an item table has the wrong shape"
_DUPLICATES = pa.schema([("u", pa.uint32()), ("moment", pa.int64()), ("tie", pa.uint32()), ("value", pa.float64())])


class Source(Protocol):
    """A layout that can be read: it finds its files and describes them."""

    def read(self, work: Workspace) -> Log: ...


def prepare(
    source: Source,
    out: str | Path,
    how: Cut | None = None,
    *,
    memory_limit: str = "1.5GB",
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> Store:
    """Read, cut, split and store one log: `prepare(MovieLens("ml-20m.zip"), "ml-20m", Cut(horizon=10))`."""
    with Workspace(Path(out), memory_limit, overwrite) as work:
        progress.phase("finding and unpacking files")
        Ingestion(source.read(work), how or Cut(), work, progress).run()
        work.publish()
    return Store.open(out)


class Ingestion:
    """One run, as its steps in order."""

    def __init__(self, log: Log, how: Cut, work: Workspace, progress: Progress) -> None:
        self.log, self.how, self.progress = log, how, progress
        self.connection: duckdb.DuckDBPyConnection = work.connection
        self.writer = StoreWriter(work.build)
        self.duplicates = work.scratch / "duplicates.parquet"

    def run(self) -> None:
        self._scan()
        self._number()
        behaviours = self._behaviours()
        index = self._index(behaviours)
        with pq.ParquetWriter(self.duplicates, _DUPLICATES) as duplicates:

            def set_aside(block: Block) -> None:
                columns = {field.name: pa.array(block[field.name]).cast(field.type) for field in _DUPLICATES}
                duplicates.write_table(pa.table(columns))

            tally = write_shards(self._sorted(), index, behaviours, self.how, self.writer, set_aside)
        self._describe_items()
        self._set_aside(tally, behaviours)
        users = np.bincount(index.user_part, minlength=len(PARTS)).tolist()
        parts = {part: {"users": count, **tally.parts[part]} for part, count in zip(PARTS, users, strict=True)}
        self.writer.finish(
            behaviours,
            source=self.log.layout,
            options={**self.how.record(), **self.log.options},
            source_hashes={"log": f"{tally.log_hash:016x}", "items": self.writer.digest("items.parquet")},
            rejected=dict(sorted(self.rejected.items())),
            counts={
                "rows": tally.rows,
                "rows_read": self.rows_read,
                "users": len(index.user_part),
                "items": len(index.item_row),
                "sessions": tally.sessions,
                "full_sessions": tally.full_sessions,
                "short_windows": tally.short_windows,
                "ties": tally.ties,
                "labels": tally.labels.tolist(),
                "parts": parts,
            },
        )

    def _scan(self) -> None:
        """Give every row its typed values or its reason. Text is parsed once; Parquet is cheap to read again."""
        self.progress.phase("reading the log")
        # a temporary table is neither compressed nor logged, and spills like everything else: twice as fast to fill
        keep = "TEMP TABLE" if self.log.text else "VIEW"
        parsed, reasons = parsed_sql(self.log, self.connection)
        self.connection.execute(f"CREATE {keep} log AS {parsed}")
        self.connection.register("reasons", pa.table({"reason": pa.array(range(len(reasons)), pa.uint8()), "why": reasons}))
        counted = (
            "SELECT why, n FROM (SELECT reason, count(*) AS n FROM log GROUP BY reason) LEFT JOIN reasons USING (reason)"
        )
        found = dict(self.connection.execute(counted).fetchall())
        self.rows_read = sum(found.values())
        found.pop(None, None)
        # a filter that drops nothing would still make every later scan parse every column again
        self.accepted, self.refused = ("WHERE reason IS NULL", "WHERE reason IS NOT NULL") if found else ("", "LIMIT 0")
        if malformed := self._malformed("log"):
            found[MALFORMED] = malformed
            self.rows_read += malformed
        self.rejected: dict[str, int] = found
        if self.rows_read == 0:
            raise InputError("the log holds no rows; check that this is the right file")
        self._stop_if_too_bad()

    def _malformed(self, which: str) -> int:
        """Count the lines of the log, or of item tables, that could not be split; they become `{which}_malformed`."""
        known = f"SELECT count(*) FROM duckdb_tables() WHERE table_name = '{which}_errors'"
        lines = "SELECT NULL::VARCHAR AS line LIMIT 0"
        if self.connection.execute(known).fetchall()[0][0]:
            errors = f"{which}_errors JOIN {which}_scans USING (scan_id, file_id)"
            once = f"SELECT DISTINCT file_path, line, csv_line FROM {errors}"
            lines = f"SELECT trim(csv_line, chr(10) || chr(13)) AS line FROM ({once})"
        self.connection.execute(f"CREATE OR REPLACE TEMP TABLE {which}_malformed AS {lines}")
        return int(self.connection.execute(f"SELECT count(*) FROM {which}_malformed").fetchall()[0][0])

    def _stop_if_too_bad(self) -> None:
        bad = sum(self.rejected.values())
        if bad > self.how.max_rejected * self.rows_read or bad == self.rows_read:
            worst = max(self.rejected, key=lambda reason: (self.rejected[reason], reason))
            raise InputError(
                f"{bad:,} of {self.rows_read:,} rows would be set aside, more than --max-rejected {self.how.max_rejected:g} "
                f"allows; most often: {worst} ({self.rejected[worst]:,}){self._example(worst)}. Check the columns and how "
                "they are to be read, or raise the share"
            )

    def _example(self, reason: str) -> str:
        """`, for instance 'x'`: the value at fault, where the reason has one."""
        place = {"time": 1, "behaviour": 2}.get(reason.split()[0])
        if place is None or "missing" in reason:
            return ""
        query = f"SELECT min(raw[{place}]) FROM log JOIN reasons USING (reason) WHERE why = ?"
        return f", for instance {self.connection.execute(query, [reason]).fetchall()[0][0]!r}"

    def _number(self) -> None:
        """Number users and items. Users are ordered by part and key, so that parts are contiguous and any prefix of a part
        is a random sample of its users; items by name; ties in time follow a seeded shuffle of the items."""
        self.progress.phase("numbering users and items")
        first, second = self.how.thresholds
        self.connection.execute(f"""
            CREATE TABLE users AS
            SELECT *, (row_number() OVER (ORDER BY part, key, name) - 1)::UINTEGER AS u
            FROM (SELECT *, (key >= {first})::UTINYINT + (key >= {second})::UTINYINT AS part
                  FROM (SELECT "user", "user"::VARCHAR AS name, {key_sql('"user"', self.how.seed, "part")} AS key,
                               count(*) AS n
                        FROM log {self.accepted} GROUP BY "user"));
            CREATE TABLE items AS
            SELECT *, (row_number() OVER (ORDER BY length(name), name) - 1)::UINTEGER AS i,
                   (row_number() OVER (ORDER BY key, name) - 1)::UINTEGER AS tie
            FROM (SELECT item, item::VARCHAR AS name, {key_sql("item", self.how.seed, "tie")} AS key
                  FROM log {self.accepted} GROUP BY item);
        """)

    def _index(self, behaviours: Behaviours) -> Index:
        """What the numbers stand for, as arrays; the users are written on the way."""
        digest = "md5_number_lower(name) AS digest"
        users = self.connection.sql(f"SELECT name, part, n, {digest} FROM users ORDER BY u").to_arrow_table()
        items = self.connection.sql(f"SELECT i, {digest} FROM items ORDER BY tie").to_arrow_table()
        parts = pa.array(PARTS).take(users["part"].combine_chunks())
        self.writer.table("users.parquet", pa.table({"user": users["name"], "part": parts}))
        part = users["part"].to_numpy()
        labels = None if behaviours.cuts else np.array([key(label, 0, "label") for label in behaviours.names], np.uint64)
        return Index(
            user_part=part,
            user_shard=Index.shard_of(part, users["n"].to_numpy() * self._weight()),
            user_digest=users["digest"].to_numpy(),
            item_row=items["i"].to_numpy().astype(np.int32) + SPECIAL,
            item_digest=items["digest"].to_numpy(),
            value_digest=labels,
        )

    def _weight(self) -> int:
        """How much more than usual a step weighs in memory: sessions of the log's own carry their history step by step."""
        named = any(row[0] == "session" for row in self.connection.execute("DESCRIBE log").fetchall())
        return -(-self.how.history // USUAL_HISTORY) if named and self.how.history else 1

    def _behaviours(self) -> Behaviours:
        """The behaviours; quantiles are taken over the users who do not test."""
        rule = self.log.rule
        if isinstance(rule, Quantiles):
            counted = self.connection.sql(f"""
                SELECT value, count(*) AS n FROM (SELECT "user", value FROM log {self.accepted}) JOIN users USING ("user")
                WHERE part <> {PARTS.index("test")} GROUP BY value ORDER BY value""").to_arrow_table()
            rule = rule.cut(counted["value"].to_numpy(), counted["n"].to_numpy())
        return rule.behaviours()

    def _sorted(self) -> Iterator[Block]:
        """Columns of whole users, in the one order."""
        self.progress.phase("sorting by user and time")
        columns = ["u", "moment", "tie", "value"]
        present = {row[0] for row in self.connection.execute("DESCRIBE log").fetchall()}
        columns += [column for column in ("session", "propensity") if column in present]
        listed = ", ".join(columns)
        query = (
            f'SELECT {listed} FROM log JOIN users USING ("user") JOIN items USING (item) {self.accepted} ORDER BY {listed}'
        )
        kept: list[Block] = []
        for number, batch in enumerate(self.connection.sql(query).to_arrow_reader(max(BATCH // self._weight(), 1))):
            if number == 0:
                self.progress.phase("cutting sessions", self.rows_read - sum(self.rejected.values()))
            arrays = {column: batch.column(column).to_numpy() for column in columns}
            end = int(np.searchsorted(arrays["u"], arrays["u"][-1]))  # where the last, perhaps unfinished user begins
            if end:
                yield _joined([*kept, {column: array[:end] for column, array in arrays.items()}])
                kept = []
            kept.append({column: array[end:] for column, array in arrays.items()})
            self.progress.advance(batch.num_rows)
        yield _joined(kept)

    def _set_aside(self, tally: Tally, behaviours: Behaviours) -> None:
        """Write every refused row with its reason, and stop if they are too many."""
        self.progress.phase("setting bad rows aside")
        if tally.duplicates:
            self.rejected[DUPLICATE] = tally.duplicates
        self._stop_if_too_bad()
        if lines := self._malformed("item"):
            self.rejected[MALFORMED_ITEM] = lines  # counted, but no row of the log
        labels = list(behaviours.names) if isinstance(self.log.rule, Labels) else []
        value = "labels[(value + 1)::BIGINT]" if labels else "value::VARCHAR"
        self.connection.register("known", pa.table({"labels": pa.array([labels], pa.list_(pa.string()))}))
        reader = self.connection.sql(f"""
            SELECT * FROM (
                SELECT "user"::VARCHAR AS "user", item::VARCHAR AS item, raw[1] AS "time", raw[2] AS behaviour, why AS reason
                FROM (FROM log {self.refused}) JOIN reasons USING (reason)
                UNION ALL
                SELECT users.name, items.name, make_timestamp(moment)::VARCHAR, {value}, '{DUPLICATE}'
                FROM {parquet_sql(self.duplicates)} JOIN users USING (u) JOIN items USING (tie), known
                UNION ALL
                SELECT NULL, NULL, NULL, line, '{MALFORMED}' FROM log_malformed
                UNION ALL
                SELECT NULL, NULL, NULL, line, '{MALFORMED_ITEM}' FROM item_malformed)
            ORDER BY ALL""").to_arrow_reader(BATCH)
        self.writer.stream("rejected.parquet", reader.schema, reader)

    def _describe_items(self) -> None:
        """The catalogue: every item of the log, with its title and features as text. An item listed twice takes the least
        of its single values and all of its multiple ones."""
        self.progress.phase("describing items")
        chosen, joined, key = "", "", name(KEY)
        if self.log.titles is not None:
            titles = f"SELECT {key}, min(title) AS title FROM ({self.log.titles}) GROUP BY {key}"
            chosen += ", titles.title"
            joined += f" LEFT JOIN ({titles}) titles ON titles.{key} = items.name"
        if self.log.features is not None:
            picked = []
            for column, kind, *_ in self.connection.execute(f"DESCRIBE {self.log.features}").fetchall():
                if column != KEY:
                    value, shown = name(column), name(f"feature:{column}")
                    several = f"list_sort(list_distinct(list_filter(flatten(list({value})), lambda v: v <> '')))"
                    picked.append(f"{several if kind.endswith('[]') else f'min({value})'} AS {shown}")
                    chosen += f", features.{shown}"
            # an item may be listed many times: brought to one row before it is joined
            features = f"SELECT {', '.join([key, *picked])} FROM ({self.log.features}) GROUP BY {key}"
            self.connection.execute(f"CREATE TEMP TABLE features AS {features}")
            joined += f" LEFT JOIN features ON features.{key} = items.name"
            matched = f"SELECT count(*) FROM items SEMI JOIN features ON features.{key} = items.name"
            if self.connection.execute(matched).fetchall()[0][0] == 0:
                raise InputError(
                    "no item of the log is in the table of items; check that both name items alike (--items-key)"
                )
        query = f"SELECT items.name AS item{chosen} FROM items{joined} ORDER BY items.i"
        self.writer.table("items.parquet", self.connection.sql(query).to_arrow_table())


def _joined(blocks: list[Block]) -> Block:
    if len(blocks) == 1:
        return blocks[0]
    return {column: np.concatenate([block[column] for block in blocks]) for column in blocks[0]}
