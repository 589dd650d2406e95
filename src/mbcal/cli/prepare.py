"""`mbcal prepare`: write a log as a store."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from mbcal.cli.console import progress
from mbcal.cli.options import (
    AddressOption,
    ContextColumnsOption,
    EngineOption,
    UserColumnsOption,
    UserFilesOption,
    UsersKeyOption,
    WorkersOption,
    require_ray,
)
from mbcal.cli.prepare_help import GENERATED, HELP, OWN, WORLD, in_panels
from mbcal.cli.prepare_parsing import column_names, parse_items, parse_rule_options, parse_users
from mbcal.cli.store_summary import summarise
from mbcal.data import SessionConfig, TableLog
from mbcal.data import prepare as prepare_log
from mbcal.data.clicks import click_rule
from mbcal.data.ingest import LogReader
from mbcal.data.readers.table import parse_numbers
from mbcal.data.sql import TimeUnit
from mbcal.distributed.engines import EngineName, create_engine
from mbcal.errors import OptionError, nearest

app = typer.Typer(help=HELP, no_args_is_help=True)

_DEFAULT = SessionConfig()
BY_TIME = "time:"
"""What `--split` begins with if it is by time as well as by user."""

Paths = Annotated[
    list[Path] | None,
    typer.Argument(help="Folders, zips or files as published; patterns and URLs, 's3://…', too.", show_default=False),
]


@dataclass(frozen=True)
class Job:
    """Options that all layouts share."""

    out: Path
    config: SessionConfig
    memory_limit: str
    overwrite: bool
    like: Path | None
    engine: EngineName
    workers: int | None
    address: str | None

    def run(self, source: LogReader) -> None:
        """Prepare a log, show progress, and print a summary."""
        with create_engine(self.engine, self.workers, self.address) as engine, progress() as listener:
            store = prepare_log(
                source,
                self.out,
                self.config,
                engine=None if self.engine == "local" else engine,
                memory_limit=self.memory_limit,
                overwrite=self.overwrite,
                like=self.like,
                progress=listener,
            )
        summarise(store)


def _job(
    out: Annotated[Path | None, typer.Option(help="Folder to write (required).", show_default=False)] = None,
    horizon: Annotated[int, typer.Option(help="Most steps in a session (the paper's T).")] = _DEFAULT.horizon,
    history: Annotated[int, typer.Option(help="Most steps kept from before a session.")] = _DEFAULT.history,
    min_length: Annotated[
        int, typer.Option(help="Drop shorter sessions; their steps remain in histories.")
    ] = _DEFAULT.min_length,
    gap: Annotated[float | None, typer.Option(help="Minutes without a step that end a session.", show_default=False)] = None,
    ends: Annotated[
        str | None,
        typer.Option(
            help="Labels with which a user leaves, 'left,close'; a session ends there. Or 'length': the user has left a "
            "session that is shorter than the horizon, cut by --session or --gap.",
            show_default=False,
        ),
    ] = None,
    split: Annotated[
        str,
        typer.Option(
            help="Shares of users in the parts simulator, train and test; 'time:0.4,0.4,0.2' also cuts the log by time, in "
            "this order (docs/time.md)."
        ),
    ] = "0.4,0.4,0.2",
    seed: Annotated[
        int, typer.Option(help="Decides the part of each user and the order of steps at the same time.")
    ] = _DEFAULT.seed,
    max_rejected: Annotated[float, typer.Option(help="Fail if a larger share of rows is rejected.")] = _DEFAULT.max_rejected,
    max_per_user: Annotated[
        int | None,
        typer.Option(
            help="Keep only the latest N steps of each user: one machine may otherwise be most of the log.",
            show_default=False,
        ),
    ] = None,
    alive: Annotated[
        float | None,
        typer.Option(
            help="Days after its first step during which an item may be a sampled candidate (docs/time.md).",
            show_default=False,
        ),
    ] = None,
    negatives: Annotated[
        int,
        typer.Option(
            help="For logs of clicks alone: add K items per row, on average, that were alive and that the user did not "
            "choose, as the behaviour 'none' (docs/clicks.md).",
        ),
    ] = 0,
    none_reward: Annotated[float, typer.Option(help="Reward of the behaviour 'none' of --negatives.")] = 0.0,
    memory_limit: Annotated[
        str, typer.Option(help="Memory to use, shared by all workers; the rest is spilled to disk beside --out.")
    ] = "1.5GB",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing store.")] = False,
    like: Annotated[
        Path | None,
        typer.Option(
            help="A store that this log continues: its items, categories and behaviours keep their numbers and new ones are "
            "appended, so that 'mbcal fit --from' can go on from a model of it. Give the same --horizon and --history.",
            show_default=False,
        ),
    ] = None,
    engine: EngineOption = "local",
    workers: WorkersOption = None,
    address: AddressOption = None,
) -> Job:
    if out is None:
        raise OptionError("out: missing; name the folder to write with --out DIR")
    kind, colon, numbers = split.strip().rpartition(":")
    by_time = kind + colon == BY_TIME
    if colon and not by_time:
        raise OptionError(
            f"split: {kind + colon!r} is unknown; write 0.4,0.4,0.2, or {BY_TIME}0.4,0.4,0.2 to cut by time as well."
            f"{nearest(kind + colon, [BY_TIME])}"
        )
    shares: Any = parse_numbers("split", numbers)  # SessionConfig checks that there are three
    require_ray(engine, workers)
    labels = () if ends is None else tuple(label.strip() for label in ends.split(","))
    config = SessionConfig(
        horizon,
        history,
        min_length,
        gap,
        shares,
        seed,
        max_rejected,
        max_per_user=max_per_user,
        split_by_time=by_time,
        alive=alive,
        ends=labels,
        negatives=negatives,
        none_reward=none_reward,
    )
    return Job(out, config, memory_limit, overwrite, like, engine, workers, address)


def with_job(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of `_job` to those of a command, and pass it a function `job` that builds the Job from them."""
    common = inspect.signature(_job, eval_str=True).parameters
    signature = inspect.signature(command, eval_str=True)
    own = {name: parameter for name, parameter in signature.parameters.items() if name != "job"}

    @functools.wraps(command)
    def with_job(**options: Any) -> None:
        job_options = {name: options.pop(name) for name in common}
        command(**options, job=lambda: _job(**job_options))

    parameters = {parameter.name: parameter for parameter in in_panels({**own, **common}.values())}
    with_job.__signature__ = signature.replace(parameters=list(parameters.values()))  # type: ignore[attr-defined]  # what typer reads
    with_job.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
    return with_job


