"""New values of categories of users and steps: codes are appended, old scores stay, weights and Adam's state are kept."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from mbcal import Catalog, Feature, load
from mbcal.agents import Agent
from mbcal.agents.growth import extend_fields
from mbcal.agents.lookup import agent_class
from mbcal.nn.fields import FieldEncoder
from mbcal.scoring.fields import FieldReader
from mbcal.types import Field, Fields, SessionFields, Sessions
from mbcal.types.field import MAX_VALUES
from tests.support.fields import FIELDS, with_fields

QUICK = {"hidden": 16, "embedding": 8, "epochs": 1, "validation": 0.0, "device": "cpu"}
MORE = SessionFields(
    Fields((Field("country", "category", ("it", "at")), Field("age", "number", mean=7.0, deviation=2.0))),
    Fields((Field("device", "category", ("watch", "tv", "car")), Field("weather", "category", ("rain",)))),
)
DEVICES = ("phone", "tv", "watch", "car")


def fitted(method: str) -> Agent:
    settings = {**QUICK, "gamma": 0.9} if method.startswith("mbcal") else QUICK
    return agent_class(method)(**settings).fit(with_fields(count=40))


def scores(agent: Agent, sessions: Sessions) -> torch.Tensor:
    reader = FieldReader(agent, sessions.tensors())
    return agent.score(reader.at(reader.begin(), 0), torch.arange(2, 9).repeat(len(sessions), 1))


def moments(agent: Agent) -> dict[str, list[torch.Tensor]]:
    """Adam's moments of the rows of every value that was known before, by network and value."""
    found: dict[str, list[torch.Tensor]] = {}
    for net_name, optimiser in agent.optimisers.items():
        for encoder in agent.nets[net_name].modules():
            state = optimiser.state.get(encoder.codes, {}) if isinstance(encoder, FieldEncoder) else {}
            if not isinstance(encoder, FieldEncoder) or not state:
                continue
            for number, one in enumerate(encoder.fields.fields[: encoder.fields.n_codes]):
                for value in ("at", "de", "fr", "phone", "tv", "mail", "search"):
                    if value in one.code_of:
                        row = int(encoder.offsets[number]) + one.code_of[value]
                        arrays = (encoder.codes, state["exp_avg"], state["exp_avg_sq"])
                        found[f"{net_name} {value}"] = [array[row].detach().clone() for array in arrays]
    return found


def test_new_items_leave_fields_as_they_are() -> None:
    agent, sessions = fitted("gru4rec"), with_fields(count=40, seed=1)
    before, kept = scores(agent, sessions), moments(agent)
    catalog = agent.domain.catalog
    features = {"kind": Feature.single("kind", ["kind 1", None]), "tags": Feature.multi("tags", [["tag 0"], []])}
    agent.extend_catalog(Catalog(("new a", "new b"), features))
    assert agent.domain.catalog.items == (*catalog.items, "new a", "new b")
    assert agent.fields == FIELDS
    torch.testing.assert_close(scores(agent, sessions), before, atol=1e-6, rtol=0)
    grown = moments(agent)
    assert all(torch.equal(a, b) for name, arrays in kept.items() for a, b in zip(arrays, grown[name], strict=True))


@pytest.mark.parametrize("method", ["mbcal", "gru4rec", "dqn", "ddpg"])
def test_old_scores_weights_and_moments_stay(method: str, tmp_path: Path) -> None:
    agent, sessions = fitted(method), with_fields(count=40, seed=1)
    before, kept = scores(agent, sessions), moments(agent)
    extend_fields(agent, MORE)
    assert agent.fields.context.fields[0].vocabulary == DEVICES
    assert agent.fields.user.fields[0].vocabulary == ("at", "de", "fr", "it")
    assert agent.fields.user.fields[1] == FIELDS.user.fields[1]  # numbers are standardised as before
    assert agent.fields.context.names == FIELDS.context.names  # weather was never declared
    torch.testing.assert_close(scores(agent, sessions), before, atol=1e-6, rtol=0)
    grown = moments(agent)
    assert kept
    assert grown.keys() == kept.keys()
    assert all(torch.equal(a, b) for name, arrays in kept.items() for a, b in zip(arrays, grown[name], strict=True))
    again = load(agent.save(tmp_path / "model"), "cpu")
    assert again.fields == agent.fields
    assert torch.equal(scores(again, sessions), scores(agent, sessions))


def test_a_new_value_counts_as_an_unknown_one_until_a_fit_has_seen_it() -> None:
    agent, sessions = fitted("gru4rec"), with_fields(count=40, seed=1)
    watch = dataclasses.replace(sessions, fields=SessionFields(FIELDS.user, FIELDS.context.extended(MORE.context)))
    context = watch.context.copy()
    context[:, 0, 0] = np.where(context[:, 0].any(-1), 3, 0)  # the code of the watch
    unknown = context.copy()
    unknown[:, 0, 0] = 0
    watch = dataclasses.replace(watch, context=context)
    without = dataclasses.replace(watch, context=unknown)
    before = scores(agent, watch)
    assert torch.equal(before, scores(agent, without))
    agent.fit(watch)
    assert agent.fields.context.fields[0].vocabulary == DEVICES
    assert not torch.equal(scores(agent, watch), scores(agent, without))


def test_vocabularies_are_bounded_and_codes_stay() -> None:
    field = Field("device", "category", ("b", "a"))
    grown = field.extended(["a", "z", "c", "z"])
    assert grown.vocabulary == ("b", "a", "z", "c")
    full = field.extended(map(str, range(2 * MAX_VALUES)))
    assert len(full.vocabulary) == MAX_VALUES
    assert full.vocabulary[:3] == ("b", "a", "0")
    assert full.extended(["more"]) == full
    assert field.extended(["a"]) is field
