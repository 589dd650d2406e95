"""What the pages of the service and of the studio share: style, DOM helpers and charts, as files of their own.

Pages load these files from the server they came from and nothing from elsewhere; they contain no inline script or style, so
that a strict content security policy holds.
"""

from functools import cache
from importlib.resources import files


@cache
def page_file(package: str, name: str) -> bytes:
    """Return a file of a page.

    Args:
        package: Where it belongs: `mbcal.pages` for a shared file, otherwise the package with the `page` folder.
        name: Its name.
    """
    return files(package).joinpath("page", name).read_bytes()
