"""The ranking server against other ways to build it: CPU per request of /v1/rank, measured in turns on one machine.

    python benchmarks/serve_rivals.py names      candidate names found in C, or decoded by msgspec and looked up in a dict
    python benchmarks/serve_rivals.py routing    our ASGI routing, or Starlette's (docs/decisions/0016-asgi-routing.md)

Every variant is a server process of its own on the first core, with a registry, a decision log and 200 remembered sessions. They
take turns of `--slice` seconds under a closed loop of clients, in a new random order every round. CPU is the server's user and
system time, all threads, from /proc. What is reported is the median over rounds, and the ratio to the first variant: the median of
the ratios within a round, with a 95% bootstrap interval.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
from collections.abc import Awaitable, Callable
from itertools import repeat
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import serve
import uvicorn
from numpy.typing import NDArray

from mbcal.decision_log import DecisionLog
from mbcal.registry.registry import Registry
from mbcal.serving import candidates, server
from mbcal.serving.messages import RankRequest
from mbcal.serving.server import App
from mbcal.serving.service import Service
from mbcal.serving.state import MemoryStore

VARIANTS = {
    "control": ("C", "C again", "C once more", "C yet again"),
    "names": ("C", "msgspec and Catalog.rows_of", "msgspec and dict.get"),
    "routing": ("ours", "Starlette, hot routes before it", "Starlette, hot routes inside it", "Starlette alone"),
}


def application(variant: str, service: Service) -> Any:
    """The ASGI application of a variant."""
    if variant.startswith("msgspec"):
        candidates.name_finder = lambda *_: None  # type: ignore[assignment]
        server._rank_one = msgspec.json.Decoder(RankRequest)  # type: ignore[assignment]
    if variant == "msgspec and dict.get":
        def init(self: Any, names: Any, catalog: Any) -> None:
            self._names = names
            self.rows = np.fromiter(map(catalog._row_of.get, names, repeat(1)), np.int32, len(names))
        candidates.NameList.__init__ = init  # type: ignore[method-assign]
        candidates.NameList.logged = lambda self: self._names  # type: ignore[method-assign]
    ours = App(service)
    if variant == "Starlette, hot routes before it":
        return _hot_before(ours)
    if variant == "Starlette, hot routes inside it":
        return _hot_inside(ours)
    if variant == "Starlette alone":
        return _alone(ours)
    return ours


HOT = ("/v1/rank", "/v1/feedback")


def _cold_routes(ours: App) -> list[Any]:
    from starlette.responses import Response
    from starlette.routing import Route

    def endpoint(work: Callable[[bytes], Awaitable[server.Answer]]) -> Any:
        async def respond(request: Any) -> Response:
            status, content, kind = await work(await request.body())
            return Response(content, status, media_type=kind)

        return respond

    cold = [(method, path, work) for (method, path), work in ours._routes.items() if path not in HOT]
    return [Route(path, endpoint(work), methods=[method]) for method, path, work in cold]


def _lifespan(ours: App) -> Any:
    import asyncio
    import contextlib

    @contextlib.asynccontextmanager
    async def run(_: Any) -> Any:
        await ours.service.refresh_version()
        follower = asyncio.create_task(ours.service.follow_registry())
        yield
        follower.cancel()
        await ours.service.close()

    return run


def _hot_before(ours: App) -> Any:
    from starlette.applications import Starlette

    cold = Starlette(routes=_cold_routes(ours), lifespan=_lifespan(ours))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] in HOT:
            await ours._http(scope, receive, send)
        else:
            await cold(scope, receive, send)

    return app


class _Raw:
    """An ASGI endpoint: a Route passes scope, receive and send on as they are."""

    def __init__(self, ours: App) -> None:
        self.ours = ours

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.ours._http(scope, receive, send)


def _hot_inside(ours: App) -> Any:
    from starlette.applications import Starlette
    from starlette.routing import Route

    hot = [Route(path, _Raw(ours), methods=["POST"]) for path in HOT]
    return Starlette(routes=[*hot, *_cold_routes(ours)], lifespan=_lifespan(ours))


def _alone(ours: App) -> Any:
    """Everything the way Starlette's documentation shows it; admission, the body's limits and counting as middleware of ours."""
    import asyncio
    import time

    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.responses import Response
    from starlette.routing import Route

    from mbcal.errors import InputError, LogFullError, MbcalError, OptionError
    from mbcal.serving.messages import Problem
    from mbcal.serving.service import NotReadyError

    def hot(work: Callable[[bytes], Awaitable[server.Answer]]) -> Any:
        async def respond(request: Any) -> Response:
            async with asyncio.timeout(ours.service.limits.seconds):
                body = await request.body()
            if len(body) > ours.service.limits.body:
                return problem(413, "the body is too large")
            status, content, kind = await work(body)
            return Response(content, status, media_type=kind)

        return respond

    def problem(status: int, error: str) -> Response:
        return Response(server._encode(Problem(error)), status, media_type="application/json")

    class Admission:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http":
                await self.app(scope, receive, send)
                return
            began, statuses = time.perf_counter(), [500]

            async def counted(message: Any) -> None:
                if message["type"] == "http.response.start":
                    statuses[0] = message["status"]
                await send(message)

            ours._admit(scope, scope["path"])
            ours._at_work += 1
            try:
                await asyncio.sleep(0)
                await self.app(scope, receive, counted)
            finally:
                ours._at_work -= 1
                ours._note(scope["path"], statuses[0], time.perf_counter() - began)

    async def wrong(_: Any, error: Exception) -> Response:
        return problem(422, str(error))

    async def later(_: Any, error: Exception) -> Response:
        return problem(503, str(error))

    handlers = {InputError: wrong, OptionError: wrong, msgspec.ValidationError: wrong, msgspec.DecodeError: wrong}
    handlers |= {NotReadyError: later, LogFullError: later, MbcalError: later}
    routes = [Route("/v1/rank", hot(ours._rank), methods=["POST"]), Route("/v1/feedback", hot(ours._feedback), methods=["POST"])]
    return Starlette(
        routes=[*routes, *_cold_routes(ours)],
        lifespan=_lifespan(ours),
        middleware=[Middleware(Admission)],
        exception_handlers=handlers,  # type: ignore[arg-type]
    )


def run_server(variant: str, registry: str, log: str) -> None:
    """Serve a variant as `mbcal serve` would; print the address when it listens."""
    service = Service(Registry(registry), MemoryStore(), DecisionLog(log, linger=0.002), 0.1)

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            gc.freeze()
            gc.set_threshold(20_000)
            print(f"http://127.0.0.1:{self.servers[0].sockets[0].getsockname()[1]}", file=sys.stderr, flush=True)

    options: dict[str, Any] = {"port": 0, "log_config": None, "access_log": False, "lifespan": "on", "server_header": False}
    Server(uvicorn.Config(application(variant, service), **options)).run()


def requests(items: list[str], labels: list[str], count: int) -> list[bytes]:
    """Requests of 200 sessions with `count` candidates and 20 steps of history each."""
    draw, made = np.random.default_rng(0), []
    for number in range(200):
        picked = draw.choice(len(items), count + 20, replace=False)
        history = [[items[row], labels[int(draw.integers(len(labels)))]] for row in picked[:20]]
        names = [items[row] for row in picked[20:]]
        body = json.dumps({"session": f"s{number}-{count}", "history": history, "candidates": names, "k": 10}).encode()
        head = f"POST /v1/rank HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        made.append(head.encode() + body)
    return made


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads of a process, to the nanosecond."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def measure(folder: Path, made: list[bytes], options: argparse.Namespace, restart: int) -> NDArray[np.float64]:
    """CPU microseconds per request, (rounds, variants), of servers that are started for it."""
    names, order = VARIANTS[options.what], np.random.default_rng(restart)
    running: list[tuple[Any, int]] = []
    costs = np.zeros((options.rounds + 1, len(names)))
    try:
        for number, name in enumerate(names):
            log = folder / f"log-{restart}-{number}"
            running.append(serve.started([sys.executable, __file__, "--serve", name, str(folder / "registry"), str(log)]))
        for turn in range(options.rounds + 1):
            for number in order.permutation(len(names)).tolist():
                process, port = running[number]
                before = cpu_seconds(process.pid)
                rate, _ = serve.run(serve.closed_loop(port, made, options.slice, options.connections))
                costs[turn, number] = 1e6 * (cpu_seconds(process.pid) - before) / (rate * options.slice)
    finally:
        for process, _ in running:
            process.terminate()
            process.wait()
    return costs[1:]  # the first round begins sessions


def report(what: str, costs: NDArray[np.float64]) -> None:
    """Print medians, and ratios to the first variant with intervals from resampled restarts and rounds."""
    draw, (restarts, rounds, _) = np.random.default_rng(0), costs.shape
    ratios = costs / costs[:, :, :1]
    resampled = []
    for _ in range(2000):
        chosen = ratios[draw.integers(0, restarts, restarts)]
        resampled.append(np.median(chosen[:, draw.integers(0, rounds, rounds)].reshape(-1, costs.shape[2]), axis=0))
    low, high = np.percentile(resampled, [2.5, 97.5], axis=0)
    medians, middle = np.median(costs.reshape(-1, costs.shape[2]), axis=0), np.median(ratios.reshape(-1, costs.shape[2]), axis=0)
    for number, name in enumerate(VARIANTS[what]):
        spread = f"{middle[number]:.3f} of the first [{low[number]:.3f}, {high[number]:.3f}]"
        print(f"  {name:34} {medians[number]:5.0f} µs, {spread}", flush=True)


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        run_server(*sys.argv[2:5])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=VARIANTS)
    parser.add_argument("--candidates", type=int, nargs="+", default=[20, 200, 1000])
    parser.add_argument("--restarts", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--slice", type=float, default=0.7)
    parser.add_argument("--connections", type=int, default=32)
    options = parser.parse_args()
    psutil.Process().cpu_affinity(serve.CORES[1:] or serve.CORES)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path, items, labels = serve.model(folder, 0)
        Registry(folder / "registry").publish(path)
        for count in options.candidates:
            made = requests(items, labels, count)
            costs = np.stack([measure(folder, made, options, restart) for restart in range(options.restarts)])
            print(f"{count} candidates, load of the machine {psutil.getloadavg()[0]:.1f}")
            report(options.what, costs)


if __name__ == "__main__":
    main()
