"""Model-Based Counterfactual Advantage Learning: long-term recommendation from ordinary logs."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mbcal.data import (
    ItemTable,
    KuaiRand,
    Labels,
    Levels,
    Mind,
    MovieLens,
    Netflix,
    RecBole,
    RetailRocket,
    SessionConfig,
    Store,
    TableLog,
    UserTable,
    Yoochoose,
    prepare,
)
from mbcal.errors import (
    ConflictError,
    EngineError,
    InputError,
    LogError,
    MbcalError,
    ModelError,
    OptionError,
    OutputError,
    ServiceError,
    StoreError,
    TrainingError,
)
from mbcal.types import Behaviours, Catalog, Feature, NumberFeature, Sessions, SessionTensors, VectorFeature
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
        GRU4RecRegression,
        LinUCB,
        LinUCBConfig,
        MBCALConfig,
        MBCALPlan,
        MBCALWithoutVarianceReduction,
        PlanConfig,
        Popular,
        Random,
        RankedItem,
        Recommendations,
        ValueConfig,
        load,
    )
    from mbcal.agents.fit_job import FittedModel, fit
    from mbcal.client import AsyncClient, Client
    from mbcal.environments.gymnasium.world import GymnasiumWorld
    from mbcal.environments.newsfeed.log import NewsfeedConfig, prepare_newsfeed
    from mbcal.environments.newsfeed.oracle import Oracle
    from mbcal.environments.newsfeed.world import Newsfeed
    from mbcal.environments.rollout import rollout
    from mbcal.environments.simulator import Simulator, SimulatorConfig
    from mbcal.evaluation.diagnose import diagnose
    from mbcal.evaluation.evaluator import evaluate
    from mbcal.evaluation.experiment.config import ExperimentConfig, load_experiment_config
    from mbcal.evaluation.experiment.runner import run_experiment
    from mbcal.evaluation.models import evaluate_models
    from mbcal.evaluation.ope.estimate import estimate_value
    from mbcal.evaluation.simulators import fit_simulator
    from mbcal.evaluation.worlds import collect, evaluate_in_world
    from mbcal.nn.config import NetConfig
    from mbcal.registry.registry import Registry
    from mbcal.release.gate import GateConfig
    from mbcal.release.judge import CanaryConfig
    from mbcal.release.update import UpdateConfig, loop, update
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
    "CanaryConfig",
    "Catalog",
    "Client",
    "ConflictError",
    "DDPGConfig",
    "DQNConfig",
    "DynaQ",
    "EngineError",
    "ExperimentConfig",
    "Feature",
    "FittedModel",
    "GRU4Rec",
    "GRU4RecEpsilon",
    "GRU4RecRegression",
    "GateConfig",
    "GymnasiumWorld",
    "InputError",
    "ItemTable",
    "KuaiRand",
    "Labels",
    "Levels",
    "LinUCB",
    "LinUCBConfig",
    "LogError",
    "MBCALConfig",
    "MBCALPlan",
    "MBCALWithoutVarianceReduction",
    "MbcalError",
    "Mind",
    "ModelError",
    "MovieLens",
    "NetConfig",
    "Netflix",
    "Newsfeed",
    "NewsfeedConfig",
    "NumberFeature",
    "OptionError",
    "Oracle",
    "OutputError",
    "PlanConfig",
    "Popular",
    "Random",
    "RankedItem",
    "RecBole",
    "Recommendations",
    "Registry",
    "RetailRocket",
    "ServiceError",
    "SessionConfig",
    "SessionTensors",
    "Sessions",
    "Simulator",
    "SimulatorConfig",
    "Store",
    "StoreError",
    "TableLog",
    "TrainingConfig",
    "TrainingError",
    "UpdateConfig",
    "UserTable",
    "ValueConfig",
    "VectorFeature",
    "Yoochoose",
    "__version__",
    "collect",
    "diagnose",
    "estimate_value",
    "evaluate",
    "evaluate_in_world",
    "evaluate_models",
    "fit",
    "fit_simulator",
    "load",
    "load_experiment_config",
    "loop",
    "prepare",
    "prepare_newsfeed",
    "rollout",
    "run_experiment",
    "update",
]

_LAZY_MODULES = {
    "mbcal.agents": (
        "AGENTS",
        "Agent",
        "AgentConfig",
        "DDPG",
        "DDPGConfig",
        "DDQN",
        "DQN",
        "DQNConfig",
        "DynaQ",
        "GRU4Rec",
        "GRU4RecEpsilon",
        "GRU4RecRegression",
        "LinUCB",
        "LinUCBConfig",
        "MBCAL",
        "MBCALConfig",
        "MBCALPlan",
        "MBCALWithoutVarianceReduction",
        "MCPE",
        "PlanConfig",
        "Popular",
        "Random",
        "RankedItem",
        "Recommendations",
        "ValueConfig",
        "load",
    ),
    "mbcal.agents.fit_job": ("FittedModel", "fit"),
    "mbcal.client": ("AsyncClient", "Client"),
    "mbcal.environments.gymnasium.world": ("GymnasiumWorld",),
    "mbcal.environments.newsfeed.log": ("NewsfeedConfig", "prepare_newsfeed"),
    "mbcal.environments.newsfeed.oracle": ("Oracle",),
    "mbcal.environments.newsfeed.world": ("Newsfeed",),
    "mbcal.environments.rollout": ("rollout",),
    "mbcal.environments.simulator": ("Simulator", "SimulatorConfig"),
    "mbcal.evaluation.diagnose": ("diagnose",),
    "mbcal.evaluation.evaluator": ("evaluate",),
    "mbcal.evaluation.experiment.config": ("ExperimentConfig", "load_experiment_config"),
    "mbcal.evaluation.experiment.runner": ("run_experiment",),
    "mbcal.evaluation.models": ("evaluate_models",),
    "mbcal.evaluation.ope.estimate": ("estimate_value",),
    "mbcal.evaluation.simulators": ("fit_simulator",),
    "mbcal.evaluation.worlds": ("collect", "evaluate_in_world"),
    "mbcal.nn.config": ("NetConfig",),
    "mbcal.registry.registry": ("Registry",),
    "mbcal.release.gate": ("GateConfig",),
    "mbcal.release.judge": ("CanaryConfig",),
    "mbcal.release.update": ("UpdateConfig", "loop", "update"),
    "mbcal.training.config": ("TrainingConfig",),
}
"""Modules that need torch, which takes a second to import, or an optional dependency. Imported on first access of a name."""
_LAZY_NAMES = {name: module for module, names in _LAZY_MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a lazily exported name."""
    if name not in _LAZY_NAMES:
        raise AttributeError(f"module 'mbcal' has no attribute {name!r}")
    return getattr(import_module(_LAZY_NAMES[name]), name)


def __dir__() -> list[str]:
    """List the exported names, lazy ones too, for completion in a shell."""
    return sorted({*globals(), *__all__})
