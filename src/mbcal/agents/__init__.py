"""The methods, one file each, by the name the command line knows them by."""

from __future__ import annotations

from pathlib import Path

from mbcal import bundle
from mbcal.agents.agent import Agent, AgentConfig, Domain, Ranked
from mbcal.agents.chance import Random
from mbcal.agents.gru4rec import GRU4Rec
from mbcal.agents.mbcal import MBCAL, MBCALConfig, MBCALWithoutVarianceReduction
from mbcal.agents.popular import Popular
from mbcal.errors import OptionError, nearest

AGENTS: dict[str, type[Agent]] = {
    agent.name: agent for agent in (MBCAL, MBCALWithoutVarianceReduction, GRU4Rec, Popular, Random)
}


def agent_named(name: str) -> type[Agent]:
    """The class of a method by its name."""
    if name not in AGENTS:
        raise OptionError(f"agent: {name!r} is unknown; known are {', '.join(AGENTS)}.{nearest(name, AGENTS)}")
    return AGENTS[name]


def load(path: str | Path, device: str = "auto") -> Agent:
    """An agent from the folder it was saved in."""
    opened = bundle.Bundle.open(path, bundle.AGENT)
    return agent_named(opened.manifest["agent"]).read(opened, device)


__all__ = [
    "AGENTS",
    "MBCAL",
    "Agent",
    "AgentConfig",
    "Domain",
    "GRU4Rec",
    "MBCALConfig",
    "MBCALWithoutVarianceReduction",
    "Popular",
    "Random",
    "Ranked",
    "agent_named",
    "load",
]
