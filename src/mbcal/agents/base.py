"""What every agent is: four verbs (fit, begin, score, observe), and what follows from them (rank, save, load).

A method is one file with a config and a class that says which networks it has (`networks`), what they learn (`learn`) and
what it ranks by (`build_scorer`). Masks, epsilon, ties and propensities are no business of an agent: `scoring.py` does them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from mbcal.config import from_dict, to_dict
from mbcal.distributed.group import SINGLE_WORKER, Group
from mbcal.distributed.worker_slice import WorkerSlice, require_equal_weights
from mbcal.environments.candidates import session_candidates
from mbcal.errors import InputError, ModelError, OptionError
from mbcal.nn.config import NetConfig
from mbcal.nn.embeddings import ItemEmbedding, fill_unknown_items, mark_seen_items
from mbcal.nn.recurrent import RecurrentNet, ValueNet
from mbcal.progress import SILENT, Progress
from mbcal.scoring.scorers import UNKNOWN_USER, Scorer, ScoreTerm
from mbcal.storage import artifacts as bundle
from mbcal.storage.checkpoints import Checkpoints
from mbcal.training.config import TrainingConfig
from mbcal.training.device import resolve_device
from mbcal.training.device_data import DeviceSessions
from mbcal.training.holdout import split_held_out_users
from mbcal.training.loop import Objective, train
from mbcal.training.random import derive_seed, seeded_weights, uniform
from mbcal.training.state import load_state_arrays, state_to_arrays
from mbcal.types import UNKNOWN_ROW, Behaviours, Catalog, Sessions, SessionTensors

STRANGERS = 0.1
"""Share of sessions from which that encoder learns what a user is like who was never seen."""


@dataclass(frozen=True)
class AgentConfig:
    """ExperimentConfig that all methods share."""

    net: NetConfig = field(default_factory=NetConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.net.cell != "gru":
            raise OptionError(f"net.cell: agents rank by tables, which only a gru has; got {self.net.cell!r}")


@dataclass(frozen=True)
class RankedItem:
    """One candidate in its place: its score, what the score is made of, and whether the model has seen the item."""

    item: str
    title: str
    score: float
    parts: Mapping[str, float]
    known: bool


@dataclass(frozen=True)
class Domain:
    """What an agent was fitted for."""

    catalog: Catalog
    behaviours: Behaviours
    horizon: int
    history: int
    n_users: int

    @classmethod
    def from_sessions(cls, sessions: Sessions | SessionTensors, users: int | None = None) -> Self:
        """That of these sessions; `users` are more where others have sessions, too."""
        users = users or int(sessions.user.max()) + 1
        return cls(sessions.catalog, sessions.behaviour_set, sessions.horizon, sessions.history_items.shape[1], users)

    def require_compatible(self, sessions: Sessions | SessionTensors, whose: str) -> None:
        """Refuse sessions whose rows would mean something else."""
        sessions.require_compatible(self.catalog, self.behaviours, whose)


@dataclass
class FitContext:
    """One fit: the sessions within reach, who is held out, and how to run the loop over them."""

    data: DeviceSessions
    """The sessions, where the networks are; in a group those of this worker."""
    worker_slice: WorkerSlice
    """Which of all sessions they are."""
    rows: NDArray[np.int64]
    """Numbers of the sessions to learn from, and of those held out, in a group everybody's."""
    held: NDArray[np.int64]
    how: TrainingConfig
    seed: int
    first: bool
    """Whether the agent has learned nothing before."""
    progress: Progress
    checkpoints: Checkpoints | None
    nets: Mapping[str, nn.Module]
    optimisers: Mapping[str, torch.optim.Adam]
    curves: dict[str, list[dict[str, float]]] = field(default_factory=dict)

    def train(
        self,
        name: str,
        objective: Objective,
        held: NDArray[np.int64] | None = None,
        before: Callable[[], None] | None = None,
        record: bool | None = None,
        times: int = 1,
    ) -> None:
        """Fit the network of this name; with others held out where the objective asks for it.

        `before` is called before every update; `record` tells whether other data than the context's lies on the device.
        With `times` the data has all the sessions that often, one form after another.
        """
        self.curves[name] = train(
            self.nets[name],
            objective,
            np.concatenate([self.rows + form * self.worker_slice.total for form in range(times)]),
            self.held if held is None else held,
            self.how,
            name=name,
            seed=self.seed,
            optimiser=self.optimisers[name],
            before=before,
            record=self.data.is_on_device if record is None else record,
            unit=_loss_unit(self.nets[name]),
            progress=self.progress,
            checkpoints=self.checkpoints,
            group=self.worker_slice.group,
            places=self.worker_slice.row_index(self.data.device, times),
        )


