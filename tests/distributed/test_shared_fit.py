"""A fit on several workers is the fit on one, up to the order in which numbers are added."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from mbcal import NewsfeedConfig, Sessions, Store, prepare_newsfeed
from mbcal.agents import AGENTS, Agent, agent_class
from mbcal.agents.domain import Domain
from mbcal.agents.fit_context import FitContext
from mbcal.data.cutting import SessionConfig
from mbcal.distributed.group import Group
from mbcal.distributed.worker_slice import GATHER_BLOCK, WorkerSlice, distributed_gather
from mbcal.errors import StoreError, TrainingError
from mbcal.nn.config import NetConfig
from mbcal.storage.checkpoints import Checkpoints
from mbcal.training.config import TrainingConfig
from mbcal.training.holdout import split_held_out_users
from mbcal.training.random import Noise, uniform
from tests.support import batches
from tests.support.logs import ROOT
from tests.support.workers import together

QUICK = TrainingConfig(epochs=3, batch=64, validation=0.2)
MANY = batches.sessions(count=300, horizon=6, seed=3)


def make(name: str, user: str = "history", **more: Any) -> Agent:
    kind = AGENTS[name]
    net = NetConfig(hidden=8, embedding=8, features=("kind",), user=user)  # type: ignore[arg-type]
    return kind(kind.Config(net=net, training=QUICK, **more), "cpu")


def part(sessions: Sessions, group: Group) -> Sessions:
    """Uneven on purpose: the first worker has most."""
    bounds = [0, *(len(sessions) - 40 * k for k in range(group.size - 1, 0, -1)), len(sessions)]
    return sessions[bounds[group.rank] : bounds[group.rank + 1]]


def require_equal(one: Agent, other: Agent, tolerance: float = 1e-5) -> None:
    for name, curve in one.curves.items():
        for mine, theirs in zip(curve, other.curves[name], strict=True):
            assert mine == pytest.approx(theirs, abs=tolerance, rel=tolerance)
    for name, net in one.nets.items():
        state = other.nets[name].state_dict()
        for key, value in net.state_dict().items():
            assert torch.allclose(value, state[key], atol=1e-3), f"{name}/{key}"


@pytest.mark.parametrize("name", [*AGENTS])
@pytest.mark.parametrize("workers", [2, 3])
def test_several_workers_learn_what_one_does(name: str, workers: int) -> None:
    alone = make(name).fit(MANY)
    for agent in together(workers, lambda group: make(name).fit(part(MANY, group), group=group)):
        require_equal(alone, agent)


def test_so_does_the_example_of_a_method_of_ones_own() -> None:
    """Its value network learns in the scale of everyone's labels, not of its own worker's."""
    kind = agent_class(f"{ROOT}/examples/own_agent.py:Cautious")
    net = NetConfig(hidden=8, embedding=8)
    alone = kind(kind.Config(net=net, training=QUICK), "cpu").fit(MANY)
    for agent in together(
        2, lambda group: kind(kind.Config(net=net, training=QUICK), "cpu").fit(part(MANY, group), group=group)
    ):
        require_equal(alone, agent)


def test_a_warm_start_goes_on_together() -> None:
    for name in ("mbcal", "linucb", "popular"):
        alone = make(name).fit(MANY).fit(MANY[:100])

        def again(group: Group, name: str = name) -> Agent:
            return make(name).fit(MANY).fit(part(MANY[:100], group), group=group)

        require_equal(alone, together(2, again)[1])


@pytest.mark.parametrize("more", [{"user": "id"}, {"user": "none"}, {"mix": 1.0}, {"mix": "auto"}])
def test_so_do_the_choices_of_a_method(more: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mbcal.agents.mbcal.MIX_SESSIONS", 250)  # all of the first worker's, none or some of the second's
    alone = make("mbcal", **more).fit(MANY)
    for agent in together(2, lambda group: make("mbcal", **more).fit(part(MANY, group), group=group)):
        require_equal(alone, agent)


def test_interrupted_together_they_go_on_from_what_the_first_kept(tmp_path: Path) -> None:
    alone = make("mbcal").fit(MANY)

    class LostError(Exception):
        pass

    def fit(group: Group, lost_after: int) -> Agent:
        kept = Checkpoints(tmp_path / "kept", {}, every=-1)
        add, added = group.all_reduce_sum, []

        def counted(*tensors: torch.Tensor) -> None:
            added.append(1)
            if group.rank == 1 and len(added) == lost_after:
                raise LostError
            add(*tensors)

        group.all_reduce_sum = counted  # type: ignore[method-assign]
        return make("mbcal").fit(part(MANY, group), group=group, checkpoints=kept)

    for lost_after in (12, 18):
        with pytest.raises(LostError):
            together(2, lambda group, lost_after=lost_after: fit(group, lost_after))
        assert Checkpoints(tmp_path / "kept", {}).latest
    for agent in together(2, lambda group: fit(group, 10**9)):
        require_equal(alone, agent)


def test_workers_that_see_other_checkpoints_do_not_begin(tmp_path: Path) -> None:
    make("gru4rec").fit(MANY, checkpoints=Checkpoints(tmp_path / "0", {}))

    def fit(group: Group) -> Agent:
        return make("gru4rec").fit(part(MANY, group), group=group, checkpoints=Checkpoints(tmp_path / str(group.rank), {}))

    with pytest.raises(TrainingError, match="do not see the same checkpoint; write to a folder that every machine"):
        together(2, fit)


def test_a_worker_without_users_is_refused() -> None:
    with pytest.raises(TrainingError, match="fit: 3 workers, but users for only 2; take fewer workers"):
        together(3, lambda group: make("gru4rec").fit(MANY[100 * group.rank : 100 * min(group.rank + 1, 2)], group=group))


class Selfish(AGENTS["popular"]):
    """Counts its own sessions and tells nobody."""

    def build_networks(self, domain: Domain) -> dict[str, nn.Module]:
        return {"counts": nn.BatchNorm1d(1)}

    def learn(self, context: FitContext) -> None:
        self.nets["counts"].running_mean += len(context.data)


def test_a_method_that_does_not_add_up_is_told() -> None:
    with pytest.raises(TrainingError, match="the popular agent cannot be fitted on several workers"):
        together(2, lambda group: Selfish(device="cpu").fit(part(MANY, group), group=group))


def test_a_loss_that_is_no_number_stops_all() -> None:
    def fit(group: Group) -> Agent:
        agent = make("gru4rec")
        agent.config = dataclasses.replace(agent.config, training=dataclasses.replace(QUICK, learning_rate=1e30))
        return agent.fit(part(MANY, group), group=group)

    with pytest.raises(TrainingError, match="loss became"):
        together(2, fit)


def test_noise_belongs_to_a_row_of_the_batch() -> None:
    seed, rows = torch.tensor(7), torch.tensor([4, 1, 9])
    whole = Noise(seed).uniform((10, 3, 2))
    assert torch.equal(whole, uniform(7, (10, 3, 2)))
    assert torch.equal(Noise(seed, rows).uniform((3, 3, 2)), whole[rows])


def test_entries_are_picked_from_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = torch.arange(100, 150)
    wanted = [torch.tensor([3, 49, 0, 22]), torch.zeros(0, dtype=torch.int64), torch.randint(0, 50, (40,))]
    bounds = [0, 5, 30, 50]
    for size in (GATHER_BLOCK, 7):
        monkeypatch.setattr("mbcal.distributed.worker_slice.GATHER_BLOCK", size)
        found = together(
            3,
            lambda group: distributed_gather(
                everything[bounds[group.rank] : bounds[group.rank + 1]], wanted[group.rank], group
            ),
        )
        for mine, those in zip(found, wanted, strict=True):
            assert torch.equal(mine, everything[those])


def test_places_of_sessions_that_come_twice() -> None:
    worker_slice = WorkerSlice(2, 3, 7, together(2, lambda group: group)[1])
    places = worker_slice.row_index(torch.device("cpu"), times=2)
    assert places is not None
    assert places.tolist() == [-1, -1, 0, 1, 2, -1, -1, -1, -1, 3, 4, 5, -1, -1]
    assert worker_slice.local_rows(torch.tensor([6, 4, 0, 2])).tolist() == [2, 0]


@pytest.fixture(scope="module")
def feed(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("together") / "feed"
    prepare_newsfeed(folder, NewsfeedConfig(sessions=600, items=100), SessionConfig(horizon=5, history=4))
    return Store.open(folder)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_a_store_is_shared_out_by_users(feed: Store, size: int) -> None:
    whole = feed.sessions("train")
    parts = [feed.worker_sessions("train", rank, size) for rank in range(size)]
    for name, array in whole.arrays():
        assert np.array_equal(np.concatenate([getattr(each, name) for each in parts]), array)
    users = [set(each.user.tolist()) for each in parts]
    assert sum(map(len, users)) == len(set().union(*users))
    assert max(map(len, parts)) - min(map(len, parts)) < 40
    assert {each.origin for each in parts} == {whole.origin}


def test_more_workers_than_users_leaves_some_with_nothing(feed: Store) -> None:
    count = len(split_held_out_users(feed.sessions("train").user, 0.0, 0)[0])
    parts = [feed.worker_sessions("train", rank, 2 * count) for rank in range(2 * count)]
    assert sum(map(len, parts)) == count
    assert min(map(len, parts)) == 0


def test_a_part_without_sessions_is_named(feed: Store) -> None:
    empty = dataclasses.replace(feed, manifest={**feed.manifest, "files": {}})
    with pytest.raises(StoreError, match="no sessions for part 'train'"):
        empty.worker_sessions("train", 0, 2)
