"""The ranking server through minutes or hours of trouble: is anything lost, does it recover, does it grow?

    python benchmarks/soak.py --minutes 1                  a smoke run
    python benchmarks/soak.py --minutes 60 --workers 2     an hour, two worker processes
    python benchmarks/soak.py --minutes 10 --redis         sessions in a Redis server that is restarted, too

A load of rankings and feedback arrives open-loop (Poisson; a request that waits for a connection counts its wait), each
ranking with an id, some of them asked again later. Meanwhile, in turns: versions are activated and rolled back, servers
are killed with -9 and restarted, slow clients hold connections, the disk is full, the log's folder moves away and back,
and Redis restarts. A full disk is a file-size limit of zero (RLIMIT_FSIZE, soft) set on the running server, which needs no
root; where the system does not allow it, that part is skipped and the verdict says so.

OUT gets samples.csv (one row per second), disturbances.csv, soak.png, events.log (what the server printed) and
verdict.json; the last line is PASS or FAIL, and the exit code 0 or 1. Rules: `soak_verdict.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from pathlib import Path

import numpy as np
from serve import RUN, run
from soak_load import Load
from soak_servers import RedisServer, Server
from soak_verdict import Disturbance, Sample, judge, write_results

from mbcal.registry.registry import Registry

SLOW_CLIENTS = 80
MEMORY = 32
"""MiB of all that the server remembers: little, so that its bounds are reached soon and further growth is a leak."""
ANSWER_BYTES = 2 << 10
"""Bytes of a remembered answer, of which there is an eighth of `MEMORY` (docs/service.md)."""


class Soak:
    """One run: a server, a load, and disturbances in turns until the time is over."""

    def __init__(self, server: Server, load: Load, registry: Registry, redis: RedisServer | None) -> None:
        self.server, self.load, self.registry, self.redis = server, load, registry, redis
        self.samples: list[Sample] = []
        self.disturbances: list[Disturbance] = []
        self.skipped: list[str] = []
        self._began = time.monotonic()

    async def run(self, seconds: float) -> None:
        """Disturb the server until the time is over; the load goes on for a moment after the last disturbance."""
        sampling = asyncio.create_task(self._sample())
        loading = asyncio.create_task(self.load.run())
        quiet = min(12.0, 4.0 + seconds / 60)  # between the recovery from one disturbance and the next
        await asyncio.sleep(quiet)
        for kind in self._kinds(seconds):
            if time.monotonic() - self._began >= seconds - quiet:
                break
            await self._disturb(kind)
            await asyncio.sleep(quiet)
        await self.load.stop()
        await loading
        sampling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sampling

    def _kinds(self, seconds: float) -> Iterator[Callable[[], Awaitable[None]]]:
        """Disturbances without end; in long runs processes end in every fourth round only, so that their memory is seen."""
        gentle = [self.swap, self.slow_clients, self.full_disk, self.moved_log]
        gentle += [self.redis_restart] if self.redis else []
        for turn in count():
            yield from gentle
            if turn % 4 == 0 or seconds < 300:
                yield from (self.kill, self.restart)

    async def _disturb(self, kind: Callable[[], Awaitable[None]]) -> None:
        name, start = kind.__name__, time.monotonic() - self._began
        if any(entry.startswith(name) for entry in self.skipped):
            return
        try:
            await kind()
        except PermissionError as error:
            self.skipped.append(f"{name}: {error}")
            return
        end = time.monotonic() - self._began
        recovery = await self._recovered()
        self.disturbances.append(Disturbance(name, start, end, recovery))
        print(f"{end:6.0f} s  {name:<14} recovered in {recovery:.2f} s", flush=True)

    async def _recovered(self) -> float:
        """Seconds until five rankings in a row are answered."""
        start, good = time.monotonic(), 0
        first = 0.0
        while good < 5 and time.monotonic() - start < 60:
            if await self.load.probe():
                first = first or time.monotonic() - start
                good += 1
            else:
                good, first = 0, 0.0
                await asyncio.sleep(0.05)
        return first if good == 5 else float("inf")

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            statuses, latencies = self.load.take_second()
            median, high = np.percentile(latencies, [50, 99]) * 1e3 if latencies else (float("nan"),) * 2
            self.samples.append(
                Sample(
                    time.monotonic() - self._began,
                    self.server.memory(),
                    self.server.starts,
                    statuses.get("200", 0),
                    statuses.get("503", 0),
                    statuses.get("broken", 0),
                    sum(statuses.values()) - sum(statuses.get(kind, 0) for kind in ("200", "503", "broken")),
                    float(median),
                    float(high),
                )
            )

    # ---- disturbances

    async def swap(self) -> None:
        """Activate the other version, then roll back."""
        other = next(name for name in self.registry.versions() if name != self.registry.current())
        await asyncio.to_thread(self.registry.activate, other)
        await asyncio.sleep(1.5)
        await asyncio.to_thread(self.registry.rollback)
        await asyncio.sleep(1.5)

    async def kill(self) -> None:
        """Kill (-9) a worker, which the supervisor restarts, or of the only process, which is started again here."""
        await self.server.kill()

    async def restart(self) -> None:
        """SIGTERM, and start again."""
        await self.server.stop()
        self.server.launch()

    async def slow_clients(self) -> None:
        """Clients that send a byte of their body per second."""
        head = (
            b"POST /v1/rank HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: 9000\r\n\r\n{"
        )

        async def drip() -> None:
            with contextlib.suppress(OSError, RuntimeError):  # the server closes the connection, as it should
                _, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
                writer.write(head)
                for _ in range(6):
                    await asyncio.sleep(1.0)
                    writer.write(b" ")
                    await writer.drain()
                writer.close()

        await asyncio.gather(*(drip() for _ in range(SLOW_CLIENTS)))

    async def full_disk(self) -> None:
        """No file of the server may grow for three seconds."""
        self.server.limit_files(0)
        try:
            await asyncio.sleep(3.0)
            assert not await self.load.probe(), "the server acknowledged a decision that it could not log"
        finally:
            self.server.limit_files(None)

    async def moved_log(self) -> None:
        """The log's folder is away for three seconds."""
        away = self.server.log.with_name("away")
        self.server.log.rename(away)
        await asyncio.sleep(3.0)
        away.rename(self.server.log)

    async def redis_restart(self) -> None:
        """Redis is killed, and back after two seconds with nothing in it."""
        assert self.redis is not None
        self.redis.stop()
        await asyncio.sleep(2.0)
        self.redis.start()


