"""The methods, one file each, by the name the command line knows them by."""

from __future__ import annotations

from pathlib import Path

from mbcal import bundle
from mbcal.agents.agent import Agent, AgentConfig, Domain, Ranked
from mbcal.agents.chance import Random
from mbcal.agents.ddpg import DDPG
from mbcal.agents.dqn import DDQN, DQN
from mbcal.agents.dynaq import DynaQ
from mbcal.agents.gru4rec import GRU4Rec, GRU4RecEpsilon
from mbcal.agents.linucb import LinUCB
from mbcal.agents.mbcal import MBCAL, MBCALConfig, MBCALWithoutVarianceReduction
from mbcal.agents.mcpe import MCPE
from mbcal.agents.popular import Popular
from mbcal.errors import OptionError, nearest

AGENTS: dict[str, type[Agent]] = {
    agent.name: agent
    for agent in (
        MBCAL,
        MBCALWithoutVarianceReduction,
        GRU4Rec,
        GRU4RecEpsilon,
        DQN,
        DDQN,
        DDPG,
        MCPE,
        DynaQ,
        LinUCB,
        Popular,
        Random,
    )
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
    "DDPG",
    "DDQN",
    "DQN",
    "MBCAL",
    "MCPE",
    "Agent",
    "AgentConfig",
    "Domain",
    "DynaQ",
    "GRU4Rec",
    "GRU4RecEpsilon",
    "LinUCB",
    "MBCALConfig",
    "MBCALWithoutVarianceReduction",
    "Popular",
    "Random",
    "Ranked",
    "agent_named",
    "load",
]
