"""Encoders and heads: the paper's architecture, no training.

::

    h_0 = user encoder                      from the history (default), the user's id, or nothing
    x_t = [Emb(b_{t-1}), Emb(a_t)]          an item's embedding is that of its id and of any of its features, side by side
    h_t = GRU(h_{t-1}, x_t)                 LSTM in simulators
    y_t = MLP(h_t)                          logits of behaviours, or one number

Sequences run through torch's own recurrent layers, which are fused. `gates` and `step` are the same arithmetic taken
apart: what the input adds to the gates depends on the item alone and on the behaviour alone, so scoring can keep both in
tables, and labels can branch from any hidden state.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
from torch import Tensor, nn

from mbcal import fused
from mbcal.errors import OptionError, nearest
from mbcal.group import ALONE, Group
from mbcal.scoring import CellTables, Tables
from mbcal.types import MASK, SPECIAL, UNKNOWN, Behaviours, Catalog, Feature, SessionTensors
from mbcal.unit import Unit

Cell = Literal["gru", "lstm", "transformer"]
"""The family of a network; the transformer lives in `attention.py`."""
UserEncoder = Literal["history", "id", "none"]

State = tuple[Tensor, ...]
"""(h,) of a GRU or (h, c) of an LSTM, each (…, H)."""


@dataclass(frozen=True)
class NetConfig:
    """Sizes and choices of one network."""

    cell: Cell = "gru"
    hidden: int = 32
    embedding: int = 32
    features: tuple[str, ...] = ()
    """Item features seen beside the id."""
    user: UserEncoder = "history"

    def __post_init__(self) -> None:
        for name in ("hidden", "embedding"):
            if not 1 <= getattr(self, name) <= 4096:
                raise OptionError(f"{name}: must be at least 1 and at most 4096, got {getattr(self, name)}")
        for name, known in (("cell", get_args(Cell)), ("user", get_args(UserEncoder))):
            value = getattr(self, name)
            if value not in known:
                raise OptionError(f"{name}: {value!r} is unknown; known are {', '.join(known)}.{nearest(value, known)}")


class Embedding(nn.Embedding):
    """torch's, with a gradient that needs no sorting on a GPU: rows are added where they belong, or counted by a product."""

    FEW = 64
    """Rows up to which a product is faster than many additions to one place."""

    def forward(self, rows: Tensor) -> Tensor:
        if not self.weight.is_cuda or not torch.is_grad_enabled():
            return super().forward(rows)
        found: Tensor = LookUp.apply(self.weight, rows)  # type: ignore[no-untyped-call]
        return found


class LookUp(torch.autograd.Function):
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
        require_features(catalog, config.features)
        self.id = Embedding(catalog.rows, config.embedding)
        self.features = nn.ModuleList(_Values(catalog.features[name], config.embedding) for name in config.features)
        self.size = config.embedding * (1 + len(config.features))
        self.register_buffer("table", None, persistent=False)
        self.register_buffer("seen", torch.ones(catalog.rows, dtype=torch.bool))

    @torch.no_grad()
    def meet(self, shown: Tensor, first: bool) -> None:
        """Before a fit on sessions that show these rows (rows,): ids seen for the first time begin as the average item."""
        if first:
            self.seen.copy_(shown)
        else:
            new = shown & ~self.seen
            self.id.weight[new] = self.id.weight[UNKNOWN].clone()
            self.seen |= shown
        self.seen[MASK] = True

    @torch.no_grad()
    def settle(self) -> None:
        """After a fit: an item nobody has seen is the average of those seen."""
        known = self.seen.clone()
        known[:SPECIAL] = False
        if not self.seen[UNKNOWN] and bool(known.any()):
            self.id.weight[UNKNOWN] = self.id.weight[known].mean(0)

    def fold(self) -> None:
        """From now on look whole embeddings up in one table: for networks that learn no more."""
        self.table = self(torch.arange(self.id.num_embeddings, device=self.id.weight.device))

    def forward(self, items: Tensor) -> Tensor:
        """Catalogue rows (…) -> (…, size)."""
        if self.table is not None:
            return nn.functional.embedding(items, self.table)
        ids = torch.where(self.seen[items], items, UNKNOWN)
        return torch.cat([self.id(ids), *(feature(items) for feature in self.features)], -1)


