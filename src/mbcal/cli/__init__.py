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
    describe,
    diagnose,
    evaluate,
    experiment,
    fit,
    log,
    prepare,
    rank,
    registry,
    report,
    serve,
    simulator,
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
app.add_typer(prepare.app, name="prepare")
app.command("describe")(describe.describe_store)
app.command("diagnose")(diagnose.diagnose_command)
app.command("simulator")(simulator.simulator_command)
app.command("fit")(fit.fit_agent)
app.command("rank")(rank.rank_candidates)
app.command("evaluate")(evaluate.evaluate_command)
app.add_typer(registry.app, name="registry")
app.command("experiment")(experiment.experiment_command)
app.add_typer(log.app, name="log")
app.command("report")(report.report_command)
app.command("compare")(report.compare_command)
app.command("serve")(serve.serve)
app.command("update")(update.update_registry)
app.command("loop")(update.loop_updates)


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
    """Run, and turn every mistake of the user's into one line and exit code 2."""
    for stream in (sys.stdout, sys.stderr):  # a terminal that knows no é shows a question mark, not a traceback
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    # networks here are many small operations, which a second thread hardly helps and a busy machine makes wait
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    caught: list[int] = []

    def stop(number: int, _: object) -> NoReturn:  # an exception, so that what is half-written is removed
        caught.append(number)
        sys.exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    try:
        app()
    except MbcalError as error:
        _fail(str(error))
    except SystemExit:
        if caught:
            sys.exit(128 + caught[-1])  # Ray turns our exit into one of its own
        raise
    except BrokenPipeError:  # the reader of our output left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        _fail(f"{error.filename or 'the answer'}: {error.strerror or error}")
    except (RuntimeError, MemoryError) as error:
        if caught:
            sys.exit(128 + caught[-1])  # DuckDB turns our exit into an error of its own
        if "memory" not in str(error).lower() and not isinstance(error, MemoryError):
            raise
        _fail("out of memory; take a smaller --batch, --hidden or --embedding, or fewer sessions")


def _fail(message: str) -> NoReturn:
    print(f"mbcal: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)
