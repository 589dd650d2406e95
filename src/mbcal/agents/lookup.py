"""Agent classes by name: built-in methods, methods of installed packages, and methods in a file."""

from __future__ import annotations

import hashlib
import sys
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from mbcal.agents.base import Agent
from mbcal.agents.ddpg import DDPG
from mbcal.agents.dqn import DDQN, DQN
from mbcal.agents.dynaq import DynaQ
from mbcal.agents.gru4rec import GRU4Rec, GRU4RecEpsilon, GRU4RecRegression
from mbcal.agents.linucb import LinUCB
from mbcal.agents.mbcal import MBCAL, MBCALWithoutVarianceReduction
from mbcal.agents.mcpe import MCPE
from mbcal.agents.plan import MBCALPlan
from mbcal.agents.popular import Popular
from mbcal.agents.random import Random
from mbcal.errors import OptionError, nearest

ENTRY_POINTS = "mbcal.agents"
"""Entry point group in which other packages register their agents."""

AGENTS: dict[str, type[Agent]] = {
    agent.name: agent
    for agent in (
        MBCAL,
        MBCALPlan,
        MBCALWithoutVarianceReduction,
        GRU4Rec,
        GRU4RecEpsilon,
        GRU4RecRegression,
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
"""The built-in methods by name."""


def agent_class(name: str) -> type[Agent]:
    """Find the class of a method.

    Args:
        name: A built-in method, one that an installed package registers (entry point group `mbcal.agents`), or
            `path.py:Class`. The file is executed: give only files you trust.

    Returns:
        The class.

    Raises:
        OptionError: If there is no such method, file or class.
    """
    if name in AGENTS:
        return AGENTS[name]
    if ".py:" in name:
        return _class_from_file(name)
    installed = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if name in installed:
        return _require_agent(installed[name].load(), name)
    known = [*AGENTS, *installed]
    raise OptionError(f"agent: {name!r} is unknown; known are {', '.join(known)}.{nearest(name, known)}")


def _class_from_file(name: str) -> type[Agent]:
    path, _, class_name = name.rpartition(":")
    module = _load_module(path)
    if not hasattr(module, class_name):
        raise OptionError(f"agent: {path} has no {class_name!r}.{nearest(class_name, dir(module))}")
    return _require_agent(getattr(module, class_name), name)


def _load_module(path: str) -> ModuleType:
    """Run a file once; later calls with the same path return the same module."""
    digest = hashlib.blake2b(str(Path(path).resolve()).encode(), digest_size=8).hexdigest()
    module_name = f"mbcal_agent_{Path(path).stem}_{digest}"  # files of one name in two folders are two modules
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise OptionError(f"agent: {path} is not a Python file")
    module = module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses look their module up while they are created
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[module_name]
        if isinstance(error, OSError):
            raise OptionError(f"agent: {path} cannot be read ({error.strerror or error})") from error
        raise
    return module


def _require_agent(candidate: object, name: str) -> type[Agent]:
    if not (isinstance(candidate, type) and issubclass(candidate, Agent)):
        raise OptionError(f"agent: {name} is not a subclass of mbcal.Agent; see docs/new-method.md")
    return candidate