def publish_two(registry: Registry, folder: Path) -> tuple[list[str], list[str]]:
    """Publish two small models that differ by their seed; return their items and behaviours."""
    import mbcal

    mbcal.prepare_newsfeed(folder / "feed", mbcal.NewsfeedConfig(200, 500))
    store = mbcal.Store.open(folder / "feed")
    for seed in (0, 1):
        config = mbcal.GRU4Rec.Config(training=mbcal.TrainingConfig(epochs=1), seed=seed)
        agent = mbcal.GRU4Rec(config, "cpu").fit(store.sessions("train"))
        registry.publish(agent.save(folder / f"model-{seed}"))
    return list(store.catalog.items), list(store.behaviours.names)


async def soak(options: argparse.Namespace, folder: Path, out: Path) -> bool:
    """Run everything and write the results; return whether it passed."""
    registry = Registry(folder / "registry")
    items, labels = publish_two(registry, folder)
    redis = RedisServer(folder) if options.redis else None
    extra = ["--workers", str(options.workers)] if options.workers > 1 else []
    extra += ["--state", redis.address] if redis else []
    command = [*RUN, "serve", "--registry", str(folder / "registry"), "--max-memory", str(MEMORY), *extra]
    server = Server(command, folder / "log", out / "events.log")
    server.launch()
    try:
        await server.ready()
        load = Load(server.port, items, labels, options.rate, (MEMORY << 20) // 8 // ANSWER_BYTES)
        run_ = Soak(server, load, registry, redis)
        await run_.run(60 * options.minutes)
        await server.stop()
    finally:
        server.end()
        if redis:
            redis.stop()
    findings = judge(run_.samples, run_.disturbances, load, server, options.max_slope, options.max_start)
    write_results(out, run_.samples, run_.disturbances, findings, run_.skipped, load)
    return not [finding for finding in findings if not finding.passed]


def main() -> None:
    """Parse the options and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=100.0, help="rankings per second")
    parser.add_argument("--workers", type=int, default=1, help="worker processes of the server")
    parser.add_argument("--redis", action="store_true", help="keep sessions in a Redis server, and restart it")
    parser.add_argument("--max-slope", type=float, default=5.0, help="MiB per minute by which memory may grow")
    parser.add_argument("--max-start", type=float, default=15.0, help="seconds in which a killed server is back")
    parser.add_argument("--out", type=Path, default=Path("build/soak"))
    parser.add_argument("--keep", action="store_true", help="keep the registry and the decision log, in OUT/files")
    options = parser.parse_args()
    if options.redis and shutil.which("redis-server") is None:
        parser.error("--redis: there is no redis-server here")
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.out.resolve() / "files" if options.keep else Path(temporary)
        if options.keep:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        passed = run(soak(options, folder, options.out))
    raise SystemExit(0 if passed else 1)


if __name__ == "__main__":
    main()
