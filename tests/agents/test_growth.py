"""Agents and new items: old scores stay, weights and Adam's state are kept, new items begin as the unknown one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from mbcal import Catalog, Feature, Sessions, load
from mbcal.agents import AGENTS, Agent
from mbcal.environments.simulator import Simulator
from mbcal.errors import InputError, ModelError
from mbcal.nn.embeddings import ItemEmbedding
from mbcal.training.config import TrainingConfig
from mbcal.types import UNKNOWN_ROW, NumberFeature, VectorFeature
from mbcal.types.translation import over_catalog
from tests.support import batches
from tests.support.agents import MORE, NET, QUICK, offered, scores_along

NAMES = ("kind", "tags", "words", "embedding")
OLD = Catalog(
    batches.CATALOG.items,
    {
        **batches.CATALOG.features,
        "words": NumberFeature.create("words", [10.0 * k if k != 5 else None for k in range(12)]),
        "embedding": VectorFeature.create("embedding", [[np.sin(k), np.cos(k)] if k != 6 else None for k in range(12)]),
    },
)
NEW = Catalog(
    ("new b", "item 3", "new a"),
    {
        "kind": Feature.single("kind", ["kind 1", "kind 0", "kind new"]),
        "tags": Feature.multi("tags", [["tag 0"], ["tag 0", "tag 1", "tag 2"], ["tag new", "tag 1"]]),
        "words": NumberFeature.create("words", [55.0, 30.0, None]),
        "embedding": VectorFeature.create("embedding", [[0.3, 0.4], [np.sin(3), np.cos(3)], None]),
    },
)
ALONE = TrainingConfig(epochs=1, batch=64, validation=0.0)


def sessions(catalog: Catalog = OLD, seed: int = 3) -> Sessions:
    return replace(batches.sessions(count=120, horizon=6, seed=seed), catalog=catalog)


def fitted(name: str) -> Agent:
    kind = AGENTS[name]
    return kind(kind.Config(net=replace(NET, features=NAMES), training=QUICK, **MORE.get(name, {})), "cpu").fit(sessions())


def new_sessions(seed: int = 5) -> Sessions:
    """Sessions over the grown catalogue in which the new items occur."""
    grown = OLD.extended(NEW)
    known = sessions(grown, seed)
    items = known.items.copy()
    items[:40, 0], items[40:80, 0] = grown.rows_of(["new a"])[0], grown.rows_of(["new b"])[0]
    return replace(known, items=items)


@pytest.mark.parametrize("name", list(AGENTS))
def test_old_scores_weights_and_moments_stay(name: str) -> None:
    agent = fitted(name)
    before = scores_along(agent, sessions(), offered(120))
    weights = {
        f"{net}/{key}": value.clone() for net, module in agent.nets.items() for key, value in module.state_dict().items()
    }
    moments = {
        (net, index): {key: value.clone() for key, value in agent.optimisers[net].state[parameter].items()}
        for net, module in agent.nets.items()
        for index, parameter in enumerate(module.parameters())
        if net in agent.optimisers and parameter in agent.optimisers[net].state
    }
    agent.extend_catalog(NEW)
    assert agent.domain.catalog.items == (*OLD.items, "new b", "new a")
    after = scores_along(agent, sessions(), offered(120))
    assert torch.allclose(after, before, rtol=0, atol=1e-6)
    for net, module in agent.nets.items():
        for key, value in module.state_dict().items():
            old = weights[f"{net}/{key}"]
            assert torch.equal(value[: len(old)] if old.dim() else value, old), key
    for (net, index), state in moments.items():
        parameter = list(agent.nets[net].parameters())[index]
        grown = agent.optimisers[net].state[parameter]
        for key, old in state.items():
            assert torch.equal(grown[key][: len(old)] if old.dim() else grown[key], old)
            assert not old.dim() or (grown[key].shape == parameter.shape and not grown[key][len(old) :].any())
    assert moments or not agent.optimisers


@pytest.mark.parametrize("name", list(AGENTS))
def test_a_fit_on_new_items_makes_them_known(name: str, tmp_path: Path) -> None:
    agent = fitted(name).fit(new_sessions(), training=ALONE)
    rows = agent.domain.catalog.rows_of(["new a", "new b"])
    assert agent.seen()[rows].all()
    assert {item.item: item.known for item in agent.rank([], ["new a", "item 1", "never"])} == {
        "new a": True,
        "item 1": True,
        "never": False,
    }
    again = load(agent.save(tmp_path / "model"), "cpu")
    assert again.domain.catalog.items == agent.domain.catalog.items
    grown = new_sessions()
    candidates = np.broadcast_to(np.arange(1, again.domain.catalog.n_rows, dtype=np.int32), (120, 15)).copy()
    assert torch.allclose(scores_along(again, grown, candidates), scores_along(agent, grown, candidates), atol=1e-6)


def test_a_new_item_begins_as_the_unknown_one_with_its_features() -> None:
    agent = fitted("gru4rec")
    agent.extend_catalog(Catalog(("twin",), {name: _row_of(OLD, name, 2 + 7) for name in NAMES}))
    net = next(iter(agent.nets.values()))
    embedding = next(module for module in net.modules() if isinstance(module, ItemEmbedding))
    rows = embedding(torch.tensor([UNKNOWN_ROW, 2 + 7, agent.domain.catalog.n_rows - 1]))
    width = NET.embedding
    assert torch.equal(rows[2, :width], rows[0, :width])
    assert torch.allclose(rows[2, width:], rows[1, width:], atol=1e-6)
    assert not agent.seen()[-1]


def _row_of(catalog: Catalog, name: str, row: int) -> Feature | NumberFeature | VectorFeature:
    feature = catalog.features[name]
    if isinstance(feature, NumberFeature):
        return NumberFeature.create(name, [float(feature.numbers[row])])
    if isinstance(feature, VectorFeature):
        return VectorFeature.create(name, [feature.vectors[row].tolist()])
    values = feature.values(row)
    return Feature.single(name, [values[0]]) if feature.offsets is None else Feature.multi(name, [values])


def test_a_value_never_met_begins_as_the_mean_if_none_was_unknown() -> None:
    agent = fitted("gru4rec")
    net = next(iter(agent.nets.values()))
    tags = net.items.features[1].embedding.weight
    mean = tags[2:].mean(0) if agent.seen().all() else None
    agent.extend_catalog(NEW)
    grown = net.items.features[1].embedding.weight
    assert len(grown) == len(tags) == 2 + 4  # the same parameter
    unknown_seen = bool(agent.seen()[UNKNOWN_ROW])  # the unknown item has the unknown tag
    expected = grown[1] if unknown_seen else (mean if mean is not None else grown[2:5].mean(0))
    assert torch.allclose(grown[5], expected)


def test_sessions_of_a_catalogue_in_another_order_are_translated() -> None:
    known = new_sessions()
    order = np.random.default_rng(0).permutation(len(known.catalog))
    names = tuple(known.catalog.items[k] for k in order)
    shuffled = over_catalog(known, Catalog(names))
    assert [shuffled.catalog.name_of(row) for row in shuffled.items[0, :2]] == [
        known.catalog.name_of(row) for row in known.items[0, :2]
    ]
    assert np.array_equal(over_catalog(shuffled, known.catalog).items, known.items)
    assert torch.equal(over_catalog(known.tensors(), Catalog(names)).items, torch.from_numpy(shuffled.items))
    agent = fitted("popular").fit(shuffled)
    counts = np.bincount(sessions().items[sessions().mask], minlength=16) + np.bincount(
        known.items[known.mask], minlength=16
    )
    assert agent.nets["counts"].steps[2:].tolist() == counts[2:].tolist()


def test_other_data_and_other_kinds_are_refused() -> None:
    agent = fitted("gru4rec")
    other = Catalog(tuple(f"film {k}" for k in range(12)))
    with pytest.raises(ModelError, match="knows 12 items, the data has 12 and not the same"):
        agent.fit(sessions(other))
    with pytest.raises(InputError, match="'words' is a category, but was a number"):
        agent.extend_catalog(Catalog(("q",), {"words": Feature.single("words", ["few"])}))
    with pytest.raises(InputError, match="vectors of length 3, those known have 2"):
        agent.extend_catalog(Catalog(("q",), {"embedding": VectorFeature.create("embedding", [[1.0, 2.0, 3.0]])}))
    assert len(agent.domain.catalog) == 12


def test_simulators_grow() -> None:
    simulator = Simulator(hidden=8, embedding=8, training=QUICK, device="cpu").fit(sessions())
    batch = sessions().tensors()
    before = simulator.environment.probabilities(simulator.begin(*batch.history), batch.items[:, :1])
    simulator.extend_catalog(NEW)
    after = simulator.environment.probabilities(simulator.begin(*batch.history), batch.items[:, :1])
    assert torch.allclose(before, after, rtol=0, atol=1e-6)
    new = torch.full_like(batch.items[:, :1], simulator.catalog.n_rows - 1)
    assert simulator.environment.probabilities(simulator.begin(*batch.history), new).isfinite().all()