def require_paths(paths: list[Path] | None, where: str) -> list[Path]:
    """Return the paths; without any, print where the log can be downloaded, and exit."""
    if not paths:
        typer.echo(where)
        raise typer.Exit
    return paths


@app.command("table", rich_help_panel=OWN)
@with_job
def prepare_table(
    job: Callable[[], Job],
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="The log: Parquet or CSV files, folders or zips of them; patterns, 'logs/*.csv', and 's3://…' too."
        ),
    ],
    user: Annotated[str, typer.Option(help="Column that names the user.")],
    item: Annotated[str, typer.Option(help="Column that names the item.")],
    time: Annotated[str, typer.Option(help="Column with the time: timestamps, dates, ISO text or epoch numbers.")],
    behaviour: Annotated[
        str | None,
        typer.Option(
            help="Column with the behaviour: a label or a number. 'next-click' derives dwell in seconds from the user's "
            "next row (with --levels). Leave it out if every row is a click (with --negatives).",
            show_default=False,
        ),
    ] = None,
    rewards: Annotated[
        str | None,
        typer.Option(
            help="Reward of each label, 'skip=0,click=1,like=5'; with --levels: of each level, '0,1,2'.",
            show_default=False,
        ),
    ] = None,
    levels: Annotated[
        str | None,
        typer.Option(
            help="Cut points that turn a number into levels, '0.5,3,10'; rewards are 1, 2, 3, … unless --rewards.",
            show_default=False,
        ),
    ] = None,
    session: Annotated[
        str | None, typer.Option(help="Column that names the session, if the log has one.", show_default=False)
    ] = None,
    propensity: Annotated[
        str | None, typer.Option(help="Column with the probability with which the item was shown.", show_default=False)
    ] = None,
    items: Annotated[list[Path] | None, typer.Option(help="Table of items, Parquet or CSV.", show_default=False)] = None,
    features: Annotated[
        str | None,
        typer.Option(
            help="Columns of the item table that become features, 'category,words,embedding'. The kind of each (category, "
            "number, vector) is inferred from its values, or declared: 'category,words:number,embedding:vector'.",
            show_default=False,
        ),
    ] = None,
    items_key: Annotated[
        str | None, typer.Option(help="Item column of the item table, if not called as in the log.", show_default=False)
    ] = None,
    title: Annotated[
        str | None, typer.Option(help="Column of the item table with titles for display.", show_default=False)
    ] = None,
    separator: Annotated[str, typer.Option(help="Separates the values of a multi-valued text column.")] = "|",
    context: ContextColumnsOption = None,
    users: UserFilesOption = None,
    user_features: UserColumnsOption = None,
    users_key: UsersKeyOption = None,
    time_unit: Annotated[TimeUnit, typer.Option(help="Unit of epoch numbers; by default decided by their size.")] = "auto",
    time_format: Annotated[
        str | None, typer.Option(help="strptime format of the time, '%d/%m/%Y %H:%M'.", show_default=False)
    ] = None,
) -> None:
    """A log of your own: Parquet or CSV, with the column names given.

    Name the columns, and say what each behaviour is worth: --rewards for labels, --levels for a number such as dwell.

    Labels: mbcal prepare table log.parquet --user uid --item doc --time ts --behaviour action
    --rewards "skip=0,click=1,like=5" --items docs.csv --features category,tags --out DIR

    Dwell: mbcal prepare table plays.csv --user uid --item video --time ts --behaviour seconds --levels 3,10,30 --gap 30
    --out DIR

    Clicks: mbcal prepare table "s3://bucket/2026-*.parquet" --user uid --item doc --time ts --session visit --negatives 4
    --out DIR
    """
    source = TableLog(
        paths,
        user=user,
        item=item,
        time=time,
        behaviour=behaviour,
        rule=click_rule(behaviour, *parse_rule_options(rewards, levels)),
        session=session,
        propensity=propensity,
        items=parse_items(items, features, items_key, separator, title),
        context=column_names(context),
        users=parse_users(users, user_features, users_key),
        time_unit=time_unit,
        time_format=time_format,
    )
    job().run(source)