class Agent(ABC):
    """A ranking method. `fit` again is a warm start: weights and optimiser go on from where they were."""

    name: ClassVar[str]
    Config: ClassVar[type[AgentConfig]] = AgentConfig
    needs_candidates: ClassVar[bool] = False
    """Whether it learns from what else could have been shown."""
    explores: ClassVar[bool] = True
    """Whether it now and then shows something else when it collects sessions to learn from."""

    def __init__(self, config: Any = None, device: str = "auto") -> None:
        self.config = config or self.Config()
        self.device = resolve_device(device)
        if not isinstance(self.config, self.Config):
            raise OptionError(
                f"config: a {self.name} agent takes a {self.Config.__name__}, got {type(self.config).__name__}"
            )
        self.n_fits = 0
        self.provenance: dict[str, Any] = {}
        self.nets: dict[str, Any] = {}
        self.optimisers: dict[str, torch.optim.Adam] = {}
        self.curves: dict[str, list[dict[str, float]]] = {}
        self._domain: Domain | None = None
        self._scorer: Scorer | None = None

    @abstractmethod
    def build_networks(self, domain: Domain) -> dict[str, nn.Module]:
        """Fresh networks by name."""

    @abstractmethod
    def learn(self, context: FitContext) -> None:
        """Fit them."""

    @abstractmethod
    def build_scorer(self) -> Scorer:
        """What ranks, made of the networks as they are now."""

    def fit(
        self,
        sessions: Sessions | SessionTensors,
        *,
        training: TrainingConfig | None = None,
        progress: Progress = SILENT,
        checkpoints: Checkpoints | None = None,
        group: Group = SINGLE_WORKER,
    ) -> Self:
        """Learn from sessions; `training` replaces the config's for this time.

        In a group each worker gives its part of them, in order of rank (`Store.share`), and all end with the same agent.
        """
        worker_slice = WorkerSlice.create(len(sessions), group, checkpoints.number if checkpoints else 0)
        if not worker_slice.total:
            raise InputError("fit: there are no sessions to learn from")
        users = worker_slice.all_gather(torch.as_tensor(sessions.user)).cpu().numpy()
        if self._domain is None:
            self._begin_with(Domain.from_sessions(sessions, int(users.max()) + 1))
        self.domain.require_compatible(sessions, "this agent")
        before = None if self.n_fits == 0 else {name: self._state(name) for name in self.nets}
        try:
            self._learn(sessions, worker_slice, users, training or self.config.training, progress, checkpoints)
        except BaseException:  # half a context is worse than none: as if it had not been
            if before is None:
                self._begin_with(self.domain)
            else:
                for name, arrays in before.items():
                    load_state_arrays(self.nets[name], self.optimisers.get(name), arrays)
            raise
        return self

    def _state(self, name: str) -> dict[str, NDArray[Any]]:
        return state_to_arrays(self.nets[name], self.optimisers.get(name))

    def _learn(
        self,
        sessions: Sessions | SessionTensors,
        worker_slice: WorkerSlice,
        users: NDArray[np.int32],
        how: TrainingConfig,
        progress: Progress,
        checkpoints: Checkpoints | None,
    ) -> None:
        seed = derive_seed(self.config.seed, self.name, "fit", self.n_fits)
        given = DeviceSessions(sessions, self.device, self.needs_candidates).tensors
        rows, held = split_held_out_users(users, how.validation, self.config.seed)
        if self.config.net.user == "id":
            given = replace(given, user=self._strangers(given.user, held, seed, worker_slice))
        if self.needs_candidates:
            given = replace(given, candidates=session_candidates(given, seed, worker_slice=worker_slice))
        for name, net in self.nets.items():
            mark_seen_items(net, given, self.n_fits == 0, worker_slice.group)
            if name in self.optimisers:
                how.apply_to(self.optimisers[name])
        context = FitContext(
            DeviceSessions(given, self.device, self.needs_candidates),
            worker_slice,
            rows,
            held,
            how,
            seed,
            self.n_fits == 0,
            progress,
            checkpoints,
            self.nets,
            self.optimisers,
        )
        self.learn(context)
        require_equal_weights(self.nets, self.name, worker_slice.group)
        for net in self.nets.values():
            fill_unknown_items(net)
        self.curves = context.curves
        self.n_fits += 1
        self._scorer = self.build_scorer()

    def _strangers(self, users: torch.Tensor, held: NDArray[np.int64], seed: int, worker_slice: WorkerSlice) -> torch.Tensor:
        """User numbers with all held-out users, and some sessions of the others, as strangers: so that a row is learned for
        users never seen, and judged."""
        strange = uniform(derive_seed(seed, "strangers"), (len(users),), users.device, worker_slice.begin) < STRANGERS
        strange[worker_slice.local_rows(torch.from_numpy(held)).to(users.device)] = True
        return torch.where(strange, UNKNOWN_USER, users)

    def _begin_with(self, domain: Domain) -> None:
        self._domain = domain
        with seeded_weights(self.config.seed, self.name, "weights"):
            self.nets = {name: net.to(self.device) for name, net in self.build_networks(domain).items()}
        trained = {name: net for name, net in self.nets.items() if any(True for _ in net.parameters())}
        self.optimisers = {name: self.create_optimiser(net) for name, net in trained.items()}

    def create_optimiser(self, net: nn.Module) -> torch.optim.Adam:
        """A fresh optimiser for one of its networks."""
        return self.config.training.create_optimiser(net.parameters())

    def share_catalog(self, catalog: Catalog) -> None:
        """Take an equal catalogue for its own, so that sessions over it need no comparing; others are refused."""
        if catalog.items != self.domain.catalog.items:
            raise ModelError(f"this {self.name} agent knows other items than the data has; fit one on this data")
        self._domain = replace(self.domain, catalog=catalog)

    @property
    def domain(self) -> Domain:
        """What it was fitted for."""
        if self._domain is None:
            raise ModelError(f"this {self.name} agent has not been fitted; call fit(sessions) first")
        return self._domain

    @property
    def fitted_scorer(self) -> Scorer:
        """The scorer of the last fit."""
        if self._scorer is None:
            raise ModelError(f"this {self.name} agent has not been fitted; call fit(sessions) first")
        return self._scorer

    def value_regression(self, batch: SessionTensors) -> tuple[torch.Tensor, torch.Tensor] | None:  # noqa: ARG002 - for those who override it
        """Labels and predictions (B, T) of its value network on these sessions, in reward units; None if it has none."""
        return None

    def begin(self, user: Any, history_items: Any, history_behaviours: Any, history_length: Any) -> Any:
        """The state before the first step of users (B,) with histories (B, H)."""
        return self.fitted_scorer.begin(user, history_items, history_behaviours, history_length)

    def score(self, state: Any, candidates: Any) -> Any:
        """(B, C)."""
        return self.fitted_scorer.score(state, candidates)

    def observe(self, state: Any, item: Any, behaviour: Any) -> Any:
        """The state after item (B,) was shown and behaviour (B,) came back."""
        return self.fitted_scorer.observe(state, item, behaviour)

    def rank(
        self,
        history: Sequence[tuple[str, str]],
        candidates: Sequence[str],
        session: Sequence[tuple[str, str]] = (),
    ) -> list[RankedItem]:
        """Candidates by name, best first, for a user known by (item, behaviour) pairs, oldest first.

        `history` is what came before the session, `session` what was shown in it so far. Items never seen stand for the
        out-of-vocabulary item; users need no name.
        """
        domain, scorer = self.domain, self.fitted_scorer
        _require_candidates(candidates, [item for item, _ in session])
        if len(history) > domain.history:
            rule = f"history: {len(history)} steps, the model was fitted on at most {domain.history}"
            raise InputError(f"{rule}; give the latest {domain.history}")
        items, behaviours = self._rows(history)
        length = torch.tensor([len(history)], dtype=torch.int32, device=self.device)
        user = torch.tensor([UNKNOWN_USER], dtype=torch.int32, device=self.device)
        state = scorer.begin(user, items.unsqueeze(0), behaviours.unsqueeze(0), length)
        for item, behaviour in zip(*self._rows(session), strict=True):
            state = scorer.observe(state, item.view(1), behaviour.view(1))
        rows = domain.catalog.rows_of(candidates)
        seen = self.seen()
        shares = scorer.score_parts(state, torch.from_numpy(rows).to(self.device).unsqueeze(0))
        parts = {name: part[0].tolist() for name, part in shares.items()}
        score = [sum(values) for values in zip(*parts.values(), strict=True)]
        order = sorted(range(len(rows)), key=lambda place: (-score[place], place))
        return [
            RankedItem(
                item=candidates[place],
                title=domain.catalog.title_of(int(rows[place])) if rows[place] != UNKNOWN_ROW else candidates[place],
                score=score[place],
                parts={name: values[place] for name, values in parts.items()},
                known=bool(seen[rows[place]] and rows[place] != UNKNOWN_ROW),
            )
            for place in order
        ]

    def seen(self) -> NDArray[np.bool_]:
        """(rows,) which items it has met in sessions; all of them for agents without item embeddings."""
        for net in self.nets.values():
            for module in net.modules():
                if isinstance(module, ItemEmbedding):
                    return np.asarray(module.seen.cpu().numpy())
        return np.ones(self.domain.catalog.n_rows, bool)

    def _rows(self, steps: Sequence[tuple[str, str]]) -> tuple[torch.Tensor, torch.Tensor]:
        items = torch.from_numpy(self.domain.catalog.rows_of(item for item, _ in steps))
        labels = torch.tensor([self.domain.behaviours.index(label) for _, label in steps], dtype=torch.uint8)
        return items.to(self.device), labels.to(self.device)

    def save(self, path: str | Path, *, overwrite: bool = False, provenance: Mapping[str, Any] | None = None) -> Path:
        """Write the agent as a folder that `mbcal.load` reads; `about` is kept in the manifest (which data, say)."""
        domain = self.domain
        weights: dict[str, NDArray[Any]] = {}
        optimisers: dict[str, NDArray[Any]] = {}
        for name, net in self.nets.items():
            for key, array in state_to_arrays(net, self.optimisers.get(name)).items():
                kind, _, rest = key.partition("/")
                (weights if kind == "weight" else optimisers)[f"{name}/{rest}"] = array
        said = {
            "agent": self.name,
            "config": to_dict(self.config),
            "fits": self.n_fits,
            "curves": self.curves,
            "behaviours": to_dict(domain.behaviours),
            "horizon": domain.horizon,
            "history": domain.history,
            "users": domain.n_users,
            "about": dict(self.provenance if provenance is None else provenance),
        }
        files = {"weights": weights, "optimiser": optimisers}
        return bundle.write_artifact(path, bundle.MODEL_KIND, said, files, domain.catalog, overwrite)

    @classmethod
    def read(cls, opened: bundle.Artifact, device: str = "auto") -> Self:
        """The agent a folder holds."""
        said = opened.manifest
        try:
            agent = cls(from_dict(cls.Config, said["config"]), device)
            agent._begin_with(Domain(opened.catalog, opened.behaviours, said["horizon"], said["history"], said["users"]))
            weights, optimisers = opened.arrays("weights"), opened.arrays("optimiser")
            for name, net in agent.nets.items():
                mine = {
                    f"{kind}/{key.removeprefix(f'{name}/')}": value
                    for kind, arrays in (("weight", weights), ("adam", optimisers))
                    for key, value in arrays.items()
                    if key.startswith(f"{name}/")
                }
                load_state_arrays(net, agent.optimisers.get(name), mine)
        except (KeyError, TypeError, RuntimeError) as error:  # the hashes fit but the content does not: another program's
            raise opened.damaged(str(error).splitlines()[0]) from error
        agent.n_fits, agent.curves, agent.provenance = said["fits"], said["curves"], dict(said["about"])
        agent._scorer = agent.build_scorer()
        return agent


