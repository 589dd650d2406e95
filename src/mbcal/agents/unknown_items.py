"""From an agent's networks to the projections by which it, or a service, scores items that it has never met."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mbcal.errors import InputError
from mbcal.nn.embeddings import CategoryFeature, DenseFeature
from mbcal.nn.recurrent import RecurrentNet
from mbcal.scoring.item_projection import CategoryProjection, DenseProjection, ItemProjection, JointProjection
from mbcal.scoring.scorers import NetScorer, Scorer
from mbcal.types import UNKNOWN_ROW, to_name
from mbcal.types.feature_values import declarations, read_values

if TYPE_CHECKING:
    from mbcal.agents.base import Agent


def item_projections(agent: Agent) -> dict[str, ItemProjection]:
    """Return the projection of every term of an agent's score; none if it reads no features, or is no sum of networks."""
    scorer = agent.fitted_scorer
    if not isinstance(scorer, NetScorer) or not agent.config.net.features:
        return {}
    projections = {}
    for name, term in scorer.terms.items():
        net = _network_of(agent, term.tables.cell.weight)
        if net is None:
            return {}
        projections[name] = project_items(net)
    return projections if _standardise_alike(list(projections.values())) else {}


def describe_candidates(
    agent: Agent, names: Sequence[str], features: Mapping[str, Mapping[str, Any]]
) -> tuple[Scorer, NDArray[np.int32]]:
    """Return a scorer that has rows for unknown candidates with features, and the row of every candidate.

    Args:
        agent: A fitted agent. If it reads no features, or is no sum of networks, features are checked and not used.
        names: C candidates.
        features: Candidate -> feature -> value; those of known items are checked and not used.

    Returns:
        The scorer, and rows (C,) of its tables.

    Raises:
        InputError: If an item is no candidate, a feature is not declared, or a value is not of its kind.
    """
    scorer, catalog = agent.fitted_scorer, agent.domain.catalog
    rows, declared = catalog.rows_of(names), declarations(catalog.features)
    given = {to_name(item, "features"): read_values(values, declared) for item, values in features.items()}
    for item in given:
        if item not in names:
            raise InputError(f"features: {item!r} is not among the candidates; describe candidates only")
    unknown = [k for k, name in enumerate(names) if rows[k] == UNKNOWN_ROW and given.get(name)]
    projections = item_projections(agent) if unknown else {}
    if not projections or not isinstance(scorer, NetScorer):
        return scorer, rows
    vocabularies = {name: catalog.features[name].vocabulary for name in next(iter(projections.values())).categories}  # type: ignore[union-attr]
    joint = JointProjection({name: projections[name] for name in scorer.terms}, vocabularies)
    found, begin, terms = torch.from_numpy(joint.rows([given[names[k]] for k in unknown])), 0, {}
    for name, term in scorer.terms.items():
        items = term.tables.cell.items
        added, begin = found[:, begin : begin + items.shape[1]].to(items), begin + items.shape[1]
        cell = replace(term.tables.cell, items=torch.cat([items, added]))
        terms[name] = replace(term, tables=replace(term.tables, cell=cell))
    rows[unknown] = catalog.n_rows + np.arange(len(unknown), dtype=np.int32)
    return replace(scorer, terms=terms), rows


def _standardise_alike(projections: list[ItemProjection]) -> bool:
    """Whether all networks have the same mean and deviation of every number and vector: they met the same items."""
    return all(
        np.array_equal(feature.mean, other.dense[name].mean)
        and np.array_equal(feature.deviation, other.dense[name].deviation)
        for other in projections[1:]
        for name, feature in projections[0].dense.items()
    )


def _network_of(agent: Agent, weight: Tensor) -> RecurrentNet | None:
    """The network whose recurrent weights a term has."""
    for root in agent.nets.values():
        for net in root.modules():
            if isinstance(net, RecurrentNet) and net.config.cell == "gru":
                own = net.cell.get_parameter("weight_hh_l0")
                if own.shape == weight.shape and torch.equal(own, weight):
                    return net
    return None


@torch.no_grad()
def project_items(net: RecurrentNet) -> ItemProjection:
    """Return the projection of a network: what `RecurrentNet.to_tables` would have as the row of an unknown item."""
    items, width = net.items, net.config.embedding
    item_weight, bias = net.item_inputs(net.cell)
    weight = item_weight.T.double()  # (size, 3H)
    base = items.id.weight[UNKNOWN_ROW].double() @ weight[:width] + bias.double()
    features: dict[str, DenseProjection | CategoryProjection] = {}
    for number, (name, feature) in enumerate(zip(items.names, items.features, strict=True), 1):
        part = weight[number * width : (number + 1) * width]  # (embedding, 3H)
        if isinstance(feature, DenseFeature):
            base = base + feature.projection.bias.double() @ part
            projected = feature.projection.weight.T.double() @ part
            features[name] = DenseProjection(_array(feature.mean), _array(feature.deviation), _array(projected))
        elif isinstance(feature, CategoryFeature):
            embedding = feature.embedding.weight.clone()
            embedding[UNKNOWN_ROW] = feature.unknown_value(items.seen)
            is_multi = np.asarray(0.0 if feature.single else 1.0, np.float32)
            features[name] = CategoryProjection(_array(embedding), _array(part), is_multi)
    return ItemProjection(_array(base), features)


def _array(tensor: Tensor) -> NDArray[np.float32]:
    return np.ascontiguousarray(tensor.detach().float().cpu().numpy())
