"""The ranking server against other ways to build it, on one machine, in turns.

    python benchmarks/serve_rivals.py routing    our ASGI application, or Starlette (docs/decisions/0016-http-routing.md)
    python benchmarks/serve_rivals.py layer      both HTTP layers alone, in this process: GET /healthz without a socket
    python benchmarks/serve_rivals.py names      candidate names parsed in C, or by msgspec or orjson and looked up in a dict
                                                 (docs/decisions/0017-names-parsed-in-c.md)

Every variant is a server process on the first core, with a registry, a decision log and 200 sessions it remembers. A
round gives every variant a closed loop of clients (requests per second, CPU per request) and an open loop at a fixed rate
(p50 and p99 from the moment a request was due), in random order. CPU is the server's own, all threads, from /proc; it
suffers least from other work on the machine. Printed are medians over rounds, and the CPU relative to the first variant:
the median of the ratios within a round, with its 95% bootstrap interval. Starlette and orjson are not dependencies of
mbcal; install them in an environment of their own.
"""

from __future__ import annotations

import argparse
import ast
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import psutil
import serve
import uvicorn
from numpy.typing import NDArray

from mbcal.decision_log.writer import DecisionLog
from mbcal.registry.registry import Registry
from mbcal.serving import endpoints, ranker, server
from mbcal.serving.candidates import CandidateReader, require_rankable
from mbcal.serving.memory_state import MemoryStore
from mbcal.serving.messages import RankRequest, RequestName
from mbcal.serving.server import App
from mbcal.serving.service import Service
from mbcal.types import FIRST_ITEM_ROW, UNKNOWN_ROW, Catalog

VARIANTS = {"routing": ("mbcal", "mbcal again", "starlette"), "names": ("c", "msgspec", "orjson")}
"""The second one of routing shows how far two equal servers differ by noise."""


class Measurement(NamedTuple):
    """One variant in one round."""

    rate: float
    cpu: float
    p50: float
    p99: float


# ---- the variants


class DictNames:
    """Candidates as texts, their rows found in a dict."""

    def __init__(self, names: list[str], rows: NDArray[np.int32]) -> None:
        self._names, self.rows = names, rows

    def at(self, positions: Sequence[int]) -> list[str]:
        return [self._names[position] for position in positions]

    def logged(self) -> list[str]:
        return self._names


class DictReader:
    """The shortest reader of decoded candidates in Python."""

    def __init__(self, catalog: Catalog, _: Any) -> None:
        self._rows = {name: row for row, name in enumerate(catalog.items, FIRST_ITEM_ROW)}

    def read(self, names: list[str], k: int, most: int) -> DictNames:
        require_rankable(names, k, most)
        return DictNames(names, np.fromiter(map(self._rows.get, names, repeat(UNKNOWN_ROW)), np.int32, len(names)))


def application(variant: str, service: Service) -> Any:
    """The ASGI application of a variant."""
    if variant == "starlette":
        from serve_starlette import starlette_app

        return starlette_app(service)
    if variant in ("msgspec", "orjson"):
        ranker.CandidateReader = DictReader  # type: ignore[misc, assignment]  # the variant is put in its place
        endpoints._decode_rank = decoder(variant)
    return App(service)


def decoder(variant: str) -> Callable[[bytes], RankRequest]:
    """From a body to a validated request."""
    if variant == "msgspec":
        return msgspec.json.Decoder(RankRequest).decode
    import orjson

    return lambda body: msgspec.convert(orjson.loads(body), RankRequest)


def run_server(variant: str, registry: str, log: str) -> None:
    """Serve a variant as `mbcal serve` does; print the address when it listens."""
    service = Service(Registry(registry), MemoryStore(), DecisionLog(log, linger=0.002), 0.1)

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            gc.freeze()
            gc.set_threshold(20_000)
            print(f"http://127.0.0.1:{self.servers[0].sockets[0].getsockname()[1]}", file=sys.stderr, flush=True)

    options: dict[str, Any] = {"port": 0, "log_config": None, "access_log": False, "lifespan": "on", "server_header": False}
    Server(uvicorn.Config(application(variant, service), **options)).run()


