"""Embeddings of items, features and behaviours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mbcal.distributed.group import SINGLE_WORKER, Group
from mbcal.errors import ModelError, OptionError, nearest
from mbcal.nn.config import NetConfig
from mbcal.nn.growth import grow_rows, padded_rows
from mbcal.scoring.item_projection import MAX_DEVIATIONS
from mbcal.types import (
    FIRST_ITEM_ROW,
    MASK_ROW,
    UNKNOWN_ROW,
    AnyFeature,
    Catalog,
    Feature,
    NumberFeature,
    SessionTensors,
    VectorFeature,
)

MIN_DEVIATION = 1e-8
"""A standard deviation up to this counts as 1."""


class Embedding(nn.Embedding):
    """`torch.nn.Embedding` with small initial values, and a faster gradient on a GPU, which does not sort the rows first.

    Args:
        rows: Rows of the table.
        size: Width of each row.
        scale: Standard deviation of the initial values.
    """

    def __init__(self, rows: int, size: int, scale: float) -> None:
        super().__init__(rows, size)
        with torch.no_grad():
            self.weight.mul_(scale)

    def forward(self, rows: Tensor) -> Tensor:
        """Rows (…) -> (…, embedding)."""
        if not self.weight.is_cuda or not torch.is_grad_enabled():
            return super().forward(rows)
        embedded: Tensor = EmbeddingLookup.apply(self.weight, rows)  # type: ignore[no-untyped-call]
        return embedded


class EmbeddingLookup(torch.autograd.Function):
    """Rows (…) of a table (N, D) -> (…, D). The gradient is a matrix product for small tables, else atomic additions."""

    MAX_PRODUCT_ROWS = 64
    """Largest table for which the product is faster: there many additions would meet in the same row."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.count = len(weight)
        return nn.functional.embedding(rows, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        rows, grad = ctx.saved_tensors[0].flatten(), grads[0].flatten(0, -2)
        if ctx.count <= EmbeddingLookup.MAX_PRODUCT_ROWS:
            one_hot = torch.arange(ctx.count, device=rows.device).unsqueeze(1) == rows
            return one_hot.to(grad.dtype) @ grad, None
        return grad.new_zeros(ctx.count, grad.shape[1]).index_add_(0, rows, grad), None


class ItemEmbedding(nn.Module):
    """Emb(a): embeddings of an item's id and of its features, concatenated.

    Categories are embedded, several values of one item averaged; numbers and vectors are standardised and projected.

    An id that occurred in no training session has learned nothing. It is read as the unknown item, whose embedding is the
    mean over the seen items.

    Args:
        catalog: The items.
        config: Embedding width, and which features to read.

    Raises:
        OptionError: If the catalogue lacks one of the features.
    """

    table: Tensor | None
    """(rows, size) all embeddings, once `cache_table` was called."""
    seen: Tensor
    """(rows,) bool, true where a row occurred in training."""

    def __init__(self, catalog: Catalog, config: NetConfig) -> None:
        super().__init__()
        features = config.features or ()
        require_features(catalog, features)
        self.id = Embedding(catalog.n_rows, config.embedding, config.embedding_scale)
        self.features = nn.ModuleList(_feature_module(catalog.features[name], config) for name in features)
        self.names, self.size = tuple(features), config.embedding * (1 + len(features))
        self.register_buffer("table", None, persistent=False)
        self.register_buffer("seen", torch.ones(catalog.n_rows, dtype=torch.bool))

    @torch.no_grad()
    def mark_seen(self, occurs: Tensor, first: bool) -> None:
        """Prepare a fit: mark the rows that occur in its sessions.

        Args:
            occurs: (rows,) bool, true where a row occurs.
            first: Whether this is the first fit. In later ones, rows new to the network begin with the embedding of the
                unknown item.
        """
        if first:
            self.seen.copy_(occurs)
            for feature in self.features:
                if isinstance(feature, DenseFeature):
                    feature.standardise(occurs)
        else:
            new = occurs & ~self.seen
            self.id.weight[new] = self.id.weight[UNKNOWN_ROW].clone()
            self.seen |= occurs
        self.seen[MASK_ROW] = True

    @torch.no_grad()
    def fill_unknown(self) -> None:
        """Finish a fit: set the unknown item to the mean of the seen ones, unless it was itself trained on."""
        seen_items = self.seen.clone()
        seen_items[:FIRST_ITEM_ROW] = False
        if not self.seen[UNKNOWN_ROW] and bool(seen_items.any()):
            self.id.weight[UNKNOWN_ROW] = self.id.weight[seen_items].mean(0)

    @torch.no_grad()
    def grow(self, catalog: Catalog) -> None:
        """Append rows for new items: ids as the unknown item's, features as the extended catalogue has them."""
        grow_rows(self.id.weight, catalog.n_rows, self.id.weight[UNKNOWN_ROW])
        self.id.num_embeddings = catalog.n_rows
        seen_before = self.seen
        self.seen = padded_rows(self.seen, catalog.n_rows)
        for name, feature in zip(self.names, self.features, strict=True):
            if isinstance(feature, CategoryFeature | DenseFeature):
                feature.describe(catalog.features[name], seen_before)
        if self.table is not None:
            self.table = None
            self.cache_table()

    def cache_table(self) -> None:
        """Compute all embeddings once and look them up from now on. For networks that are not trained any more."""
        self.table = self(torch.arange(self.id.num_embeddings, device=self.id.weight.device))

    def forward(self, items: Tensor) -> Tensor:
        """Catalogue rows (…) -> (…, size)."""
        if self.table is not None:
            return nn.functional.embedding(items, self.table)
        ids = torch.where(self.seen[items], items, UNKNOWN_ROW)
        return torch.cat([self.id(ids), *(feature(items) for feature in self.features)], -1)


def require_features(catalog: Catalog, names: Sequence[str]) -> None:
    """Raise OptionError if the catalogue lacks a feature."""
    for name in names:
        if name not in catalog.features:
            known = ", ".join(catalog.features) or "none"
            raise OptionError(f"features: no {name!r}; the catalogue has {known}.{nearest(name, catalog.features)}")


def _feature_module(feature: AnyFeature, config: NetConfig) -> CategoryFeature | DenseFeature:
    return CategoryFeature(feature, config) if isinstance(feature, Feature) else DenseFeature(feature, config)


class DenseFeature(nn.Module):
    """A number or a vector of every item, standardised and projected to the width of an embedding.

    ::

        z = clip((v - mean) / deviation)      by dimension, over the items seen in the first fit; 0 where v is missing
        W [z, missing] + bias                 missing is 1 for an item without a value, else 0

    Args:
        feature: The numbers or vectors.
        config: Embedding width and scale.
    """

    numbers: Tensor
    """(rows, D) NaN where missing."""
    mean: Tensor
    """(D,)."""
    deviation: Tensor
    """(D,)."""

    def __init__(self, feature: NumberFeature | VectorFeature, config: NetConfig) -> None:
        super().__init__()
        size = feature.dense.shape[1]
        # not persistent: derived from the catalogue, which is saved with the model
        self.register_buffer("numbers", torch.from_numpy(feature.dense), persistent=False)
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("deviation", torch.ones(size))
        self.projection = nn.Linear(size + 1, config.embedding)
        with torch.no_grad():  # so that projections are initially as large as embeddings
            nn.init.normal_(self.projection.weight[:, :size], std=config.embedding_scale / size**0.5)
            nn.init.normal_(self.projection.weight[:, size:], std=config.embedding_scale)
            self.projection.bias.zero_()

    def describe(self, feature: AnyFeature, _: Tensor) -> None:
        """Take the numbers or vectors of a grown catalogue."""
        if isinstance(feature, Feature) or feature.dense.shape[1] != len(self.mean):
            raise ModelError(f"feature {feature.name!r}: the model knows it otherwise; fit one on this data")
        self.numbers = torch.from_numpy(feature.dense).to(self.numbers.device)

    @torch.no_grad()
    def standardise(self, occurs: Tensor) -> None:
        """Fit mean and deviation to the rows that occur, (rows,) bool, and are not missing.

        Warm starts keep both, because the weights depend on them.
        """
        numbers = self.numbers[occurs.to(self.numbers.device) & ~self.numbers[:, 0].isnan()].double()
        if len(numbers):
            deviation = numbers.std(0, correction=0)
            self.mean.copy_(numbers.mean(0))
            self.deviation.copy_(torch.where(deviation > MIN_DEVIATION, deviation, 1.0))

    def forward(self, items: Tensor) -> Tensor:
        """Catalogue rows (…) -> (…, embedding)."""
        numbers = nn.functional.embedding(items, self.numbers)
        missing = numbers[..., :1].isnan()
        scaled = ((numbers - self.mean) / self.deviation).clamp(-MAX_DEVIATIONS, MAX_DEVIATIONS)
        projected: Tensor = self.projection(torch.cat([torch.where(missing, 0, scaled), missing.to(scaled.dtype)], -1))
        return projected


class CategoryFeature(nn.Module):
    """The mean embedding of an item's values of one feature; zero for an item without any."""

    codes: Tensor
    """(values,) codes of all items, one item after another."""
    offsets: Tensor
    """(rows + 1,) where each item's codes begin."""

    def __init__(self, feature: Feature, config: NetConfig) -> None:
        super().__init__()
        self.embedding = Embedding(feature.cardinality, config.embedding, config.embedding_scale)
        self.single = feature.offsets is None
        # not persistent: derived from the catalogue, which is saved with the model
        self.register_buffer("codes", torch.from_numpy(feature.codes), persistent=False)
        self.register_buffer("offsets", torch.from_numpy(_offsets(feature)), persistent=False)

    @torch.no_grad()
    def describe(self, feature: AnyFeature, seen: Tensor) -> None:
        """Take the values of a grown catalogue; new values begin as an unknown one.

        Args:
            feature: The same feature, its vocabulary extended.
            seen: (rows before,) bool, the rows that occurred in training.
        """
        if not isinstance(feature, Feature):
            raise ModelError(f"feature {feature.name!r}: the model knows it as a category; fit one on this data")
        grow_rows(self.embedding.weight, feature.cardinality, self.unknown_value(seen))
        self.embedding.num_embeddings = feature.cardinality
        self.codes = torch.from_numpy(feature.codes).to(self.codes.device)
        self.offsets = torch.from_numpy(_offsets(feature)).to(self.codes.device)

    @torch.no_grad()
    def unknown_value(self, seen: Tensor) -> Tensor:
        """Return the embedding of a value that the network has not met, (embedding,).

        It is that of the unknown value, or the mean over those it was trained on if no value was unknown in training.

        Args:
            seen: (rows,) bool, the rows that occurred in training.
        """
        seen = seen.clone()
        seen[MASK_ROW] = False
        sizes = (self.offsets[1:] - self.offsets[:-1]).long()
        codes = torch.from_numpy(np.unique(self.codes[torch.repeat_interleave(seen, sizes)].cpu())).long()
        if UNKNOWN_ROW in codes or not len(codes):
            return self.embedding.weight[UNKNOWN_ROW]
        return self.embedding.weight[codes].mean(0)

    def forward(self, items: Tensor) -> Tensor:
        """Catalogue rows (…) -> (…, embedding)."""
        if self.single:
            values: Tensor = self.embedding(self.codes[items])
            return values
        # Means of the whole catalogue, then a look-up. Items occur many times in a batch, and the item with the most values
        # may have a hundred times the usual number, so padding every look-up to the longest would cost far more.
        means = nn.functional.embedding_bag(
            self.codes, self.embedding.weight, self.offsets, mode="mean", include_last_offset=True
        )
        return nn.functional.embedding(items, means)


def _offsets(feature: Feature) -> NDArray[np.int32]:
    offsets = np.arange(feature.n_rows + 1) if feature.offsets is None else feature.offsets
    return offsets.astype(np.int32)


def mark_seen_items(net: nn.Module, sessions: SessionTensors, first: bool, group: Group = SINGLE_WORKER) -> None:
    """Mark the items of all sessions as seen in every item embedding of a network. Call before a fit.

    Args:
        net: The network.
        sessions: This worker's sessions, histories included.
        first: Whether this is the network's first fit (`ItemEmbedding.mark_seen`).
        group: The workers that share the fit.
    """
    n_workers = torch.zeros(
        sessions.catalog.n_rows, dtype=torch.int32, device=sessions.device
    )  # in whose sessions a row occurs
    n_workers[sessions.items.flatten().long()] = 1
    n_workers[sessions.history_items.flatten().long()] = 1
    n_workers[MASK_ROW] = 0  # padding
    group.all_reduce_sum(n_workers)
    occurs = n_workers > 0
    for module in net.modules():
        if isinstance(module, ItemEmbedding):
            module.mark_seen(occurs.to(module.seen.device), first)


def fill_unknown_items(net: nn.Module) -> None:
    """Set the unknown item in every item embedding of a network. Call after a fit."""
    for module in net.modules():
        if isinstance(module, ItemEmbedding):
            module.fill_unknown()
