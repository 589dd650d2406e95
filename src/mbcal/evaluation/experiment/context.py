"""What all cells of an experiment share: the sessions, the judges, and how to make an agent."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mbcal.agents import Agent, AgentConfig, agent_class
from mbcal.config import from_dict, to_dict
from mbcal.environments.base import Environment
from mbcal.errors import OptionError
from mbcal.evaluation.evaluator import EvaluationResult
from mbcal.evaluation.experiment.config import ExperimentConfig, apply_overrides
from mbcal.metrics import Mean, coverage, gini
from mbcal.training.config import TrainingConfig
from mbcal.training.device import resolve_device
from mbcal.types import FIRST_ITEM_ROW, Sessions, SessionTensors


@dataclass(frozen=True)
class ExperimentContext:
    """Train users to learn from, test users to serve, and who answers."""

    settings: ExperimentConfig
    train: Sessions
    test: Sessions
    judges: dict[str, Environment]
    features: tuple[str, ...]
    device: str

    @cached_property
    def train_tensors(self) -> SessionTensors:
        """The train sessions where the agents are: rounds are drawn from them without leaving the device."""
        return self.train.tensors(resolve_device(self.device), without=("propensities", "timestamps"))

    @cached_property
    def test_tensors(self) -> SessionTensors:
        """The test sessions, likewise."""
        return self.test.tensors(resolve_device(self.device), without=("propensities", "timestamps"))

    @cached_property
    def users(self) -> Environment:
        """Who answers when agents collect: the first judge."""
        return next(iter(self.judges.values()))

    def agent(self, name: str, seed: int, training: TrainingConfig) -> Agent:
        """A fresh agent of the experiment's settings, changed by the options in its name."""
        kind, config = agent_config(name, self.settings, self.features, seed, training)
        return kind(config, self.device)


def agent_config(
    name: str, settings: ExperimentConfig, features: tuple[str, ...], seed: int, training: TrainingConfig
) -> tuple[type[Agent], AgentConfig]:
    """A method and its config: of the experiment's settings what the method knows, then the options in its name.

    `mbcal+gamma=0.9+net.hidden=64` is MBCAL with two settings of its own.
    """
    base, options = split_name(name)
    kind = agent_class(base)
    own: dict[str, Any] = {"gamma": settings.gamma, "mask_rate": settings.mask_rate}
    known = {field.name for field in fields(kind.Config)}
    config = kind.Config(
        net=settings.net(features),
        training=training,
        seed=seed,
        **{key: value for key, value in own.items() if key in known},
    )
    if not options:
        return kind, config
    try:
        if any(option.partition("=")[0].strip() == "seed" for option in options):
            raise OptionError("seed: a run has its own; say how many with --seeds")
        return kind, from_dict(kind.Config, apply_overrides(to_dict(config), options, kind.Config, where=""))
    except OptionError as error:
        raise OptionError(f"agent {name}: {error}") from error


def split_name(name: str) -> tuple[str, list[str]]:
    """`mbcal+gamma=0.9` -> the method `mbcal` and its options, `gamma=0.9`."""
    base, *options = name.split("+")
    return base, options


class CellResult(NamedTuple):
    """What came of a cell: the record, the reward of every test session by judge, and the agent as it was tested."""

    record: dict[str, Any]
    rewards: dict[str, NDArray[np.float32]]
    agent: Agent | None


def summary(outcome: EvaluationResult) -> dict[str, float]:
    """What a policy earned and how it spread its choices."""
    served, mean = outcome.served, outcome.mean
    shown = served.items[served.mask]
    counts = np.bincount(shown, minlength=served.catalog.n_rows)[FIRST_ITEM_ROW:]
    return {
        **mean_record(mean),
        "coverage": coverage(shown, len(served.catalog)),
        "gini": gini(counts),
        **_variety(served),
    }


def mean_record(mean: Mean) -> dict[str, float]:
    """A mean as plain numbers."""
    return {"mean": mean.mean, "low": mean.low, "high": mean.high, "error": mean.stderr, "sessions": mean.count}


def _variety(served: Sessions) -> dict[str, float]:
    """Within sessions, by the first single-valued feature (by item where there is none).

    diversity: distinct values a session, as a share of its steps. repetition: share of steps whose value is that of the step
    before.
    """
    single = next((one for one in served.catalog.features.values() if one.offsets is None), None)
    values = served.items if single is None else single.codes[served.items]
    mask = served.mask
    alike = (values[:, 1:] == values[:, :-1]) & mask[:, 1:]
    ordered = np.sort(np.where(mask, values, -1), 1)
    distinct = (ordered >= 0) & (np.diff(ordered, axis=1, prepend=-1) != 0)
    return {
        "diversity": float((distinct.sum(1) / served.length).mean()),
        "repetition": float(alike.sum() / max(int(mask[:, 1:].sum()), 1)),
    }
