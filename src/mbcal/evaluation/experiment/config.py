"""Everything an experiment can be told, as plain typed values, and three presets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from mbcal.config import dotted_names, from_dict
from mbcal.environments.simulator import SimulatorConfig
from mbcal.errors import OptionError, nearest
from mbcal.nn.config import NetConfig
from mbcal.training.config import TrainingConfig

Protocol = Literal["batch", "growing"]
Judge = Literal["lstm", "transformer", "truth"]
"""Who can answer: a simulator of either family, or the generated newsfeed itself."""


@dataclass(frozen=True)
class ExperimentConfig:
    """One experiment: data, methods, protocols, sizes."""

    data: str = "newsfeed"
    """`newsfeed` (generated), or the folder of a store."""
    agents: tuple[str, ...] = ("all",)
    """Methods by name, `path.py:Class` for one's own, or `all`; with options of their own after a plus:
    `mbcal+gamma=0.9+net.hidden=64`."""
    seeds: int = 3
    """Each method is trained so many times, from seed 0 on."""
    protocols: tuple[Protocol, ...] = ("batch", "growing")
    judges: tuple[Judge, ...] = ()
    """Who tests; the first also answers when growing. By default the truth and an LSTM on the newsfeed, else the LSTM."""
    log_sessions: int = 8_000
    """Sessions of the generated log, all parts together; of a store, the most sessions of its train part (0: all)."""
    items: int = 300
    """Items of the generated newsfeed."""
    test_sessions: int = 1_500
    """Sessions served in every test; all there are if fewer."""
    epochs: int = 8
    """Batch-RL: passes over the log, the same for every network of every method; the most, where users are held out."""
    validation: float = 0.0
    """Batch-RL: share of the train users that are held out, so that each network stops when it no longer gets better on them
    (those of DQN and its kin, whose targets move, make all passes). With 0 nobody is, and all make all passes."""
    rounds: int = 4
    """Growing Batch-RL: rounds of collect, update, test."""
    round_sessions: int = 1_500
    """Sessions collected in a round."""
    round_epochs: int = 1
    """Passes over a round's sessions."""
    replay: int = 1
    """Rounds whose sessions are learned from: 1 is the last alone; more than there are rounds keeps all."""
    epsilon: float = 0.1
    """Share of choices made at random when collecting."""
    gamma: float = 0.95
    mask_rate: float = 0.2
    features: tuple[str, ...] | None = None
    """Item features agents see; by default those usual for the kind of store."""
    hidden: int = 32
    embedding: int = 32
    batch: int = 64
    learning_rate: float = 2e-3
    simulator: SimulatorConfig = field(default_factory=SimulatorConfig)
    futures: int = 64
    """Resampled futures per state in the variance analysis."""
    future_states: int = 64
    """States it is done for."""
    xray: int = 4
    """Test sessions shown step by step in the report."""

    def __post_init__(self) -> None:
        at_least = {"seeds": 1, "test_sessions": 2, "epochs": 1, "rounds": 1, "round_sessions": 2, "round_epochs": 1}
        at_least |= {"replay": 1, "futures": 2, "future_states": 1, "xray": 0, "log_sessions": 0}
        for name, least in at_least.items():
            if getattr(self, name) < least:
                raise OptionError(f"{name}: must be at least {least}, got {getattr(self, name)}")
        if not 0 <= self.epsilon <= 1:
            raise OptionError(f"epsilon: must be in [0, 1], got {self.epsilon}")
        for name in ("protocols", "agents", "judges"):
            given = getattr(self, name)
            if len(set(given)) != len(given):
                raise OptionError(f"{name}: something is there twice; name each once, and use seeds to repeat")
        if not self.protocols or not self.agents:
            raise OptionError("protocols and agents: name at least one of each")
        if self.data == "newsfeed" and self.log_sessions < 10:
            raise OptionError(f"log_sessions: the newsfeed needs at least 10, got {self.log_sessions}")
        NetConfig(hidden=self.hidden, embedding=self.embedding)
        self.training(1, self.validation)

    def training(self, epochs: int, validation: float = 0.0) -> TrainingConfig:
        """So many passes; nobody held out unless told, so that every method gets the same data and the same budget."""
        return TrainingConfig(epochs, self.batch, self.learning_rate, validation=validation)

    def net(self, usual: tuple[str, ...]) -> NetConfig:
        """The network of every agent."""
        return NetConfig("gru", self.hidden, self.embedding, usual if self.features is None else self.features)


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "quick": {},
    "laptop": {
        "log_sessions": 60_000,
        "items": 1_000,
        "test_sessions": 8_000,
        "epochs": 8,
        "rounds": 10,
        "round_sessions": 8_000,
        "batch": 128,
        "learning_rate": 1e-3,
        "future_states": 256,
    },
    "paper": {
        "log_sessions": 640_000,
        "items": 2_000,
        "batch": 256,
        "learning_rate": 1e-3,
        "test_sessions": 256_000,
        "epochs": 3,
        "rounds": 40,
        "round_sessions": 256_000,
        "future_states": 1024,
    },
}
"""What differs from the defaults: `quick` for minutes on a CPU, `laptop` for an hour, `paper` for the sizes of the paper."""


def experiment_config(values: Mapping[str, Any], preset: str = "quick") -> ExperimentConfig:
    """A preset, changed by the values given (a TOML file's, say); unknown names are refused with the nearest."""
    if preset not in PRESETS:
        raise OptionError(f"preset: {preset!r} is unknown; known are {', '.join(PRESETS)}.{nearest(preset, PRESETS)}")
    return from_dict(ExperimentConfig, {**PRESETS[preset], **values})


def parse_override(text: str, kind: type = ExperimentConfig, where: str = "set: ") -> tuple[list[str], Any]:
    """`rounds=3`, `simulator.hidden=64`, `agents=mbcal,dqn` -> where and what; the value as TOML, or plain text.

    `kind` is the dataclass whose settings these are, `where` what a complaint begins with.
    """
    import tomllib

    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise OptionError(f"{where}{text!r} is not NAME=VALUE")
    path = name.strip().split(".")
    known = {one.name: one.type for one in fields(kind)}
    if path[0] not in known:
        close = nearest(name.strip(), dotted_names(kind))
        raise OptionError(f"{where}{path[0]!r} is unknown; known are {', '.join(known)}.{close}")
    try:
        return path, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        many = "tuple" in str(known[path[0]]) or path[-1] == "features"
        return path, split_list(value) if many else value.strip()


def apply_overrides(
    values: dict[str, Any], overrides: Sequence[str], kind: type = ExperimentConfig, where: str = "set: "
) -> dict[str, Any]:
    """The values with every override put in its place."""
    for text in overrides:
        path, value = parse_override(text, kind, where)
        place = values
        for depth, part in enumerate(path[:-1]):
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise OptionError(f"{where}{'.'.join(path[: depth + 1])} is a value, not a table that holds {path[-1]!r}")
        place[path[-1]] = value
    return values


def split_list(text: str) -> list[str]:
    """`a, b,c` -> its parts; what stands in brackets stays whole."""
    return [part.strip() for part in re.split(r",(?![^\[]*\])", text)]
