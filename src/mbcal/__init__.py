"""Model-Based Counterfactual Advantage Learning: long-term recommendation from ordinary logs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mbcal.data import ItemTable, KuaiRand, Labels, Levels, MovieLens, Netflix, SessionConfig, Store, TableLog, prepare
from mbcal.errors import MbcalError
from mbcal.types import Behaviours, Catalog, Feature, Sessions, SessionTensors
from mbcal.version import __version__

if TYPE_CHECKING:
    from mbcal.agents import (
        AGENTS,
        DDPG,
        DDQN,
        DQN,
        MBCAL,
        MCPE,
        Agent,
        AgentConfig,
        DDPGConfig,
        DQNConfig,
        DynaQ,
        GRU4Rec,
        GRU4RecEpsilon,
        LinUCB,
        LinUCBConfig,
        MBCALConfig,
        MBCALWithoutVarianceReduction,
        Popular,
        Random,
        ValueConfig,
        load,
    )
    from mbcal.client import AsyncClient, Client
    from mbcal.environments.newsfeed.log import NewsfeedConfig, prepare_newsfeed
    from mbcal.environments.newsfeed.oracle import Oracle
    from mbcal.environments.newsfeed.world import Newsfeed
    from mbcal.environments.rollout import rollout
    from mbcal.environments.simulator import Simulator, SimulatorConfig
    from mbcal.evaluation.diagnose import diagnose
    from mbcal.evaluation.evaluator import evaluate
    from mbcal.evaluation.experiment.runner import run_experiment
    from mbcal.evaluation.models import evaluate_models
    from mbcal.evaluation.ope.estimate import estimate_value
    from mbcal.evaluation.simulators import fit_simulator
    from mbcal.nn.config import NetConfig
    from mbcal.registry.registry import Registry
    from mbcal.release.gate import GateConfig
    from mbcal.release.update import UpdateConfig, update
    from mbcal.training.config import TrainingConfig

__all__ = [
    "AGENTS",
    "DDPG",
    "DDQN",
    "DQN",
    "MBCAL",
    "MCPE",
    "Agent",
    "AgentConfig",
    "AsyncClient",
    "Behaviours",
    "Catalog",
    "Client",
    "DDPGConfig",
    "DQNConfig",
    "DynaQ",
    "Feature",
    "GRU4Rec",
    "GRU4RecEpsilon",
    "GateConfig",
    "ItemTable",
    "KuaiRand",
    "Labels",
    "Levels",
    "LinUCB",
    "LinUCBConfig",
    "MBCALConfig",
    "MBCALWithoutVarianceReduction",
    "MbcalError",
    "MovieLens",
    "NetConfig",
    "Netflix",
    "Newsfeed",
    "NewsfeedConfig",
    "Oracle",
    "Popular",
    "Random",
    "Registry",
    "SessionConfig",
    "SessionTensors",
    "Sessions",
    "Simulator",
    "SimulatorConfig",
    "Store",
    "TableLog",
    "TrainingConfig",
    "UpdateConfig",
    "ValueConfig",
    "__version__",
    "diagnose",
    "estimate_value",
    "evaluate",
    "evaluate_models",
    "fit_simulator",
    "load",
    "prepare",
    "prepare_newsfeed",
    "rollout",
    "run_experiment",
    "update",
]

# These need torch, which takes a second to import, or an optional dependency; they are imported on first access.
_LATER = {
    "AGENTS": "mbcal.agents",
    "Agent": "mbcal.agents",
    "AgentConfig": "mbcal.agents",
    "AsyncClient": "mbcal.client",
    "Client": "mbcal.client",
    "DDPG": "mbcal.agents",
    "DDPGConfig": "mbcal.agents",
    "DDQN": "mbcal.agents",
    "DQN": "mbcal.agents",
    "DQNConfig": "mbcal.agents",
    "DynaQ": "mbcal.agents",
    "GRU4Rec": "mbcal.agents",
    "GRU4RecEpsilon": "mbcal.agents",
    "GateConfig": "mbcal.release.gate",
    "LinUCB": "mbcal.agents",
    "LinUCBConfig": "mbcal.agents",
    "MBCAL": "mbcal.agents",
    "MBCALConfig": "mbcal.agents",
    "MBCALWithoutVarianceReduction": "mbcal.agents",
    "MCPE": "mbcal.agents",
    "NetConfig": "mbcal.nn.config",
    "Newsfeed": "mbcal.environments.newsfeed.world",
    "NewsfeedConfig": "mbcal.environments.newsfeed.log",
    "Oracle": "mbcal.environments.newsfeed.oracle",
    "Popular": "mbcal.agents",
    "Random": "mbcal.agents",
    "Registry": "mbcal.registry.registry",
    "Simulator": "mbcal.environments.simulator",
    "SimulatorConfig": "mbcal.environments.simulator",
    "TrainingConfig": "mbcal.training.config",
    "UpdateConfig": "mbcal.release.update",
    "ValueConfig": "mbcal.agents",
    "diagnose": "mbcal.evaluation.diagnose",
    "estimate_value": "mbcal.evaluation.ope.estimate",
    "evaluate": "mbcal.evaluation.evaluator",
    "evaluate_models": "mbcal.evaluation.models",
    "fit_simulator": "mbcal.evaluation.simulators",
    "load": "mbcal.agents",
    "prepare_newsfeed": "mbcal.environments.newsfeed.log",
    "rollout": "mbcal.environments.rollout",
    "run_experiment": "mbcal.evaluation.experiment.runner",
    "update": "mbcal.release.update",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        from importlib import import_module

        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'mbcal' has no attribute {name!r}")
