"""`mbcal prepare`: any log into a store."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from mbcal.cli.console import progress
from mbcal.cli.options import AddressOption, EngineOption, WorkersOption, quoted
from mbcal.data import ItemTable, KuaiRand, Levels, MovieLens, Netflix, SessionConfig, Store, TableLog
from mbcal.data import prepare as prepare_log
from mbcal.data.behaviour_rules import Labels, behaviour_rule
from mbcal.data.ingest import LogReader
from mbcal.data.readers import kuairand, movielens, netflix
from mbcal.data.readers.table import parse_numbers, parse_rewards
from mbcal.data.sql import TimeUnit
from mbcal.distributed.engines import EngineName, create_engine
from mbcal.errors import InputError, OptionError

app = typer.Typer(
    help="Turn a log into sessions: read, check, cut, split by user, store.\n\n"
    "Every layout ends in the same kind of folder, which 'mbcal describe' shows and everything else reads.",
    no_args_is_help=True,
)

_DEFAULT = SessionConfig()

Paths = Annotated[list[Path] | None, typer.Argument(help="Folder, zip or files, in the owner's layout.", show_default=False)]


@dataclass(frozen=True)
class Job:
    """What every layout has in common: where to, how to cut, what to spend, who does it."""

    out: Path
    config: SessionConfig
    memory_limit: str
    overwrite: bool
    engine: EngineName
    workers: int | None
    address: str | None

    def run(self, source: LogReader) -> None:
        """Prepare, with progress, and say what came of it."""
        with create_engine(self.engine, self.workers, self.address) as engine, progress() as listener:
            store = prepare_log(
                source,
                self.out,
                self.config,
                engine=None if self.engine == "local" else engine,
                memory_limit=self.memory_limit,
                overwrite=self.overwrite,
                progress=listener,
            )
        _summarise(store)


def _job(
    out: Annotated[Path | None, typer.Option(help="Folder to write (required).", show_default=False)] = None,
    horizon: Annotated[int, typer.Option(help="Most steps in a session (the paper's T).")] = _DEFAULT.horizon,
    history: Annotated[int, typer.Option(help="Most interactions kept from before a session.")] = _DEFAULT.history,
    min_length: Annotated[
        int, typer.Option(help="Shorter sessions are not kept (they remain history).")
    ] = _DEFAULT.min_length,
    gap: Annotated[float | None, typer.Option(help="Minutes without a step that end a session.", show_default=False)] = None,
    split: Annotated[str, typer.Option(help="Shares of users who fit the simulator, train agents, test.")] = "0.4,0.4,0.2",
    seed: Annotated[int, typer.Option(help="Decides who is in which part, and the order of equal times.")] = _DEFAULT.seed,
    max_rejected: Annotated[
        float, typer.Option(help="Stop when more than this share of rows is bad.")
    ] = _DEFAULT.max_rejected,
    memory_limit: Annotated[
        str, typer.Option(help="Memory to stay within, which workers share; the rest spills to disk beside --out.")
    ] = "1.5GB",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing store.")] = False,
    engine: EngineOption = "local",
    workers: WorkersOption = None,
    address: AddressOption = None,
) -> Job:
    if out is None:
        raise OptionError("out: missing; say where the store goes with --out DIR")
    shares: Any = parse_numbers("split", split)  # SessionConfig checks that there are three
    if workers is not None and engine == "local":
        raise OptionError("workers: are those of --engine ray; add it, or leave them out")
    config = SessionConfig(horizon, history, min_length, gap, shares, seed, max_rejected)
    return Job(out, config, memory_limit, overwrite, engine, workers, address)


def _with_job(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `_job` after its own, and pass it what they make, as `job`, once it asks for it."""
    common = inspect.signature(_job, eval_str=True).parameters
    signature = inspect.signature(command, eval_str=True)
    own = {name: parameter for name, parameter in signature.parameters.items() if name != "job"}

    @functools.wraps(command)
    def with_job(**options: Any) -> None:
        given = {name: options.pop(name) for name in common}
        command(**options, job=lambda: _job(**given))

    parameters = {**own, **common}
    with_job.__signature__ = signature.replace(parameters=list(parameters.values()))  # type: ignore[attr-defined]  # what typer reads
    with_job.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
    return with_job


def _summarise(store: Store) -> None:
    counts, rejected = store.manifest["counts"], sum(store.manifest["rejected"].values())
    typer.echo(
        f"{store.path}: {counts['rows']:,} steps of {counts['users']:,} users with {counts['items']:,} items, "
        f"{counts['sessions']:,} sessions ({counts['full_sessions']:,} full)"
        + (f"; {rejected:,} rows set aside in rejected.parquet" if rejected else "")
    )
    typer.echo(f"Next: mbcal describe {quoted(store.path)}")


def _fetched(paths: list[Path] | None, where: str) -> list[Path]:
    """The paths given; without any, say where the owner offers the log, which is all that can be done."""
    if not paths:
        typer.echo(where)
        raise typer.Exit
    return paths


@app.command("movielens")
@_with_job
def prepare_movielens(
    job: Callable[[], Job],
    paths: Paths = None,
    tags: Annotated[
        list[Path] | None, typer.Option(help="Tags from elsewhere: movieId,tag[,count].", show_default=False)
    ] = None,
) -> None:
    """MovieLens 1m, 10m (.dat) or 20m, 25m, latest (.csv), with genres and tags. Without PATHS: where to get it."""
    source = MovieLens(_fetched(paths, movielens.WHERE), tags or ())
    job().run(source)


