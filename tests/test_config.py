"""ExperimentConfig to dictionaries and back, and every wrong key named."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from mbcal import MBCALConfig, NetConfig, SimulatorConfig, TrainingConfig
from mbcal.config import dotted_names, from_dict, to_dict
from mbcal.errors import OptionError


@pytest.mark.parametrize(
    "config",
    [
        MBCALConfig(net=NetConfig(features=("a", "b")), training=TrainingConfig(epochs=3), gamma=0.5),
        SimulatorConfig(),
        SimulatorConfig("transformer", features=("x",)),
    ],
)
def test_there_and_back_through_json(config: Any) -> None:
    assert from_dict(type(config), json.loads(json.dumps(to_dict(config)))) == config


def test_what_is_left_out_keeps_its_default() -> None:
    assert from_dict(MBCALConfig, {"net": {"hidden": 5}}) == MBCALConfig(net=NetConfig(hidden=5))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"gama": 0.9}, r"^gama: unknown; .*Did you mean 'gamma'\?"),
        ({"net": {"hiden": 3}}, r"^net\.hiden: unknown; .*Did you mean 'hidden'\?"),
        ({"net": {"hidden": "many"}}, r"^net\.hidden: must be a whole number, got 'many'"),
        ({"net": {"hidden": True}}, r"^net\.hidden: must be a whole number, got True"),
        ({"net": {"hidden": 0}}, "hidden: must be at least 1"),
        (
            {"net": {"cell": "gruu"}},
            r"^net\.cell: 'gruu' is unknown; known are gru, lstm, transformer\. Did you mean 'gru'\?",
        ),
        ({"net": {"features": "a"}}, r"^net\.features: must be a list"),
        ({"net": {"features": [1]}}, r"^net\.features: must be text, got 1"),
        ({"net": 3}, r"^net: must be a table of settings, got 3"),
        ({"training": {"betas": [0.9]}}, r"^training\.betas: must hold 2 values, got 1"),
        ({"gamma": None}, r"^gamma: must be a number, got None"),
    ],
    ids=str,
)
def test_wrong_settings_are_named(values: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        from_dict(MBCALConfig, values)


def test_whole_numbers_are_numbers_too() -> None:
    assert from_dict(MBCALConfig, {"gamma": 1}).gamma == 1.0


@dataclass(frozen=True)
class Either:
    share: float | Literal["auto"] | None = None


def test_a_setting_may_be_of_two_kinds() -> None:
    for given, meant in ((1, 1.0), (0.3, 0.3), ("auto", "auto"), (None, None)):
        assert from_dict(Either, {"share": given}).share == meant
    with pytest.raises(OptionError, match=r"^share: must be a number, or one of auto; got 'autom'"):
        from_dict(Either, {"share": "autom"})


def test_settings_by_their_path() -> None:
    assert dotted_names(MBCALConfig)[:4] == ["net", "net.cell", "net.hidden", "net.embedding"]
    assert {"training.betas", "gamma"} <= set(dotted_names(MBCALConfig))
