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

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from mbcal.errors import OptionError
from mbcal.kernels import triton as fused
from mbcal.nn.base import SessionNet, State
from mbcal.nn.config import NetConfig
from mbcal.nn.label_scaler import LabelScaler
from mbcal.scoring.tables import CellTables, Tables
from mbcal.types import MASK_ROW, Behaviours, Catalog, SessionTensors


class RecurrentNet(SessionNet):
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
        return self.initial_state(hidden)

    def initial_state(self, hidden: Tensor) -> State:
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

    def states_before(self, batch: SessionTensors) -> Tensor:
        """h_{t-1} (B, T, H): where the network stands before each logged step, its item not yet seen."""
        state = self.begin(*batch.history)
        return torch.cat([state[0].unsqueeze(1), self._hidden(state, batch.items, batch.behaviours)[:, :-1]], 1)

    def forward_masked(self, batch: SessionTensors) -> Tensor:
        """Outputs (B, T, outputs) where each logged step's own item is not told: what depends on the state alone."""
        gates = self.gates(torch.full_like(batch.items, MASK_ROW), self.previous(batch.behaviours))
        outputs: Tensor = self.head(self.cell_step(gates, (self.states_before(batch),))[0])
        return outputs

    def forward_step(self, state: State, item: Tensor, previous: Tensor) -> tuple[Tensor, State]:
        """Outputs (B, outputs) for item (B,) shown after previous behaviour (B,), and the state after it."""
        state = self.cell_step(self.gates(item, previous), state)
        outputs: Tensor = self.head(state[0])
        return outputs, state

    def gates(self, items: Tensor, previous: Tensor) -> Tensor:
        """What item and previous behaviour (…) add to the gates: W_x x + bias, (…, gates · H)."""
        return nn.functional.linear(self.inputs(items, previous), *self._weights("ih"))

    @torch.no_grad()
    def scoring_tables(self) -> Tables:
        """The network for scoring; make them anew after every update."""
        if self.config.cell != "gru":
            raise OptionError("cell: only a GRU can be folded into tables")
        return self.to_tables()

    @torch.no_grad()
    def to_tables(self) -> Tables:
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

    def cell_step(self, gates: Tensor, state: State) -> State:
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


class ValueNet(RecurrentNet):
    """A network with one number a step, learned in a `LabelScaler`; with a horizon of 1 the unit is the same at all steps."""

    def __init__(
        self, catalog: Catalog, behaviours: Behaviours, config: NetConfig, users: int = 0, horizon: int = 1
    ) -> None:
        super().__init__(catalog, behaviours, config, 1, users)
        self.label_scaler = LabelScaler(horizon)

    def values(self, batch: SessionTensors, mask_item: bool = False) -> Tensor:
        """(B, T) in the labels' own unit; of the state alone, without the step's own item, where it is not `told`."""
        outputs = self.forward_masked(batch) if mask_item else self.forward_batch(batch)
        return self.label_scaler.denormalize(outputs.squeeze(-1))

    @torch.no_grad()
    def scoring_tables(self, share: float = 1.0) -> Tables:
        """With the scale and the mean shift of all steps folded into the head; of a share of the values where told.

        What is left out, by how much this step's shift differs from the mean, is the same for all candidates.
        """
        tables = super().scoring_tables()
        first_weight, first_bias, weight, bias = tables.head
        scale, shift = self.label_scaler.scale, self.label_scaler.shift.mean()
        return replace(tables, head=(first_weight, first_bias, share * weight * scale, share * (bias * scale + shift)))