def reward_term(net: RecurrentNet, behaviours: Behaviours) -> ScoreTerm:
    """The reward a network of behaviours expects of the next step."""
    return ScoreTerm(net.scoring_tables(), behaviours.reward_table(net.behaviours.weight.device))


def value_term(net: ValueNet, share: float = 1.0) -> ScoreTerm:
    """What a network of values says, or a share of it."""
    return ScoreTerm(net.scoring_tables(share), None)


def _loss_unit(net: nn.Module) -> float:
    """What a unit of a network's loss is in squared reward: value networks learn standardised labels."""
    for module in net.modules():
        scale = getattr(module, "scale", None)
        if isinstance(scale, torch.Tensor):
            return float(scale) ** 2
    return 1.0


def _require_candidates(candidates: Sequence[str], shown: Sequence[str]) -> None:
    if isinstance(candidates, str):
        raise InputError("candidates: must be a list of names, not one text")
    for name in candidates:
        if name in shown:
            raise InputError(f"candidates: {name!r} was already shown in this session; leave it out")
    if not candidates:
        raise InputError("candidates: none were given; name at least one item to rank")
    seen: set[str] = set()
    for name in candidates:
        if name in seen:
            raise InputError(f"candidates: {name!r} is there twice; name every item once")
        seen.add(name)
