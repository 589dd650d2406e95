"""Agents and simulators that read user features and context: fitted, saved, loaded, rolled out, and left out on request."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from mbcal import Simulator, load
from mbcal.agents.gru4rec import GRU4Rec
from mbcal.agents.lookup import agent_class
from mbcal.environments.rollout import rollout
from mbcal.errors import InputError, OptionError
from mbcal.scoring.fields import FieldReader
from mbcal.types import NO_FIELDS, Field, Fields, SessionFields, Sessions
from tests.support.batches import CATALOG, LABELS
from tests.support.fields import FIELDS, with_fields

METHODS = ("mbcal", "mbcal-no-vr", "gru4rec", "mcpe", "dqn", "ddqn", "dyna-q", "ddpg", "linucb", "popular", "random")
QUICK = {"hidden": 16, "embedding": 8, "epochs": 1, "validation": 0.0, "device": "cpu"}
NIGHT = SessionFields(
    Fields((Field("country", "category", ("at", "de")),)), Fields((Field("time", "category", ("day", "night")),))
)


def day_and_night(count: int = 600, seed: int = 0) -> Sessions:
    """At night users click on odd items only, by day on even ones only; and users from `de` never skip."""
    random = np.random.default_rng(seed)
    items = random.integers(2, CATALOG.n_rows, (count, 4)).astype(np.int32)
    night, german = random.random((count, 4)) < 0.5, random.random(count) < 0.5
    clicks = (items % 2 == 1) == night
    return Sessions(
        CATALOG,
        LABELS,
        items=items,
        behaviours=np.where(clicks | german[:, None], 1, 0).astype(np.uint8),
        length=np.full(count, 4, np.int32),
        user=np.arange(count, dtype=np.int32),
        history_items=np.zeros((count, 0), np.int32),
        history_behaviours=np.zeros((count, 0), np.uint8),
        history_length=np.zeros(count, np.int32),
        user_features=(1 + german[:, None]).astype(np.float32),
        context=(1 + night[:, :, None]).astype(np.float32),
        fields=NIGHT,
    )


@pytest.mark.parametrize("method", METHODS)
def test_every_method_takes_sessions_with_fields_and_scores_the_same_after_loading(method: str, tmp_path: Path) -> None:
    sessions = with_fields(count=40)
    settings = {**QUICK, "gamma": 0.9} if method.startswith("mbcal") else QUICK
    agent = agent_class(method)(**(settings if method not in ("popular", "random") else {"device": "cpu"}))
    agent.fit(sessions)
    again = load(agent.save(tmp_path / "model"), "cpu")
    candidates = torch.arange(2, 9).repeat(40, 1)

    def scores(of: object, logged: Sessions) -> torch.Tensor:
        reader = FieldReader(of, logged.tensors())
        return of.score(reader.at(reader.begin(), 0), candidates)  # type: ignore[attr-defined]

    assert torch.equal(scores(agent, sessions), scores(again, sessions))
    reads = method not in ("linucb", "popular", "random")
    assert agent.fields == (FIELDS if reads else NO_FIELDS)
    others = with_fields(count=40, seed=1)
    changed = dataclasses.replace(sessions, context=others.context * sessions.mask[..., None] * others.mask[..., None])
    assert torch.equal(scores(agent, sessions), scores(agent, changed)) != reads


def test_context_and_user_features_are_learned() -> None:
    agent = GRU4Rec(hidden=32, epochs=30, validation=0.0, learning_rate=0.01, device="cpu").fit(day_and_night())
    odd, even = "item 1", "item 0"  # rows 3 and 2

    def scores(time: str | None, country: str) -> dict[str, float]:
        ranked = agent.rank([], [odd, even], context={"time": time}, user_features={"country": country})
        return {entry.item: entry.score for entry in ranked}

    by_night, by_day = scores("night", "at"), scores("day", "at")
    assert by_night[odd] > by_night[even] + 0.3
    assert by_day[even] > by_day[odd] + 0.3
    assert min(scores("day", "de").values()) > 0.9
    # nothing known: about the mean over day and night
    assert all(0.25 < score < 0.85 for score in scores(None, "at").values())
    with pytest.raises(InputError, match="context: 'tyme' was never declared; the model knows time"):
        agent.rank([], [odd], context={"tyme": "night"})
    with pytest.raises(InputError, match="user_features: 'age' was never declared"):
        agent.rank([], [odd], user_features={"age": 3})
    with pytest.raises(InputError, match="shown_context: 1 for 0 steps shown"):
        agent.rank([], [odd], shown_context=[{"time": "day"}])


def test_fields_can_be_left_out_and_nothing_changes_where_there_are_none() -> None:
    sessions = with_fields(count=40)
    plain = dataclasses.replace(sessions, user_features=None, context=None, fields=NO_FIELDS)
    without = GRU4Rec(context=(), user_features=(), **QUICK).fit(sessions)
    usual = GRU4Rec(**QUICK).fit(plain)
    assert without.fields == NO_FIELDS
    for name, weight in usual.nets["behaviour"].state_dict().items():
        assert torch.equal(weight, without.nets["behaviour"].state_dict()[name]), name
    some = GRU4Rec(context=("hour",), **QUICK).fit(sessions)
    assert some.fields.context.names == ("hour",)
    assert some.fields.user == FIELDS.user
    with pytest.raises(OptionError, match="context: no 'our'; the data has device, referrer, hour, text"):
        GRU4Rec(context=("our",), **QUICK).fit(sessions)


@pytest.mark.parametrize("family", ["lstm", "transformer"])
def test_simulators_respond_to_context_and_keep_their_fields(family: str, tmp_path: Path) -> None:
    sessions = day_and_night()
    settings = {"hidden": 32, "epochs": 25, "validation": 0.0, "batch": 50, "learning_rate": 0.01}
    simulator = Simulator(family=family, device="cpu", **settings).fit(sessions[:500])
    again = Simulator.load(simulator.save(tmp_path / "simulator"), "cpu")
    assert again.fields == NIGHT
    test = sessions[500:]
    card = again.evaluate(test)
    assert card.nll < 0.35
    assert card.nll < 0.6 * card.baseline_nll
    always_night = dataclasses.replace(test, context=np.full_like(test.context, 2))
    agent = GRU4Rec(device="cpu", **settings).fit(sessions[:500])
    candidates = np.tile(np.arange(2, 10, dtype=np.int32), (len(test), 1))
    served = rollout(agent, again, always_night, candidates=candidates)
    choosy = test.user_features[:, 0] == 1
    assert np.mean(served.items[choosy] % 2 == 1) > 0.9  # the policy reads the context of the sessions it serves
    assert served.rewards.mean() > 0.85
    assert np.array_equal(served.context, always_night.context)


def test_a_fit_goes_on_with_sessions_of_other_fields() -> None:
    agent = GRU4Rec(hidden=16, epochs=2, validation=0.0, device="cpu").fit(day_and_night())
    fields = SessionFields(Fields(), Fields((Field("time", "category", ("evening", "night")), Field("hour", "number"))))
    first = day_and_night(100, seed=1)
    context = np.zeros((100, 4, 3), np.float32)
    context[:, :, 0] = np.where(first.context[:, :, 0] == 2, 2, 1)
    agent.fit(dataclasses.replace(first, user_features=None, context=context, fields=fields))
    time = Field("time", "category", ("day", "night", "evening"))
    assert agent.fields == SessionFields(NIGHT.user, Fields((time,)))  # the hour was never declared
    encoder = agent.nets["behaviour"].context
    assert encoder.has_missing.tolist() == [False]
    assert encoder.seen.tolist() == [False, True, True, True]


def test_the_context_of_sessions_that_users_leave_follows_their_length() -> None:
    sessions = day_and_night(60)
    leaving = dataclasses.replace(sessions, behaviour_set=dataclasses.replace(LABELS, terminal=("like",)))
    short = dataclasses.replace(
        leaving,
        items=leaving.items * (np.arange(4) < 2),
        behaviours=leaving.behaviours * np.array([1, 1, 0, 0], np.uint8),
        length=np.full(60, 2, np.int32),
        context=leaving.context * (np.arange(4) < 2)[None, :, None],
    )
    agent = GRU4Rec(hidden=16, epochs=1, validation=0.0, device="cpu").fit(leaving)
    simulator = Simulator(hidden=16, epochs=1, device="cpu").fit(leaving)
    candidates = np.tile(np.arange(2, 10, dtype=np.int32), (60, 1))
    served = rollout(agent, simulator, short, candidates=candidates)
    assert served.length.max() == 4
    dataclasses.replace(served)  # checks the padding
    longest = served.length == 4
    assert np.array_equal(served.context[longest, 2], short.context[longest, 1])
    assert np.array_equal(served.context[longest, 3], short.context[longest, 1])
