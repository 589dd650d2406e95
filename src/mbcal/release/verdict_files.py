"""Verdicts of updates as files beside the versions: `NNNNNN.json`, and `NNNNNN.html` for people.

A number that is not finite, such as the sessions that would be needed where nothing was explored, is null in the JSON and a
dash on the page.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mbcal.errors import OutputError
from mbcal.release.gate import Verdict
from mbcal.release.plain import finite
from mbcal.storage.atomic import write_atomic


def record_verdict(folder: str | Path, verdict: Verdict) -> None:
    """Write a verdict, or write it again where it was; if that is not possible, the verdict says so (`page_problem`)."""
    try:
        verdict.page, verdict.page_problem = write_verdict(folder, verdict, verdict.page), ""
    except OutputError as error:  # what became of the candidate stays
        verdict.page_problem = str(error)


def write_verdict(folder: str | Path, verdict: Verdict, page: Path | None = None) -> Path:
    """Write a verdict as JSON and as a page: `NNNNNN.json` and `NNNNNN.html`, numbered from 1.

    Several processes may write at once: the page is created first, and only one of them can create it.

    Args:
        folder: Where verdicts are.
        verdict: The verdict.
        page: The page to replace; None for a new one.

    Returns:
        The path of the page.

    Raises:
        OutputError: If the folder cannot be written. Of a new page nothing stays.
    """
    from mbcal.report.update_page import verdict_page

    record: dict[str, Any] = finite(asdict(verdict))
    del record["page"], record["page_problem"]  # they are about the files
    content = json.dumps(record, indent=2, allow_nan=False, default=float) + "\n"
    html = verdict_page(record)
    path = page or _new_page(Path(folder))
    try:
        write_atomic(path, html.encode())
        write_atomic(path.with_suffix(".json"), content.encode())
    except OutputError:
        if page is None:  # half a verdict is none
            path.unlink(missing_ok=True)
        raise
    return path


def _new_page(folder: Path) -> Path:
    """Create the page with the next number, empty."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        while True:
            number = 1 + max((int(path.stem) for path in folder.iterdir() if path.stem.isdecimal()), default=0)
            page = folder / f"{number:06d}.html"
            with contextlib.suppress(FileExistsError):  # another process was faster
                page.touch(exist_ok=False)
                return page
    except OSError as error:
        raise OutputError(f"{folder}: cannot be written ({error.strerror}); check its permissions") from error
