"""`mbcal serve --workers N`: a supervisor and N worker processes on one port.

The supervisor binds the port and passes the listening socket to the workers, so that connections wait in one queue and go to
whichever worker is free; a worker that dies leaves them to the others. Requests with an id that it was answering are looked
up in its log: an answer that is there is given to whoever asks again. It starts workers that end again, with growing pauses
if they end soon, keeps the sessions of all workers in its memory (`hub`) unless they are in Redis, and stops all
workers when it is stopped: they finish what is in progress.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
import time
from collections.abc import Mapping

import msgspec

from mbcal.decision_log.tail import recent_decisions
from mbcal.serving.events import print_event
from mbcal.serving.hub import Hub
from mbcal.serving.repeats import logged_reference
from mbcal.serving.run import DRAIN_SECONDS, RECOVERED_BYTES, ServerSettings, address_of, bind, log_folder
from mbcal.serving.state import CLAIM_SECONDS, DecisionRef, StateAwayError, session_store
from mbcal.serving.threads import in_thread
from mbcal.serving.worker import WorkerTask
from mbcal.storage.atomic import to_output_error

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 30.0
"""Seconds before a worker that ended is started again: doubled each time it ends soon, up to the longest."""
SOON = 10.0
"""A worker that lived this many seconds did not end soon."""
SETTINGS_EXIT = 2
"""Exit code of a worker that cannot work with its settings."""


class Supervisor:
    """Starts, watches and stops workers."""

    def __init__(self, settings: ServerSettings, workers: int, listener: socket.socket) -> None:
        self._settings, self._workers, self._listener = settings, workers, listener
        self._hub = Hub(session_store("memory", settings.lifetime, settings.limits.max_memory // 2))
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._settling: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._exit_code = 0

    async def run(self) -> int:
        """Run until SIGTERM or SIGINT, or until a worker cannot start; return the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        watchers = [asyncio.create_task(self._keep_running(number)) for number in range(self._workers)]
        announcer = asyncio.create_task(self._announce())
        await self._stopping.wait()
        announcer.cancel()
        print_event("stopping", workers=len(self._processes))
        self._listener.close()
        for process in self._processes.values():
            if process.returncode is None:
                process.terminate()
        try:
            async with asyncio.timeout(DRAIN_SECONDS + 5):
                await asyncio.gather(*watchers)
        except TimeoutError:
            for process in self._processes.values():
                if process.returncode is None:
                    process.kill()
            await asyncio.gather(*watchers, return_exceptions=True)
        print_event("stopped", workers=self._workers)
        return self._exit_code

    async def _announce(self) -> None:
        """Print the address when all workers listen."""
        while len(self._hub.listened) < self._workers:
            await asyncio.sleep(0.02)
        print_event("listening", address=address_of(self._settings, self._listener), workers=self._workers)

    async def _keep_running(self, number: int) -> None:
        """Start a worker, and again whenever it ends or cannot be started, until the supervisor stops."""
        pause = FIRST_PAUSE
        while not self._stopping.is_set():
            started = time.monotonic()
            outcome: dict[str, int | str] = {}
            try:
                outcome["exit_code"] = await self._run_once(number)
            except Exception as error:  # such as no files or processes left for the moment
                outcome["error"] = _described(error)
            if self._stopping.is_set():
                return
            has_listened = str(number) in self._hub.listened
            if outcome.get("exit_code") == SETTINGS_EXIT and not has_listened:  # it will fail again; it has said why
                self._exit_code = SETTINGS_EXIT
                self._stopping.set()
                return
            self._hub.restarts += 1
            pause = FIRST_PAUSE if time.monotonic() - started > SOON else min(2 * pause, LONGEST_PAUSE)
            print_event("worker ended", worker=number, **outcome, restart_in=pause)
            try:
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
            except TimeoutError:
                continue

    async def _run_once(self, number: int) -> int:
        """Run a worker until it ends; return its exit code."""
        ours, its = socket.socketpair()
        task = WorkerTask(self._settings, number, self._listener.fileno(), its.fileno())
        program, stdin = (sys.executable, "-P", "-m", "mbcal.serving.worker"), asyncio.subprocess.PIPE
        try:
            with its:
                process = await asyncio.create_subprocess_exec(*program, stdin=stdin, pass_fds=(task.listener, task.hub))
        except BaseException:
            ours.close()
            raise
        self._processes[number] = process
        serving = asyncio.create_task(self._hub.serve(str(number), ours))
        if self._stopping.is_set():
            process.terminate()
        try:
            await process.communicate(msgspec.json.encode(task))
        finally:
            serving.cancel()
            (failure,) = await asyncio.gather(serving, return_exceptions=True)
            if isinstance(failure, Exception):
                print_event("worker cut off", worker=number, error=_described(failure))
        if not self._stopping.is_set():
            settling = asyncio.create_task(self._settle(number))
            self._settling.add(settling)
            settling.add_done_callback(self._settling.discard)
        return int(process.returncode or 0)

    async def _settle(self, number: int) -> None:
        """Answer for a worker that ended: requests that it had logged are answered so, others may be ranked by the rest.

        Until then nobody can claim their ids. If its log cannot be read for `CLAIM_SECONDS`, all of them may be ranked.
        """
        claims, worker = self._hub.claims, str(number)
        claimed = claims.left_by(worker)
        if not claimed:
            return
        logged: dict[str, DecisionRef] = {}
        try:
            logged = await in_thread(self._logged, number, claimed)
            if self._settings.state != "memory":
                await self._share(logged)
        except Exception as error:  # whatever it is, the ids must not stay claimed for ever
            free_in, n_ids = CLAIM_SECONDS, len(claimed)
            print_event("log unreadable", worker=number, error=_described(error), ids=n_ids, free_in=free_in)
            await asyncio.sleep(CLAIM_SECONDS)
        for decision in claimed:
            await claims.settle(worker, decision, logged.get(decision))

    def _logged(self, number: int, claimed: Mapping[str, float]) -> dict[str, DecisionRef]:
        """What a worker logged of the requests that it had claimed."""
        if self._settings.log is None:
            return {}
        since = int((min(claimed.values()) - CLAIM_SECONDS) * 1e6)  # a clock may have been set
        decisions = recent_decisions(log_folder(self._settings.log, number), since, RECOVERED_BYTES)
        found = {decision.id: logged_reference(decision) for decision in decisions if decision.id in claimed}
        return {decision: reference for decision, reference in found.items() if reference is not None}

    async def _share(self, logged: dict[str, DecisionRef]) -> None:
        """Tell other servers what was logged; where one of them has answered since, its answer counts."""
        store = session_store(self._settings.state, self._settings.lifetime)
        with contextlib.suppress(StateAwayError):
            for decision, reference in logged.items():
                logged[decision] = await store.remember_decision(decision, reference)
        await store.close()


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def supervise(settings: ServerSettings, workers: int) -> int:
    """Serve with several processes until stopped; return the exit code.

    The folders of the log are made here and only once: a worker that is started again while they are gone, perhaps with
    their disk, ends until they are back, so that it acknowledges nothing into a folder that will be covered.

    Raises:
        OptionError: If the port cannot be listened on, or the address of the session store is not valid.
        OutputError: If a folder of the log cannot be made.
    """
    listener = bind(settings.host, settings.port)
    if settings.log is not None:
        try:
            for number in range(workers):
                log_folder(settings.log, number).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise to_output_error(settings.log, error) from error
    if settings.state != "memory":
        session_store(settings.state, settings.lifetime)  # raises before any worker is started

    async def run() -> int:
        return await Supervisor(settings, workers, listener).run()

    return asyncio.run(run())
