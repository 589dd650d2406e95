"""Learned users: a network of another family and with more features than any agent has, fitted on users of its own.

An agent judged by the network it was trained with would be judged by its own mistakes. So the simulator is an LSTM (or a
transformer) where agents have a GRU, sees every feature where agents see few, and learns from the store's *simulator* users,
whom no agent meets. It remembers whom it was fitted on and refuses to be judged, or to judge, by them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mbcal import metrics
from mbcal.config import from_dict, to_dict
from mbcal.environments.model import ModelEnvironment
from mbcal.environments.report_card import ReportCard, _card, _StepSums
from mbcal.errors import InputError, ModelError, OptionError
from mbcal.nn.base import SessionNet
from mbcal.nn.config import NetConfig
from mbcal.nn.embeddings import fill_unknown_items, mark_seen_items
from mbcal.nn.recurrent import RecurrentNet
from mbcal.nn.transformer import TransformerNet
from mbcal.progress import SILENT, Progress
from mbcal.storage import artifacts as bundle
from mbcal.storage.checkpoints import Checkpoints
from mbcal.training.config import TrainingConfig
from mbcal.training.device import resolve_device
from mbcal.training.device_data import DeviceSessions
from mbcal.training.holdout import split_held_out_users
from mbcal.training.loop import train
from mbcal.training.losses import behaviour_nll
from mbcal.training.random import derive_seed, seeded_weights, uniform
from mbcal.training.state import load_state_arrays, state_to_arrays
from mbcal.types import Behaviours, Catalog, Sessions

Family = Literal["lstm", "transformer"]

JUDGED_AT_ONCE = 2048


@dataclass(frozen=True)
class SimulatorConfig:
    """ExperimentConfig of a simulator."""

    family: Family = "lstm"
    hidden: int = 32
    embedding: int = 32
    features: tuple[str, ...] | None = None
    """Item features it sees; all of the catalogue's when None."""
    training: TrainingConfig = field(default_factory=TrainingConfig)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.family not in get_args(Family):
            raise OptionError(f"family: {self.family!r} is unknown; known are {', '.join(get_args(Family))}")
        NetConfig(self.family, self.hidden, self.embedding)  # refuses sizes it cannot have


