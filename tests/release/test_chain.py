"""The whole chain with a real server: `mbcal loop` learns a canary, users decide about it, and the loop goes on."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch

from mbcal import MBCAL, MBCALConfig, NetConfig, TrainingConfig
from mbcal.cli import app
from mbcal.decision_log import Decision, read_log
from mbcal.registry.registry import Registry
from mbcal.registry.updates import read_trial
from mbcal.release.gate import Answer
from tests.support.releases import let_the_log_say
from tests.support.servers import serving
from tests.support.toys import BEHAVIOURS, CATALOG, DelayedPrize, logged, starts

BATCH = 40
"""Users served at the same time."""


class Users:
    """Users of the toy world, each with one session."""

    def __init__(self, port: int) -> None:
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30)
        self.batches, self.stop = 0, threading.Event()

    def serve(self) -> None:
        world, begin = DelayedPrize(), starts(BATCH, self.batches)
        assert begin.candidates is not None
        opened = torch.zeros(BATCH, dtype=torch.bool)
        requests = [
            {"candidates": [CATALOG.name_of(row) for row in rows], "k": 1, "session": name, "user": name}
            for rows, name in zip(begin.candidates, self._names(), strict=True)
        ]
        for _ in range(begin.horizon):
            answers = self._post("/v1/rank", requests)
            rows = CATALOG.rows_of([answer["items"][0]["item"] for answer in answers])
            behaviours, opened = world.respond(opened, torch.from_numpy(rows), torch.zeros(BATCH))
            given = [BEHAVIOURS.names[label] for label in behaviours.tolist()]
            self._post(
                "/v1/feedback",
                [{"decision": a["decision"], "behaviour": label} for a, label in zip(answers, given, strict=True)],
            )
        self.batches += 1

    def serve_canaries(self, registry: Registry) -> None:
        """Serve while a canary runs, and rest while an update does, until stopped."""
        while not self.stop.wait(0.1):
            if registry.canary() is not None:
                self.serve()

    def _names(self) -> list[str]:
        return [f"{self.batches}-{number}" for number in range(BATCH)]

    def _post(self, path: str, batch: list[dict[str, object]]) -> list[dict[str, object]]:
        answer = self.http.post(path, json={"batch": batch})
        assert answer.status_code == 200, answer.text
        answers: list[dict[str, object]] = answer.json()["answers"]
        return answers


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    """A registry whose live version has learned next to nothing."""
    training = TrainingConfig(epochs=1, batch=64, warmup=10, validation=0.0)
    config = MBCALConfig(net=NetConfig(hidden=8, embedding=8), training=training, gamma=0.95, mix=1.0)
    registry = Registry(tmp_path / "registry")
    registry.publish(MBCAL(config, "cpu").fit(logged(30)))
    return registry


@pytest.mark.parametrize("answer", ["cannot tell", "no worse"])
def test_the_loop_learns_a_canary_that_users_promote_and_goes_on(
    answer: Answer, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log itself cannot tell; that it is no worse, which it is made to say, changes nothing about the trial."""
    if answer == "no worse":
        let_the_log_say(answer, monkeypatch)
    log = tmp_path / "log"
    trial = ["--promote-after", "40", "--canary-min-days", "0", "--user-loss", "1"]  # every reader comes once
    server_options = ["--log", str(log), "--canary", "0.5", "--epsilon", "0.3", "--lifetime", "2", *trial]
    loop_options = ["--times", "2", "--every", "1", "--epochs", "15", "--idle", "2", "--device", "cpu", *trial]
    with serving(registry, *server_options) as (_, port):
        users = Users(port)
        for _ in range(6):
            users.serve()
        thread = threading.Thread(target=users.serve_canaries, args=(registry,))
        thread.start()
        try:
            with pytest.raises(SystemExit) as left:
                app(["loop", "--registry", str(registry.path), "--log", str(log), *loop_options])
        finally:
            users.stop.set()
            thread.join()
            users.http.close()
    assert left.value.code in (0, None)
    first, second = (json.loads((registry.path / "updates" / f"00000{number}.json").read_text()) for number in (1, 2))
    assert (first["live"], first["answer"], first["action"], first["version"]) == (
        "v000001",
        answer,
        "canary",
        "v000002",
    )
    look = read_trial(registry.path, "v000002")
    assert look is not None
    assert look["action"] == "promote", look
    assert look["reason"].startswith("earns more: +")
    assert (registry.current(), registry.previous_versions()) == ("v000002", ["v000001"])
    assert second["live"] == "v000002"  # the loop went on with what users had promoted
    began = {record.session: record.version for record in read_log(log) if isinstance(record, Decision) and not record.step}
    counts = [sum(version == name for version in began.values()) for name in ("v000001", "v000002")]
    assert np.min(counts) >= 40
