"""The methods, one file each, by the name the command line knows them by."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from mbcal.agents.base import Agent, AgentConfig, Domain, RankedItem
from mbcal.agents.ddpg import DDPG
from mbcal.agents.dqn import DDQN, DQN
from mbcal.agents.dynaq import DynaQ
from mbcal.agents.gru4rec import GRU4Rec, GRU4RecEpsilon
from mbcal.agents.linucb import LinUCB
from mbcal.agents.mbcal import MBCAL, MBCALConfig, MBCALWithoutVarianceReduction
from mbcal.agents.mcpe import MCPE
from mbcal.agents.popular import Popular
from mbcal.agents.random import Random
from mbcal.errors import ModelError, OptionError, nearest
from mbcal.storage import artifacts as bundle

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


def agent_class(name: str) -> type[Agent]:
    """The class of a method: one of ours, an installed package's (entry point group `mbcal.agents`), or `path.py:Class`.

    A path is code and is run: give only files you trust.
    """
    if name in AGENTS:
        return AGENTS[name]
    if ".py:" in name:
        return _from_file(name)
    offered = {point.name: point for point in entry_points(group="mbcal.agents")}
    if name in offered:
        return _checked(offered[name].load(), name)
    known = [*AGENTS, *offered]
    raise OptionError(f"agent: {name!r} is unknown; known are {', '.join(known)}.{nearest(name, known)}")


def _from_file(name: str) -> type[Agent]:
    path, _, wanted = name.rpartition(":")
    try:
        spec = spec_from_file_location(f"mbcal_agent_{Path(path).stem}", path)
        if spec is None or spec.loader is None:
            raise OSError("no Python file")
        module = sys.modules.get(spec.name) or module_from_spec(spec)
        if spec.name not in sys.modules:
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
    except OSError as error:
        raise OptionError(f"agent: {path} cannot be read ({error.strerror or error})") from error
    if not hasattr(module, wanted):
        raise OptionError(f"agent: {path} has no {wanted!r}.{nearest(wanted, dir(module))}")
    return _checked(getattr(module, wanted), name)


def _checked(kind: object, name: str) -> type[Agent]:
    if not (isinstance(kind, type) and issubclass(kind, Agent)):
        raise OptionError(f"agent: {name} is no mbcal.Agent; see docs/new-method.md")
    return kind


def load(path: str | Path, device: str = "auto", kind: type[Agent] | None = None) -> Agent:
    """An agent from the folder it was saved in; `kind` is its class where that is one's own.

    A model folder is data: it can name a method that is installed, but never make us run a file.
    """
    opened = bundle.Artifact.open(path, bundle.MODEL_KIND)
    name = str(opened.manifest["agent"])
    if kind is None and ".py:" in name:
        raise ModelError(f"{path}: holds an agent of your own ({name}); load it with mbcal.load(path, kind=…)")
    return (kind or agent_class(name)).read(opened, device)


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
    "RankedItem",
    "agent_class",
    "load",
]
