"""The network of a simulator, and simulators on disk: weights, users, catalogue and settings in one folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mbcal.config import from_dict, to_dict
from mbcal.environments.report_card import ReportCard
from mbcal.nn.base import SessionNet
from mbcal.nn.config import NetConfig
from mbcal.nn.recurrent import RecurrentNet
from mbcal.nn.transformer import TransformerNet
from mbcal.storage.artifacts import SIMULATOR_KIND, Artifact, write_artifact
from mbcal.training.random import seeded_weights
from mbcal.training.record import TrainingRecord
from mbcal.training.state import load_state_arrays, state_to_arrays
from mbcal.types import NO_FIELDS, Behaviours, Catalog, SessionFields

if TYPE_CHECKING:
    from mbcal.environments.simulator import Simulator, SimulatorConfig

S = TypeVar("S", bound="Simulator")


def build_network(
    config: SimulatorConfig, catalog: Catalog, behaviours: Behaviours, fields: SessionFields = NO_FIELDS
) -> SessionNet:
    """Create the untrained network of a simulator."""
    features = tuple(catalog.features) if config.features is None else config.features
    net_config = NetConfig(config.family, config.hidden, config.embedding, features)
    with seeded_weights(config.seed, "simulator weights"):
        if config.family == "transformer":
            return TransformerNet(catalog, behaviours, net_config, len(behaviours), fields)
        return RecurrentNet(catalog, behaviours, net_config, len(behaviours), fields=fields)


def save_simulator(simulator: Simulator, path: str | Path, extra_files: Mapping[str, bytes] | None, overwrite: bool) -> Path:
    """Write a simulator to a folder; see `Simulator.save`."""
    card = simulator.card
    manifest: dict[str, Any] = {
        "config": to_dict(simulator.config),
        "behaviours": simulator.behaviours.as_dict(),
        "training": asdict(simulator.record),
        "temperature": simulator.temperature,
        "provenance": dict(simulator.provenance),
        "origin": simulator.origin,
        "report_card": None if card is None else asdict(card),
    }
    if simulator.negative_rate != 1:
        manifest["negative_rate"] = simulator.negative_rate
    if simulator.fields:
        manifest["fields"] = simulator.fields.record()
    state = state_to_arrays(simulator.environment.net, None)
    weights = {name.removeprefix("weight/"): array for name, array in state.items()}
    files = {"weights": weights, "fitted": {"users": simulator.fitted_users}}
    return write_artifact(path, SIMULATOR_KIND, manifest, files, simulator.catalog, overwrite, extra_files)


def load_simulator(kind: type[S], path: str | Path, device: str) -> S:
    """Load a simulator from a folder; see `Simulator.load`."""
    from mbcal.environments.simulator import SimulatorConfig

    artifact = Artifact.open(path, SIMULATOR_KIND)
    manifest, catalog = artifact.manifest, artifact.catalog
    try:
        simulator = kind(from_dict(SimulatorConfig, manifest["config"]), device)
        fields = SessionFields.from_record(manifest.get("fields"))
        net = build_network(simulator.config, catalog, artifact.behaviours, fields)
        weights = {f"weight/{name}": array for name, array in artifact.arrays("weights").items()}
        load_state_arrays(net, None, weights)
        simulator.restore(net, catalog, artifact.behaviours)
        simulator.fitted_users, simulator.origin = artifact.arrays("fitted")["users"], manifest["origin"]
        simulator.record, simulator.provenance = TrainingRecord(**manifest["training"]), manifest["provenance"]
        simulator.temperature, card = float(manifest["temperature"]), manifest["report_card"]
        simulator.card = None if card is None else ReportCard(**card)
        simulator.negative_rate = float(manifest.get("negative_rate", 1.0))
    except (KeyError, TypeError, RuntimeError) as error:
        raise artifact.damage_error(str(error).splitlines()[0]) from error
    return simulator