def require_features(catalog: Catalog, names: Sequence[str]) -> None:
    """Refuse features the catalogue does not have."""
    for name in names:
        if name not in catalog.features:
            known = ", ".join(catalog.features) or "none"
            raise OptionError(f"features: no {name!r}; the catalogue has {known}.{nearest(name, catalog.features)}")


class _Values(nn.Module):
    """The mean embedding of an item's values of one feature; zero where it has none."""

    codes: Tensor
    offsets: Tensor

    def __init__(self, feature: Feature, size: int) -> None:
        super().__init__()
        self.embedding = Embedding(feature.cardinality, size)
        self.single = feature.offsets is None
        offsets = np.arange(feature.rows + 1) if feature.offsets is None else feature.offsets
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


class Net(nn.Module):
    """What every network over sessions has: embeddings, and the verbs begin, forward, advance (defined by its family)."""

    def __init__(self, catalog: Catalog, behaviours: Behaviours, config: NetConfig) -> None:
        super().__init__()
        self.config, self.start = config, behaviours.start
        self.items = ItemEmbedding(catalog, config)
        self.behaviours = Embedding(len(behaviours) + 1, config.embedding)  # and the start symbol b_s

    def begin(self, user: Tensor, history_items: Tensor, history_behaviours: Tensor, history_length: Tensor) -> State:
        """The state before the first step of users (B,) with histories (B, H)."""
        raise NotImplementedError

    def forward(self, state: State, items: Tensor, behaviours: Tensor) -> Tensor:
        """Outputs (B, T, outputs) of sessions with items and behaviours (B, T); step t sees behaviours before t only."""
        raise NotImplementedError

    def advance(self, state: State, item: Tensor, previous: Tensor) -> tuple[Tensor, State]:
        """Outputs (B, outputs) for item (B,) shown after previous behaviour (B,), and the state after it."""
        raise NotImplementedError

    def merge(self, mask: Tensor, yes: State, no: State) -> State:
        """Session by session (B,) the one state or the other."""
        return tuple(torch.where(mask.unsqueeze(1), a, b) for a, b in zip(yes, no, strict=True))

    def inputs(self, items: Tensor, behaviours: Tensor) -> Tensor:
        """x = [Emb(b), Emb(a)]."""
        return torch.cat([self.behaviours(behaviours.int()), self.items(items)], -1)

    def previous(self, behaviours: Tensor) -> Tensor:
        """b_{t-1} for every step: the behaviours (B, T) moved on by one, the start symbol first."""
        first = torch.full_like(behaviours[:, :1], self.start)
        return torch.cat([first, behaviours[:, :-1]], 1)

    def run(self, batch: SessionTensors) -> Tensor:
        """Outputs for a batch as it was logged."""
        outputs: Tensor = self(self.begin(*batch.history), batch.items, batch.behaviours)
        return outputs

    @torch.no_grad()
    def snapshot(self) -> Self:
        """A copy that only answers: its weights never move, its item embeddings lie in one table."""
        copied = copy.deepcopy(self).eval().requires_grad_(False)
        copied.items.fold()
        for module in copied.modules():
            if isinstance(module, nn.RNNBase):
                module.flatten_parameters()
        return copied


