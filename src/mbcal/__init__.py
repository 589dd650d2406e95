"""Model-Based Counterfactual Advantage Learning: long-term recommendation from ordinary logs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mbcal.data import ItemTable, KuaiRand, Labels, Levels, MovieLens, Netflix, SessionConfig, Store, TableLog, prepare
from mbcal.errors import MbcalError
from mbcal.types import Behaviours, Catalog, Feature, Sessions
from mbcal.version import __version__

if TYPE_CHECKING:
    from mbcal.agents import AGENTS, MBCAL, Agent, AgentConfig, GRU4Rec, MBCALConfig, load
    from mbcal.client import AsyncClient, Client
    from mbcal.environments.newsfeed.log import NewsfeedConfig, prepare_newsfeed
    from mbcal.environments.newsfeed.oracle import Oracle
    from mbcal.environments.newsfeed.world import Newsfeed
    from mbcal.environments.simulator import Simulator, SimulatorConfig
    from mbcal.evaluation.evaluator import evaluate
    from mbcal.nn.config import NetConfig
    from mbcal.training.config import TrainingConfig

__all__ = [
    "AGENTS",
    "MBCAL",
    "Agent",
    "AgentConfig",
    "AsyncClient",
    "Behaviours",
    "Catalog",
    "Client",
    "SessionConfig",
    "Feature",
    "GRU4Rec",
    "ItemTable",
    "KuaiRand",
    "Labels",
    "Levels",
    "MBCALConfig",
    "MbcalError",
    "MovieLens",
    "NetConfig",
    "Netflix",
    "Newsfeed",
    "NewsfeedConfig",
    "Oracle",
    "Sessions",
    "Simulator",
    "SimulatorConfig",
    "Store",
    "TableLog",
    "TrainingConfig",
    "__version__",
    "evaluate",
    "load",
    "prepare",
    "prepare_newsfeed",
]

# These need torch, which takes a second to import, or an extra; they are fetched when first named.
_LATER = {
    "AGENTS": "mbcal.agents",
    "Agent": "mbcal.agents",
    "AgentConfig": "mbcal.agents",
    "AsyncClient": "mbcal.client",
    "Client": "mbcal.client",
    "GRU4Rec": "mbcal.agents",
    "MBCAL": "mbcal.agents",
    "MBCALConfig": "mbcal.agents",
    "NetConfig": "mbcal.nn.recurrent",
    "Newsfeed": "mbcal.environments.newsfeed.world",
    "NewsfeedConfig": "mbcal.environments.newsfeed.log",
    "Oracle": "mbcal.environments.newsfeed.oracle",
    "Simulator": "mbcal.environments.simulator",
    "SimulatorConfig": "mbcal.environments.simulator",
    "TrainingConfig": "mbcal.training.loop",
    "evaluate": "mbcal.evaluation.evaluator",
    "load": "mbcal.agents",
    "prepare_newsfeed": "mbcal.environments.newsfeed.log",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        from importlib import import_module

        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'mbcal' has no attribute {name!r}")
