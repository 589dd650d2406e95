"""What updates and trials of canaries wrote beside the versions, read-only and bounded in size.

::

    REGISTRY/updates/NNNNNN.json, NNNNNN.html   verdict of an update, and its page
    REGISTRY/canaries/NAME.json                 the last look at a canary
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from mbcal.errors import InputError, shortened
from mbcal.storage.plain_file import read_plain

FOLDER = "updates"
CANARIES = "canaries"
MAX_BYTES = 4 << 20
"""Larger files are not read."""
MAX_TEXT = 1_000
"""Characters of a reason or a check that a list of updates shows; the page of the update has all."""
_YEAR_9999 = 253_370_764_800
_RECORD_NAME = re.compile(r"([0-9]{6,12})\.json")
_PAGE_NAME = re.compile(r"[0-9]{6,12}\.html")


def read_updates(registry: Path, most: int = 20) -> list[dict[str, Any]]:
    """Read the newest updates.

    Args:
        registry: The registry's folder.
        most: How many.

    Returns:
        Newest first: `number`, `time` (of the verdict, in seconds since 1970; of a damaged record that of the file), `live`,
        `answer`, `action`, `version`, `reason`, `checks` and `page` (name of its page, None if it has none). A damaged
        record has `problem` instead of what it would say.
    """
    folder = registry / FOLDER
    try:
        names = [match for entry in os.scandir(folder) if (match := _RECORD_NAME.fullmatch(entry.name))]
    except OSError:
        return []
    names.sort(key=lambda match: -int(match[1]))
    return [_read_update(folder, match[1]) for match in names[:most]]


def read_trial(registry: Path, name: str, began: int | None = None) -> dict[str, Any] | None:
    """Read the last look at a canary, REGISTRY/canaries/NAME.json.

    Args:
        registry: The registry's folder.
        name: The version.
        began: When its trial began (`Pointer.canary_began`); None for its last trial, whenever that was.

    Returns:
        What was written; None if there is nothing, it is damaged, or of another trial.
    """
    try:
        look = json.loads(read_plain(registry / CANARIES / f"{name}.json", MAX_BYTES, follow_links=False)[0])
    except (OSError, ValueError, RecursionError):
        return None
    return look if isinstance(look, dict) and began in (None, look.get("began")) else None


def read_update_page(registry: Path, name: str) -> bytes:
    """Return the page of an update.

    Args:
        registry: The registry's folder.
        name: Name of the page, such as `000012.html`.

    Raises:
        InputError: If this is not the name of a page, or there is no such page.
    """
    try:
        if not _PAGE_NAME.fullmatch(name):
            raise ValueError
        return read_plain(registry / FOLDER / name, MAX_BYTES, follow_links=False)[0]
    except (OSError, ValueError):
        raise InputError(f"{name}: no such update; see /v1/registry") from None


def _read_update(folder: Path, number: str) -> dict[str, Any]:
    entry: dict[str, Any] = {"number": int(number), "time": None}
    try:
        content, entry["time"] = read_plain(folder / f"{number}.json", MAX_BYTES, follow_links=False)
        record = json.loads(content)
        return entry | {
            "live": record["live"],
            "time": _time_of(record, entry["time"]),
            **{key: _shown(record[key]) for key in ("answer", "action", "version", "reason")},
            "checks": [{key: _shown(check[key]) for key in ("name", "answer", "detail")} for check in record["checks"]],
            "page": f"{number}.html" if (folder / f"{number}.html").is_file() else None,
        }
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        return entry | {"problem": f"damaged ({type(error).__name__})"}


def _time_of(record: dict[str, Any], changed: float) -> float:
    """When the verdict was reached; when its file was changed if the record does not say."""
    time = record.get("time")
    return time if isinstance(time, int | float) and 0 <= time < _YEAR_9999 else changed


def _shown(value: Any) -> Any:
    return shortened(value, MAX_TEXT) if isinstance(value, str) else value
