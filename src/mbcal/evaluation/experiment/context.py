"""What all cells of an experiment share: sessions, judges and agent settings; and what one cell produces."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mbcal.agents import Agent, AgentConfig, agent_class
from mbcal.config import from_dict, to_dict
from mbcal.environments.base import Environment
from mbcal.environments.gymnasium.world import GymnasiumWorld
from mbcal.errors import OptionError
from mbcal.evaluation.evaluator import EvaluationResult, ServedSummary
from mbcal.evaluation.experiment.config import ExperimentConfig
from mbcal.evaluation.experiment.overrides import apply_overrides
from mbcal.metrics import Mean, catalogue_coverage, gini
from mbcal.training.device import resolve_device
from mbcal.types import FIRST_ITEM_ROW, Feature, Sessions, SessionTensors


@dataclass(frozen=True)
class ExperimentContext:
    """What the cells of one experiment share. Built once per process."""

    settings: ExperimentConfig
    train: Sessions
    """Sessions of train users: Batch-RL learns from them, Growing Batch-RL serves their users to collect."""
    test: Sessions
    """Sessions of test users, with candidates: the same for every test. Empty if a Gymnasium world judges."""
    judges: dict[str, Environment | GymnasiumWorld]
    """Environments by name, in the order of the report. The first also responds when agents collect."""
    features: tuple[str, ...]
    """Item features agents see unless the settings name others."""
    device: str

    @cached_property
    def train_tensors(self) -> SessionTensors:
        """The train sessions on the device, where rounds are sampled from them."""
        times = () if self.train.catalog.life is not None else ("timestamps",)  # needed to sample candidates of that time
        return self.train.tensors(resolve_device(self.device), without=("propensities", *times))

    @cached_property
    def test_tensors(self) -> SessionTensors:
        """The test sessions on the device."""
        return self.test.tensors(resolve_device(self.device), without=("propensities", "timestamps"))

    @cached_property
    def users(self) -> Environment | GymnasiumWorld:
        """Who responds when agents collect: the first judge."""
        return next(iter(self.judges.values()))

    def agent(self, name: str, seed: int) -> Agent:
        """Create an agent; see `agent_config` for its name."""
        kind, config = agent_config(name, self.settings, self.features, seed)
        return kind(config, self.device)


def agent_config(
    name: str, settings: ExperimentConfig, features: tuple[str, ...], seed: int
) -> tuple[type[Agent], AgentConfig]:
    """Return a method and its config: the experiment's settings as far as the method has them, then those in its name.

    Args:
        name: A method, with settings of its own after a plus: `mbcal+gamma=0.9+net.hidden=64`.
        settings: The experiment's settings.
        features: Item features the agent sees unless the settings name others.
        seed: The agent's seed.

    Raises:
        OptionError: If the method or a setting is unknown, a value is out of range, or the name sets `seed`.
    """
    method, overrides = split_agent_name(name)
    kind = agent_class(method)
    shared = {name: getattr(settings, name) for name in ("gamma", "mask_rate", "copy_every")}
    setting_names = {field.name for field in fields(kind.Config)}
    config = kind.Config(
        net=settings.net if settings.net.features is not None else replace(settings.net, features=features),
        training=settings.training,
        seed=seed,
        **{key: value for key, value in shared.items() if value is not None and key in setting_names},
    )
    if not overrides:
        return kind, config
    try:
        if any(override.partition("=")[0].strip() == "seed" for override in overrides):
            raise OptionError("seed: the experiment sets it; give the number of seeds with --seeds")
        return kind, from_dict(kind.Config, apply_overrides(to_dict(config), overrides, kind.Config, prefix=""))
    except OptionError as error:
        raise OptionError(f"agent {name}: {error}") from error


def split_agent_name(name: str) -> tuple[str, list[str]]:
    """Split `mbcal+gamma=0.9` into the method `mbcal` and its overrides, [`gamma=0.9`]."""
    method, *overrides = name.split("+")
    return method, overrides


class CellResult(NamedTuple):
    """What one cell of an experiment produced."""

    record: dict[str, Any]
    """Plain values for the report, as JSON can hold them."""
    rewards: dict[str, NDArray[np.float32]]
    """By judge: reward of every test session, (N,), after the last fit."""
    agent: Agent | None
    """The agent as it was tested; None for the oracle."""


def summarise(result: EvaluationResult) -> dict[str, float]:
    """Return the mean reward of a policy with its interval, and how its choices spread over items, as plain numbers."""
    served = result.served
    length, left = ServedSummary.of(result).staying
    shown = served.items[served.mask]
    counts = np.bincount(shown, minlength=served.catalog.n_rows)[FIRST_ITEM_ROW:]
    return {
        **mean_record(result.reward),
        "coverage": catalogue_coverage(shown, len(served.catalog)),
        "gini": gini(counts),
        **_variety(served),
        **({} if length is None or left is None else {"length": length, "left": left}),
    }


def mean_record(mean: Mean) -> dict[str, float]:
    """Return a mean with its interval as plain numbers."""
    return {"mean": mean.mean, "low": mean.low, "high": mean.high, "error": mean.stderr, "sessions": mean.count}


def _variety(served: Sessions) -> dict[str, float]:
    """Variety within sessions, by the first single-valued item feature, or by item where there is none.

    diversity: distinct values in a session, as a share of its steps. repetition: share of steps with the value of the step
    before.
    """
    categories = (feature for feature in served.catalog.features.values() if isinstance(feature, Feature))
    feature = next((feature for feature in categories if feature.offsets is None), None)
    values = served.items if feature is None else feature.codes[served.items]
    mask = served.mask
    is_repeated = (values[:, 1:] == values[:, :-1]) & mask[:, 1:]
    ordered = np.sort(np.where(mask, values, -1), 1)
    is_distinct = (ordered >= 0) & (np.diff(ordered, axis=1, prepend=-1) != 0)
    return {
        "diversity": float((is_distinct.sum(1) / served.length).mean()),
        "repetition": float(is_repeated.sum() / max(int(mask[:, 1:].sum()), 1)),
    }
