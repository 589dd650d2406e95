"""Recurrent networks over sessions: the paper's architecture, without training.

::

    h_0 = user encoder + U(features)        from the history (default), the user's id, or zero; features if there are any
    x_t = [Emb(b_{t-1}), Emb(a_t), C(c_t)]  Emb(a) concatenates the embeddings of an item's id and features; context if any
    h_t = GRU(h_{t-1}, x_t)                 or an LSTM, in simulators
    y_t = MLP(h_t)                          logits of behaviours, or one value

Whole sequences run through torch's recurrent layers, or on a GPU through `kernels.triton.gru`. `gates` and `cell_step` are
the same arithmetic in two parts: what the input adds to the gates depends on item and behaviour separately, so scoring
keeps both in tables (`to_tables`), and counterfactual branches can start from any hidden state.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from mbcal.errors import OptionError
from mbcal.kernels import triton
from mbcal.nn.base import SessionNet, State
from mbcal.nn.config import NetConfig
from mbcal.nn.embeddings import Embedding
from mbcal.nn.label_scaler import LabelScaler
from mbcal.scoring.tables import CellTables, Tables
from mbcal.types import MASK_ROW, NO_FIELDS, Behaviours, Catalog, SessionFields, SessionTensors


class RecurrentNet(SessionNet):
    """User encoder, recurrent cell and a head of two layers.

    Args:
        catalog: The items.
        behaviours: The behaviours.
        config: Sizes and inputs; `cell` must be gru or lstm.
        outputs: Numbers per step: as many as behaviours for their logits, 1 for a value.
        users: Users with an embedding of their own, for `config.user == "id"`; higher numbers share one more embedding.
        fields: See `SessionNet`.

    Raises:
        OptionError: If the cell is a transformer, or the id encoder is given no users.
    """

    def __init__(
        self,
        catalog: Catalog,
        behaviours: Behaviours,
        config: NetConfig,
        outputs: int,
        users: int = 0,
        fields: SessionFields = NO_FIELDS,
    ) -> None:
        super().__init__(catalog, behaviours, config, fields)
        if config.cell == "transformer":
            raise OptionError("cell: 'transformer' is for simulators; agents take gru or lstm")
        layer = nn.GRU if config.cell == "gru" else nn.LSTM
        self.cell = layer(self.step_size, config.width, batch_first=True)
        if config.user == "history":
            self.history = nn.GRU(config.embedding + self.items.size, config.width, batch_first=True)
        elif config.user == "id":
            if users < 1:
                raise OptionError("user: the 'id' encoder needs to know how many users there are")
            n_rows = users + 1  # the last row is for users not seen in training
            self.user = Embedding(n_rows, config.width, config.embedding_scale)
        self.head = nn.Sequential(nn.Linear(config.width, config.width), nn.ReLU(), nn.Linear(config.width, outputs))
        self.user_features = self._encoder("user_features", config.width)

    # ---- whole sessions

    def begin(
        self,
        user: Tensor,
        history_items: Tensor,
        history_behaviours: Tensor,
        history_length: Tensor,
        user_features: Tensor | None = None,
    ) -> State:
        """See `SessionNet`: h_0 (B, H), for an LSTM with c_0 = 0."""
        if self.config.user == "history":
            hidden = self._encode_history(history_items, history_behaviours, history_length)
        elif self.config.user == "id":
            hidden = self.user(user.clamp(max=self.user.num_embeddings - 1))
        else:
            hidden = torch.zeros(len(user), self.config.width, device=user.device)
        if self.user_features is not None:
            hidden = hidden + (self.user_features.bias if user_features is None else self.user_features(user_features))
        return self.initial_state(hidden)

    def with_user(self, state: State, user_features: Tensor) -> State:
        """See `SessionNet`."""
        if self.user_features is None:
            return state
        return state[0] + self.user_features(user_features) - self.user_features.bias, *state[1:]

    def initial_state(self, hidden: Tensor) -> State:
        """The cell's state for h_0 (B, H): (h_0,), or (h_0, 0) for an LSTM."""
        return (hidden,) if self.config.cell == "gru" else (hidden, torch.zeros_like(hidden))

    def _encode_history(self, items: Tensor, behaviours: Tensor, length: Tensor) -> Tensor:
        """The hidden state (B, H) after the last step of each history (B, L); zero for an empty one."""
        zeros = torch.zeros(len(items), self.config.width, device=items.device)
        if items.shape[1] == 0:
            return zeros
        return last_hidden(run_gru(self.history, self.inputs(items, behaviours), zeros), length)

    def forward(self, state: State, items: Tensor, behaviours: Tensor, context: Tensor | None = None) -> Tensor:
        """See `SessionNet`."""
        outputs: Tensor = self.head(self._hidden(state, items, behaviours, context))
        return outputs

    def _hidden(self, state: State, items: Tensor, behaviours: Tensor, context: Tensor | None) -> Tensor:
        """h_t (B, T, H) after every step of items and behaviours (B, T) in context (B, T, K)."""
        inputs = self.step_inputs(items, self.previous(behaviours), context)
        if len(state) == 1:
            return run_gru(self.cell, inputs, state[0])
        hidden: Tensor = self.cell(inputs, tuple(part.unsqueeze(0) for part in state))[0]
        return hidden

    def states_before(self, batch: SessionTensors) -> Tensor:
        """h_{t-1} (B, T, H): the hidden state before each logged step."""
        batch = batch.encoded_by(self.fields)
        state = self.begin_batch(batch)
        hidden = self._hidden(state, batch.items, batch.behaviours, batch.context)
        return torch.cat([state[0].unsqueeze(1), hidden[:, :-1]], 1)

    def forward_masked(self, batch: SessionTensors) -> Tensor:
        """Outputs (B, T, outputs) with each step's own item masked, so that they depend on the state alone; GRU only."""
        batch = batch.encoded_by(self.fields)
        gates = self.gates(torch.full_like(batch.items, MASK_ROW), self.previous(batch.behaviours), batch.context)
        outputs: Tensor = self.head(self.cell_step(gates, (self.states_before(batch),))[0])
        return outputs

    def outputs_at(self, batch: SessionTensors, step: Tensor, items: Tensor) -> Tensor:
        """Compute the outputs of several items in one state of every session; GRU only.

        Args:
            batch: B sessions.
            step: (B,) int64, the step before which the state is taken.
            items: (B, M) catalogue rows.

        Returns:
            (B, M, outputs).
        """
        batch = batch.encoded_by(self.fields)
        at = step[:, None, None].expand(-1, 1, self.config.width)
        state = self.states_before(batch).gather(1, at)  # (B, 1, H)
        previous = self.previous(batch.behaviours).gather(1, step.unsqueeze(1)).expand_as(items)
        context = batch.context_at(step)
        if context is not None:
            context = context.unsqueeze(1).expand(-1, items.shape[1], -1)
        (hidden,) = self.cell_step(self.gates(items, previous, context), (state,))
        outputs: Tensor = self.head(hidden)
        return outputs

    # ---- single steps

    def forward_step(
        self, state: State, item: Tensor, previous: Tensor, context: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """See `SessionNet`."""
        state = self.cell_step(self.gates(item, previous, context), state)
        outputs: Tensor = self.head(state[0])
        return outputs, state

    def gates(self, items: Tensor, previous: Tensor, context: Tensor | None = None) -> Tensor:
        """What items and previous behaviours (…) in context (…, K) add to the gates.

        Returns:
            W_x x + bias, (…, G), with G = 3H (GRU) or 4H (LSTM).
        """
        return nn.functional.linear(self.step_inputs(items, previous, context), *self._weights("ih"))

    def cell_step(self, gates: Tensor, state: State) -> State:
        """Run the cell one step.

        Args:
            gates: (…, G) from `gates`; broadcast over the states.
            state: The state before, each part (…, H).

        Returns:
            The state after, each part (…, H).
        """
        hidden_gates = nn.functional.linear(state[0], *self._weights("hh"))
        if self.config.cell == "gru":
            reset_x, update_x, new_x = gates.chunk(3, -1)
            reset_h, update_h, new_h = hidden_gates.chunk(3, -1)
            update = torch.sigmoid(update_x + update_h)
            new = torch.tanh(new_x + torch.sigmoid(reset_x + reset_h) * new_h)
            return (new + update * (state[0] - new),)
        take, forget, cell, out = (gates + hidden_gates).chunk(4, -1)
        memory = torch.sigmoid(forget) * state[1] + torch.sigmoid(take) * torch.tanh(cell)
        return torch.sigmoid(out) * torch.tanh(memory), memory

    def _weights(self, part: Literal["ih", "hh"]) -> tuple[Tensor, Tensor]:
        """Weight and bias of the cell's input half (ih) or hidden half (hh)."""
        return self.cell.get_parameter(f"weight_{part}_l0"), self.cell.get_parameter(f"bias_{part}_l0")

    # ---- tables

    @torch.no_grad()
    def scoring_tables(self) -> Tables:
        """Return the network as tables that rank candidates. A snapshot: call again after every update.

        Raises:
            OptionError: If the cell is an LSTM.
        """
        if self.config.cell != "gru":
            raise OptionError("cell: only a GRU can be folded into tables")
        return self.to_tables()

    @torch.no_grad()
    def to_tables(self) -> Tables:
        """Return the network as tables, with either cell. `Tables.score` computes a GRU; `kernels.triton.respond` both."""
        first, second = self.head[0], self.head[2]
        weights = [layer.get_parameter(part).clone() for layer in (first, second) for part in ("weight", "bias")]
        return Tables(
            cell=self._cell_tables(self.cell),
            head=(weights[0], weights[1], weights[2], weights[3]),
            history=self._cell_tables(self.history) if self.config.user == "history" else None,
            users=self.user.weight.clone() if self.config.user == "id" else None,
            context=None if self.context is None else self.context.to_tables(self._context_weight()),
            user_features=None if self.user_features is None else self.user_features.to_tables(),
            user_bias=None if self.user_features is None else self.user_features.bias.clone(),
        )

    def _context_weight(self) -> Tensor:
        """(G, embedding) the columns of W_x that read the context: the last ones."""
        return self._weights("ih")[0][:, -self.config.embedding :]

    def item_inputs(self, layer: nn.RNNBase) -> tuple[Tensor, Tensor]:
        """Return what embeddings of items are multiplied with in a layer, (G, size), and what is added, (G,)."""
        n_behaviour_inputs = self.config.embedding
        weight = layer.get_parameter("weight_ih_l0")[:, n_behaviour_inputs : n_behaviour_inputs + self.items.size]
        bias: Tensor = layer.get_parameter("bias_ih_l0")
        if self.context is not None and layer is self.cell:
            bias = bias + self._context_weight() @ self.context.bias
        return weight, bias

    def _cell_tables(self, layer: nn.RNNBase) -> CellTables:
        items = self.items(torch.arange(self.items.id.num_embeddings, device=self.items.id.weight.device))
        weight, bias = self.item_inputs(layer)
        return CellTables(
            items=items @ weight.T + bias,
            behaviours=self.behaviours.weight @ layer.get_parameter("weight_ih_l0")[:, : self.config.embedding].T,
            weight=layer.get_parameter("weight_hh_l0").clone(),
            bias=layer.get_parameter("bias_hh_l0").clone(),
        )


class ValueNet(RecurrentNet):
    """A recurrent network with one output per step, trained on labels normalised by a `LabelScaler`.

    Args:
        catalog: The items.
        behaviours: The behaviours.
        config: Sizes and inputs.
        users: See `RecurrentNet`.
        horizon: Steps with a mean label of their own; with 1 all steps share one.
        fields: See `SessionNet`.
    """

    def __init__(
        self,
        catalog: Catalog,
        behaviours: Behaviours,
        config: NetConfig,
        users: int = 0,
        horizon: int = 1,
        fields: SessionFields = NO_FIELDS,
    ) -> None:
        super().__init__(catalog, behaviours, config, 1, users, fields)
        self.label_scaler = LabelScaler(horizon)

    def values(self, batch: SessionTensors, mask_item: bool = False) -> Tensor:
        """Predict the label of every logged step.

        Args:
            batch: B sessions.
            mask_item: Mask each step's own item, which gives the mean label of the state.

        Returns:
            (B, T) in reward units.
        """
        outputs = self.forward_masked(batch) if mask_item else self.forward_batch(batch)
        return self.label_scaler.denormalize(outputs.squeeze(-1))

    @torch.no_grad()
    def scoring_tables(self, share: float = 1.0) -> Tables:
        """Return the network as tables whose output is in reward units, times `share`.

        The label scaler is folded into the head, with the mean shift over steps in place of each step's own: the
        difference is the same for all candidates of a step and does not change their order.
        """
        tables = super().scoring_tables()
        first_weight, first_bias, weight, bias = tables.head
        scale, shift = self.label_scaler.scale, self.label_scaler.shift.mean()
        return replace(tables, head=(first_weight, first_bias, share * weight * scale, share * (bias * scale + shift)))


def run_gru(layer: nn.RNNBase, inputs: Tensor, begin: Tensor) -> Tensor:
    """Run a GRU over sequences, on a GPU by the Triton kernels where they support its size.

    Args:
        layer: One batch-first layer.
        inputs: (B, T, X).
        begin: (B, H) the hidden state before the first step.

    Returns:
        Hidden states (B, T, H) after every step.
    """
    if triton.runs_on(inputs):
        weights = [getattr(layer, f"{name}_l0") for name in ("weight_ih", "bias_ih", "weight_hh", "bias_hh")]
        fast: Tensor | None = triton.gru(nn.functional.linear(inputs, *weights[:2]), begin, *weights[2:])
        if fast is not None:
            return fast
    hidden: Tensor = layer(inputs, begin.unsqueeze(0))[0]
    return hidden


def last_hidden(hidden: Tensor, length: Tensor) -> Tensor:
    """The state after each sequence's last step: (B, T, H) and lengths (B,) -> (B, H); zero where the length is 0."""
    last = (length.long() - 1).clamp(min=0)[:, None, None].expand(-1, 1, hidden.shape[2])
    return hidden.gather(1, last).squeeze(1) * (length > 0).unsqueeze(1)
