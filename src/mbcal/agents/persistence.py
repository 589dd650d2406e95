"""Agents on disk: weights, optimiser state, catalogue and settings in one folder (`storage.artifacts` describes it)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from numpy.typing import NDArray

from mbcal.agents.domain import Domain
from mbcal.config import from_dict, to_dict
from mbcal.errors import ModelError, OptionError
from mbcal.storage.artifacts import MODEL_KIND, Artifact, write_artifact
from mbcal.training.record import TrainingRecord
from mbcal.training.state import load_state_arrays, state_to_arrays
from mbcal.types import SessionFields

if TYPE_CHECKING:
    from mbcal.agents.base import Agent

A = TypeVar("A", bound="Agent")


def save_agent(agent: Agent, path: str | Path, overwrite: bool, provenance: Mapping[str, Any]) -> Path:
    """Write an agent to a folder; see `Agent.save`."""
    domain = agent.domain
    weights: dict[str, NDArray[Any]] = {}
    optimiser_state: dict[str, NDArray[Any]] = {}
    for name, net in agent.nets.items():
        for key, array in state_to_arrays(net, agent.optimisers.get(name)).items():
            kind, _, array_name = key.partition("/")
            (weights if kind == "weight" else optimiser_state)[f"{name}/{array_name}"] = array
    manifest = {
        "agent": agent.name,
        "config": to_dict(agent.config),
        "fits": agent.n_fits,
        "training": {name: asdict(record) for name, record in agent.records.items()},
        "choices": agent.choices,
        "warnings": list(agent.warnings),
        "behaviours": domain.behaviours.as_dict(),
        "horizon": domain.horizon,
        "history": domain.history,
        "users": domain.n_users,
        "origins": list(agent.origins),
        "provenance": dict(provenance),
    }
    if domain.fields:
        manifest["fields"] = domain.fields.record()
    files = {"weights": weights, "optimiser": optimiser_state}
    if agent.support is not None:
        files["support"] = {"occurrences": agent.support}
    return write_artifact(path, MODEL_KIND, manifest, files, domain.catalog, overwrite)


def load_agent(path: str | Path, device: str, wanted: type[A]) -> A:
    """Load an agent that is an instance of `wanted`; see `Agent.load`.

    A model folder is data: it may name a built-in or installed method, but never makes a file run. An agent from a file is
    loaded with its class.
    """
    from mbcal.agents.base import Agent

    artifact = Artifact.open(path, MODEL_KIND)
    name = str(artifact.manifest["agent"])
    if getattr(wanted, "name", None) == name:
        return read_agent(artifact, wanted, device)
    if wanted is not Agent:
        raise ModelError(f"{path}: holds a {name} agent, not a {wanted.name} one; load it with mbcal.load(path)")
    kind = _installed_class(name)
    if kind is None:
        problem = f"{path}: holds a {name!r} agent, which is not an installed method"
        raise ModelError(f"{problem}; load it with its class, YourAgent.load(path)")
    return read_agent(artifact, kind, device)  # type: ignore[return-value]  # wanted is Agent


def _installed_class(name: str) -> type[Agent] | None:
    """The class of a built-in or installed method; None for others. Never runs a file."""
    from mbcal.agents.lookup import agent_class

    try:
        return None if ".py:" in name else agent_class(name)
    except OptionError:
        return None


def read_agent(artifact: Artifact, kind: type[A], device: str = "auto") -> A:
    """Read an agent of a known class from an opened folder.

    Args:
        artifact: The folder.
        kind: Class of the agent.
        device: `auto`, `cpu` or `cuda`.

    Raises:
        ModelError: If the folder's content does not fit the class.
    """
    manifest = artifact.manifest
    try:
        agent = kind(from_dict(kind.Config, manifest["config"]), device)
        sizes = (manifest["horizon"], manifest["history"], manifest["users"])
        fields = SessionFields.from_record(manifest.get("fields"))
        agent.reset(Domain(artifact.catalog, artifact.behaviours, *sizes, fields))
        arrays_by_prefix = {"weight": artifact.arrays("weights"), "adam": artifact.arrays("optimiser")}
        for name, net in agent.nets.items():
            state = {
                f"{prefix}/{key.removeprefix(f'{name}/')}": array
                for prefix, arrays in arrays_by_prefix.items()
                for key, array in arrays.items()
                if key.startswith(f"{name}/")
            }
            load_state_arrays(net, agent.optimisers.get(name), state)
        agent.n_fits, agent.choices = manifest["fits"], manifest["choices"]
        agent.records = {name: TrainingRecord(**record) for name, record in manifest["training"].items()}
        agent.warnings = tuple(manifest["warnings"])
        if "support.safetensors" in manifest["files"]:
            agent.support = artifact.arrays("support")["occurrences"]
        agent.origins, agent.provenance = tuple(manifest["origins"]), dict(manifest["provenance"])
    except (KeyError, TypeError, RuntimeError) as error:  # hashes match, content does not: not written by `save_agent`
        raise artifact.damage_error(str(error).splitlines()[0]) from error
    agent.refresh_scorer()
    return agent
