"""The ranking server under load: requests per second, CPU per request, latency, overload, memory over hot swaps.

    python benchmarks/serve.py                     throughput in turns with two echo servers, latency open-loop at 1,000/s
    python benchmarks/serve.py --overload 12000    then so many per second: how soon are they refused, when does it recover
    python benchmarks/serve.py --swaps 1000        then memory while two versions alternate
    python benchmarks/serve.py --kills 20          then kill -9 of the server under load: is an acknowledged decision lost
    python benchmarks/serve.py --context           in turns with a model that reads context, user features and features of
                                                   items, asked without any, with context (a category and two numbers, of
                                                   which one never repeats), and with two unknown items besides, each sent
                                                   for the first time, with a category, a number and a vector of 64

Server and echo servers are processes on the first core; the load generator has the others. A request has 200 candidates,
of a session the server remembers; answers hold ten items. Decisions are fsynced before they are answered. Both echo
servers run on uvicorn too, read the same bodies and send answers of the same size. The bare one does nothing else; the
decoding one also decodes the body into a `RankRequest` and encodes a `RankAnswer`, as every typed server must.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import uvloop
from serve_requests import RUN, model, published, requests

from mbcal.decision_log.reader import read_log

ECHO = """
import msgspec, sys, uvicorn
from mbcal.serving.messages import RankAnswer, RankedItem, RankRequest
size, decodes = int(sys.argv[1]), sys.argv[2] == "decoding"
decode, encode = msgspec.json.Decoder(RankRequest).decode, msgspec.json.Encoder().encode
async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        await receive(); await send({"type": "lifespan.startup.complete"}); await receive(); return
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body")
    body = b"x" * size
    if decodes:
        request = decode(b"".join(parts))
        names = request.candidates[:request.k]
        items = [RankedItem(name, 12.345678, {"instant": 1.2345678, "future": 2.3456789}, 0.9005, True) for name in names]
        body = encode(RankAnswer("0" * 28, "v000001", 0.1, items))
    length = str(len(body)).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
    await send({"type": "http.response.body", "body": body})
class Server(uvicorn.Server):
    async def startup(self, sockets=None):
        await super().startup(sockets)
        print("http://127.0.0.1:%d" % self.servers[0].sockets[0].getsockname()[1], file=sys.stderr, flush=True)
Server(uvicorn.Config(app, port=0, log_config=None, access_log=False, lifespan="on")).run()
"""
CORES = psutil.Process().cpu_affinity()
READERS = {"model with fields": (False, 0), "in context": (True, 0), "in context, two unknown items": (True, 2)}
"""Requests to a model that reads context and features -> whether they have context, and their unknown items."""


def started(command: list[str]) -> tuple[subprocess.Popen[str], int]:
    """Start a server on the first core; return it and its port, read from the line it prints when it listens."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    psutil.Process(process.pid).cpu_affinity(CORES[:1])
    for line in process.stderr:
        if "http://" in line:
            threading.Thread(target=process.stderr.read, daemon=True).start()  # a full pipe would block the server
            return process, int(line.rsplit(":", 1)[1].strip(' "}\n'))
    raise RuntimeError(f"{command[0]} did not start")


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run on uvloop, which leaves more of the machine to the server."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> tuple[bytes, bytes]:
    """Send a request and return head and body of the answer."""
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return head, await reader.readexactly(size)


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> int:
    """Send a request and return the size of the answer, which must have status 200."""
    head, body = await answered(reader, writer, request)
    assert head.startswith(b"HTTP/1.1 200"), head
    return len(body)


async def closed_loop(port: int, messages: list[bytes], seconds: float, connections: int) -> tuple[float, int]:
    """Requests per second of clients that send the next request when they are answered, and the size of an answer."""
    until, done, size = time.perf_counter() + seconds, 0, 0

    async def client(number: int) -> None:
        nonlocal done, size
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        place = number
        while time.perf_counter() < until:
            size = await ask(reader, writer, messages[place % len(messages)])
            place, done = place + connections, done + 1
        writer.close()

    await asyncio.gather(*(client(number) for number in range(connections)))
    return done / seconds, size


