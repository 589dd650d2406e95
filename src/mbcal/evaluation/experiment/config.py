"""All settings of an experiment as plain typed values, three presets, and reading them from a TOML file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mbcal.config import from_dict
from mbcal.environments.gymnasium.adapter import PREFIX
from mbcal.environments.simulator import SimulatorConfig
from mbcal.errors import InputError, OptionError, nearest
from mbcal.evaluation.experiment.overrides import apply_overrides
from mbcal.nn.config import NetConfig
from mbcal.training.config import TrainingConfig

ProtocolName = Literal["batch", "growing"]
"""Batch-RL and Growing Batch-RL."""
JudgeName = Literal["lstm", "transformer", "truth", "world"]
"""Who can judge: a simulator of either family, the generated newsfeed itself, or a Gymnasium world."""
LEAST_LOG = 10
"""Sessions of a generated log, at least."""
NEWSFEED = "newsfeed"
"""As `data`: the generated newsfeed, in place of a store."""


@dataclass(frozen=True)
class ExperimentConfig:
    """One experiment: data, methods, protocols, sizes."""

    data: str = NEWSFEED
    """`newsfeed` (generated), the folder of a store, or a Gymnasium world, `gym:ID`."""
    agents: tuple[str, ...] = ("all",)
    """Methods by name, `path.py:Class` for one of your own, or `all`; with settings of their own after a plus:
    `mbcal+gamma=0.9+net.hidden=64`."""
    seeds: int = 3
    """How often each method is trained; seeds count from 0."""
    protocols: tuple[ProtocolName, ...] = ("batch", "growing")
    judges: tuple[JudgeName, ...] = ()
    """Who judges; the first also responds in Growing Batch-RL. By default the truth and an LSTM on the newsfeed, the world
    in a Gymnasium world, else the LSTM."""
    log_sessions: int = 8_000
    """Sessions of the generated log, all parts together; episodes of the random log of a Gymnasium world; of a store, the
    most sessions of its train part (0: all)."""
    repeats: bool = False
    """In a Gymnasium world: whether an item may be shown again in an episode."""
    items: int = 300
    """Items of the generated newsfeed."""
    test_sessions: int = 1_500
    """Most sessions served in every test, a sample with one session of each user before a second of any; episodes played
    in a Gymnasium world."""
    rounds: int = 4
    """Growing Batch-RL: rounds of collect, update, test."""
    round_sessions: int = 1_500
    """Sessions collected in a round."""
    round_epochs: int | None = None
    """Growing Batch-RL: most passes in a round. None: as many as make 10 million steps, and at least one."""
    replay: int | None = None
    """Growing Batch-RL: rounds to learn from; 1 is the last alone. None: as many as hold 5 million steps."""
    shrink: float | None = None
    """Growing Batch-RL: share of the old weights at the beginning of a round (`TrainingConfig.shrink`). None: 0.5 where all
    earlier rounds are replayed, so that nothing is forgotten, else 1."""
    epsilon: float = 0.1
    """Probability of a random choice when collecting."""
    gamma: float | None = None
    """Discount of every method that has one. None: the default of each method."""
    mask_rate: float | None = None
    """Mask rate of every method that has one. None: the default of each method."""
    copy_every: int | None = None
    """Updates between copies of a target network, of every method that has one. None: as the number of updates allows."""
    net: NetConfig = field(default_factory=NetConfig)
    """Networks of every agent. Features that are not named are those usual for the kind of store."""
    training: TrainingConfig = field(default_factory=TrainingConfig)
    """How every network is trained. Networks whose targets move (DQN and its variants) make ten passes, or as many as make
    1,000 updates; all epochs if no user is held out."""
    simulator: SimulatorConfig = field(default_factory=SimulatorConfig)
    futures: int = 64
    """Resampled futures per state in the variance analysis."""
    future_states: int = 64
    """States in the variance analysis."""
    xray: int = 4
    """Test sessions shown step by step in the report."""

    def __post_init__(self) -> None:
        at_least = {
            "seeds": 1,
            "test_sessions": 2,
            "rounds": 1,
            "round_sessions": 2,
            "round_epochs": 1,
            "replay": 1,
            "copy_every": 1,
        }
        at_least |= {"futures": 2, "future_states": 1, "xray": 0, "log_sessions": 0}
        for name, least in at_least.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise OptionError(f"{name}: must be at least {least}, got {value}")
        if not 0 <= self.epsilon <= 1:
            raise OptionError(f"epsilon: must be in [0, 1], got {self.epsilon}")
        for name in ("protocols", "agents", "judges"):
            values = getattr(self, name)
            if len(set(values)) != len(values):
                raise OptionError(f"{name}: a name is there twice; give each once, and set seeds to repeat a method")
        if not self.protocols or not self.agents:
            raise OptionError("protocols and agents: give at least one of each")
        if self.is_generated and self.log_sessions < LEAST_LOG:
            raise OptionError(f"log_sessions: a generated log needs at least {LEAST_LOG}, got {self.log_sessions}")
        if self.is_world and set(self.judges) - {"world"}:
            raise OptionError("judges: in a Gymnasium world, the world itself judges; leave judges out")
        if "world" in self.judges and not self.is_world:
            raise OptionError("judges: only a Gymnasium world (gym:ID) is its own judge; give truth, lstm or transformer")

    @property
    def log_episodes(self) -> int:
        """Episodes in the random log of a world; few where nothing learns from it: growing rounds collect their own."""
        return self.log_sessions if "batch" in self.protocols else LEAST_LOG

    @property
    def is_world(self) -> bool:
        """Whether the data is a Gymnasium world."""
        return self.data.startswith(PREFIX)

    @property
    def is_generated(self) -> bool:
        """Whether the run generates its own log: of the newsfeed or of a Gymnasium world."""
        return self.data == NEWSFEED or self.is_world


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "quick": {},
    "laptop": {
        "log_sessions": 60_000,
        "items": 1_000,
        "test_sessions": 8_000,
        "rounds": 10,
        "round_sessions": 8_000,
        "future_states": 256,
    },
    "paper": {
        "log_sessions": 640_000,
        "items": 2_000,
        "test_sessions": 256_000,
        "rounds": 40,
        "round_sessions": 256_000,
        "round_epochs": 1,
        "replay": 1,
        "shrink": 1.0,
        "future_states": 1024,
        "gamma": 0.95,
        "mask_rate": 0.2,
        "copy_every": 20,
        "net": {"hidden": 32, "embedding": 32},
        "training": {
            "epochs": 3,
            "batch": 256,
            "learning_rate": 1e-3,
            "warmup": 0,
            "decay": 1.0,
            "reductions": 0,
            "clip": None,
            "validation": 0.0,
        },
    },
}
"""Differences to the defaults: `quick` takes minutes on a CPU, `laptop` an hour, `paper` has the sizes and settings of
the paper."""


def experiment_config(values: Mapping[str, Any], preset: str = "quick") -> ExperimentConfig:
    """Return a preset with some values changed.

    Args:
        values: Settings by name, nested as in a TOML file.
        preset: `quick`, `laptop` or `paper`.

    Raises:
        OptionError: If the preset or a setting is unknown, or a value is out of range.
    """
    if preset not in PRESETS:
        raise OptionError(f"preset: {preset!r} is unknown; known are {', '.join(PRESETS)}.{nearest(preset, PRESETS)}")
    return from_dict(ExperimentConfig, _merged(PRESETS[preset], values))


def _merged(defaults: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults with some values changed; tables within are merged in the same way."""
    merged = {**defaults, **values}
    for name, default in defaults.items():
        if isinstance(default, Mapping) and isinstance(values.get(name), Mapping):
            merged[name] = _merged(default, values[name])
    return merged


def load_experiment_config(
    source: str | Path = NEWSFEED,
    *,
    preset: str = "quick",
    overrides: Sequence[str] = (),
    **settings: Any,
) -> ExperimentConfig:
    """Read the settings of an experiment: a preset, then a TOML file, then single settings, then overrides.

    Args:
        source: A TOML file of settings (a name that ends in .toml), else the data: `newsfeed`, the folder of a
            store, or `gym:ID`.
        preset: `quick`, `laptop` or `paper`; a file may name its own.
        overrides: Settings as text, as the command line takes them: `rounds=3`, `simulator.hidden=64`, `agents=mbcal,dqn`.
        **settings: Settings by name: `seeds=1, agents=["mbcal", "dqn"]`.

    Raises:
        InputError: If the file cannot be read or is not TOML.
        OptionError: If a setting is unknown or out of range.
    """
    values: dict[str, Any] = {"data": str(source)}
    if str(source).endswith(".toml"):
        try:
            values = tomllib.loads(Path(source).read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"{source}: cannot be read ({error.strerror})") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InputError(f"{source}: not TOML ({error})") from error
        preset = values.pop("preset", preset)
    return experiment_config(apply_overrides({**values, **settings}, overrides, ExperimentConfig), preset)
