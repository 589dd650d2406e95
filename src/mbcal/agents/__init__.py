"""Agents: the ranking methods, one module each, and the parts they share (`base` describes how these fit together)."""

from __future__ import annotations

from pathlib import Path

from mbcal.agents.base import Agent
from mbcal.agents.config import AgentConfig
from mbcal.agents.ddpg import DDPG, DDPGConfig
from mbcal.agents.domain import Domain
from mbcal.agents.dqn import DDQN, DQN, DQNConfig
from mbcal.agents.dynaq import DynaQ
from mbcal.agents.fit_context import FitContext
from mbcal.agents.gru4rec import GRU4Rec, GRU4RecEpsilon, GRU4RecRegression
from mbcal.agents.linucb import LinUCB, LinUCBConfig
from mbcal.agents.lookup import AGENTS, agent_class
from mbcal.agents.mbcal import MBCAL, MBCALConfig, MBCALWithoutVarianceReduction
from mbcal.agents.mcpe import MCPE
from mbcal.agents.plan import MBCALPlan, PlanConfig
from mbcal.agents.popular import Popular
from mbcal.agents.random import Random
from mbcal.agents.ranking import RankedItem, Recommendations
from mbcal.agents.unknown_items import item_projections
from mbcal.agents.values import ValueConfig


def load(path: str | Path, device: str = "auto") -> Agent:
    """Load an agent of any built-in or installed method from a folder; see `Agent.load`."""
    return Agent.load(path, device)


__all__ = [
    "AGENTS",
    "DDPG",
    "DDQN",
    "DQN",
    "MBCAL",
    "MCPE",
    "Agent",
    "AgentConfig",
    "DDPGConfig",
    "DQNConfig",
    "Domain",
    "DynaQ",
    "FitContext",
    "GRU4Rec",
    "GRU4RecEpsilon",
    "GRU4RecRegression",
    "LinUCB",
    "LinUCBConfig",
    "MBCALConfig",
    "MBCALPlan",
    "MBCALWithoutVarianceReduction",
    "PlanConfig",
    "Popular",
    "Random",
    "RankedItem",
    "Recommendations",
    "ValueConfig",
    "agent_class",
    "item_projections",
    "load",
]
