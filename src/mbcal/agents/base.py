"""What every agent is: four verbs (fit, begin, score, observe), and what follows from them (rank, save, load).

A method is one file with a config and a class that says which networks it has (`networks`), what they learn (`learn`) and
what it ranks by (`scorer`). Masks, epsilon, ties and propensities are no business of an agent: `scoring.py` does them.
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
from mbcal.distributed.group import ALONE, Group
from mbcal.distributed.worker_slice import Portion, require_same
from mbcal.environments.candidates import candidates_of
from mbcal.errors import InputError, ModelError, OptionError
from mbcal.nn.config import NetConfig
from mbcal.nn.embeddings import ItemEmbedding, meet_items, settle_items
from mbcal.nn.recurrent import SequenceNet, ValueNet
from mbcal.progress import SILENT, Progress
from mbcal.scoring.scorers import NOBODY, Scorer, Term
from mbcal.storage import artifacts as bundle
from mbcal.storage.checkpoints import Checkpoints
from mbcal.training.config import Training
from mbcal.training.device import device_named
from mbcal.training.device_data import Resident
from mbcal.training.holdout import split_users
from mbcal.training.loop import Objective, train
from mbcal.training.random import initial_weights, seed_of, uniform
from mbcal.training.state import put_state, state_arrays
from mbcal.types import UNKNOWN, Behaviours, Catalog, Sessions, SessionTensors

STRANGERS = 0.1
"""Share of sessions from which that encoder learns what a user is like who was never seen."""


@dataclass(frozen=True)
class AgentConfig:
    """Settings that all methods share."""

    net: NetConfig = field(default_factory=NetConfig)
    training: Training = field(default_factory=Training)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.net.cell != "gru":
            raise OptionError(f"net.cell: agents rank by tables, which only a gru has; got {self.net.cell!r}")


@dataclass(frozen=True)
class Ranked:
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
    users: int

    @classmethod
    def of(cls, sessions: Sessions | SessionTensors, users: int | None = None) -> Self:
        """That of these sessions; `users` are more where others have sessions, too."""
        users = users or int(sessions.user.max()) + 1
        return cls(sessions.catalog, sessions.behaviour_set, sessions.horizon, sessions.history_items.shape[1], users)

    def require(self, sessions: Sessions | SessionTensors, whose: str) -> None:
        """Refuse sessions whose rows would mean something else."""
        sessions.require_like(self.catalog, self.behaviours, whose)


@dataclass
class Lesson:
    """One fit: the sessions within reach, who is held out, and how to run the loop over them."""

    data: Resident
    """The sessions, where the networks are; in a group those of this worker."""
    portion: Portion
    """Which of all sessions they are."""
    rows: NDArray[np.int64]
    """Numbers of the sessions to learn from, and of those held out, in a group everybody's."""
    held: NDArray[np.int64]
    how: Training
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

        `before` is called before every update; `record` tells whether other data than the lesson's lies on the device.
        With `times` the data has all the sessions that often, one form after another.
        """
        self.curves[name] = train(
            self.nets[name],
            objective,
            np.concatenate([self.rows + form * self.portion.total for form in range(times)]),
            self.held if held is None else held,
            self.how,
            name=name,
            seed=self.seed,
            optimiser=self.optimisers[name],
            before=before,
            record=self.data.whole if record is None else record,
            unit=_loss_unit(self.nets[name]),
            progress=self.progress,
            checkpoints=self.checkpoints,
            group=self.portion.group,
            places=self.portion.places(self.data.device, times),
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
        self.device = device_named(device)
        if not isinstance(self.config, self.Config):
            raise OptionError(
                f"config: a {self.name} agent takes a {self.Config.__name__}, got {type(self.config).__name__}"
            )
        self.fits = 0
        self.about: dict[str, Any] = {}
        self.nets: dict[str, Any] = {}
        self.optimisers: dict[str, torch.optim.Adam] = {}
        self.curves: dict[str, list[dict[str, float]]] = {}
        self._domain: Domain | None = None
        self._scorer: Scorer | None = None

    @abstractmethod
    def networks(self, domain: Domain) -> dict[str, nn.Module]:
        """Fresh networks by name."""

    @abstractmethod
    def learn(self, lesson: Lesson) -> None:
        """Fit them."""

    @abstractmethod
    def scorer(self) -> Scorer:
        """What ranks, made of the networks as they are now."""

    def fit(
        self,
        sessions: Sessions | SessionTensors,
        *,
        training: Training | None = None,
        progress: Progress = SILENT,
        checkpoints: Checkpoints | None = None,
        group: Group = ALONE,
    ) -> Self:
        """Learn from sessions; `training` replaces the config's for this time.

        In a group each worker gives its part of them, in order of rank (`Store.share`), and all end with the same agent.
        """
        portion = Portion.among(len(sessions), group, checkpoints.number if checkpoints else 0)
        if not portion.total:
            raise InputError("fit: there are no sessions to learn from")
        users = portion.whole(torch.as_tensor(sessions.user)).cpu().numpy()
        if self._domain is None:
            self._begin_with(Domain.of(sessions, int(users.max()) + 1))
        self.domain.require(sessions, "this agent")
        before = None if self.fits == 0 else {name: self._state(name) for name in self.nets}
        try:
            self._learn(sessions, portion, users, training or self.config.training, progress, checkpoints)
        except BaseException:  # half a lesson is worse than none: as if it had not been
            if before is None:
                self._begin_with(self.domain)
            else:
                for name, arrays in before.items():
                    put_state(self.nets[name], self.optimisers.get(name), arrays)
            raise
        return self

    def _state(self, name: str) -> dict[str, NDArray[Any]]:
        return state_arrays(self.nets[name], self.optimisers.get(name))

    def _learn(
        self,
        sessions: Sessions | SessionTensors,
        portion: Portion,
        users: NDArray[np.int32],
        how: Training,
        progress: Progress,
        checkpoints: Checkpoints | None,
    ) -> None:
        seed = seed_of(self.config.seed, self.name, "fit", self.fits)
        given = Resident(sessions, self.device, self.needs_candidates).tensors
        rows, held = split_users(users, how.validation, self.config.seed)
        if self.config.net.user == "id":
            given = replace(given, user=self._strangers(given.user, held, seed, portion))
        if self.needs_candidates:
            given = replace(given, candidates=candidates_of(given, seed, portion=portion))
        for name, net in self.nets.items():
            meet_items(net, given, self.fits == 0, portion.group)
            if name in self.optimisers:
                how.steer(self.optimisers[name])
        lesson = Lesson(
            Resident(given, self.device, self.needs_candidates),
            portion,
            rows,
            held,
            how,
            seed,
            self.fits == 0,
            progress,
            checkpoints,
            self.nets,
            self.optimisers,
        )
        self.learn(lesson)
        require_same(self.nets, self.name, portion.group)
        for net in self.nets.values():
            settle_items(net)
        self.curves = lesson.curves
        self.fits += 1
        self._scorer = self.scorer()

    def _strangers(self, users: torch.Tensor, held: NDArray[np.int64], seed: int, portion: Portion) -> torch.Tensor:
        """User numbers with all held-out users, and some sessions of the others, as strangers: so that a row is learned for
        users never seen, and judged."""
        strange = uniform(seed_of(seed, "strangers"), (len(users),), users.device, portion.begin) < STRANGERS
        strange[portion.here(torch.from_numpy(held)).to(users.device)] = True
        return torch.where(strange, NOBODY, users)

    def _begin_with(self, domain: Domain) -> None:
        self._domain = domain
        with initial_weights(self.config.seed, self.name, "weights"):
            self.nets = {name: net.to(self.device) for name, net in self.networks(domain).items()}
        trained = {name: net for name, net in self.nets.items() if any(True for _ in net.parameters())}
        self.optimisers = {name: self.optimiser(net) for name, net in trained.items()}

    def optimiser(self, net: nn.Module) -> torch.optim.Adam:
        """A fresh optimiser for one of its networks."""
        return self.config.training.optimiser(net.parameters())

    def adopt(self, catalog: Catalog) -> None:
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
    def ranks_by(self) -> Scorer:
        """The scorer of the last fit."""
        if self._scorer is None:
            raise ModelError(f"this {self.name} agent has not been fitted; call fit(sessions) first")
        return self._scorer

    def regression(self, batch: SessionTensors) -> tuple[torch.Tensor, torch.Tensor] | None:  # noqa: ARG002 - for those who override it
        """Labels and predictions (B, T) of its value network on these sessions, in reward units; None if it has none."""
        return None

    def begin(self, user: Any, history_items: Any, history_behaviours: Any, history_length: Any) -> Any:
        """The state before the first step of users (B,) with histories (B, H)."""
        return self.ranks_by.begin(user, history_items, history_behaviours, history_length)

    def score(self, state: Any, candidates: Any) -> Any:
        """(B, C)."""
        return self.ranks_by.score(state, candidates)

    def observe(self, state: Any, item: Any, behaviour: Any) -> Any:
        """The state after item (B,) was shown and behaviour (B,) came back."""
        return self.ranks_by.observe(state, item, behaviour)

    def rank(
        self,
        history: Sequence[tuple[str, str]],
        candidates: Sequence[str],
        session: Sequence[tuple[str, str]] = (),
    ) -> list[Ranked]:
        """Candidates by name, best first, for a user known by (item, behaviour) pairs, oldest first.

        `history` is what came before the session, `session` what was shown in it so far. Items never seen stand for the
        out-of-vocabulary item; users need no name.
        """
        domain, scorer = self.domain, self.ranks_by
        _require_candidates(candidates, [item for item, _ in session])
        if len(history) > domain.history:
            rule = f"history: {len(history)} steps, the model was fitted on at most {domain.history}"
            raise InputError(f"{rule}; give the latest {domain.history}")
        items, behaviours = self._rows(history)
        length = torch.tensor([len(history)], dtype=torch.int32, device=self.device)
        user = torch.tensor([NOBODY], dtype=torch.int32, device=self.device)
        state = scorer.begin(user, items.unsqueeze(0), behaviours.unsqueeze(0), length)
        for item, behaviour in zip(*self._rows(session), strict=True):
            state = scorer.observe(state, item.view(1), behaviour.view(1))
        rows = domain.catalog.row(candidates)
        seen = self.seen()
        shares = scorer.parts(state, torch.from_numpy(rows).to(self.device).unsqueeze(0))
        parts = {name: part[0].tolist() for name, part in shares.items()}
        score = [sum(values) for values in zip(*parts.values(), strict=True)]
        order = sorted(range(len(rows)), key=lambda place: (-score[place], place))
        return [
            Ranked(
                item=candidates[place],
                title=domain.catalog.title(int(rows[place])) if rows[place] != UNKNOWN else candidates[place],
                score=score[place],
                parts={name: values[place] for name, values in parts.items()},
                known=bool(seen[rows[place]] and rows[place] != UNKNOWN),
            )
            for place in order
        ]

    def seen(self) -> NDArray[np.bool_]:
        """(rows,) which items it has met in sessions; all of them for agents without item embeddings."""
        for net in self.nets.values():
            for module in net.modules():
                if isinstance(module, ItemEmbedding):
                    return np.asarray(module.seen.cpu().numpy())
        return np.ones(self.domain.catalog.rows, bool)

    def _rows(self, steps: Sequence[tuple[str, str]]) -> tuple[torch.Tensor, torch.Tensor]:
        items = torch.from_numpy(self.domain.catalog.row(item for item, _ in steps))
        labels = torch.tensor([self.domain.behaviours.index(label) for _, label in steps], dtype=torch.uint8)
        return items.to(self.device), labels.to(self.device)

    def save(self, path: str | Path, *, overwrite: bool = False, about: Mapping[str, Any] | None = None) -> Path:
        """Write the agent as a folder that `mbcal.load` reads; `about` is kept in the manifest (which data, say)."""
        domain = self.domain
        weights: dict[str, NDArray[Any]] = {}
        optimisers: dict[str, NDArray[Any]] = {}
        for name, net in self.nets.items():
            for key, array in state_arrays(net, self.optimisers.get(name)).items():
                kind, _, rest = key.partition("/")
                (weights if kind == "weight" else optimisers)[f"{name}/{rest}"] = array
        said = {
            "agent": self.name,
            "config": to_dict(self.config),
            "fits": self.fits,
            "curves": self.curves,
            "behaviours": to_dict(domain.behaviours),
            "horizon": domain.horizon,
            "history": domain.history,
            "users": domain.users,
            "about": dict(self.about if about is None else about),
        }
        files = {"weights": weights, "optimiser": optimisers}
        return bundle.write_bundle(path, bundle.AGENT, said, files, domain.catalog, overwrite)

    @classmethod
    def read(cls, opened: bundle.Bundle, device: str = "auto") -> Self:
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
                put_state(net, agent.optimisers.get(name), mine)
        except (KeyError, TypeError, RuntimeError) as error:  # the hashes fit but the content does not: another program's
            raise opened.damaged(str(error).splitlines()[0]) from error
        agent.fits, agent.curves, agent.about = said["fits"], said["curves"], dict(said["about"])
        agent._scorer = agent.scorer()
        return agent


def instant_term(net: SequenceNet, behaviours: Behaviours) -> Term:
    """The reward a network of behaviours expects of the next step."""
    return Term(net.tables(), behaviours.reward_table(net.behaviours.weight.device))


def value_term(net: ValueNet, share: float = 1.0) -> Term:
    """What a network of values says, or a share of it."""
    return Term(net.tables(share), None)


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
