"""Agents, new items and new values of fields: networks and optimisers grow by rows, scores of what is known do not change.

A new item is scored as the unknown item with its own features, until a fit has seen it. Its id then begins from the unknown
item's embedding, and Adam's moments of the new rows from zero. A new value of a category of users or steps counts as an
unknown one, until a fit has seen it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mbcal.errors import ModelError
from mbcal.nn.growth import grow_fields, grow_network
from mbcal.types import Catalog, SessionFields, Sessions, SessionTensors
from mbcal.types.translation import over_catalog

if TYPE_CHECKING:
    from mbcal.agents.base import Agent


def extend_catalog(agent: Agent, catalog: Catalog) -> None:
    """Add the items of another catalogue to an agent's.

    Args:
        agent: A started agent.
        catalog: Items to add, with features; see `Catalog.extended`.

    Raises:
        ModelError: If the agent has not been fitted.
        InputError: If a feature is of another kind than the agent's, or its vectors of another length.
    """
    grown = agent.domain.catalog.extended(catalog)
    if grown is agent.domain.catalog:
        return
    for name, net in agent.nets.items():
        grow_network(net, agent.optimisers.get(name), grown)
    agent.set_catalog(grown)


def extend_fields(agent: Agent, fields: SessionFields) -> None:
    """Add values to the categories of users and steps that an agent reads.

    Args:
        agent: A started agent.
        fields: Fields of other sessions. Values of those that the agent does not read are left out; numbers are standardised
            as before.
    """
    grown = agent.domain.fields.extended(fields)
    if grown == agent.domain.fields:
        return
    for name, net in agent.nets.items():
        grow_fields(net, agent.optimisers.get(name), grown)
    agent.set_fields(grown)


def share_catalog(agent: Agent, catalog: Catalog) -> None:
    """Use an equal catalogue object in place of the agent's own, so that later comparisons are by identity.

    Raises:
        ModelError: If the catalogues differ.
    """
    if catalog.items != agent.domain.catalog.items:
        raise ModelError(f"this {agent.name} agent knows other items than the data has; fit one on this data")
    agent.set_catalog(catalog)


def with_agent_items(agent: Agent, sessions: Sessions | SessionTensors) -> Sessions | SessionTensors:
    """Return sessions over the agent's catalogue, which grows by items that are new to it.

    Sessions that share no item with the agent are returned as they are: they are of other data, which a fit refuses.
    """
    known, catalog = agent.domain.catalog, sessions.catalog
    if catalog is known or catalog.items == known.items or not set(catalog.items) & set(known.items):
        return sessions
    agent.extend_catalog(catalog)
    return over_catalog(sessions, agent.domain.catalog)
