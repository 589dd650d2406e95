"""Time to read the candidates of a request and encode them for the decision log, without a server.

    python benchmarks/names.py [--candidates 20 200 1000]

c        the C parser, which finds the catalogue rows while it reads (docs/decisions/0017-names-parsed-in-c.md)
msgspec  without it: names are decoded and looked up one by one, as the service does where there is no compiler
orjson   the same, decoded by orjson and validated by msgspec, if orjson is installed
"""

from __future__ import annotations

import argparse
import json
import timeit
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from mbcal.serving.candidates import CandidateReader
from mbcal.serving.messages import RankRequest
from mbcal.types import Catalog

CATALOGUE = 20_000
MOST = 1_000
"""Candidates that a request may have."""


def ways_to_read(catalog: Catalog, names: list[str]) -> dict[str, Callable[[], Any]]:
    """From the name of a way to a call that reads a list of candidates and encodes it for the log."""
    text, pack = json.dumps(names).encode(), msgspec.msgpack.Encoder().encode
    in_c, in_python = (CandidateReader(catalog, rows) for rows in (np.empty(10 * MOST, np.int32), None))
    ways = {
        "c": lambda: pack(in_c.read(msgspec.Raw(text), 10, MOST).logged()),
        "msgspec": lambda: pack(in_python.read(msgspec.Raw(text), 10, MOST).logged()),
    }
    try:
        import orjson
    except ImportError:
        return ways
    body = b'{"candidates":' + text + b"}"

    def by_orjson() -> bytes:
        request = msgspec.convert(orjson.loads(body), RankRequest)
        return pack(in_python.read(request.candidates, 10, MOST).logged())

    return {**ways, "orjson": by_orjson}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, nargs="+", default=[20, 200, MOST], help="candidates per request")
    options = parser.parse_args()
    catalog = Catalog(tuple(f"item-{row:05}" for row in range(CATALOGUE)))
    draw = np.random.default_rng(0)
    for count in options.candidates:
        names = [catalog.items[row] for row in draw.choice(CATALOGUE, count, replace=False)]
        best = {
            name: min(timeit.repeat(way, number=200, repeat=25)) / 200 * 1e6
            for name, way in ways_to_read(catalog, names).items()
        }
        print(f"{count} candidates: " + ", ".join(f"{name} {cost:.1f} µs" for name, cost in best.items()), flush=True)


if __name__ == "__main__":
    main()
