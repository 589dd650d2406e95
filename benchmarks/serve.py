"""The ranking server under load: requests a second, CPU a request, latency, overload, memory over hot swaps; against echoes.

    python benchmarks/serve.py                     throughput in turns with the echoes, latency open-loop at 1,000/s
    python benchmarks/serve.py --overload 12000    then so many a second: how soon is it refused, and when is it well again
    python benchmarks/serve.py --swaps 1000        then memory while versions take turns
    python benchmarks/serve.py --kills 20          then kill -9 of the server under load: is anything acknowledged lost?

Server and echoes are processes of their own on the first core, the load generator has the others. A request has 200
candidates of a session the server remembers; answers hold ten items. Decisions are logged and synced before they are
answered. Both echoes run on the same uvicorn, read the same bodies and send answers of the same size: the bare one does
nothing else, the other also decodes the body into the service's own type of request and encodes an answer of its type, as
any server has to that understands what it is told.
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

from mbcal.decision_log.reader import read_log

ECHO = """
import msgspec, sys, uvicorn
from mbcal.serving.messages import RankAnswer, RankedItem, RankRequest
size, understands = int(sys.argv[1]), sys.argv[2] == "understanding"
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
    if understands:
        asked = decode(b"".join(parts))
        names = asked.candidates[:asked.k]
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
RUN = [sys.executable, "-m", "mbcal"]
CORES = psutil.Process().cpu_affinity()


def model(folder: Path, seed: int) -> tuple[Path, list[str], list[str]]:
    """A small MBCAL agent on the generated newsfeed; its items and behaviours."""
    import mbcal

    if not (folder / "feed").exists():
        mbcal.prepare_newsfeed(folder / "feed", mbcal.NewsfeedConfig(2_000, 2_000))
    store = mbcal.Store.open(folder / "feed")
    agent = mbcal.MBCAL(mbcal.MBCALConfig(training=mbcal.TrainingConfig(epochs=1), seed=seed), "cpu").fit(
        store.sessions("train")
    )
    path = agent.save(folder / f"model-{seed}")
    return path, list(store.catalog.items), list(agent.domain.behaviours.names)


def started(command: list[str]) -> tuple[subprocess.Popen[str], int]:
    """A server on the first core, and its port, read off the line in which it says that it listens."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    psutil.Process(process.pid).cpu_affinity(CORES[:1])
    for line in process.stderr:
        if "http://" in line:
            threading.Thread(target=process.stderr.read, daemon=True).start()  # a full pipe would stop the server
            return process, int(line.rsplit(":", 1)[1].strip(' "}\n'))
    raise RuntimeError(f"{command[0]} did not start")


def requests(items: list[str], labels: list[str], sessions: int) -> list[bytes]:
    draw = np.random.default_rng(0)
    made = []
    for number in range(sessions):
        picked = draw.choice(len(items), 220, replace=False)
        history = [[items[row], labels[int(draw.integers(len(labels)))]] for row in picked[:20]]
        body = {"session": f"s{number}", "history": history, "candidates": [items[row] for row in picked[20:]], "k": 10}
        content = json.dumps(body).encode()
        head = (
            f"POST /v1/rank HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
        )
        made.append(head.encode() + content)
    return made


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """On uvloop, so that the generator leaves more of the machine to what it measures."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> tuple[bytes, bytes]:
    """Send, and read the answer: head and body."""
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return head, await reader.readexactly(size)


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> int:
    """Send, read the answer, give its size; anything but 200 is an error."""
    head, body = await answered(reader, writer, request)
    assert head.startswith(b"HTTP/1.1 200"), head
    return len(body)


async def closed_loop(port: int, made: list[bytes], seconds: float, connections: int) -> tuple[float, int]:
    """Requests a second with so many clients that ask as soon as they are answered; size of an answer."""
    until, done, size = time.perf_counter() + seconds, 0, 0

    async def client(number: int) -> None:
        nonlocal done, size
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        place = number
        while time.perf_counter() < until:
            size = await ask(reader, writer, made[place % len(made)])
            place, done = place + connections, done + 1
        writer.close()

    await asyncio.gather(*(client(number) for number in range(connections)))
    return done / seconds, size


async def open_loop(port: int, made: list[bytes], rate: float, seconds: float, connections: int) -> tuple[float, float, int]:
    """p50 and p99 of the time from when a request was due to its answer, in ms, when they come at random at this rate."""
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
        queue.put_nowait((at, made[number % len(made)]))
    for _ in clients:
        queue.put_nowait((0.0, b""))
    await asyncio.gather(*clients)
    low, high = np.percentile(waited, [50, 99]) * 1e3
    return float(low), float(high), len(waited)


