"""Growing Batch-RL in operation: a server ranks for simulated users over HTTP, learns from its log, and is updated.

Run:  python examples/closed_loop.py --folder build/loop      (or: make loop-demo; a few minutes on two cores)

::

    users ──▶ mbcal serve --canary 0.5 ──▶ decision log ──▶ update: a candidate ──▶ gate ──▶ refused, or canary
                                                └─▶ the server's watcher: sessions of the canary against the live version's
                                                    ──▶ promoted or withdrawn

Users of the generated newsfeed are served round by round. After every round a candidate learns from the decision log. Unless
the log shows that it is worse, it becomes the canary: the server gives it half of the users, and promotes or withdraws it
by what they earn. Nobody does that by hand. Last comes a candidate that was fitted on shuffled behaviours. It must never go
live.

Time is compressed: users come again after seconds, sessions end after four idle seconds, and a trial takes a minute at most.
So the gate finds that visits overlap and that sessions may still be going on, where with real users days lie between.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch

import mbcal
from mbcal.environments.candidates import session_candidates
from mbcal.registry.registry import Registry
from mbcal.registry.updates import read_trial
from mbcal.release.gate import GateConfig, Verdict
from mbcal.release.update import UpdateConfig, update

EPSILON = 0.2
"""Exploration of the server."""
SHARE = 0.5
"""Share of users that a canary gets; so large that a trial takes seconds."""
LONGEST_TRIAL = 60.0
"""Seconds after which a trial ends undecided, and the canary is withdrawn."""
LIFETIME = 4
"""Seconds after which an idle session is finished."""
FIRST_SESSIONS = 40
"""Logged sessions that the first version learns from."""
BATCH = 50
"""Users who are served at the same time."""

Rewards = dict[str, list[float]]
"""Reward of every session, by the version it began with."""


def start_server(registry: Path, log: Path) -> tuple[subprocess.Popen[str], str]:
    """Start `mbcal serve` on a free port; return the process and its address."""
    options = {
        "--registry": registry,
        "--log": log,
        "--port": 0,
        "--epsilon": EPSILON,
        "--canary": SHARE,
        "--promote-after": 100,
        "--canary-max-days": LONGEST_TRIAL / 86400,
        "--canary-min-days": 0,  # these users do nothing later
        "--lifetime": LIFETIME,  # the watcher looks every second
    }
    command = [sys.executable, "-m", "mbcal", "serve", *(str(word) for pair in options.items() for word in pair)]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)  # noqa: S603 - ourselves
    assert server.stderr is not None
    address = next(json.loads(line)["address"] for line in server.stderr if "listening" in line)
    return server, address


class Users:
    """Users of the generated newsfeed, who come again and again.

    Args:
        store: Their sessions. Users and histories are reused; candidates are sampled again.
        address: The server.
    """

    def __init__(self, store: mbcal.Store, address: str) -> None:
        self.world, self.sessions = mbcal.Newsfeed.from_options(store.manifest["options"]), store.sessions("train")
        self.http = httpx.Client(base_url=address, timeout=60)
        self.steps = self.sessions.horizon
        self.noise, self.visits = torch.Generator().manual_seed(0), 0

    def serve(self, count: int) -> Rewards:
        """Serve this many sessions; returns what they earned."""
        rewards: Rewards = defaultdict(list)
        for _ in range(0, count, BATCH):
            versions, totals = self._serve_batch()
            for version, total in zip(versions, totals.tolist(), strict=True):
                rewards[version].append(total)
        return rewards

    def _serve_batch(self) -> tuple[list[str], np.ndarray[Any, Any]]:
        """Serve one session each to the next users; returns the version of each, and its reward."""
        visits = np.arange(self.visits, self.visits + BATCH)
        self.visits += BATCH
        sessions = self.sessions[FIRST_SESSIONS + visits % (len(self.sessions) - FIRST_SESSIONS)]
        candidates, catalog, behaviours = (
            session_candidates(sessions, int(visits[0])),
            sessions.catalog,
            self.world.behaviours,
        )
        requests = [
            {
                "history": [
                    (catalog.name_of(int(item)), behaviours.names[int(label)])
                    for item, label in zip(
                        sessions.history_items[row][:length], sessions.history_behaviours[row], strict=False
                    )
                ],
                "candidates": [catalog.name_of(int(item)) for item in candidates[row] if item],
                "k": 1,
                "session": f"visit {visit}",
                "user": f"user {sessions.user[row]}",
            }
            for row, (visit, length) in enumerate(zip(visits, sessions.history_length.tolist(), strict=True))
        ]
        state, totals, versions = self.world.begin(*sessions.tensors().history), np.zeros(BATCH), []
        for step in range(self.steps):
            answers = self._post("/v1/rank", requests)
            versions = versions if step else [answer["version"] for answer in answers]
            items = torch.from_numpy(catalog.rows_of([answer["items"][0]["item"] for answer in answers]))
            labels, state = self.world.respond(state, items, torch.rand(BATCH, generator=self.noise))
            names = [behaviours.names[label] for label in labels.tolist()]
            self._post(
                "/v1/feedback",
                [{"decision": a["decision"], "behaviour": name} for a, name in zip(answers, names, strict=True)],
            )
            totals += np.asarray(behaviours.rewards)[labels.numpy()]
        return versions, totals

    def _post(self, path: str, batch: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        answer = self.http.post(path, json={"batch": batch}).raise_for_status()
        answers: list[dict[str, Any]] = answer.json()["answers"]
        return answers

    def wait_for(self, live: str | None, canary: str | None) -> float:
        """Wait until the server ranks by these versions; return the seconds it took."""
        began = time.monotonic()
        while True:
            stats = self.http.get("/v1/stats").raise_for_status().json()
            if (stats["live"], stats["canary"]) == (live, canary):
                return time.monotonic() - began
            time.sleep(0.02)


def try_canary(users: Users, registry: Registry, canary: str) -> None:
    """Serve users until the server's watcher has promoted or withdrawn the canary; prints what happened."""
    live, rewards = str(registry.current()), defaultdict[str, list[float]](list)
    users.wait_for(live, canary)
    while registry.canary() is not None:
        for version, earned in users.serve(BATCH).items():
            rewards[version] += earned
    seconds = users.wait_for(registry.current(), None)
    look = read_trial(registry.path, canary)  # the last one is written after the version was promoted or withdrawn
    for version, role in ((canary, "the canary"), (live, "live")):
        earned = rewards[version]
        counted = f"{len(earned):,} sessions of {users.steps} steps"
        print(f"  trial: {version} ({role}) served {counted}, reward {np.mean(earned):.2f} each")
    compared = look["comparison"] if look and look.get("comparison") else {}
    for side in (compared[name] for name in ("a", "b") if name in compared):
        counted = f"{side['sessions']:,} visits of {side['length']['mean']:.0f} steps"
        print(f"  the watcher: {side['version']} had {counted}, reward {side['reward']['mean']:.2f} each")
    result = "promoted" if registry.current() == canary else "withdrawn"
    reason = registry.pointer().withdrawn.get(canary) or (look["reason"] if look else "unknown reason")
    print(f"  the watcher has {result} {canary}: {first_reason(reason)}")
    print(f"  the server ranks by {registry.current()} alone, {seconds:.2f} s later", flush=True)