# ---- measuring


def bodies(items: list[str], behaviours: list[str], count: int) -> list[bytes]:
    """Requests of 200 sessions with `count` candidates and 20 steps of history each."""
    generator, requests = np.random.default_rng(0), []
    for session in range(200):
        rows = generator.choice(len(items), count + 20, replace=False)
        history = [[items[row], behaviours[int(generator.integers(len(behaviours)))]] for row in rows[:20]]
        candidates = [items[row] for row in rows[20:]]
        request = {"history": history, "candidates": candidates, "k": 10, "session": f"s{session}-{count}"}
        body = json.dumps(request).encode()
        head = "POST /v1/rank HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        head += f"content-length: {len(body)}\r\n\r\n"
        requests.append(head.encode() + body)
    return requests


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads of a process."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def measure(process: Any, port: int, requests: list[bytes], options: argparse.Namespace) -> Measurement:
    """Measure one variant once."""
    before = cpu_seconds(process.pid)
    rate, _ = serve.run(serve.closed_loop(port, requests, options.slice, options.connections))
    cpu = 1e6 * (cpu_seconds(process.pid) - before) / (rate * options.slice)
    p50, p99, _ = serve.run(serve.open_loop(port, requests, options.rate, options.slice, options.connections))
    return Measurement(rate, cpu, p50, p99)


def compare(folder: Path, requests: list[bytes], options: argparse.Namespace, label: str) -> None:
    """Start all variants, measure them in turns and print the table."""
    names, order = VARIANTS[options.what], np.random.default_rng(0)
    running: list[tuple[Any, int]] = []
    results: list[list[Measurement]] = [[] for _ in names]
    try:
        for name in names:
            log = folder / f"log-{label}-{name}"
            running.append(serve.started([sys.executable, __file__, "--serve", name, str(folder / "registry"), str(log)]))
        for turn in range(options.rounds + 1):
            for number in order.permutation(len(names)).tolist():
                measurement = measure(*running[number], requests, options)
                if turn:  # the first round begins the sessions
                    results[number].append(measurement)
    finally:
        for process, _ in running:
            process.terminate()
            process.wait()
    print(f"{label}, {options.rounds} rounds, load of the machine {os.getloadavg()[0]:.1f}")
    print(f"  {'variant':11} {'requests/s':>10} {'CPU µs':>7} {'p50 ms':>7} {'p99 ms':>7}  CPU relative to the first")
    for name, measured in zip(names, results, strict=True):
        ratios = np.array([one.cpu / first.cpu for one, first in zip(measured, results[0], strict=True)])
        medians = [statistics.median(values) for values in zip(*measured, strict=True)]
        print("  {:11} {:10,.0f} {:7.0f} {:7.2f} {:7.2f}".format(name, *medians) + f"  {interval(ratios)}", flush=True)


def parsing(items: list[str], count: int) -> None:
    """Print the time to read one list of candidates and encode it for the log, without a server."""
    import orjson

    catalog, pack = Catalog(tuple(items)), msgspec.msgpack.Encoder().encode
    text = json.dumps(items[:count]).encode()
    reader, rival = CandidateReader(catalog, np.empty(10_000, np.int32)), DictReader(catalog, None)
    decode, raw = msgspec.json.Decoder(list[RequestName]).decode, msgspec.Raw(text)
    ways: dict[str, Callable[[], Any]] = {
        "c": lambda: pack(reader.read(raw, 10, 1000).logged()),
        "msgspec": lambda: pack(rival.read(decode(text), 10, 1000).logged()),
        "orjson": lambda: pack(rival.read(msgspec.convert(orjson.loads(text), list[RequestName]), 10, 1000).logged()),
    }
    best = {name: min(timeit.repeat(way, number=200, repeat=25)) / 200 * 1e6 for name, way in ways.items()}
    print(f"  {count} names alone: " + ", ".join(f"{name} {cost:.1f} µs" for name, cost in best.items()), flush=True)