async def open_loop(
    port: int, messages: list[bytes], rate: float, seconds: float, connections: int
) -> tuple[float, float, int]:
    """p50 and p99, in ms, from the moment a request was due to its answer, and their number; arrivals are Poisson."""
    due = np.cumsum(np.random.default_rng(1).exponential(1 / rate, int(rate * seconds)))
    queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
    waited: list[float] = []
    began = time.perf_counter()

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while True:
            at, request = await queue.get()
            if not request:
                return
            await ask(reader, writer, request)
            waited.append(time.perf_counter() - began - at)

    clients = [asyncio.create_task(client()) for _ in range(connections)]
    for number, at in enumerate(due):
        await asyncio.sleep(max(0.0, at - (time.perf_counter() - began)))
        queue.put_nowait((at, messages[number % len(messages)]))
    for _ in clients:
        queue.put_nowait((0.0, b""))
    await asyncio.gather(*clients)
    low, high = np.percentile(waited, [50, 99]) * 1e3
    return float(low), float(high), len(waited)


async def flood(port: int, messages: list[bytes], rate: float, seconds: float, connections: int) -> dict[str, list[float]]:
    """Send more than can be served; return ms until the answer, by status. Without a free connection nothing is sent."""
    waited: dict[str, list[float]] = {}
    free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = [
        await asyncio.open_connection("127.0.0.1", port) for _ in range(connections)
    ]
    began, number, tasks = time.perf_counter(), 0, set()

    async def one(request: bytes) -> None:
        wire = free.pop()
        sent = time.perf_counter()
        head, _ = await answered(*wire, request)
        assert head[9:12] == b"200" or b"retry-after: 1" in head, head
        waited.setdefault(head[9:12].decode(), []).append((time.perf_counter() - sent) * 1e3)
        free.append(wire)

    while (now := time.perf_counter() - began) < seconds:
        for _ in range(int(now * rate) - number):
            number += 1
            if free:
                tasks.add(asyncio.create_task(one(messages[number % len(messages)])))
                tasks = {task for task in tasks if not task.done()} if number % 1000 == 0 else tasks
                await asyncio.sleep(0)
        await asyncio.sleep(0.0005)
    await asyncio.gather(*tasks)
    return waited


def overload(port: int, messages: list[bytes], rate: float, seconds: float) -> None:
    """Flood the server, then wait until p99 is below 10 ms again."""
    waited = run(flood(port, messages, rate, seconds, 1000))
    for status, times in sorted(waited.items()):
        low, high = np.percentile(times, [50, 99])
        print(f"flood of {rate:g}/s: {len(times) / seconds:,.0f}/s got {status}, p50 {low:.1f} ms, p99 {high:.1f} ms")
    ended, high = time.perf_counter(), np.inf
    while high > 10 and time.perf_counter() - ended < 20:
        _, high, _ = run(open_loop(port, messages, 200, 0.25, 16))
    print(f"then p99 {high:.1f} ms after {time.perf_counter() - ended:.2f} s, of which 0.25 s are the measurement")


