"""`mbcal prepare movielens|netflix|kuairand|recbole|mind|yoochoose|retailrocket`: logs as others publish them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from mbcal.cli.prepare import Job, Paths, require_paths, with_job
from mbcal.cli.prepare_help import PUBLIC
from mbcal.cli.prepare_parsing import parse_rule
from mbcal.data import KuaiRand, Labels, Mind, MovieLens, Netflix, RecBole, RetailRocket, Yoochoose
from mbcal.data.readers import kuairand, mind, movielens, netflix, recbole, retailrocket, yoochoose
from mbcal.data.readers.table import parse_rewards


def add_layouts(app: typer.Typer) -> None:
    """Add these commands to those of `mbcal prepare`."""
    commands = {
        "movielens": prepare_movielens,
        "netflix": prepare_netflix,
        "kuairand": prepare_kuairand,
        "recbole": prepare_recbole,
        "mind": prepare_mind,
        "yoochoose": prepare_yoochoose,
        "retailrocket": prepare_retailrocket,
    }
    for name, command in commands.items():
        app.command(name, rich_help_panel=PUBLIC)(command)


def _rewards(text: str | None, default: Labels) -> Labels:
    return default if text is None else Labels(parse_rewards(text))


def _columns(text: str | None) -> list[str] | None:
    """Return the columns that an option names; none for `none`."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip() != "none"]


def _example(rule: Labels) -> str:
    return ",".join(f"{label}={reward:g}" for label, reward in rule.rewards.items())


@with_job
def prepare_movielens(
    job: Callable[[], Job],
    paths: Paths = None,
    tags: Annotated[
        list[Path] | None, typer.Option(help="Tags from another file: movieId,tag[,count].", show_default=False)
    ] = None,
) -> None:
    """MovieLens 1m, 10m (.dat) or 20m, 25m, latest (.csv), with genres and tags.

    Stars are behaviours, and their number is the reward; half stars are rounded down. Features are genres and tags.

    Example: mbcal prepare movielens ml-20m.zip --out DIR
    """
    source = MovieLens(require_paths(paths, movielens.WHERE), tags or ())
    job().run(source)


@with_job
def prepare_netflix(job: Callable[[], Job], paths: Paths = None) -> None:
    """Netflix Prize: combined_data_*.txt, mv_*.txt or Parquet.

    Stars are behaviours, and their number is the reward. Times are days: the order within a day is random, by the seed.

    Example: mbcal prepare netflix netflix-prize.zip --out DIR
    """
    source = Netflix(require_paths(paths, netflix.WHERE))
    job().run(source)


@with_job
def prepare_kuairand(job: Callable[[], Job], paths: Paths = None) -> None:
    """KuaiRand Pure, 1K or 27K: dwell time in twelve levels, video features.

    The levels are about equally common among users outside the test part, with rewards 1 to 12.

    Example: mbcal prepare kuairand KuaiRand-Pure.zip --horizon 10 --out DIR
    """
    source = KuaiRand(require_paths(paths, kuairand.WHERE))
    job().run(source)


@with_job
def prepare_recbole(
    job: Callable[[], Job],
    paths: Paths = None,
    behaviour: Annotated[
        str | None,
        typer.Option(help="Column with the behaviour: a label or a number.", show_default="rating, else label, else clicks"),
    ] = None,
    rewards: Annotated[
        str | None,
        typer.Option(
            help="Reward of each label, 'view=0,cart=1,buy=5'; with --levels: of each level, '0,1,2'.",
            show_default="the numbers in the column",
        ),
    ] = None,
    levels: Annotated[
        str | None,
        typer.Option(help="Cut points that turn a number into levels, '3,5': <3, 3..5, >=5.", show_default=False),
    ] = None,
    user: Annotated[
        str | None, typer.Option(help="Column that names the user.", show_default="user_id, else session_id")
    ] = None,
    item: Annotated[str, typer.Option(help="Column that names the item.")] = "item_id",
    time: Annotated[str, typer.Option(help="Column with the time.")] = "timestamp",
    session: Annotated[
        str | None, typer.Option(help="Column that names the session, if the log has one.", show_default=False)
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(help="Columns of the .item file that become features, 'class,year', or 'none'.", show_default="all"),
    ] = None,
    title: Annotated[
        str | None,
        typer.Option(help="Column of the .item file with titles.", show_default="the first that ends in title or name"),
    ] = None,
    user_features: Annotated[
        str | None,
        typer.Option(help="Columns of the .user file that describe users, 'age,gender', or 'none'.", show_default="all"),
    ] = None,
    context: Annotated[
        str | None, typer.Option(help="Columns of the .inter file that describe steps, 'device,hour'.", show_default=False)
    ] = None,
) -> None:
    """RecBole's atomic files: NAME.inter, NAME.item and NAME.user.

    Each number in the rating column is a behaviour whose reward is the number. A log without ratings is a log of clicks.

    Example: mbcal prepare recbole ml-100k.zip --levels 3,5 --rewards 0,1,2 --out DIR
    """
    source = RecBole(
        require_paths(paths, recbole.WHERE),
        behaviour=behaviour,
        rule=None if rewards is None and levels is None else parse_rule(rewards, levels),
        user=user,
        item=item,
        time=time,
        session=session,
        features=_columns(features),
        user_features=_columns(user_features),
        context=_columns(context) or (),
        title=title,
    )
    job().run(source)


@with_job
def prepare_mind(
    job: Callable[[], Job],
    paths: Paths = None,
    rewards: Annotated[str | None, typer.Option(help="Rewards of the behaviours.", show_default=_example(mind.RULE))] = None,
) -> None:
    """MIND, Microsoft's news: behaviors.tsv and news.tsv.

    Each impression is a session: its news are the steps, in the order of the list, clicked or skipped. Features are
    category, subcategory and entities.

    Example: mbcal prepare mind MINDsmall_train.zip MINDsmall_dev.zip --horizon 40 --out DIR
    """
    source = Mind(require_paths(paths, mind.WHERE), _rewards(rewards, mind.RULE))
    job().run(source)


@with_job
def prepare_yoochoose(
    job: Callable[[], Job],
    paths: Paths = None,
    rewards: Annotated[
        str | None, typer.Option(help="Rewards of the behaviours.", show_default=_example(yoochoose.RULE))
    ] = None,
) -> None:
    """Yoochoose (RecSys Challenge 2015): clicks and buys of a shop.

    Every click and every buy is a step. Sessions have no users, so each session is a user of its own, without history.

    Example: mbcal prepare yoochoose yoochoose-clicks.dat yoochoose-buys.dat --min-length 2 --out DIR
    """
    source = Yoochoose(require_paths(paths, yoochoose.WHERE), _rewards(rewards, yoochoose.RULE))
    job().run(source)


@with_job
def prepare_retailrocket(
    job: Callable[[], Job],
    paths: Paths = None,
    rewards: Annotated[
        str | None, typer.Option(help="Rewards of the behaviours.", show_default=_example(retailrocket.RULE))
    ] = None,
) -> None:
    """RetailRocket: views, baskets and transactions of a shop.

    Every event is a step. --gap 30 begins a session after half an hour without one. Features are the category and the one
    above it.

    Example: mbcal prepare retailrocket archive.zip --gap 30 --out DIR
    """
    source = RetailRocket(require_paths(paths, retailrocket.WHERE), _rewards(rewards, retailrocket.RULE))
    job().run(source)
