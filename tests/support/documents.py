"""Commands and programs in the documentation, and running them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.logs import ROOT

README = (ROOT / "README.md").read_text()


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def commands_of(page: str, first: int = 0) -> list[str]:
    """Commands of the bash blocks of a page, from block number `first` on, at sizes that take seconds."""
    lines = [line.split("  #")[0].strip() for block in blocks(page, "bash")[first:] for line in block.splitlines()]
    return [at_test_size(line) for line in lines]


def at_test_size(command: str) -> str:
    """The same command with few sessions, one epoch and small networks."""
    command = re.sub(r"--sessions \d+", "--sessions 800", command)
    if re.match(r"mbcal (fit|simulator|diagnose)", command):
        return f"{command} --epochs 1"
    if not command.startswith("mbcal experiment newsfeed"):
        return command
    sizes = "log_sessions=400 test_sessions=60 rounds=1 round_sessions=60 futures=4 future_states=4 net.hidden=8"
    epochs = "training.epochs=1 simulator.training.epochs=1"
    return command + "".join(f" --set {size}" for size in [*sizes.split(), *epochs.split()])


def run(commands: list[str], workshop: Path) -> None:
    """Run shell commands in a folder; each must succeed and print something."""
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
