"""Simulators: learned users that judge agents.

An agent judged by a network like its own would be judged by its own mistakes. So a simulator is an LSTM or a transformer
where agents have a GRU, sees every feature where agents see few, and is fitted on the store's *simulator* users, on
which no agent is fitted. It remembers the users it was fitted on, and refuses to be evaluated on them or to judge agents
on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mbcal.config import with_settings
from mbcal.data.clicks import NONE, negative_rate
from mbcal.data.store import Store
from mbcal.distributed.group import SINGLE_WORKER
from mbcal.distributed.worker_slice import WorkerSlice
from mbcal.environments.base import require_sessions
from mbcal.environments.model import ModelEnvironment, ModelState
from mbcal.environments.report_card import ReportCard, ReportCardBuilder
from mbcal.environments.simulator_files import build_network, load_simulator, save_simulator
from mbcal.environments.trust import Trust, simulator_trust
from mbcal.errors import InputError, ModelError, OptionError
from mbcal.nn.base import SessionNet
from mbcal.nn.config import NetConfig
from mbcal.nn.embeddings import fill_unknown_items, mark_seen_items
from mbcal.nn.fields import centre_fields
from mbcal.nn.growth import grow_network
from mbcal.progress import SILENT, Progress
from mbcal.scoring.fields import FieldReader
from mbcal.scoring.sampled_negatives import undo_sampling
from mbcal.storage.checkpoints import Checkpoints
from mbcal.training.calibration import calibrate
from mbcal.training.config import TrainingConfig
from mbcal.training.device import resolve_device
from mbcal.training.device_data import DeviceSessions
from mbcal.training.holdout import split_held_out_users
from mbcal.training.loop import TrainingJob, train
from mbcal.training.losses import base_nll, behaviour_nll
from mbcal.training.random import derive_seed, uniform
from mbcal.training.record import TrainingRecord
from mbcal.training.threads import one_thread
from mbcal.types import Behaviours, Catalog, SessionFields, Sessions

Family = Literal["lstm", "transformer"]
"""The networks a simulator can have."""

EVALUATION_BLOCK = 2048
"""Sessions evaluated at a time."""


@dataclass(frozen=True)
class SimulatorConfig:
    """Settings of a simulator."""

    family: Family = "lstm"
    hidden: int = 64
    embedding: int = 32
    features: tuple[str, ...] | None = None
    """Item features it sees; all features of the catalogue if None."""
    context: tuple[str, ...] | None = None
    """Fields of steps it sees; all that the sessions have if None."""
    user_features: tuple[str, ...] | None = None
    """Fields of users it sees; all that the sessions have if None."""
    training: TrainingConfig = field(default_factory=TrainingConfig)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.family not in get_args(Family):
            raise OptionError(f"family: {self.family!r} is unknown; known are {', '.join(get_args(Family))}")
        NetConfig(self.family, self.hidden, self.embedding)  # checks the sizes


class Simulator:
    """Learned users. Fit it, then use it wherever an `Environment` is taken.

    Args:
        config: All settings.
        device: `auto`, `cpu` or `cuda`.
        **settings: Single settings by name: `Simulator(family="transformer", epochs=5)`.

    Raises:
        OptionError: If a setting is unknown or out of range, or there is no such device.
    """

    def __init__(self, config: SimulatorConfig | None = None, device: str = "auto", **settings: Any) -> None:
        if config is not None and not isinstance(config, SimulatorConfig):
            raise OptionError(f"config: a simulator takes a SimulatorConfig, got {type(config).__name__}")
        self.config = with_settings(config or SimulatorConfig(), settings, "simulator: ")
        self.device = resolve_device(device)
        self.fitted_users: NDArray[np.int32] = np.zeros(0, np.int32)
        """Numbers of the users it was fitted on."""
        self.origin = ""
        """Content hash of the store they are from."""
        self.record = TrainingRecord()
        """How the fit went: losses, updates, why it stopped."""
        self.temperature = 1.0
        """What its logits were divided by, so that probabilities agree with frequencies (`training.calibration`)."""
        self.provenance: Mapping[str, Any] = {}
        """Free notes that are saved with it."""
        self.card: ReportCard | None = None
        """The report card of the last evaluation, or the one it was saved with; see `trust`."""
        self.negative_rate = 1.0
        """Sampled negatives of the log it was fitted on for each pair of a row and an item not chosen (docs/clicks.md)."""
        self._environment: ModelEnvironment | None = None

    @one_thread()
    def fit(
        self,
        data: Store | Sessions,
        *,
        progress: Progress = SILENT,
        checkpoints: Checkpoints | None = None,
    ) -> Self:
        """Learn from the behaviours of users. Fitting again starts from scratch.

        Args:
            data: A store, whose `simulator` part is used, or sessions.
            progress: Notified of epochs and sessions.
            checkpoints: Where the state is saved, and resumed from.

        Returns:
            The simulator itself.

        Raises:
            InputError: If there are no sessions.
            TrainingError: If a loss becomes NaN.
        """
        if not isinstance(data, Store | Sessions):
            raise InputError(f"fit: a simulator takes a store or sessions, got {type(data).__name__}")
        sessions = data.sessions("simulator") if isinstance(data, Store) else data
        fields = sessions.fields.select(self.config.user_features, self.config.context)
        sessions = sessions.encoded_by(fields)
        net = build_network(self.config, sessions.catalog, sessions.behaviour_set, fields).to(self.device)
        mark_seen_items(net, sessions.tensors(), first=True)
        training, device_sessions = self.config.training, DeviceSessions(sessions, self.device)
        train_rows, held_out_rows = split_held_out_users(sessions.user, training.validation, self.config.seed)
        all_here = WorkerSlice.create(len(sessions), SINGLE_WORKER)
        job = TrainingJob(
            name="simulator",
            net=net,
            objective=behaviour_nll(net, device_sessions),
            optimiser=training.create_optimiser(net.parameters()),
            train_rows=train_rows,
            held_out_rows=held_out_rows,
            use_cuda_graph=device_sessions.is_on_device,
            n_steps=float(sessions.length[train_rows].sum()),
            base_loss=base_nll(device_sessions, device_sessions.mask, held_out_rows, all_here),
        )
        seed = derive_seed(self.config.seed, "simulator")
        self.record = train(job, training, seed=seed, progress=progress, checkpoints=checkpoints)
        fill_unknown_items(net)
        centre_fields(net, device_sessions.tensors)
        self.temperature = calibrate(net, device_sessions, held_out_rows)
        self._environment = ModelEnvironment(net, sessions.catalog, sessions.behaviour_set)
        self.fitted_users, self.origin, self.card = np.unique(sessions.user), sessions.origin, None
        self.negative_rate = negative_rate(data.manifest) if isinstance(data, Store) else 1.0
        return self

    # ---- as an environment

    @property
    def environment(self) -> ModelEnvironment:
        """Its network as an environment; raises ModelError before the first fit."""
        if self._environment is None:
            raise ModelError("this simulator has not been fitted; call fit(store) first")
        return self._environment

    @property
    def catalog(self) -> Catalog:
        return self.environment.catalog

    @property
    def behaviours(self) -> Behaviours:
        return self.environment.behaviours

    def extend_catalog(self, catalog: Catalog) -> None:
        """Take new items, which its users meet as the unknown item with their features; see `Agent.extend_catalog`."""
        grown = self.catalog.extended(catalog)
        if grown is not self.catalog:
            grow_network(self.environment.net, None, grown)
            self._environment = ModelEnvironment(self.environment.net, grown, self.behaviours)

    def begin(self, user: Tensor, history_items: Tensor, history_behaviours: Tensor, history_length: Tensor) -> ModelState:
        """See `Environment`."""
        return self.environment.begin(user, history_items, history_behaviours, history_length)

    @property
    def fields(self) -> SessionFields:
        """Fields of users and steps that it reads."""
        return self.environment.fields

    def with_user(self, state: ModelState, user_features: Tensor) -> ModelState:
        """See `ModelEnvironment`."""
        return self.environment.with_user(state, user_features)

    def with_context(self, state: ModelState, context: Tensor) -> ModelState:
        """See `ModelEnvironment`."""
        return self.environment.with_context(state, context)

    def respond(self, state: ModelState, item: Tensor, uniform: Tensor) -> tuple[Tensor, ModelState]:
        """See `Environment`."""
        return self.environment.respond(state, item, uniform)

    def observe(self, state: ModelState, item: Tensor, behaviour: Tensor) -> ModelState:
        """See `Environment`."""
        return self.environment.observe(state, item, behaviour)

    def merge(self, mask: Tensor, yes: ModelState, no: ModelState) -> ModelState:
        """See `Environment`."""
        return self.environment.merge(mask, yes, no)

    def expected_reward(self, state: ModelState, items: Tensor) -> Tensor:
        """E[reward | state, item] in absolute terms: (B, C) for items (B, C).

        If negatives were sampled, probabilities are corrected to those of a log with all of them (`undo_sampling`).
        Responses are not: simulated users meet items they pass over as often as in the log the simulator was fitted on.
        """
        probabilities = self.environment.probabilities(state, items)
        if self.negative_rate != 1:
            probabilities = undo_sampling(probabilities, self.behaviours.index(NONE), self.negative_rate)
        return probabilities @ self.environment.rewards

    def require_unseen_users(self, sessions: Sessions) -> None:
        """Raise unless the simulator can judge agents on these sessions.

        Raises:
            ModelError: If they are over other items or behaviours, or from another store than it was fitted on.
            InputError: If it was fitted on some of their users.
        """
        require_sessions(sessions)
        sessions.require_compatible(self.catalog, self.behaviours, "the simulator")
        if self.origin and sessions.origin and sessions.origin != self.origin:
            problem = "the simulator was fitted on another store, so it may have seen these users"
            raise ModelError(f"{problem}; fit one on this data")
        was_fitted_on = np.isin(sessions.user, self.fitted_users)
        if was_fitted_on.any():
            count = len(np.unique(sessions.user[was_fitted_on]))
            raise InputError(f"simulator: it was fitted on {count} of these users; use others, such as part 'test'")

    # ---- quality

    @property
    def trust(self) -> Trust:
        """For what differences between policies it can be trusted, by its report card (`environments.trust`)."""
        return simulator_trust(self.card, self.behaviours.rewards)

    @torch.no_grad()
    def evaluate(self, sessions: Sessions, seed: int = 0, progress: Progress = SILENT) -> ReportCard:
        """Measure it on users it was not fitted on. What it is trusted for is then known (`trust`).

        Args:
            sessions: Their sessions, such as `store.sessions("test")`.
            seed: Seed of the noise of its own responses.
            progress: Notified of sessions.

        Returns:
            Likelihood, F1, calibration and drift.

        Raises:
            InputError: If there are no sessions, or it was fitted on some of their users.
            ModelError: If the sessions are from another store.
        """
        self.require_unseen_users(sessions)
        if not len(sessions):
            raise InputError("simulator: there are no sessions to evaluate it on")
        progress.phase("report card", len(sessions))
        builder = ReportCardBuilder(np.asarray(self.behaviours.rewards))
        noise = uniform(derive_seed(seed, "drift"), (len(sessions), sessions.horizon), self.device)
        responses: list[NDArray[np.uint8]] = []
        for begin in range(0, len(sessions), EVALUATION_BLOCK):
            block = sessions[begin : begin + EVALUATION_BLOCK]
            batch = block.tensors(self.device, without=("candidates", "propensities", "timestamps"))
            probabilities = torch.softmax(self.environment.net.forward_batch(batch), -1)[batch.mask]
            builder.add(probabilities.double().cpu().numpy(), block.behaviours[block.mask])
            responses.append(self._replay(block, noise[begin : begin + len(block)]))
            progress.advance(len(block))
        self.card = builder.build(sessions, np.concatenate(responses))
        return self.card

    def _replay(self, sessions: Sessions, noise: Tensor) -> NDArray[np.uint8]:
        """Behaviours (B, T) when the logged items are shown but every behaviour is the simulator's own, by noise (B, T)."""
        batch = sessions.tensors(self.device, without=("candidates", "propensities", "timestamps"))
        reader = FieldReader(self, batch)
        state, responses = reader.begin(), []
        for step in range(sessions.horizon):
            behaviour, state = self.respond(reader.at(state, step), batch.items[:, step], noise[:, step])
            responses.append(behaviour)
        return torch.stack(responses, 1).cpu().numpy()

    # ---- on disk

    def save(
        self,
        path: str | Path,
        *,
        card: ReportCard | None = None,
        extra_files: Mapping[str, bytes] | None = None,
        overwrite: bool = False,
    ) -> Path:
        """Write the simulator to a folder that `load` reads.

        Args:
            path: The folder.
            card: Its report card, kept in the manifest; by default the one it has.
            extra_files: Further files for the folder, contents by name.
            overwrite: Replace a simulator that is there. Other folders are never replaced.

        Returns:
            The folder's absolute path.

        Raises:
            ModelError: If it has not been fitted.
            OutputError: If the folder exists or cannot be written.
        """
        self.card = self.card if card is None else card
        return save_simulator(self, path, extra_files, overwrite)

    @classmethod
    def load(cls, path: str | Path, device: str = "auto") -> Self:
        """Load a simulator from a folder.

        Raises:
            ModelError: If the folder is no simulator, or is damaged.
        """
        return load_simulator(cls, path, device)

    def restore(self, net: SessionNet, catalog: Catalog, behaviours: Behaviours) -> None:
        """Use a fitted network as its own."""
        self._environment = ModelEnvironment(net.to(self.device), catalog, behaviours)

    def __repr__(self) -> str:
        if self._environment is None:
            return f"<Simulator: {self.config.family}, not fitted>"
        sizes = f"{len(self.catalog):,} items, {len(self.behaviours)} behaviours"
        return f"<Simulator: {self.config.family}, {sizes}, fitted on {len(self.fitted_users):,} users, on {self.device}>"
