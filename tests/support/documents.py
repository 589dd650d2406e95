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


def commands_of(page: str, first: int) -> list[str]:
    """The commands of a page's blocks from one on, the newsfeed at a size for tests."""
    lines = [line.split("  #")[0].strip() for block in blocks(page, "bash")[first:] for line in block.splitlines()]
    smaller = [re.sub(r"--sessions \d+", "--sessions 800", line) for line in lines]
    return [
        f"{line} --epochs 1" if re.match(r"mbcal (fit|simulator|diagnose)", line) else line + tiny(line) for line in smaller
    ]


def tiny(line: str) -> str:
    """ExperimentConfig that make learning a matter of seconds."""
    if re.match(r"mbcal (fit|simulator|diagnose)", line):
        return " --epochs 1"
    if not line.startswith("mbcal experiment newsfeed"):
        return ""
    sizes = "log_sessions=400 test_sessions=60 epochs=1 rounds=1 round_sessions=60 futures=4 future_states=4 hidden=8"
    return "".join(f" --set {size}" for size in [*sizes.split(), "simulator.training.epochs=1"])


def run(commands: list[str], workshop: Path) -> None:
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
