"""Methods by the name the command line knows them by."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from mbcal.agents.base import Agent
from mbcal.agents.ddpg import DDPG
from mbcal.agents.dqn import DDQN, DQN
from mbcal.agents.dynaq import DynaQ
from mbcal.agents.gru4rec import GRU4Rec, GRU4RecEpsilon
from mbcal.agents.linucb import LinUCB
from mbcal.agents.mbcal import MBCAL, MBCALWithoutVarianceReduction
from mbcal.agents.mcpe import MCPE
from mbcal.agents.popular import Popular
from mbcal.agents.random import Random
from mbcal.errors import OptionError, nearest

ENTRY_POINTS = "mbcal.agents"
"""Entry point group in which other packages announce their agents."""

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
"""The built-in methods by name."""


def agent_class(name: str) -> type[Agent]:
    """Find the class of a method.

    Args:
        name: A built-in method, one that an installed package announces (entry point group `mbcal.agents`), or
            `path.py:Class`. A path is code and is executed: give only files you trust.

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
    path, _, wanted = name.rpartition(":")
    try:
        spec = spec_from_file_location(f"mbcal_agent_{Path(path).stem}", path)
        if spec is None or spec.loader is None:
            raise OSError("not a Python file")
        module = sys.modules.get(spec.name) or module_from_spec(spec)
        if spec.name not in sys.modules:
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
    except OSError as error:
        raise OptionError(f"agent: {path} cannot be read ({error.strerror or error})") from error
    if not hasattr(module, wanted):
        raise OptionError(f"agent: {path} has no {wanted!r}.{nearest(wanted, dir(module))}")
    return _require_agent(getattr(module, wanted), name)


def _require_agent(found: object, name: str) -> type[Agent]:
    if not (isinstance(found, type) and issubclass(found, Agent)):
        raise OptionError(f"agent: {name} is not a subclass of mbcal.Agent; see docs/new-method.md")
    return found
