"""Commands and programs in the documentation, and running them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.support.command_line import mbcal_here
from tests.support.logs import ROOT

README = (ROOT / "README.md").read_text()


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def commands_of(page: str, first: int = 0) -> list[str]:
    """Commands of the bash blocks of a page, from block number `first` on, at sizes that take seconds."""
    joined = [block.replace("\\\n", " ") for block in blocks(page, "bash")[first:]]
    lines = [line.split("  #")[0].strip() for block in joined for line in block.splitlines()]
    return [at_test_size(line) for line in lines]


def at_test_size(command: str) -> str:
    """The same command with few sessions, one epoch and small networks.

    Options are added at the end, where they replace those before them.
    """
    command = re.sub(r"--sessions \d+", "--sessions 800", command)
    if command.startswith("mbcal diagnose"):
        return f"{command} --epochs 1 --sessions 200"
    if re.match(r"mbcal (fit|simulator)", command):
        sizes = "" if "--from" in command else " --hidden 8 --embedding 8"  # a model keeps its own
        return f"{command} --epochs 1{sizes}"
    if command.startswith("mbcal experiment"):
        command += " --workers 1"  # in one process; several have tests in tests/evaluation/test_run.py
    if not command.startswith("mbcal experiment newsfeed"):
        return command
    sizes = "log_sessions=400 test_sessions=60 rounds=1 round_sessions=60 futures=4 future_states=4 xray=1"
    nets = "net.hidden=8 net.embedding=8 simulator.hidden=8 simulator.embedding=8"
    epochs = "training.epochs=1 simulator.training.epochs=1"
    return command + "".join(f" --set {size}" for size in f"{sizes} {nets} {epochs}".split())


def run(commands: list[str], workshop: Path) -> None:
    """Run commands in a folder; each must succeed and print something.

    Most run in this process, since torch is slow to import; those of an engine run in a shell.
    """
    for command in commands:
        if command.startswith("mbcal ") and "--engine" not in command:
            assert mbcal_here(*shlex.split(command)[1:], cwd=workshop), command
        else:
            run_in_shell([command], workshop)


def run_in_shell(commands: list[str], workshop: Path) -> None:
    """Run shell commands in a folder, as their user does; each must succeed and print something."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for command in commands:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=workshop,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        assert done.stdout