def measured(options: argparse.Namespace, folder: Path) -> None:
    """Measure everything the options ask for."""
    where, items, labels = published(folder)
    messages = requests(items, labels, 400)
    serve, port = started([*RUN, "serve", *where, "--log", str(folder / "log"), "--port", "0"])
    _, size = run(closed_loop(port, messages, 2.0, options.connections))  # every session is remembered now
    running, bodies = {"mbcal": (serve, port)}, {"mbcal": messages}
    if options.context:
        other, items, labels = published(folder, context=True)
        reader = started([*RUN, "serve", *other, "--log", str(folder / "log-in-context"), "--port", "0"])
        for name, given in READERS.items():
            running[name], bodies[name] = reader, requests(items, labels, 400, *given)
            run(closed_loop(reader[1], bodies[name], 2.0, options.connections))
    for name in ("bare", "decoding"):
        running[f"{name} echo"] = started([sys.executable, "-c", ECHO, str(size), name])
    try:
        rates: dict[str, list[float]] = {name: [] for name in running}
        costs: dict[str, list[float]] = {name: [] for name in running}
        for _ in range(options.repeats):
            for name, (process, at) in running.items():
                watched = psutil.Process(process.pid)
                before = sum(watched.cpu_times()[:2])
                rate, _ = run(closed_loop(at, bodies.get(name, messages), options.seconds, options.connections))
                rates[name].append(rate)
                costs[name].append((sum(watched.cpu_times()[:2]) - before) / (rate * options.seconds) * 1e6)
        for name in rates:
            share = f", mbcal at {max(rates['mbcal']) / max(rates[name]):.2f} of it" if name != "mbcal" else ""
            if name in READERS:
                share = f", {min(costs[name]) / min(costs[next(iter(READERS))]):.2f} times the CPU of requests without"
            print(f"{name}: {max(rates[name]):,.0f} requests/s, {min(costs[name]):.0f} µs CPU each{share}")
        tries = [run(open_loop(port, messages, options.rate, options.seconds, 64)) for _ in range(options.repeats)]
        low, high, count = min(tries, key=lambda attempt: attempt[1])
        print(f"open-loop at {options.rate:g}/s: p50 {low:.2f} ms, p99 {high:.2f} ms over {count} requests")
        memory = psutil.Process(serve.pid).memory_info().rss / 2**20
        print(f"memory: {memory:.0f} MiB; load of the machine {os.getloadavg()[0]:.1f}")
        if options.overload:
            overload(port, messages, options.overload, options.seconds)
        if options.swaps:
            swaps(options.swaps, folder, psutil.Process(serve.pid), port)
    finally:
        for process, _ in running.values():
            process.terminate()
            process.wait()
    if options.kills:
        kills(options.kills, where, messages, folder / "killed")


def swaps(count: int, folder: Path, serve: psutil.Process, port: int) -> None:
    """Alternate two versions, waiting until each is live."""
    import urllib.request

    from mbcal.registry.registry import Registry

    registry = Registry(folder / "registry")
    registry.publish(model(folder, 1)[0])
    first, second = registry.versions()[:2]
    sizes, began = [], time.perf_counter()
    for number in range(count):
        name = (first, second)[number % 2]
        registry.activate(name)
        while json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz"))["version"] != name:
            time.sleep(0.01)
        sizes.append(serve.memory_info().rss / 2**20)
    seconds, marks = (time.perf_counter() - began) / count, (20, 100, 300, count)
    memory = ", ".join(f"{sizes[mark - 1]:.0f} MiB after {mark}" for mark in marks if mark <= count)
    print(f"{count} hot swaps, {seconds:.2f} s each: {memory}")


def kills(count: int, where: list[str], messages: list[bytes], log: Path) -> None:
    """Kill the server under load repeatedly and look for every acknowledged decision in its log."""
    acknowledged: set[str] = set()

    async def until_killed(port: int) -> None:
        async def client(number: int) -> None:
            with contextlib.suppress(OSError, EOFError):
                wire = await asyncio.open_connection("127.0.0.1", port)
                for turn in range(1_000_000):
                    _, body = await answered(*wire, messages[(number + 16 * turn) % len(messages)])
                    acknowledged.add(json.loads(body)["decision"])

        await asyncio.gather(*map(client, range(16)))

    for _ in range(count):
        serve, port = started([*RUN, "serve", *where, "--log", str(log), "--port", "0"])
        end = threading.Timer(float(np.random.default_rng().random()), os.kill, (serve.pid, signal.SIGKILL))
        end.start()
        run(until_killed(port))
        serve.wait()
    found = {record.id for record in read_log(log)}
    print(f"{count} kills under load: {len(acknowledged):,} answered, {len(acknowledged - found)} lost")
    assert acknowledged <= found


def main() -> None:
    """Parse the options and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--rate", type=float, default=1000.0)
    parser.add_argument("--overload", type=float, default=0.0)
    parser.add_argument("--swaps", type=int, default=0)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--context", action="store_true")
    options = parser.parse_args()
    psutil.Process().cpu_affinity(CORES[1:] or CORES)
    with tempfile.TemporaryDirectory() as folder:
        measured(options, Path(folder))


if __name__ == "__main__":
    main()
