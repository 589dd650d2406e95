"""Running the command line."""

from __future__ import annotations

import contextlib
import io
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mbcal import cli
from tests.support.forked import run_forked
from tests.support.logs import ROOT

HEADER = ("uid", "doc", "ts", "action")


ROWS = [(f"u{k % 17}", f"d{k % 9}", 1_650_000_000 + k, ("skip", "click", "like")[k % 3]) for k in range(300)]


TABLE = ["prepare", "table", "log.csv", "--user", "uid", "--item", "doc", "--time", "ts", "--behaviour", "action"]


REWARDS = ["--rewards", "skip=0,click=1,like=5"]


def mbcal(*arguments: str, cwd: Path = ROOT, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own; it must exit with this code."""
    done = run_forked(*arguments, cwd=cwd)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def mbcal_here(*arguments: str, cwd: Path) -> str:
    """What a command that succeeds prints; in this process, for tests of several commands, since torch is slow to import."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = _main(arguments, cwd)
    assert not code, printed.getvalue()
    return printed.getvalue()


def refused(*arguments: str, cwd: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What the command says when it exits with code 2; in this process, since there are many and torch is slow to import."""
    capsys.readouterr()
    code = _main(arguments, cwd)
    said = capsys.readouterr().err.strip()
    assert code == 2, said
    assert said.splitlines()[-1].startswith("mbcal: ")
    return said


def _main(arguments: tuple[str, ...], cwd: Path) -> int | str | None:
    """Run the command line in this process; returns its exit code."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        with contextlib.chdir(cwd), pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["mbcal", *arguments])
            with pytest.raises(SystemExit) as stopped:
                cli.main()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return stopped.value.code
