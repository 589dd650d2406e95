"""Numbers and vectors in item embeddings: standardised by the items seen, missing values flagged."""

from __future__ import annotations

import numpy as np
import torch

from mbcal import Catalog, Feature
from mbcal.nn.config import NetConfig
from mbcal.nn.embeddings import DenseFeature, ItemEmbedding
from mbcal.nn.recurrent import RecurrentNet
from mbcal.scoring.item_projection import MAX_DEVIATIONS
from mbcal.types import NumberFeature, VectorFeature
from tests.support.batches import LABELS

ITEMS = 8
CATALOG = Catalog(
    tuple(f"item {k}" for k in range(ITEMS)),
    {
        "kind": Feature.single("kind", [f"kind {k % 2}" for k in range(ITEMS)]),
        "words": NumberFeature.create("words", [100.0 * k if k != 3 else None for k in range(ITEMS - 1)] + [1e9]),
        "embedding": VectorFeature.create("embedding", [[k, 5.0, -k] if k != 4 else None for k in range(ITEMS)]),
    },
)
CONFIG = NetConfig(hidden=6, embedding=5, features=("kind", "words", "embedding"))


def embedding(catalog: Catalog = CATALOG) -> ItemEmbedding:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return ItemEmbedding(catalog, CONFIG)


def occurs(*items: int) -> torch.Tensor:
    rows = torch.zeros(CATALOG.n_rows, dtype=torch.bool)
    rows[[item + 2 for item in items]] = True
    return rows


def test_statistics_are_those_of_the_items_seen_and_stay() -> None:
    items = embedding()
    items.mark_seen(occurs(0, 1, 2, 3), first=True)
    words, vectors = items.features[1], items.features[2]
    assert isinstance(words, DenseFeature)
    np.testing.assert_allclose(words.mean, [100.0])  # of 0, 100 and 200: item 3 has no number
    np.testing.assert_allclose(words.deviation, [np.std([0, 100, 200])], rtol=1e-6)
    np.testing.assert_allclose(vectors.mean, [1.5, 5.0, -1.5])
    np.testing.assert_allclose(vectors.deviation[1], 1.0)  # a constant is not divided by 0
    items.mark_seen(occurs(5, 6, 7), first=False)
    np.testing.assert_allclose(words.mean, [100.0])
    assert {"features.1.mean", "features.2.deviation"} <= set(items.state_dict())
    assert "features.1.numbers" not in items.state_dict()  # it is in the catalogue


@torch.no_grad()
def test_missing_is_a_flag_and_far_values_are_clipped() -> None:
    items = embedding()
    items.mark_seen(occurs(0, 1, 2, 3), first=True)
    rows = items(torch.arange(CATALOG.n_rows))
    words, projection = rows[:, 10:15], items.features[1].projection
    np.testing.assert_allclose(words[2 + 3], projection.weight[:, 1] + projection.bias, rtol=1e-6)
    np.testing.assert_allclose(words[2 + 1], projection.bias, atol=1e-7)  # at the mean
    np.testing.assert_allclose(words[2 + 7], MAX_DEVIATIONS * projection.weight[:, 0] + projection.bias, rtol=1e-6)
    for row in (0, 1):  # the masking and the unknown item have no values
        np.testing.assert_allclose(words[row], words[2 + 3])
    assert rows.isfinite().all()


@torch.no_grad()
def test_tables_score_numbers_and_vectors_as_the_network_does() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = RecurrentNet(CATALOG, LABELS, CONFIG, 3)
    net.items.mark_seen(occurs(0, 1, 2, 3, 4, 5), first=True)
    hidden, previous = torch.randn(2, 6), torch.tensor([0, 3])
    candidates = torch.arange(CATALOG.n_rows).expand(2, -1).int()
    scores = net.scoring_tables().score(hidden, previous, candidates)
    for item in range(CATALOG.n_rows):
        outputs, _ = net.forward_step((hidden,), candidates[:, item], previous)
        assert torch.allclose(scores[:, item], outputs, atol=1e-5)


@torch.no_grad()
def test_the_order_of_items_does_not_matter() -> None:
    order = np.random.default_rng(0).permutation(ITEMS)
    kind, words, vectors = CATALOG.features.values()
    shuffled = Catalog(
        tuple(CATALOG.items[k] for k in order),
        {
            "kind": Feature.single("kind", [kind.values(k + 2)[0] for k in order]),
            "words": NumberFeature.create("words", words.numbers[order + 2]),  # type: ignore[union-attr]
            "embedding": VectorFeature("embedding", vectors.vectors[np.r_[0, 1, order + 2]]),  # type: ignore[union-attr]
        },
    )
    one, other = embedding(), embedding(shuffled)
    one.mark_seen(occurs(0, 2, 4, 6), first=True)
    other.mark_seen(occurs(*(int(np.flatnonzero(order == k)[0]) for k in (0, 2, 4, 6))), first=True)
    features = one(torch.arange(2, ITEMS + 2))[order][:, 5:], other(torch.arange(2, ITEMS + 2))[:, 5:]
    assert torch.allclose(*features, atol=1e-5)