def first_reason(text: str) -> str:
    """Return the first of several reasons, and how many there are beside it."""
    first, *others = text.split("; ")
    return f"{first} (and {len(others)} more)" if others else first


def follow(users: Users, registry: Registry, verdict: Verdict) -> None:
    """Print what the gate said of a candidate, and try it on users if it became the canary."""
    for check in verdict.checks:
        print(f"  the gate's {check.name} check: {check.answer}. {check.detail}")
    role = {"canary": "the canary", "published": "live"}.get(verdict.action, verdict.action)
    print(f"  so the candidate is {role}: {first_reason(verdict.reason)}", flush=True)
    if verdict.version is not None:
        try_canary(users, registry, verdict.version)


def fit_on_shuffled(config: mbcal.MBCALConfig, sessions: mbcal.Sessions) -> mbcal.MBCAL:
    """Return an agent fitted on sessions whose behaviours are shuffled, so that it learns nothing of use."""
    shuffled = np.random.default_rng(0).permutation(sessions.behaviours.ravel()).reshape(sessions.behaviours.shape)
    return mbcal.MBCAL(config, "cpu").fit(
        replace(sessions, behaviours=np.where(sessions.mask, shuffled, 0).astype(np.uint8))
    )


def run_rounds(options: argparse.Namespace) -> None:
    """Serve, learn and try in rounds, then present the bad candidate; fails if it goes live, or nothing was learned."""
    folder = options.folder
    store = mbcal.prepare_newsfeed(
        folder / "feed", mbcal.NewsfeedConfig(sessions=8_000, items=200), mbcal.SessionConfig(horizon=8, history=8)
    )
    config = mbcal.MBCALConfig(
        net=mbcal.NetConfig(features=store.agent_features),
        training=mbcal.TrainingConfig(epochs=1, batch=32, learning_rate=3e-3, validation=0.0),
        gamma=0.95,
        mix=1.0,
    )
    registry, log, train = Registry(folder / "registry"), folder / "log", store.sessions("train")
    print(
        f"time is compressed: users come again at once, a trial takes {LONGEST_TRIAL:.0f} s at most, and a visit is all "
        f"that a user does without a pause of {LIFETIME} s, here several sessions. So the gate finds that sessions may "
        "still be going on, and the watcher, whose sessions are visits, that no day passed"
    )
    print(f"a first version learns from {FIRST_SESSIONS} logged sessions", flush=True)
    registry.publish(mbcal.MBCAL(config, "cpu").fit(train[:FIRST_SESSIONS]))
    settings = UpdateConfig(versions=100, epochs=10, gate=GateConfig(min_sessions=100))
    judge = partial(update, registry, log, settings, device="cpu")
    server, address = start_server(registry.path, log)
    users = Users(store, address)
    try:
        rewards = []
        for number in range(options.rounds):
            (version, earned), *_ = users.serve(options.sessions).items()
            rewards.append(float(np.mean(earned)))
            print(f"round {number + 1}: {version} earned {rewards[-1]:.2f} per session", flush=True)
            if number + 1 < options.rounds:
                follow(users, registry, judge())
        live = registry.current()
        print("a candidate fitted on shuffled behaviours:", flush=True)
        follow(users, registry, judge(candidate=fit_on_shuffled(config, train[:400])))
        if registry.current() != live:
            sys.exit("a candidate that was fitted on shuffled behaviours went live")
        print(f"{live} is still live; reward per session by round: {', '.join(f'{reward:.2f}' for reward in rewards)}")
        print(f"all reasons are on the pages of the updates: {registry.path / 'updates'}/*.html")
        if rewards[-1] <= rewards[0]:
            sys.exit("the last round earned no more than the first")
    finally:
        users.http.close()
        server.terminate()
        server.wait()


def main() -> None:
    """Read the options, empty the folder, and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--folder", type=Path, default=Path("build/loop"), help="Where everything is written; emptied first."
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sessions", type=int, default=600, help="Sessions served per round, beside those of trials.")
    options = parser.parse_args()
    shutil.rmtree(options.folder, ignore_errors=True)
    torch.set_num_threads(1)  # the networks are small, and the server needs a core
    run_rounds(options)


if __name__ == "__main__":
    main()
