"""Unknown items as rows of tables: missing vectors cost nothing, and add what the network adds for them."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from mbcal.errors import InputError
from mbcal.scoring.item_projection import CategoryProjection, DenseProjection, ItemProjection, JointProjection
from mbcal.types.feature_values import FeatureDeclaration

LENGTH, WIDTH = 4096, 6


def dense(length: int, seed: int) -> DenseProjection:
    random = np.random.default_rng(seed)
    mean, deviation = random.normal(size=length), random.uniform(0.5, 2, length)
    weight = random.normal(size=(length + 1, WIDTH)) / length
    return DenseProjection(*(array.astype(np.float32) for array in (mean, deviation, weight)))


WORDS, EMBEDDING, AGE = dense(1, 1), dense(LENGTH, 2), dense(1, 3)
BASE = np.arange(WIDTH, dtype=np.float32)
CATEGORY = CategoryProjection(np.eye(3, dtype=np.float32), np.full((3, WIDTH), 0.5, np.float32), np.zeros((), np.float32))
FEATURES = {"words": WORDS, "embedding": EMBEDDING, "age": AGE, "category": CATEGORY}
PROJECTION = JointProjection({"term": ItemProjection(BASE, FEATURES)}, {"category": ["sport"]})


def expected(item: dict[str, object]) -> np.ndarray:
    row = BASE + 0.5
    for name, feature in (("words", WORDS), ("embedding", EMBEDDING), ("age", AGE)):
        if name in item:
            scaled = (np.asarray(item[name], np.float32).reshape(-1) - feature.mean) / feature.deviation
            row = row + np.clip(scaled, -10, 10) @ feature.weight[:-1]
        else:
            row = row + feature.weight[-1]
    return row


def test_rows_of_items_with_and_without_vectors() -> None:
    vector = np.random.default_rng(0).normal(size=LENGTH).tolist()
    full = {"words": 3.0, "embedding": vector, "age": 2.0}
    items = [{name: full[name] for name in names} for names in ([], ["words"], ["embedding"], ["age", "words"], full)]
    together = PROJECTION.rows(items)
    for item, row in zip(items, together, strict=True):
        assert row == pytest.approx(expected(item), abs=1e-4)
        assert np.array_equal(PROJECTION.rows([item])[0], row)  # other items never change the last bit


def test_missing_vectors_take_no_memory() -> None:
    items = [{"words": float(number)} for number in range(1000)]
    tracemalloc.start()
    rows = PROJECTION.rows(items)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert rows[7] == pytest.approx(expected(items[7]), abs=1e-4)
    assert peak < 1 << 20  # 4096 numbers for each would be 16 MiB


def test_vectors_of_whole_numbers_are_vectors() -> None:
    declaration = FeatureDeclaration("embedding", "vector", 3)
    numbers = declaration.read([1, 2.5, 2**65])
    assert numbers == [1.0, 2.5, float(2**65)]
    assert all(type(number) is float for number in numbers)
    for wrong in ([1, 2, 10**400], [1, 2, 1e39], [1, 2, float("nan")], [1, 2, True], [1, 2, "3"]):
        with pytest.raises(InputError, match="feature 'embedding': must be a finite number, got"):
            declaration.read(wrong)
