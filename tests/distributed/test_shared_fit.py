"""A fit on several workers equals the fit on one, up to the order of floating-point additions."""

from __future__ import annotations

import dataclasses
import itertools
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from mbcal import NewsfeedConfig, Sessions, Store, prepare_newsfeed
from mbcal.agents import AGENTS, Agent, agent_class
from mbcal.agents.domain import Domain
from mbcal.agents.fit_context import FitContext
from mbcal.data.cutting import SessionConfig
from mbcal.distributed.group import Group
from mbcal.distributed.worker_slice import WorkerSlice, distributed_gather
from mbcal.errors import StoreError, TrainingError
from mbcal.nn.config import NetConfig
from mbcal.storage.checkpoints import Checkpoints
from mbcal.training.config import TrainingConfig
from mbcal.training.holdout import split_held_out_users
from mbcal.training.random import Noise, uniform
from tests.support import batches
from tests.support.agents import MORE
from tests.support.logs import ROOT
from tests.support.workers import together

QUICK = TrainingConfig(epochs=3, batch=64, validation=0.2)
MANY = batches.sessions(count=300, horizon=6, seed=3)


def make(name: str, user: str = "history", **more: Any) -> Agent:
    kind = AGENTS[name]
    net = NetConfig(hidden=8, embedding=8, features=("kind",), user=user)  # type: ignore[arg-type]
    return kind(kind.Config(net=net, training=QUICK, **{**MORE.get(name, {}), **more}), "cpu")


@cache
def fit_alone(name: str) -> Agent:
    """The fit of one worker; not to be changed."""
    return make(name).fit(MANY)


def worker_part(sessions: Sessions, group: Group) -> Sessions:
    """This worker's sessions; uneven on purpose: the first worker has most."""
    bounds = [0, *(len(sessions) - 40 * k for k in range(group.size - 1, 0, -1)), len(sessions)]
    return sessions[bounds[group.rank] : bounds[group.rank + 1]]


def require_equal(one: Agent, other: Agent, tolerance: float = 1e-5) -> None:
    for name, record in one.records.items():
        for epoch, other_epoch in zip(record.curve, other.records[name].curve, strict=True):
            assert epoch == pytest.approx(other_epoch, abs=tolerance, rel=tolerance)
    for name, net in one.nets.items():
        state = other.nets[name].state_dict()
        for key, value in net.state_dict().items():
            assert torch.allclose(value, state[key], atol=1e-3), f"{name}/{key}"


@pytest.mark.parametrize("name", [*AGENTS])
@pytest.mark.parametrize("workers", [2, 3])
def test_several_workers_fit_the_agent_of_one(name: str, workers: int) -> None:
    for agent in together(workers, lambda group: make(name).fit(worker_part(MANY, group), group=group)):
        require_equal(fit_alone(name), agent)


def test_several_workers_use_propensities_as_one_does() -> None:
    """The bound of the ratios is that of all workers."""
    liked = np.where(MANY.behaviours > 0, 0.6, 0.06)
    log = dataclasses.replace(MANY, propensities=np.where(MANY.mask, liked, 0).astype(np.float32))
    training = dataclasses.replace(QUICK, propensity_weights=True)
    alone = make("mbcal").fit(log, training=training)
    assert alone.records != make("mbcal").fit(MANY, training=QUICK).records
    for agent in together(2, lambda group: make("mbcal").fit(worker_part(log, group), training=training, group=group)):
        require_equal(alone, agent)


def test_several_workers_fit_the_example_agent_of_one() -> None:
    """Its value network scales labels by those of all workers."""
    kind = agent_class(f"{ROOT}/examples/own_agent.py:Cautious")
    net = NetConfig(hidden=8, embedding=8)
    alone = kind(kind.Config(net=net, training=QUICK), "cpu").fit(MANY)
    for agent in together(
        2, lambda group: kind(kind.Config(net=net, training=QUICK), "cpu").fit(worker_part(MANY, group), group=group)
    ):
        require_equal(alone, agent)


def test_a_warm_start_on_several_workers_equals_one() -> None:
    for name in ("mbcal", "linucb", "popular"):
        alone = make(name).fit(MANY).fit(MANY[:100])

        def again(group: Group, name: str = name) -> Agent:
            return make(name).fit(MANY).fit(worker_part(MANY[:100], group), group=group)

        require_equal(alone, together(2, again)[1])