class SequenceNet(Net):
    """One recurrent network over sessions: user encoder, step encoder, head with `outputs` numbers a step."""

    def __init__(self, catalog: Catalog, behaviours: Behaviours, config: NetConfig, outputs: int, users: int = 0) -> None:
        super().__init__(catalog, behaviours, config)
        if config.cell == "transformer":
            raise OptionError("cell: 'transformer' is for simulators; agents take gru or lstm")
        layer = nn.GRU if config.cell == "gru" else nn.LSTM
        self.cell = layer(config.embedding + self.items.size, config.hidden, batch_first=True)
        if config.user == "history":
            self.history = nn.GRU(config.embedding + self.items.size, config.hidden, batch_first=True)
        elif config.user == "id":
            if users < 1:
                raise OptionError("user: the 'id' encoder needs to know how many users there are")
            self.user = nn.Embedding(users + 1, config.hidden)  # the last row is for users never seen
        self.head = nn.Sequential(nn.Linear(config.hidden, config.hidden), nn.ReLU(), nn.Linear(config.hidden, outputs))

    def begin(self, user: Tensor, history_items: Tensor, history_behaviours: Tensor, history_length: Tensor) -> State:
        """h_0 of users (B,) with histories (B, H)."""
        if self.config.user == "history":
            hidden = self._read(history_items, history_behaviours, history_length)
        elif self.config.user == "id":
            hidden = self.user(user.clamp(max=self.user.num_embeddings - 1))
        else:
            hidden = torch.zeros(len(user), self.config.hidden, device=user.device)
        return self.started(hidden)

    def started(self, hidden: Tensor) -> State:
        """The state of a cell that begins with h_0."""
        return (hidden,) if self.config.cell == "gru" else (hidden, torch.zeros_like(hidden))

    def _read(self, items: Tensor, behaviours: Tensor, length: Tensor) -> Tensor:
        """Hidden state after the last step of each history; zero where there is none."""
        if items.shape[1] == 0:
            return torch.zeros(len(items), self.config.hidden, device=items.device)
        nothing = torch.zeros(len(items), self.config.hidden, device=items.device)
        return last_hidden(run_gru(self.history, self.inputs(items, behaviours), nothing), length)

    def forward(self, state: State, items: Tensor, behaviours: Tensor) -> Tensor:
        """Outputs (B, T, outputs) of sessions with items and behaviours (B, T); step t sees behaviours before t only."""
        outputs: Tensor = self.head(self._hidden(state, items, behaviours))
        return outputs

    def _hidden(self, state: State, items: Tensor, behaviours: Tensor) -> Tensor:
        """h_t (B, T, H) after every step."""
        inputs = self.inputs(items, self.previous(behaviours))
        if len(state) == 1:
            return run_gru(self.cell, inputs, state[0])
        hidden: Tensor = self.cell(inputs, tuple(part.unsqueeze(0) for part in state))[0]
        return hidden

    def standing(self, batch: SessionTensors) -> Tensor:
        """h_{t-1} (B, T, H): where the network stands before each logged step, its item not yet seen."""
        state = self.begin(*batch.history)
        return torch.cat([state[0].unsqueeze(1), self._hidden(state, batch.items, batch.behaviours)[:, :-1]], 1)

    def unseen(self, batch: SessionTensors) -> Tensor:
        """Outputs (B, T, outputs) where each logged step's own item is not told: what depends on the state alone."""
        gates = self.gates(torch.full_like(batch.items, MASK), self.previous(batch.behaviours))
        outputs: Tensor = self.head(self.step(gates, (self.standing(batch),))[0])
        return outputs

    def advance(self, state: State, item: Tensor, previous: Tensor) -> tuple[Tensor, State]:
        """Outputs (B, outputs) for item (B,) shown after previous behaviour (B,), and the state after it."""
        state = self.step(self.gates(item, previous), state)
        outputs: Tensor = self.head(state[0])
        return outputs, state

    def gates(self, items: Tensor, previous: Tensor) -> Tensor:
        """What item and previous behaviour (…) add to the gates: W_x x + bias, (…, gates · H)."""
        return nn.functional.linear(self.inputs(items, previous), *self._weights("ih"))

    @torch.no_grad()
    def tables(self) -> Tables:
        """The network for scoring; make them anew after every update."""
        if self.config.cell != "gru":
            raise OptionError("cell: only a GRU can be folded into tables")
        return self.folded()

    @torch.no_grad()
    def folded(self) -> Tables:
        """With a cell of either kind; what scores by tables knows a GRU's alone."""
        first, second = self.head[0], self.head[2]
        weights = [layer.get_parameter(part).clone() for layer in (first, second) for part in ("weight", "bias")]
        return Tables(
            cell=self._cell_tables(self.cell),
            head=(weights[0], weights[1], weights[2], weights[3]),
            history=self._cell_tables(self.history) if self.config.user == "history" else None,
            users=self.user.weight.clone() if self.config.user == "id" else None,
        )

    def _cell_tables(self, layer: nn.RNNBase) -> CellTables:
        items = self.items(torch.arange(self.items.id.num_embeddings, device=self.items.id.weight.device))
        weight, size = layer.get_parameter("weight_ih_l0"), self.config.embedding
        return CellTables(
            items=items @ weight[:, size:].T + layer.get_parameter("bias_ih_l0"),
            behaviours=self.behaviours.weight @ weight[:, :size].T,
            weight=layer.get_parameter("weight_hh_l0").clone(),
            bias=layer.get_parameter("bias_hh_l0").clone(),
        )

    def _weights(self, part: Literal["ih", "hh"]) -> tuple[Tensor, Tensor]:
        """Weight and bias of the input (ih) or hidden (hh) half of the cell."""
        return self.cell.get_parameter(f"weight_{part}_l0"), self.cell.get_parameter(f"bias_{part}_l0")

    def step(self, gates: Tensor, state: State) -> State:
        """One step of the cell from states (…, H); gates broadcast over them."""
        hidden = nn.functional.linear(state[0], *self._weights("hh"))
        if self.config.cell == "gru":
            reset_x, update_x, new_x = gates.chunk(3, -1)
            reset_h, update_h, new_h = hidden.chunk(3, -1)
            update = torch.sigmoid(update_x + update_h)
            new = torch.tanh(new_x + torch.sigmoid(reset_x + reset_h) * new_h)
            return (new + update * (state[0] - new),)
        take, forget, cell, out = (gates + hidden).chunk(4, -1)
        memory = torch.sigmoid(forget) * state[1] + torch.sigmoid(take) * torch.tanh(cell)
        return torch.sigmoid(out) * torch.tanh(memory), memory