@app.command("newsfeed", rich_help_panel=GENERATED)
@with_job
def prepare_feed(
    job: Callable[[], Job],
    sessions: Annotated[int, typer.Option(help="Number of sessions; each user has four.", rich_help_panel=WORLD)] = 20_000,
    items: Annotated[int, typer.Option(help="Number of items.", rich_help_panel=WORLD)] = 2_000,
    leaving: Annotated[
        bool,
        typer.Option(
            "--leaving",
            help="Users may leave: the more often, the worse their mood and the more a topic repeats.",
            rich_help_panel=WORLD,
        ),
    ] = False,
) -> None:
    """A generated newsfeed with known truth; nothing to download.

    --seed decides everything. Sessions are generated, not cut from a log.
    Of the options that say how to cut one, only --horizon, --history and --split A,B,C apply.
    """
    from mbcal.environments.newsfeed.log import (  # imports torch, which takes a second
        NewsfeedConfig,
        prepare_newsfeed,
    )

    options = job()
    if options.engine != "local":
        raise OptionError("engine: the newsfeed is generated on this machine; leave the option out")
    if options.like is not None:
        raise OptionError("like: the newsfeed is generated anew and continues no store; leave the option out")
    with progress() as listener:
        log = NewsfeedConfig(sessions, items, leaving)
        store = prepare_newsfeed(options.out, log, options.config, overwrite=options.overwrite, progress=listener)
    summarise(store)
