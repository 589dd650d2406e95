"""Files that others may have put there: read only if they are plain files of bounded size."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_plain(path: Path, most: int | None = None, follow_links: bool = True) -> tuple[bytes, float]:
    """Return the content of a plain file and the time of its last change. A pipe or a device would not come to an end.

    Args:
        path: The file.
        most: Bytes that it may have; None for any number.
        follow_links: Whether it may be a symbolic link.

    Raises:
        OSError: If it cannot be read, is not a plain file or is larger.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | (0 if follow_links else os.O_NOFOLLOW)
    with os.fdopen(os.open(path, flags), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a plain file", str(path))
        if most is not None and status.st_size > most:
            raise OSError(errno.EFBIG, f"larger than {most:,} bytes", str(path))
        return file.read(status.st_size), status.st_mtime