def run_gru(layer: nn.RNNBase, inputs: Tensor, begin: Tensor) -> Tensor:
    """h_t (B, T, H) of inputs (B, T, X) after h_0 (B, H)."""
    if fused.runs_on(inputs):
        weights = [getattr(layer, f"{name}_l0") for name in ("weight_ih", "bias_ih", "weight_hh", "bias_hh")]
        made: Tensor | None = fused.gru(nn.functional.linear(inputs, *weights[:2]), begin, *weights[2:])
        if made is not None:
            return made
    hidden: Tensor = layer(inputs, begin.unsqueeze(0))[0]
    return hidden


def last_hidden(hidden: Tensor, length: Tensor) -> Tensor:
    """(B, H) of hidden states (B, T, H): that of each row's last step, zero where there is none."""
    last = (length.long() - 1).clamp(min=0)[:, None, None].expand(-1, 1, hidden.shape[2])
    return hidden.gather(1, last).squeeze(1) * (length > 0).unsqueeze(1)


class ValueNet(SequenceNet):
    """A network with one number a step, learned in a `Unit`; with a horizon of 1 the unit is the same at all steps."""

    def __init__(
        self, catalog: Catalog, behaviours: Behaviours, config: NetConfig, users: int = 0, horizon: int = 1
    ) -> None:
        super().__init__(catalog, behaviours, config, 1, users)
        self.unit = Unit(horizon)

    def values(self, batch: SessionTensors, told: bool = True) -> Tensor:
        """(B, T) in the labels' own unit; of the state alone, without the step's own item, where it is not `told`."""
        outputs = self.run(batch) if told else self.unseen(batch)
        return self.unit.outward(outputs.squeeze(-1))

    @torch.no_grad()
    def tables(self, share: float = 1.0) -> Tables:
        """With the scale and the mean shift of all steps folded into the head; of a share of the values where told.

        What is left out, by how much this step's shift differs from the mean, is the same for all candidates.
        """
        tables = super().tables()
        first_weight, first_bias, weight, bias = tables.head
        scale, shift = self.unit.scale, self.unit.shift.mean()
        return replace(tables, head=(first_weight, first_bias, share * weight * scale, share * (bias * scale + shift)))


def meet_items(net: nn.Module, sessions: SessionTensors, first: bool, group: Group = ALONE) -> None:
    """Tell every item embedding within which items the sessions show."""
    workers = torch.zeros(sessions.catalog.rows, dtype=torch.int32, device=sessions.device)
    workers[sessions.items.flatten().long()] = 1
    workers[sessions.history_items.flatten().long()] = 1
    workers[MASK] = 0  # the padding
    group.add(workers)
    shown = workers > 0
    for module in net.modules():
        if isinstance(module, ItemEmbedding):
            module.meet(shown.to(module.seen.device), first)


def settle_items(net: nn.Module) -> None:
    """The other end of a fit."""
    for module in net.modules():
        if isinstance(module, ItemEmbedding):
            module.settle()


def expected_reward(logits: Tensor, rewards: Tensor) -> Tensor:
    """r_phi = sum_n R_n f_phi(b = B_n): (…, behaviours) -> (…)  # Eq. EnvironmentModel."""
    return torch.softmax(logits, -1) @ rewards
