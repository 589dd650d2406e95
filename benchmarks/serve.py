"""The ranking server under load: requests a second, CPU a request, latency, memory over hot swaps; against a bare echo.

    python benchmarks/serve.py                     throughput in turns with the echo, latency open-loop at 1,000/s
    python benchmarks/serve.py --swaps 1000        memory while versions take turns

The server, the echo (the same uvicorn answering bodies of the same size) and the load generator are processes of their own.
A request has 200 candidates of a session the server remembers; answers hold ten items. Decisions are logged and synced
before they are answered.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil

ECHO = """
import sys, uvicorn
size = int(sys.argv[1])
async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        await receive(); await send({"type": "lifespan.startup.complete"}); await receive(); return
    while (await receive()).get("more_body"): pass
    body = b"x" * size
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", str(size).encode())]})
    await send({"type": "http.response.body", "body": body})
class Server(uvicorn.Server):
    async def startup(self, sockets=None):
        await super().startup(sockets)
        print("http://127.0.0.1:%d" % self.servers[0].sockets[0].getsockname()[1], file=sys.stderr, flush=True)
Server(uvicorn.Config(app, port=0, log_config=None, access_log=False, lifespan="on")).run()
"""


def model(folder: Path, seed: int) -> tuple[Path, list[str], list[str]]:
    """A small MBCAL agent on the generated newsfeed; its items and behaviours."""
    import mbcal

    if not (folder / "feed").exists():
        mbcal.prepare_newsfeed(folder / "feed", mbcal.NewsfeedLog(2_000, 2_000))
    store = mbcal.Store.open(folder / "feed")
    agent = mbcal.MBCAL(mbcal.MBCALConfig(training=mbcal.Training(epochs=1), seed=seed), "cpu").fit(store.sessions("train"))
    path = agent.save(folder / f"model-{seed}")
    return path, list(store.catalog.items), list(agent.domain.behaviours.names)


def started(command: list[str]) -> tuple[subprocess.Popen[str], int]:
    """A server and its port, read off the line in which it says that it listens."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "http://" in line:
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


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> int:
    """Send, read the answer, give its size; anything but 200 is an error."""
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    await reader.readexactly(size)
    return size


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


def measured(options: argparse.Namespace, folder: Path) -> None:
    path, items, labels = model(folder, 0)
    run, where = [sys.executable, "-m", "mbcal"], ["--registry", str(folder / "registry")]
    subprocess.run([*run, "registry", "publish", str(path), *where], check=True, stdout=subprocess.DEVNULL)
    serve, port = started([*run, "serve", *where, "--log", str(folder / "log"), "--port", "0"])
    made = requests(items, labels, 400)
    _, size = asyncio.run(closed_loop(port, made, 2.0, options.connections))  # every session is remembered now
    echo, echo_port = started([sys.executable, "-c", ECHO, str(size)])
    try:
        rates: dict[str, list[float]] = {"mbcal": [], "echo": []}
        costs: dict[str, list[float]] = {"mbcal": [], "echo": []}
        for _ in range(options.repeats):
            for name, process, at in (("mbcal", serve, port), ("echo", echo, echo_port)):
                watched = psutil.Process(process.pid)
                before = sum(watched.cpu_times()[:2])
                rate, _ = asyncio.run(closed_loop(at, made, options.seconds, options.connections))
                rates[name].append(rate)
                costs[name].append((sum(watched.cpu_times()[:2]) - before) / (rate * options.seconds) * 1e6)
        for name in rates:
            print(f"{name}: {max(rates[name]):,.0f} requests/s, {min(costs[name]):.0f} µs CPU each")
        print(f"mbcal / echo: {max(rates['mbcal']) / max(rates['echo']):.2f} of its rate")
        low, high, count = asyncio.run(open_loop(port, made, options.rate, options.seconds, 64))
        print(f"open-loop at {options.rate:g}/s: p50 {low:.2f} ms, p99 {high:.2f} ms over {count} requests")
        print(f"memory: {psutil.Process(serve.pid).memory_info().rss / 2**20:.0f} MiB")
        if options.swaps:
            swaps(options.swaps, folder, psutil.Process(serve.pid), port)
    finally:
        for process in (serve, echo):
            process.terminate()
            process.wait()


def swaps(count: int, folder: Path, serve: psutil.Process, port: int) -> None:
    """Two versions take turns; each is waited for."""
    import urllib.request

    from mbcal.registry import Registry

    registry = Registry(folder / "registry")
    registry.publish(model(folder, 1)[0])
    first, second = registry.versions()[:2]
    sizes = []
    for number in range(count):
        name = (first, second)[number % 2]
        registry.activate(name)
        while json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz"))["version"] != name:
            time.sleep(0.01)
        sizes.append(serve.memory_info().rss / 2**20)
    print(f"{count} hot swaps: {sizes[min(20, count - 1)]:.0f} MiB after 20, {sizes[-1]:.0f} MiB at the end")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--rate", type=float, default=1000.0)
    parser.add_argument("--swaps", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measured(options, Path(folder))


if __name__ == "__main__":
    main()