class Simulator(ModelEnvironment):
    """Fit with `Simulator.fit`, then `begin` and `respond` (or `answer`) step by step; `judge` on users it never saw."""

    def __init__(
        self,
        net: SessionNet,
        catalog: Catalog,
        behaviours: Behaviours,
        config: SimulatorConfig,
        fitted: NDArray[np.int32],
        origin: str = "",
    ) -> None:
        super().__init__(net, catalog, behaviours)
        self.config, self.fitted, self.origin = config, fitted, origin
        self.curve: list[dict[str, float]] = []
        self.provenance: Mapping[str, Any] = {}

    @classmethod
    def fit(
        cls,
        sessions: Sessions,
        config: SimulatorConfig | None = None,
        *,
        device: str = "auto",
        progress: Progress = SILENT,
        checkpoints: Checkpoints | None = None,
    ) -> Self:
        """Learn from the simulator's own users, `store.sessions("simulator")`."""
        config = config or SimulatorConfig()
        place = resolve_device(device)
        net = _network(config, sessions.catalog, sessions.behaviour_set).to(place)
        mark_seen_items(net, sessions.tensors(), first=True)
        data = DeviceSessions(sessions, place)
        rows, held = split_held_out_users(sessions.user, config.training.validation, config.seed)
        curve = train(
            net,
            behaviour_nll(net, data),
            rows,
            held,
            config.training,
            name="simulator",
            seed=derive_seed(config.seed, "simulator"),
            optimiser=config.training.create_optimiser(net.parameters()),
            record=data.is_on_device,
            progress=progress,
            checkpoints=checkpoints,
        )
        fill_unknown_items(net)
        made = cls(net, sessions.catalog, sessions.behaviour_set, config, np.unique(sessions.user), sessions.origin)
        made.curve = curve
        return made

    def require_unseen_users(self, sessions: Sessions) -> None:
        """Refuse users it was fitted on, sessions of another store, and those over other items or behaviours."""
        sessions.require_compatible(self.catalog, self.behaviours, "the simulator")
        if self.origin and sessions.origin and sessions.origin != self.origin:
            rule = "the simulator was fitted on another store, so nobody knows which of these users it has seen"
            raise ModelError(f"{rule}; fit one on this data")
        known = np.isin(sessions.user, self.fitted)
        if known.any():
            count = len(np.unique(sessions.user[known]))
            raise InputError(f"simulator: it was fitted on {count} of these users; judge on others (part 'test')")

    @torch.no_grad()
    def evaluate(self, sessions: Sessions, seed: int = 0, progress: Progress = SILENT) -> ReportCard:
        """The report card on sessions of users it never saw."""
        self.require_unseen_users(sessions)
        if not len(sessions):
            raise InputError("simulator: there are no sessions to judge it on")
        progress.phase("report card", len(sessions))
        classes = len(self.behaviours)
        tally, table = _StepSums(), np.zeros((classes, classes), np.int64)
        steps: list[NDArray[np.float32]] = []  # simulated reward (N, T)
        luck = uniform(derive_seed(seed, "drift"), (len(sessions), sessions.horizon), self.device)
        for begin in range(0, len(sessions), JUDGED_AT_ONCE):
            part = sessions[begin : begin + JUDGED_AT_ONCE]
            batch = part.tensors(self.device, without=("candidates", "propensities", "timestamps"))
            chances = torch.softmax(self._net.forward_batch(batch), -1)[batch.mask].double().cpu().numpy()  # (S, classes)
            truth = part.behaviours[part.mask]
            tally.add(chances, truth, np.asarray(self.behaviours.rewards))
            table += metrics.confusion(truth, chances.argmax(1), classes)
            steps.append(self._replay(part, luck[begin : begin + len(part)]))
            progress.advance(len(part))
        return _card(sessions, tally, table, np.concatenate(steps))

    def _replay(self, sessions: Sessions, luck: Tensor) -> NDArray[np.float32]:
        """Rewards (B, T) when the logged items are shown but each behaviour is the simulator's own."""
        batch = sessions.tensors(self.device, without=("candidates", "propensities", "timestamps"))
        state = self.begin(*batch.history)
        drawn = []
        for step in range(sessions.horizon):
            behaviour, state = self.respond(state, batch.items[:, step], luck[:, step])
            drawn.append(self.rewards[behaviour.long()])
        return torch.stack(drawn, 1).cpu().numpy()

    def save(
        self,
        path: str | Path,
        *,
        card: ReportCard | None = None,
        extra: Mapping[str, bytes] | None = None,
        overwrite: bool = False,
    ) -> Path:
        """Write the simulator as a folder, with its report card where there is one."""
        said = {
            "config": to_dict(self.config),
            "behaviours": to_dict(self.behaviours),
            "curve": self.curve,
            "about": dict(self.provenance),
            "origin": self.origin,
            "report_card": None if card is None else asdict(card),
        }
        weights = {name.removeprefix("weight/"): value for name, value in state_to_arrays(self._net, None).items()}
        files = {"weights": weights, "fitted": {"users": self.fitted}}
        return bundle.write_artifact(path, bundle.SIMULATOR_KIND, said, files, self.catalog, overwrite, extra)

    @classmethod
    def load(cls, path: str | Path, device: str = "auto") -> Self:
        """A simulator from the folder it was saved in."""
        opened = bundle.Artifact.open(path, bundle.SIMULATOR_KIND)
        said, catalog = opened.manifest, opened.catalog
        try:
            config = from_dict(SimulatorConfig, said["config"])
            net = _network(config, catalog, opened.behaviours)
            load_state_arrays(net, None, {f"weight/{name}": value for name, value in opened.arrays("weights").items()})
            users, place = opened.arrays("fitted")["users"], resolve_device(device)
            made = cls(net.to(place), catalog, opened.behaviours, config, users, said["origin"])
        except (KeyError, TypeError, RuntimeError) as error:
            raise opened.damaged(str(error).splitlines()[0]) from error
        made.curve, made.provenance = said["curve"], said["about"]
        return made


def _network(config: SimulatorConfig, catalog: Catalog, behaviours: Behaviours) -> SessionNet:
    features = tuple(catalog.features) if config.features is None else config.features
    sizes = NetConfig(config.family, config.hidden, config.embedding, features)
    with seeded_weights(config.seed, "simulator weights"):
        if config.family == "transformer":
            return TransformerNet(catalog, behaviours, sizes, len(behaviours))
        return RecurrentNet(catalog, behaviours, sizes, len(behaviours))
