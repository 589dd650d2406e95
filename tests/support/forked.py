"""The command line in processes forked from one that has imported torch, which takes seconds."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from multiprocessing import get_context
from pathlib import Path

_context = get_context("forkserver")
_context.set_forkserver_preload(
    ["duckdb", "matplotlib.figure", "mbcal.cli", "mbcal.evaluation.experiment.runner", "mbcal.report.runs", "mbcal.gym"]
)


def run_forked(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run `mbcal` with these arguments in a process of its own, its output captured."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("stdout", "stderr")]
        for file in files:
            file.touch()
        process = _context.Process(target=_main, args=(arguments, str(cwd), dict(os.environ), *map(str, files)))
        process.start()
        process.join()
        assert process.exitcode is not None
        texts = [file.read_text() for file in files]
    return subprocess.CompletedProcess(["mbcal", *arguments], process.exitcode, *texts)


def _main(arguments: tuple[str, ...], cwd: str, environment: dict[str, str], out: str, error: str) -> None:
    """Run the command line in this process, its output to files."""
    for number, path in ((1, out), (2, error)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.argv = ["mbcal", *arguments]

    from mbcal import cli

    cli.main()
