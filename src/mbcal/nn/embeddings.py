"""Embeddings of items, features and behaviours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mbcal.distributed.group import SINGLE_WORKER, Group
from mbcal.errors import OptionError, nearest
from mbcal.nn.config import NetConfig
from mbcal.types import FIRST_ITEM_ROW, MASK_ROW, UNKNOWN_ROW, Catalog, Feature, SessionTensors


class Embedding(nn.Embedding):
    """torch's, with a gradient that needs no sorting on a GPU: rows are added where they belong, or counted by a product."""

    FEW = 64
    """Rows up to which a product is faster than many additions to one place."""

    def forward(self, rows: Tensor) -> Tensor:
        if not self.weight.is_cuda or not torch.is_grad_enabled():
            return super().forward(rows)
        found: Tensor = EmbeddingLookup.apply(self.weight, rows)  # type: ignore[no-untyped-call]
        return found


class EmbeddingLookup(torch.autograd.Function):
    """Rows of a table, with that gradient."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.count = len(weight)
        return nn.functional.embedding(rows, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        rows, grad = ctx.saved_tensors[0].flatten(), grads[0].flatten(0, -2)
        if ctx.count <= Embedding.FEW:
            places = torch.arange(ctx.count, device=rows.device).unsqueeze(1) == rows
            return places.to(grad.dtype) @ grad, None
        return grad.new_zeros(ctx.count, grad.shape[1]).index_add_(0, rows, grad), None


class ItemEmbedding(nn.Module):
    """Emb(a): embeddings of the item's id and features, concatenated; several values of a feature are averaged.

    An id that no session has shown means nothing, so it is read as the unknown one, which stands for the average item.
    """

    table: Tensor | None
    seen: Tensor

    def __init__(self, catalog: Catalog, config: NetConfig) -> None:
        super().__init__()
        features = config.features or ()
        require_features(catalog, features)
        self.id = Embedding(catalog.n_rows, config.embedding)
        self.features = nn.ModuleList(_FeatureEmbedding(catalog.features[name], config.embedding) for name in features)
        self.size = config.embedding * (1 + len(features))
        self.register_buffer("table", None, persistent=False)
        self.register_buffer("seen", torch.ones(catalog.n_rows, dtype=torch.bool))

    @torch.no_grad()
    def mark_seen(self, shown: Tensor, first: bool) -> None:
        """Before a fit on sessions that show these rows (rows,): ids seen for the first time begin as the average item."""
        if first:
            self.seen.copy_(shown)
        else:
            new = shown & ~self.seen
            self.id.weight[new] = self.id.weight[UNKNOWN_ROW].clone()
            self.seen |= shown
        self.seen[MASK_ROW] = True

    @torch.no_grad()
    def fill_unknown(self) -> None:
        """After a fit: an item nobody has seen is the average of those seen."""
        known = self.seen.clone()
        known[:FIRST_ITEM_ROW] = False
        if not self.seen[UNKNOWN_ROW] and bool(known.any()):
            self.id.weight[UNKNOWN_ROW] = self.id.weight[known].mean(0)

    def cache_table(self) -> None:
        """From now on look whole embeddings up in one table: for networks that learn no more."""
        self.table = self(torch.arange(self.id.num_embeddings, device=self.id.weight.device))

    def forward(self, items: Tensor) -> Tensor:
        """Catalogue rows (…) -> (…, size)."""
        if self.table is not None:
            return nn.functional.embedding(items, self.table)
        ids = torch.where(self.seen[items], items, UNKNOWN_ROW)
        return torch.cat([self.id(ids), *(feature(items) for feature in self.features)], -1)


def require_features(catalog: Catalog, names: Sequence[str]) -> None:
    """Refuse features the catalogue does not have."""
    for name in names:
        if name not in catalog.features:
            known = ", ".join(catalog.features) or "none"
            raise OptionError(f"features: no {name!r}; the catalogue has {known}.{nearest(name, catalog.features)}")


class _FeatureEmbedding(nn.Module):
    """The mean embedding of an item's values of one feature; zero where it has none."""

    codes: Tensor
    offsets: Tensor

    def __init__(self, feature: Feature, size: int) -> None:
        super().__init__()
        self.embedding = Embedding(feature.cardinality, size)
        self.single = feature.offsets is None
        offsets = np.arange(feature.n_rows + 1) if feature.offsets is None else feature.offsets
        # derived from the catalogue, so no part of the weights on disk
        self.register_buffer("codes", torch.from_numpy(feature.codes), persistent=False)
        self.register_buffer("offsets", torch.from_numpy(offsets.astype(np.int32)), persistent=False)

    def forward(self, items: Tensor) -> Tensor:
        if self.single:
            values: Tensor = self.embedding(self.codes[items])
            return values
        # One mean an item of the catalogue, then a look-up: items come up many times in a batch, and the most tagged item
        # has a hundred times the values of the usual one, so that padding each look-up to the longest would cost far more.
        means = nn.functional.embedding_bag(
            self.codes, self.embedding.weight, self.offsets, mode="mean", include_last_offset=True
        )
        return nn.functional.embedding(items, means)


def mark_seen_items(net: nn.Module, sessions: SessionTensors, first: bool, group: Group = SINGLE_WORKER) -> None:
    """Tell every item embedding within which items the sessions show."""
    workers = torch.zeros(sessions.catalog.n_rows, dtype=torch.int32, device=sessions.device)
    workers[sessions.items.flatten().long()] = 1
    workers[sessions.history_items.flatten().long()] = 1
    workers[MASK_ROW] = 0  # the padding
    group.all_reduce_sum(workers)
    shown = workers > 0
    for module in net.modules():
        if isinstance(module, ItemEmbedding):
            module.mark_seen(shown.to(module.seen.device), first)


def fill_unknown_items(net: nn.Module) -> None:
    """The other end of a fit."""
    for module in net.modules():
        if isinstance(module, ItemEmbedding):
            module.fill_unknown()