@pytest.mark.parametrize("more", [{"user": "id"}, {"user": "none"}, {"mix": 1.0}, {"mix": "auto"}])
def test_options_of_mbcal_on_several_workers_equal_one(more: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mbcal.agents.mbcal.MIX_SESSIONS", 250)  # so that only some of the second worker's sessions are used
    alone = make("mbcal", **more).fit(MANY)
    for agent in together(2, lambda group: make("mbcal", **more).fit(worker_part(MANY, group), group=group)):
        require_equal(alone, agent)


def test_an_interrupted_group_resumes_from_the_checkpoint_of_the_first_worker(tmp_path: Path) -> None:
    alone = make("mbcal", gamma=0.95).fit(MANY)

    class LostError(Exception):
        pass

    def fit(group: Group, lost_after: int) -> Agent:
        kept = Checkpoints(tmp_path / "kept", {}, every=-1)
        all_reduce_sum, sums = group.all_reduce_sum, itertools.count(1)

        def counted(*tensors: torch.Tensor) -> None:
            if next(sums) == lost_after and group.rank == 1:
                raise LostError
            all_reduce_sum(*tensors)

        group.all_reduce_sum = counted  # type: ignore[method-assign]
        return make("mbcal", gamma=0.95).fit(worker_part(MANY, group), group=group, checkpoints=kept)

    for lost_after in (16, 24):
        with pytest.raises(LostError):
            together(2, lambda group, lost_after=lost_after: fit(group, lost_after))
        assert Checkpoints(tmp_path / "kept", {}).latest
    for agent in together(2, lambda group: fit(group, 10**9)):
        require_equal(alone, agent)


def test_workers_that_see_different_checkpoints_are_refused(tmp_path: Path) -> None:
    make("gru4rec").fit(MANY, checkpoints=Checkpoints(tmp_path / "0", {}))

    def fit(group: Group) -> Agent:
        return make("gru4rec").fit(
            worker_part(MANY, group), group=group, checkpoints=Checkpoints(tmp_path / str(group.rank), {})
        )

    with pytest.raises(TrainingError, match="do not see the same checkpoint; write to a folder that every machine"):
        together(2, fit)


def test_a_worker_without_users_is_refused() -> None:
    with pytest.raises(TrainingError, match="fit: 3 workers, but users for only 2; take fewer workers"):
        together(3, lambda group: make("gru4rec").fit(MANY[100 * group.rank : 100 * min(group.rank + 1, 2)], group=group))


class Selfish(AGENTS["popular"]):
    """Counts its own sessions without summing over the group."""

    def build_networks(self, domain: Domain) -> dict[str, nn.Module]:
        return {"counts": nn.BatchNorm1d(1)}

    def learn(self, context: FitContext) -> None:
        self.nets["counts"].running_mean += len(context.data)


def test_an_agent_that_does_not_sum_over_the_group_is_refused() -> None:
    with pytest.raises(TrainingError, match="the popular agent cannot be fitted on several workers"):
        together(2, lambda group: Selfish(device="cpu").fit(worker_part(MANY, group), group=group))


def test_a_nan_loss_stops_all_workers() -> None:
    def fit(group: Group) -> Agent:
        agent = make("gru4rec")
        agent.config = dataclasses.replace(agent.config, training=dataclasses.replace(QUICK, learning_rate=1e30))
        return agent.fit(worker_part(MANY, group), group=group)

    with pytest.raises(TrainingError, match="loss became"):
        together(2, fit)


def test_noise_is_indexed_by_row_of_the_batch() -> None:
    seed, rows = torch.tensor(7), torch.tensor([4, 1, 9])
    noise = Noise(seed).uniform((10, 3, 2))
    assert torch.equal(noise, uniform(7, (10, 3, 2)))
    assert torch.equal(Noise(seed, rows).uniform((3, 3, 2)), noise[rows])


@st.composite
def spread_arrays(draw: st.DrawFn) -> tuple[list[list[int]], list[list[int]]]:
    """The values and the indices of each of one to four workers."""
    values = draw(st.lists(st.lists(st.integers(0, 1000), max_size=20), min_size=1, max_size=4).filter(any))
    indices = st.lists(st.integers(0, sum(map(len, values)) - 1), max_size=30)
    return values, draw(st.lists(indices, min_size=len(values), max_size=len(values)))


@settings(max_examples=50)
@given(arrays=spread_arrays(), block=st.integers(1, 40))
def test_entries_are_gathered_from_all_workers(arrays: tuple[list[list[int]], list[list[int]]], block: int) -> None:
    values, indices = ([torch.tensor(part, dtype=torch.int64) for part in parts] for parts in arrays)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mbcal.distributed.worker_slice.GATHER_BLOCK", block)
        gathered = together(len(values), lambda group: distributed_gather(values[group.rank], indices[group.rank], group))
    for entries, wanted in zip(gathered, indices, strict=True):
        assert torch.equal(entries, torch.cat(values)[wanted])


def test_row_index_of_sessions_that_come_twice() -> None:
    worker_slice = WorkerSlice(2, 3, 7, together(2, lambda group: group)[1])
    row_index = worker_slice.row_index(torch.device("cpu"), times=2)
    assert row_index is not None
    assert row_index.tolist() == [-1, -1, 0, 1, 2, -1, -1, -1, -1, 3, 4, 5, -1, -1]
    assert worker_slice.local_rows(torch.tensor([6, 4, 0, 2])).tolist() == [2, 0]


@pytest.fixture(scope="module")
def feed(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("together") / "feed"
    prepare_newsfeed(folder, NewsfeedConfig(sessions=600, items=100), SessionConfig(horizon=5, history=4))
    return Store.open(folder)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_a_store_is_divided_by_users(feed: Store, size: int) -> None:
    sessions = feed.sessions("train")
    parts = [feed.worker_sessions("train", rank, size) for rank in range(size)]
    for name, array in sessions.arrays():
        assert np.array_equal(np.concatenate([getattr(part, name) for part in parts]), array)
    users = [set(part.user.tolist()) for part in parts]
    assert sum(map(len, users)) == len(set().union(*users))
    assert max(map(len, parts)) - min(map(len, parts)) < 40
    assert {part.origin for part in parts} == {sessions.origin}


def test_more_workers_than_users_leave_some_without_sessions(feed: Store) -> None:
    count = len(split_held_out_users(feed.sessions("train").user, 0.0, 0)[0])
    parts = [feed.worker_sessions("train", rank, 2 * count) for rank in range(2 * count)]
    assert sum(map(len, parts)) == count
    assert min(map(len, parts)) == 0


def test_a_part_without_sessions_is_named(feed: Store) -> None:
    empty = dataclasses.replace(feed, manifest={**feed.manifest, "files": {}})
    with pytest.raises(StoreError, match="no sessions for part 'train'"):
        empty.worker_sessions("train", 0, 2)
