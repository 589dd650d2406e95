"""Sentences for clients: none names a path of this machine."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

_PATH = re.compile(r"(?:[^\s:;,'\"()]*/)+([^\s:;,'\"()/]*)")


def without_paths(text: str, folders: Iterable[Path] = ()) -> str:
    """Return a sentence in which every path is replaced by its last part.

    Args:
        text: The sentence.
        folders: Folders that may appear in it, also with spaces in their names.
    """
    for folder in folders:
        for path in {str(folder.absolute()), str(folder)} - {"."}:
            text = text.replace(f"{path}/", "").replace(path, folder.name)
    return _PATH.sub(r"\1", text)
