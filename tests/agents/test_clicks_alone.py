"""Models of clicks alone: a warning, scores shrunk by support, and probabilities corrected for sampled negatives."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from mbcal import GRU4Rec, SessionConfig, Simulator, Store, TableLog, load, prepare
from mbcal.agents.ranking import ClicksAloneWarning
from mbcal.data.behaviour_rules import Labels, NextClick
from mbcal.data.clicks import negative_rate
from mbcal.errors import OptionError
from mbcal.registry.registry import Registry
from mbcal.scoring.sampled_negatives import undo_sampling
from mbcal.scoring.support import support_weights
from mbcal.types import FIRST_ITEM_ROW
from tests.support.logs import Row, write_rows

BEGIN = 1_700_000_000
ROLES = {"user": "user", "item": "item", "time": "time"}
SMALL = {"epochs": 12, "hidden": 8, "embedding": 8, "learning_rate": 0.02, "device": "cpu"}
RARE = 30


def _clicks(count: int = 2500) -> list[Row]:
    """Twenty common items that are read for seconds or minutes; thirty that were clicked once, and then read for long."""
    random_ = random.Random(0)
    rows, time, rare = [], BEGIN, list(range(RARE))
    for k in range(count):
        if k % 80 == 40 and rare:
            item, dwell = f"rare{rare.pop()}", 900
        else:
            number = random_.randrange(20)
            item, dwell = f"common{number}", random_.choice((3, 20, 60, 200) if number % 2 else (3, 3, 20, 60))
        rows.append(Row(f"u{k // 12}", item, time, "", ""))
        time += dwell
    return rows


def _dwell_store(folder: Path, **options: int) -> Store:
    log = TableLog(
        write_rows(folder / "log.csv", _clicks()), **ROLES, behaviour="next-click", rule=NextClick((5.0, 30.0, 120.0))
    )
    return prepare(log, folder / f"store{options}", SessionConfig(horizon=12, split=(0, 1, 0), gap=30.0, **options))


def _share_of_rare(lists: list[list[str]]) -> float:
    return float(np.mean([any(item.startswith("rare") for item in items) for items in lists]))


def test_an_item_clicked_once_does_not_fill_the_lists(tmp_path: Path) -> None:
    store = _dwell_store(tmp_path)
    agent = GRU4Rec(**SMALL).fit(store)
    assert any("clicks alone" in warning for warning in agent.warnings)
    histories = [[(f"common{k % 20}", "5..30")] for k in range(60)]
    with pytest.warns(ClicksAloneWarning, match="learned from clicks alone"):
        shrunk = agent.recommend(histories, k=5)
    support, agent.support = agent.support, None
    plain = agent.recommend(histories, k=5)
    assert _share_of_rare(plain[:]) > 0.9  # what it looked like before
    assert _share_of_rare(shrunk[:]) < 0.1
    agent.support = support
    rare = [f"rare{k}" for k in range(3)]
    # re-ranking a given list is what such a model can do: as it is, and without a warning
    ranked = [[entry.score for entry in agent.rank(history, rare)[:2]] for history in histories]
    np.testing.assert_allclose(agent.recommend(histories, k=2, candidates=rare).scores, ranked, atol=1e-5)
    agent.save(tmp_path / "model")
    again = load(tmp_path / "model", "cpu")
    assert again.warnings == agent.warnings
    with pytest.warns(ClicksAloneWarning):
        assert again.recommend(histories, k=5)[:] == shrunk[:]
    registry = Registry(tmp_path / "registry")
    version = registry.publish(tmp_path / "model")
    published = load(registry.open(version).path, "cpu")
    assert published.support is not None
    np.testing.assert_array_equal(published.support, agent.support)


def test_with_negatives_nothing_is_shrunk(tmp_path: Path) -> None:
    agent = GRU4Rec(**SMALL).fit(_dwell_store(tmp_path, negatives=3))
    assert agent.support is None
    lists = agent.recommend([[("common1", "5..30")]] * 3, k=5)[:]  # warnings are errors in tests
    assert _share_of_rare(lists) < 0.5
    agent.save(tmp_path / "model")
    assert not (tmp_path / "model" / "support.safetensors").exists()


def test_weights_by_support() -> None:
    weights = support_weights(np.array([0, 0, 10, 30, 1]), 7)
    assert weights.tolist() == pytest.approx([0, 0, 0.5, 0.75, 1 / 11, 0, 0])


def test_corrected_probabilities_are_those_of_the_choice(tmp_path: Path) -> None:
    """Users choose one of 40 items at a time with known probabilities; the log has their choices, the store negatives."""
    items, chosen, random_ = 40, np.arange(1, 41) / np.arange(1, 41).sum(), np.random.default_rng(0)
    rows = [Row(f"first{k}", f"i{k}", BEGIN, "", "") for k in range(items)]
    choices = random_.choice(items, 20_000, p=chosen)
    rows += [Row(f"u{k}", f"i{item}", BEGIN + 60 + k, "", "") for k, item in enumerate(choices)]
    config = SessionConfig(horizon=8, split=(0.01, 0.98, 0.01), negatives=4)
    log = TableLog(write_rows(tmp_path / "log.parquet", rows), **ROLES, behaviour=None, rule=Labels({"click": 1.0}))
    store = prepare(log, tmp_path / "store", config)
    assert negative_rate(store.manifest) == pytest.approx(4 / 39, rel=4 * np.sqrt(5 / 4 / 20_000))
    counts = np.zeros((items, 2))
    for part in ("simulator", "train", "test"):
        for shard in store.shards(part):
            np.add.at(counts, (shard.items - FIRST_ITEM_ROW, shard.behaviours), 1)
    truth = {f"i{k}": chosen[k] for k in range(items)}
    expected = np.array([truth[name] for name in store.catalog.items])
    sampled = counts / counts.sum(1, keepdims=True)
    corrected = undo_sampling(sampled, 1, negative_rate(store.manifest))[:, 0]
    assert np.abs(sampled[:, 0] - expected).max() > 0.1
    assert corrected == pytest.approx(expected, abs=0.006)
    assert corrected.sum() == pytest.approx(1.0, abs=0.02)
    tensor = undo_sampling(torch.from_numpy(sampled), 1, negative_rate(store.manifest))
    assert tensor.numpy()[:, 0] == pytest.approx(corrected)


def test_the_shift_is_one_of_log_odds() -> None:
    probabilities = np.array([[0.5, 0.2, 0.3], [0.01, 0.98, 0.01]])
    corrected = undo_sampling(probabilities, 2, 0.05)
    for behaviour in (0, 1):
        shift = np.log(corrected[:, behaviour] / corrected[:, 2]) - np.log(probabilities[:, behaviour] / probabilities[:, 2])
        assert shift == pytest.approx(np.log(0.05))
    assert corrected[:, 0] / corrected[:, 1] == pytest.approx(probabilities[:, 0] / probabilities[:, 1])
    assert corrected.sum(1) == pytest.approx(1)
    assert undo_sampling(probabilities, 2, 1.0) is probabilities
    np.testing.assert_allclose(undo_sampling(corrected, 2, 1 / 0.05), probabilities)  # repeated items: a rate above 1
    with pytest.raises(OptionError, match="rate: must be a positive number, got 0"):
        undo_sampling(probabilities, 2, 0.0)


def test_a_model_does_not_count_negatives(tmp_path: Path) -> None:
    """A popular item is scored alike at the start, right after a click, and after several `none`."""
    random_ = random.Random(2)
    rows = [Row(f"first{k}", f"i{k}", BEGIN, "", f"first{k}") for k in range(40)]
    for k in range(900):
        items = [int(40 * random_.random() ** 3) for _ in range(random_.randint(1, 4))]
        rows += [Row(f"u{k}", f"i{item}", BEGIN + 60 + 100 * k + 20 * n, "", f"s{k}") for n, item in enumerate(items)]
    log = TableLog(
        write_rows(tmp_path / "log.csv", rows), **ROLES, behaviour=None, rule=Labels({"click": 1.0}), session="session"
    )
    store = prepare(log, tmp_path / "store", SessionConfig(horizon=20, split=(0, 1, 0), negatives=4))
    agent = GRU4Rec(**SMALL, seed=0).fit(store)

    def score(*shown: tuple[str, str]) -> float:
        return agent.rank([], ["i0"], shown=shown)[0].score

    passed = [(f"i{k}", "none") for k in range(30, 34)]
    start = score()
    assert start > 0.4
    assert score(("i1", "click")) == pytest.approx(start, rel=0.2)
    assert score(*passed) == pytest.approx(start, rel=0.2)
    assert score(("i1", "click"), *passed) == pytest.approx(start, rel=0.2)


def test_a_simulator_expects_in_absolute_terms(tmp_path: Path) -> None:
    rows = [replace(row, behaviour="") for row in _clicks(600)]
    log = TableLog(write_rows(tmp_path / "log.csv", rows), **ROLES, behaviour=None, rule=Labels({"click": 1.0}))
    store = prepare(log, tmp_path / "store", SessionConfig(horizon=12, split=(0.5, 0.3, 0.2), negatives=2))
    simulator = Simulator(epochs=1, hidden=8, embedding=4, device="cpu").fit(store)
    simulator.save(tmp_path / "simulator")
    again = Simulator.load(tmp_path / "simulator", "cpu")
    batch = store.sessions("test").tensors()
    for judge in (simulator, again):
        assert judge.negative_rate == negative_rate(store.manifest)
        state = judge.begin(*batch.history)
        plain = judge.environment.expected_reward(state, batch.items)
        odds = plain / (1 - plain) * judge.negative_rate
        assert judge.expected_reward(state, batch.items).numpy() == pytest.approx((odds / (1 + odds)).numpy(), rel=1e-4)
    assert Counter(row.item for row in rows)["common1"] > 10