@app.command("netflix")
@_with_job
def prepare_netflix(job: Callable[[], Job], paths: Paths = None) -> None:
    """The Netflix Prize: combined_data_*.txt, mv_*.txt or Parquet. Without PATHS: where to get it."""
    source = Netflix(_fetched(paths, netflix.WHERE))
    job().run(source)


@app.command("kuairand")
@_with_job
def prepare_kuairand(job: Callable[[], Job], paths: Paths = None) -> None:
    """KuaiRand Pure, 1K or 27K: dwell in twelve levels, video features. Without PATHS: where to get it."""
    source = KuaiRand(_fetched(paths, kuairand.WHERE))
    job().run(source)


@app.command("table")
@_with_job
def prepare_table(
    job: Callable[[], Job],
    paths: Annotated[list[Path], typer.Argument(help="The log: Parquet or CSV files, folders or zips of them.")],
    user: Annotated[str, typer.Option(help="Column that names the user.")],
    item: Annotated[str, typer.Option(help="Column that names the item.")],
    time: Annotated[str, typer.Option(help="Column with the time: timestamps, dates, ISO text or epoch numbers.")],
    behaviour: Annotated[str, typer.Option(help="Column with what the user did: a label or a number.")],
    rewards: Annotated[
        str | None,
        typer.Option(
            help="Labels and their rewards, 'skip=0,click=1,like=5'; with --levels: rewards alone, '0,1,2'.",
            show_default=False,
        ),
    ] = None,
    levels: Annotated[
        str | None,
        typer.Option(
            help="Cut points that make levels of a number, '0.5,3,10'; rewards 1, 2, 3, … unless --rewards.",
            show_default=False,
        ),
    ] = None,
    session: Annotated[
        str | None, typer.Option(help="Column that names the session, if the log has one.", show_default=False)
    ] = None,
    propensity: Annotated[
        str | None, typer.Option(help="Column with the probability of having shown the item.", show_default=False)
    ] = None,
    items: Annotated[
        list[Path] | None, typer.Option(help="TableLog of item features, Parquet or CSV.", show_default=False)
    ] = None,
    features: Annotated[str | None, typer.Option(help="Its columns to take, 'category,tags'.", show_default=False)] = None,
    items_key: Annotated[
        str | None, typer.Option(help="Its item column, if not named as in the log.", show_default=False)
    ] = None,
    title: Annotated[str | None, typer.Option(help="Its column with names for people to read.", show_default=False)] = None,
    separator: Annotated[str, typer.Option(help="What separates the values of a multi-valued text column.")] = "|",
    time_unit: Annotated[
        TimeUnit, typer.Option(help="LabelScaler of epoch numbers; told by their size unless given.")
    ] = "auto",
    time_format: Annotated[
        str | None, typer.Option(help="strptime format of the time, '%d/%m/%Y %H:%M'.", show_default=False)
    ] = None,
) -> None:
    """Anybody's log, column names given.

    Example: mbcal prepare table log.parquet --user uid --item doc --time ts --behaviour action
    --rewards "skip=0,click=1,like=5" --items docs.csv --features category,tags --out DIR
    """
    source = TableLog(
        paths,
        user=user,
        item=item,
        time=time,
        behaviour=behaviour,
        rule=_rule(rewards, levels),
        session=session,
        propensity=propensity,
        items=_items(items, features, items_key, separator, title),
        time_unit=time_unit,
        time_format=time_format,
    )
    job().run(source)


def _rule(rewards: str | None, levels: str | None) -> Labels | Levels:
    if levels is not None:
        numbers = None if rewards is None else parse_numbers("rewards", rewards)
        return behaviour_rule(numbers, parse_numbers("levels", levels))
    return behaviour_rule(None if rewards is None else parse_rewards(rewards), None)


def _items(
    paths: list[Path] | None, features: str | None, key: str | None, separator: str, title: str | None
) -> ItemTable | None:
    if not paths:
        if features is not None or title is not None:
            raise OptionError("features: they come from a table of items; name it with --items FILE")
        return None
    if features is None and title is None:
        raise InputError(f"{paths[0]}: say which of its columns to take with --features A,B or --title C")
    return ItemTable(paths, [name.strip() for name in features.split(",")] if features else [], key, separator, title)


@app.command("newsfeed")
@_with_job
def prepare_feed(
    job: Callable[[], Job],
    sessions: Annotated[int, typer.Option(help="How many sessions; a user has four.")] = 20_000,
    items: Annotated[int, typer.Option(help="How many items the feed has.")] = 2_000,
) -> None:
    """The embedded newsfeed: generated, its truth known, nothing to fetch.

    --seed decides the whole world; --memory-limit and --max-rejected have nothing to limit here.
    """
    from mbcal.environments.newsfeed.log import (  # torch takes a second to import; the others need none
        NewsfeedConfig,
        prepare_newsfeed,
    )

    known = job()
    if known.engine != "local":
        raise OptionError("engine: the newsfeed is generated here, there is no log for workers to read; leave it out")
    with progress() as listener:
        log = NewsfeedConfig(sessions, items)
        store = prepare_newsfeed(known.out, log, known.config, overwrite=known.overwrite, progress=listener)
    _summarise(store)