def interval(ratios: NDArray[np.float64]) -> str:
    """The median with its 95% bootstrap interval."""
    generator = np.random.default_rng(0)
    resampled = np.median(ratios[generator.integers(0, len(ratios), (2000, len(ratios)))], axis=1)
    low, high = np.percentile(resampled, [2.5, 97.5])
    return f"{np.median(ratios):.3f} [{low:.3f}, {high:.3f}]"


def layer_alone() -> None:
    """Print the time of GET /healthz through both HTTP layers, without sockets."""
    from serve_starlette import starlette_app

    service = Service(Registry("nothing is published here"), MemoryStore(), None, 0.0)
    scope = {"type": "http", "method": "GET", "path": "/healthz", "headers": [], "query_string": b"", "client": ("x", 1)}
    apps: dict[str, Any] = {"mbcal": App(service), "starlette": starlette_app(service)}
    best = dict.fromkeys(apps, float("inf"))

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(_: Any) -> None: ...

    async def calls(app: Any, count: int = 500) -> float:
        started = time.process_time()
        for _ in range(count):
            await app(dict(scope), receive, send)
        return (time.process_time() - started) / count * 1e6

    for _ in range(40):
        for name, app in apps.items():
            best[name] = min(best[name], serve.run(calls(app)))
    print("GET /healthz without a socket: " + ", ".join(f"{name} {cost:.1f} µs" for name, cost in best.items()))


def import_seconds(module: str) -> float:
    """Median CPU time to import a module on top of uvicorn, msgspec and numpy, in a fresh interpreter."""
    code = "import time, uvicorn, msgspec, numpy; t = time.process_time(); import {}; print(time.process_time() - t)"
    command = [sys.executable, "-c", code.format(module)]
    times = [float(subprocess.run(command, capture_output=True, check=True, text=True).stdout) for _ in range(7)]
    return statistics.median(times)


def code_lines(path: str) -> int:
    """Lines of a file that are neither blank nor comments nor docstrings."""
    text = Path(path).read_text("utf-8")
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = [line.strip() for number, line in enumerate(text.splitlines(), 1) if number not in docstrings]
    return sum(1 for line in lines if line and not line.startswith("#"))


def sizes() -> None:
    """Print import times and lines of code of both HTTP layers."""
    import serve_starlette

    modules = "starlette.applications, starlette.routing, starlette.requests, starlette.responses, starlette.middleware"
    starlette, own = (1e3 * import_seconds(module) for module in (modules, "mbcal.serving.server"))
    print(f"import: Starlette {starlette:.0f} ms, mbcal.serving {own:.0f} ms")
    print(f"lines: mbcal {code_lines(server.__file__)}, on Starlette {code_lines(str(serve_starlette.__file__))}")


def main() -> None:
    """Parse the options and compare."""
    if sys.argv[1:2] == ["--serve"]:
        run_server(*sys.argv[2:5])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=[*VARIANTS, "layer"])
    parser.add_argument("--candidates", type=int, nargs="+", default=[20, 200, 1000], help="Candidates per request.")
    parser.add_argument("--rounds", type=int, default=20, help="Rounds per number of candidates.")
    parser.add_argument("--slice", type=float, default=0.7, help="Seconds of each loop.")
    parser.add_argument("--connections", type=int, default=32, help="Clients.")
    parser.add_argument("--rate", type=float, default=300.0, help="Requests per second of the open loop.")
    options = parser.parse_args()
    if options.what == "layer":
        layer_alone()
        return
    psutil.Process().cpu_affinity(serve.CORES[1:] or serve.CORES)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model, items, behaviours = serve.model(folder, 0)
        Registry(folder / "registry").publish(model)
        for count in options.candidates:
            compare(folder, bodies(items, behaviours, count), options, f"{count} candidates")
            if options.what == "names":
                parsing(items, count)
    if options.what == "routing":
        sizes()
    print(f"{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
