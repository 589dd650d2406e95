"""The base class of every method: configuration, networks, and the verbs fit, recommend, rank, begin, score, observe.

A method is one module with a config and a class that defines three hooks: which networks it has (`build_networks`), how they
learn (`learn`), and what it ranks by (`build_scorer`). Everything else is shared::

    fitting.py      fit: held-out users, warm starts, a failed fit undone      calls build_networks, learn, build_scorer
    policy.py       begin, score and observe, for B sessions at a time
    ranking.py      rank and recommend: names to rows, scores to ranked items
    persistence.py  save and load

Agents only score. Which candidates are available, exploration, ties and propensities are decided in `scoring.choice`.
docs/new-method.md explains how to write a method.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from mbcal.agents.config import AgentConfig
from mbcal.agents.domain import Domain
from mbcal.agents.fit_context import FitContext
from mbcal.agents.fitting import fit_agent
from mbcal.agents.growth import extend_catalog
from mbcal.agents.persistence import load_agent, save_agent
from mbcal.agents.policy import ScorerPolicy
from mbcal.agents.ranking import RankedItem, Recommendations, rank, recommend
from mbcal.config import with_settings
from mbcal.data.store import Store
from mbcal.distributed.group import SINGLE_WORKER, Group
from mbcal.errors import ModelError, OptionError
from mbcal.nn.embeddings import ItemEmbedding
from mbcal.progress import SILENT, Progress
from mbcal.scoring.scorers import Scorer
from mbcal.storage.checkpoints import Checkpoints
from mbcal.training.config import TrainingConfig
from mbcal.training.device import resolve_device
from mbcal.training.random import seeded_weights
from mbcal.training.record import TrainingRecord
from mbcal.types import Catalog, Name, SessionFields, Sessions, SessionTensors, Steps
from mbcal.types.fields import Values


class Agent(ScorerPolicy, ABC):
    """A ranking method; subclasses define the three hooks `build_networks`, `learn` and `build_scorer`.

    Args:
        config: All settings, an instance of the class's `Config`.
        device: `auto`, `cpu` or `cuda`.
        **settings: Single settings by name, wherever they sit in the config: `MBCAL(gamma=0.9, epochs=5, hidden=64)`.

    Raises:
        OptionError: If a setting is unknown or out of range, or there is no such device.
    """

    name: ClassVar[str]
    """Name of the method on the command line and in model folders."""
    Config: ClassVar[type[AgentConfig]] = AgentConfig
    """Class of its settings."""
    needs_candidates: ClassVar[bool] = False
    """Whether `learn` needs the candidates of the sessions; if none were logged, some are sampled."""
    explores: ClassVar[bool] = True
    """Whether Growing Batch-RL adds epsilon-greedy exploration when the agent collects sessions."""

    def __init__(self, config: Any = None, device: str = "auto", **settings: Any) -> None:
        if config is not None and not isinstance(config, self.Config):
            got = type(config).__name__
            raise OptionError(f"config: a {self.name} agent takes a {self.Config.__name__}, got {got}")
        self.config = with_settings(config or self.Config(), settings, f"{self.name}: ")
        self.device = resolve_device(device)
        self.n_fits = 0
        """How often it was fitted."""
        self.origins: tuple[str, ...] = ()
        """Content hashes of the stores it was fitted on."""
        self.provenance: dict[str, Any] = {}
        """Free notes that are saved with it."""
        self.choices: dict[str, Any] = {}
        """By setting: what a fit chose from data and the evidence, as plain values; saved with it."""
        self.nets: dict[str, Any] = {}
        """Networks by name, as `build_networks` created them."""
        self.optimisers: dict[str, torch.optim.Adam] = {}
        """Optimisers by network; networks without parameters have none."""
        self.records: dict[str, TrainingRecord] = {}
        """How the last fit of each network went: losses, updates, why it stopped."""
        self.warnings: tuple[str, ...] = ()
        """What a user should know about the log of the last fit, in words."""
        self.support: NDArray[np.int64] | None = None
        """(rows,) occurrences in training, if whole-catalogue rankings are shrunk by them (`scoring.support`)."""
        self._domain: Domain | None = None
        self._scorer: Scorer | None = None

    # ---- what a method defines

    @abstractmethod
    def build_networks(self, domain: Domain) -> dict[str, nn.Module]:
        """Create untrained networks by name.

        Called before the first fit and by `reset`; torch's random numbers are then seeded by the config.

        Args:
            domain: Items, behaviours and sizes of the sessions to come.
        """

    @abstractmethod
    def learn(self, context: FitContext) -> None:
        """Train the networks in `self.nets` on the context's sessions; see `FitContext` for how.

        Args:
            context: Sessions, held-out users and settings of this fit.
        """

    @abstractmethod
    def build_scorer(self) -> Scorer:
        """Create the scorer that ranks by the networks as they are now. Called after every fit."""

    def create_optimiser(self, net: nn.Module) -> torch.optim.Adam:
        """Create the optimiser of one network; methods may override it."""
        return self.config.training.create_optimiser(net.parameters())

    def value_regression(self, batch: SessionTensors) -> tuple[torch.Tensor, torch.Tensor] | None:  # noqa: ARG002 - for methods that override it
        """Compare the value network with its labels, for the variance table of experiments.

        Args:
            batch: B sessions.

        Returns:
            Labels and predictions, both (B, T) in reward units; None for methods without a value network.
        """
        return None

    # ---- fitting

    def fit(
        self,
        data: Store | Sessions | SessionTensors,
        *,
        training: TrainingConfig | None = None,
        progress: Progress = SILENT,
        checkpoints: Checkpoints | None = None,
        group: Group = SINGLE_WORKER,
    ) -> Self:
        """Learn from sessions. Unlike in scikit-learn, fitting again is a warm start; create a new agent to start over.

        A warm start goes on from the old weights, or a share of them (`TrainingConfig.shrink`).

        Args:
            data: A store, whose `train` part is used, or sessions. New items are added to the agent's (`extend_catalog`).
            training: Replaces the config's training settings for this fit.
            progress: Notified of epochs and sessions.
            checkpoints: Where the state is saved, and resumed from if it is there.
            group: Workers that share the fit. Each passes its part of the sessions, in order of rank
                (`Store.worker_sessions`), and all end with the same agent.

        Returns:
            The agent itself.

        Raises:
            InputError: If there are no sessions.
            ModelError: If the sessions have other behaviours than an earlier fit, or none of its items.
            TrainingError: If a loss becomes NaN. The agent is then as it was before.
        """
        fit_agent(self, data, training or self.config.training, progress, checkpoints, group)
        return self

    def reset(self, domain: Domain) -> None:
        """Forget everything learned, and create untrained networks for a domain."""
        self._domain, self._scorer, self.n_fits = domain, None, 0
        with seeded_weights(self.config.seed, self.name, "weights"):
            self.nets = {name: net.to(self.device) for name, net in self.build_networks(domain).items()}
        trainable = {name: net for name, net in self.nets.items() if any(True for _ in net.parameters())}
        self.optimisers = {name: self.create_optimiser(net) for name, net in trainable.items()}

    def refresh_scorer(self) -> None:
        """Rebuild the scorer after the networks have changed."""
        self._scorer = self.build_scorer()

    @property
    def is_started(self) -> bool:
        """Whether the networks exist: after the first fit or `reset`."""
        return self._domain is not None

    @property
    def domain(self) -> Domain:
        """Items, behaviours and sizes it was fitted for; raises ModelError before the first fit."""
        if self._domain is None:
            raise self._not_fitted()
        return self._domain

    @property
    def fitted_scorer(self) -> Scorer:
        """The scorer of the last fit; raises ModelError before the first."""
        if self._scorer is None:
            raise self._not_fitted()
        return self._scorer

    def _not_fitted(self) -> ModelError:
        return ModelError(f"this {self.name} agent has not been fitted; call fit(store) first")

    def extend_catalog(self, catalog: Catalog) -> None:
        """Take new items, with features (`Catalog.extended`). Scores of known items do not change; see `agents.growth`."""
        extend_catalog(self, catalog)

    def set_catalog(self, catalog: Catalog) -> None:
        """Use a catalogue that the networks fit: one with the same items, or the one they have just grown to."""
        self._domain = replace(self.domain, catalog=catalog)
        if self._scorer is not None:
            self.refresh_scorer()

    def set_fields(self, fields: SessionFields) -> None:
        """Use fields of users and steps that the networks have just grown to; see `agents.growth`."""
        self._domain = replace(self.domain, fields=fields)
        if self._scorer is not None:
            self.refresh_scorer()

    def seen(self) -> NDArray[np.bool_]:
        """Return which rows occurred in training, (rows,) bool; all, for agents without item embeddings."""
        for net in self.nets.values():
            for module in net.modules():
                if isinstance(module, ItemEmbedding):
                    return np.asarray(module.seen.cpu().numpy())
        return np.ones(self.domain.catalog.n_rows, bool)

    # ---- by name

    def rank(
        self,
        history: Steps,
        candidates: Sequence[Name],
        shown: Steps = (),
        *,
        context: Values | None = None,
        user_features: Values | None = None,
        shown_context: Sequence[Values] = (),
        features: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    ) -> list[RankedItem]:
        """Rank candidates for one user.

        Args:
            history: What the user did before the session: (item, behaviour) pairs, oldest first.
            candidates: Items to rank, each once. Items that are not in the catalogue, or did not occur in training, are
                scored as the average item, or by their features.
            shown: What was shown in the session so far: (item, behaviour) pairs, oldest first. No candidate may be among it.
            context: Raw values of the fields of the present step, such as `{"device": "tv"}`; what is left out is missing.
            user_features: Raw values of the fields of the user, likewise.
            shown_context: The context of each step in `shown`; by default all of it is missing.
            features: Features of candidates that are not in the catalogue, by item, as in a request of the service:
                `{"a17": {"category": "sport", "words": 310}}`.

        Returns:
            All candidates, best first, with their scores and the parts of every score.

        Raises:
            InputError: If a behaviour, a field or a feature is unknown, the history is longer than the model's, a candidate
                repeats, or one was shown.
            ModelError: If the agent has not been fitted.
        """
        return rank(self, history, candidates, shown, context, user_features, shown_context, features)

    def recommend(
        self,
        histories: Sequence[Steps] | Sessions,
        k: int = 10,
        *,
        candidates: Sequence[Name] | Sequence[Sequence[Name]] | None = None,
        filter_history: bool = True,
        exact: bool = False,
    ) -> Recommendations:
        """Recommend the best k items for many users at once.

        Args:
            histories: One history per user, (item, behaviour) pairs, oldest first; or sessions, whose histories are used.
            k: Items per user.
            candidates: One list for all users or one per user; by default every item seen in training. That warns if the
                log held clicks alone, and scores of rare items are then shrunk (docs/clicks.md).
            filter_history: Leave out items of the user's own history.
            exact: Score every candidate. By default, with many users and candidates, a shortlist per user is found by a
                low-rank approximation of the scores and then scored exactly; users for whom the shortlist could miss an
                item are scored in full (see `scoring.retrieval`).

        Returns:
            The recommendations: indexable by user, and a table for data frames.

        Raises:
            InputError: If a behaviour is unknown, a history is longer than the model's, or there are no candidates.
            ModelError: If the agent has not been fitted.
        """
        return recommend(self, histories, k, candidates, filter_history, exact)

    # ---- on disk

    def save(self, path: str | Path, *, overwrite: bool = False, provenance: Mapping[str, Any] | None = None) -> Path:
        """Write the agent to a folder that `load` reads.

        Args:
            path: The folder.
            overwrite: Replace a model that is there. Other folders are never replaced.
            provenance: Notes for the manifest, instead of the agent's own.

        Returns:
            The folder's absolute path.

        Raises:
            ModelError: If the agent has not been fitted.
            OutputError: If the folder exists or cannot be written.
        """
        return save_agent(self, path, overwrite, self.provenance if provenance is None else dict(provenance))

    @classmethod
    def load(cls, path: str | Path, device: str = "auto") -> Self:
        """Load an agent from a folder.

        Args:
            path: The folder, as `save` wrote it.
            device: `auto`, `cpu` or `cuda`.

        Returns:
            The agent. `Agent.load` returns any built-in or installed method; a subclass returns only its own, so a method
            in a file of yours is loaded with `YourAgent.load(path)`.

        Raises:
            ModelError: If the folder is no model, is damaged, or holds another method.
        """
        return load_agent(path, device, cls)

    def __repr__(self) -> str:
        if self._domain is None:
            return f"<{type(self).__name__}: not fitted>"
        sizes = f"{len(self.domain.catalog):,} items, {len(self.domain.behaviours)} behaviours"
        return f"<{type(self).__name__}: {sizes}, fitted {self.n_fits} time{'s' * (self.n_fits != 1)}, on {self.device}>"
