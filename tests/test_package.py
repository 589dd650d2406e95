from __future__ import annotations

import subprocess
import sys
import types

import mbcal


def test_public_names_are_exactly_these() -> None:
    assert sorted(mbcal.__all__) == sorted(
        [
            "AGENTS", "Agent", "AgentConfig", "AsyncClient", "Behaviours", "CanaryConfig", "Catalog", "Client",
            "ConflictError", "DDPG", "DDPGConfig", "DDQN", "DQN", "DQNConfig", "DynaQ", "EngineError", "ExperimentConfig",
            "Feature", "FittedModel", "GRU4Rec", "GRU4RecEpsilon", "GRU4RecRegression", "GateConfig", "GymnasiumWorld",
            "InputError", "ItemTable", "KuaiRand", "Labels", "Levels", "LinUCB", "LinUCBConfig", "LogError", "MBCAL",
            "MBCALConfig", "MBCALPlan", "MBCALWithoutVarianceReduction", "MCPE", "MbcalError", "Mind", "ModelError",
            "MovieLens", "NetConfig", "Netflix", "Newsfeed", "NewsfeedConfig", "NumberFeature", "OptionError", "Oracle",
            "OutputError", "PlanConfig", "Popular", "Random", "RankedItem", "RecBole", "Recommendations", "Registry",
            "RetailRocket", "ServiceError", "SessionConfig", "SessionTensors", "Sessions", "Simulator", "SimulatorConfig",
            "Store", "StoreError", "TableLog", "TrainingConfig", "TrainingError", "UpdateConfig", "UserTable", "ValueConfig",
            "VectorFeature", "Yoochoose", "__version__", "collect", "diagnose", "estimate_value", "evaluate",
            "evaluate_in_world", "evaluate_models", "fit", "fit_simulator", "load", "load_experiment_config", "loop",
            "prepare", "prepare_newsfeed", "rollout", "run_experiment", "update",
        ]
    )  # fmt: skip


def test_every_method_is_public() -> None:
    assert {agent.__name__ for agent in mbcal.AGENTS.values()} <= set(mbcal.__all__)


def test_every_public_name_resolves_and_is_listed() -> None:
    for name in mbcal.__all__:
        assert not isinstance(getattr(mbcal, name), types.ModuleType)  # a module of that name would hide it
        assert name in dir(mbcal)


def test_importing_needs_no_torch_no_duckdb_and_no_network() -> None:
    script = (
        "import socket, sys\n"
        "def refuse(*args, **kwargs): raise AssertionError('network')\n"
        "socket.socket.connect = refuse\n"
        "import mbcal, mbcal.cli\n"
        "assert 'torch' not in sys.modules and 'duckdb' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_unknown_attributes_are_attribute_errors() -> None:
    assert not hasattr(mbcal, "nothing_of_the_kind")