async def flood(port: int, made: list[bytes], rate: float, seconds: float, connections: int) -> dict[str, list[float]]:
    """Far more than can be served: ms from sending to the answer, by status. What finds no free connection is not sent."""
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
                tasks.add(asyncio.create_task(one(made[number % len(made)])))
                tasks = {task for task in tasks if not task.done()} if number % 1000 == 0 else tasks
                await asyncio.sleep(0)
        await asyncio.sleep(0.0005)
    await asyncio.gather(*tasks)
    return waited


def overload(port: int, made: list[bytes], rate: float, seconds: float) -> None:
    waited = run(flood(port, made, rate, seconds, 1000))
    for status, each in sorted(waited.items()):
        low, high = np.percentile(each, [50, 99])
        print(f"flood of {rate:g}/s: {len(each) / seconds:,.0f}/s got {status}, p50 {low:.1f} ms, p99 {high:.1f} ms")
    ended, high = time.perf_counter(), np.inf
    while high > 10 and time.perf_counter() - ended < 20:
        _, high, _ = run(open_loop(port, made, 200, 0.25, 16))
    print(f"then p99 {high:.1f} ms after {time.perf_counter() - ended:.2f} s, of which 0.25 s are looking")


def published(folder: Path) -> tuple[list[str], list[bytes]]:
    """A registry with a version; where it is, as options, and requests for it."""
    path, items, labels = model(folder, 0)
    where = ["--registry", str(folder / "registry")]
    subprocess.run([*RUN, "registry", "publish", str(path), *where], check=True, stdout=subprocess.DEVNULL)
    return where, requests(items, labels, 400)


def measured(options: argparse.Namespace, folder: Path) -> None:
    where, made = published(folder)
    serve, port = started([*RUN, "serve", *where, "--log", str(folder / "log"), "--port", "0"])
    _, size = run(closed_loop(port, made, 2.0, options.connections))  # every session is remembered now
    running = {"mbcal": (serve, port)}
    for name in ("bare", "understanding"):
        running[f"{name} echo"] = started([sys.executable, "-c", ECHO, str(size), name])
    try:
        rates: dict[str, list[float]] = {name: [] for name in running}
        costs: dict[str, list[float]] = {name: [] for name in running}
        for _ in range(options.repeats):
            for name, (process, at) in running.items():
                watched = psutil.Process(process.pid)
                before = sum(watched.cpu_times()[:2])
                rate, _ = run(closed_loop(at, made, options.seconds, options.connections))
                rates[name].append(rate)
                costs[name].append((sum(watched.cpu_times()[:2]) - before) / (rate * options.seconds) * 1e6)
        for name in rates:
            share = f", mbcal at {max(rates['mbcal']) / max(rates[name]):.2f} of it" if name != "mbcal" else ""
            print(f"{name}: {max(rates[name]):,.0f} requests/s, {min(costs[name]):.0f} µs CPU each{share}")
        tries = [run(open_loop(port, made, options.rate, options.seconds, 64)) for _ in range(options.repeats)]
        low, high, count = min(tries, key=lambda made: made[1])
        print(f"open-loop at {options.rate:g}/s: p50 {low:.2f} ms, p99 {high:.2f} ms over {count} requests")
        memory = psutil.Process(serve.pid).memory_info().rss / 2**20
        print(f"memory: {memory:.0f} MiB; load of the whole machine {os.getloadavg()[0]:.1f}")
        if options.overload:
            overload(port, made, options.overload, options.seconds)
        if options.swaps:
            swaps(options.swaps, folder, psutil.Process(serve.pid), port)
    finally:
        for process, _ in running.values():
            process.terminate()
            process.wait()
    if options.kills:
        kills(options.kills, where, made, folder / "killed")


def swaps(count: int, folder: Path, serve: psutil.Process, port: int) -> None:
    """Two versions take turns; each is waited for."""
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
    each, marks = (time.perf_counter() - began) / count, (20, 100, 300, count)
    said = ", ".join(f"{sizes[mark - 1]:.0f} MiB after {mark}" for mark in marks if mark <= count)
    print(f"{count} hot swaps, {each:.2f} s each: {said}")


def kills(count: int, where: list[str], made: list[bytes], log: Path) -> None:
    """A server killed under load again and again; what it answered is looked for in its log."""

    acknowledged: set[str] = set()

    async def until_killed(port: int) -> None:
        async def client(number: int) -> None:
            with contextlib.suppress(OSError, EOFError):
                wire = await asyncio.open_connection("127.0.0.1", port)
                for turn in range(1_000_000):
                    _, body = await answered(*wire, made[(number + 16 * turn) % len(made)])
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--rate", type=float, default=1000.0)
    parser.add_argument("--overload", type=float, default=0.0)
    parser.add_argument("--swaps", type=int, default=0)
    parser.add_argument("--kills", type=int, default=0)
    options = parser.parse_args()
    psutil.Process().cpu_affinity(CORES[1:] or CORES)
    with tempfile.TemporaryDirectory() as folder:
        measured(options, Path(folder))


if __name__ == "__main__":
    main()
