"""The command line: parse, call, print."""

from __future__ import annotations

import io
import os
import signal
import sys
from typing import NoReturn

import typer

from mbcal import __version__
from mbcal.cli import (
    canary,
    collect,
    describe,
    diagnose,
    evaluate,
    experiment,
    fit,
    log,
    prepare,
    prepare_layouts,
    rank,
    registry,
    report,
    serve,
    simulator,
    studio,
    update,
)
from mbcal.errors import MbcalError

app = typer.Typer(
    name="mbcal",
    help="Long-term recommendation from ordinary logs: model-based counterfactual advantage learning (MBCAL).\n\n"
    "Start with 'mbcal prepare newsfeed --out feed' (generated data, nothing to fetch), then "
    "'mbcal simulator feed --out sim', 'mbcal fit feed --out model' and 'mbcal evaluate model --data feed --simulator sim'.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
prepare_layouts.add_layouts(prepare.app)
DATA, MODELS, EXPERIMENTS, SERVICE = "Data", "Models", "Experiments", "Service"
app.add_typer(prepare.app, name="prepare", rich_help_panel=DATA)
app.command("describe", rich_help_panel=DATA)(describe.describe_store)
app.command("diagnose", rich_help_panel=DATA)(diagnose.diagnose_command)
app.command("collect", rich_help_panel=DATA)(collect.collect_command)
app.command("fit", rich_help_panel=MODELS)(fit.fit_agent)
app.command("simulator", rich_help_panel=MODELS)(simulator.simulator_command)
app.command("evaluate", rich_help_panel=MODELS)(evaluate.evaluate_command)
app.command("rank", rich_help_panel=MODELS)(rank.rank_candidates)
app.command("experiment", rich_help_panel=EXPERIMENTS)(experiment.experiment_command)
app.command("report", rich_help_panel=EXPERIMENTS)(report.report_command)
app.command("compare", rich_help_panel=EXPERIMENTS)(report.compare_command)
app.command("studio", rich_help_panel=EXPERIMENTS)(studio.studio_command)
app.add_typer(registry.app, name="registry", rich_help_panel=SERVICE)
app.command("serve", rich_help_panel=SERVICE)(serve.serve)
app.add_typer(log.app, name="log", rich_help_panel=SERVICE)
app.command("update", rich_help_panel=SERVICE)(update.update_registry)
app.command("loop", rich_help_panel=SERVICE)(update.loop_updates)
app.command("watch-canary", rich_help_panel=SERVICE)(canary.watch_canary_command)
app.command("compare-versions", rich_help_panel=SERVICE)(canary.compare_versions_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mbcal {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
    ),
) -> None:
    pass


def main() -> None:
    """Run the command line. A mistake of the user is one line on standard error and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an ASCII terminal prints a question mark for é, not a traceback
    # Networks here are many small operations: a second thread gains little, and loses on a busy machine.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    signals: list[int] = []

    def stop(number: int, _: object) -> NoReturn:
        signals.append(number)
        sys.exit(128 + number)  # an exception, so that unfinished files are removed

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    try:
        app()
    except BrokenPipeError:  # the reader of the output has stopped reading, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except (Exception, SystemExit) as error:
        if signals:  # Ray and DuckDB turn our SystemExit into errors of their own
            sys.exit(128 + signals[-1])
        message = _user_message(error)
        if message is None:
            raise
        _fail(message)


def _user_message(error: BaseException) -> str | None:
    """One sentence for errors that a user can do something about; None for all others."""
    if isinstance(error, MbcalError):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.filename or 'the output'}: {error.strerror or error}"
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "memory" in str(error).lower()):
        return "out of memory; use a smaller --batch, --hidden or --embedding, or fewer sessions"
    return None


def _fail(message: str) -> NoReturn:
    print(f"mbcal: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)
