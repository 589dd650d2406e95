"""Redis killed, started again and paused under a real server: an outage of the memory, not of the service."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis import Redis

from mbcal.decision_log.reader import read_log
from mbcal.registry.registry import Registry
from tests.support.redis import RedisServer
from tests.support.servers import events_of, metric, serving
from tests.support.versions import ITEMS


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    yield server
    server.resume()
    server.kill()


def rank(http: httpx.Client, **fields: Any) -> httpx.Response:
    return http.post("/v1/rank", json={"candidates": ITEMS, "k": 1, **fields})


def wait_until_back(http: httpx.Client) -> None:
    deadline = time.monotonic() + 10
    while http.get("/readyz").json()["problems"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_without_redis_requests_that_carry_their_history_are_ranked(
    shared_registry: Registry, redis: RedisServer, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with (
        serving(shared_registry, "--state", redis.address, "--log", str(log), "--epsilon", "0") as (process, port),
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=5) as http,
    ):
        first = rank(http, session="s").json()
        assert first["remembered"] is True
        for outage in (redis.kill, redis.pause):
            outage()
            began = time.monotonic()
            carrying = rank(http, session="s", history=[["item 1", "click"]], shown=[["item 2", "click"]])
            assert (carrying.status_code, carrying.json()["remembered"]) == (200, False)
            assert rank(http).json()["remembered"] is False  # without a session there is nothing to recall
            relying = rank(http, session="s")
            assert (relying.status_code, relying.headers["retry-after"]) == (503, "1")
            assert "send history and shown" in relying.json()["error"]
            named = {"decision": first["decision"], "behaviour": "click", "item": first["items"][0]["item"]}
            assert http.post("/v1/feedback", json=named).json()["applied"] is False
            assert http.post("/v1/feedback", json={"decision": "x", "behaviour": "click"}).status_code == 503
            assert time.monotonic() - began < 1.5  # one call waited for a quarter of a second, the others did not
            times = []
            for _ in range(20):
                began = time.monotonic()
                assert rank(http, shown=[]).status_code == 200
                times.append(time.monotonic() - began)
            assert sorted(times)[10] < 0.1
            ready = http.get("/readyz").json()
            assert ready["problems"] == ["state: sessions cannot be remembered; requests must carry history and shown"]
            assert metric(port, "mbcal_state_available") == 0
            redis.start() if outage == redis.kill else redis.resume()
            wait_until_back(http)
            assert metric(port, "mbcal_state_available") == 1
            assert rank(http, session="new").json()["remembered"] is True
        assert metric(port, "mbcal_state_outages_total") == 2
        events = Counter(event["event"] for event in events_of(process))
        assert (events["state away"], events["state back"], events["failed"]) == (2, 2, 0)
    decisions = [record for record in read_log(log) if hasattr(record, "candidates")]
    assert len(decisions) == 1 + 2 * (1 + 1 + 20 + 1)


def test_a_redis_that_may_run_no_script_is_away_until_it_may(shared_registry: Registry, redis: RedisServer) -> None:
    with (
        serving(shared_registry, "--state", redis.address, "--epsilon", "0") as (process, port),
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=5) as http,
        Redis.from_url(redis.address) as client,
    ):
        answer = rank(http, session="s").json()
        client.execute_command("ACL", "SETUSER", "default", "-eval")
        feedback = {"decision": answer["decision"], "behaviour": "click", "item": answer["items"][0]["item"]}
        assert http.post("/v1/feedback", json=feedback).json()["applied"] is False
        for _ in range(10):
            assert http.get("/readyz").json()["problems"]
            time.sleep(0.05)
        client.execute_command("ACL", "SETUSER", "default", "+eval")
        wait_until_back(http)
        assert http.post("/v1/feedback", json=feedback).json()["applied"] is True
        assert rank(http, session="s").json()["items"][0]["item"] != feedback["item"]  # which was shown
        names = Counter(event["event"] for event in events_of(process))
    assert (names["state away"], names["state back"]) == (1, 1)
