"""The base class of all networks over sessions."""

from __future__ import annotations

import copy
from typing import Literal, Self

import torch
from torch import Tensor, nn

from mbcal.nn.config import NetConfig
from mbcal.nn.embeddings import Embedding, ItemEmbedding
from mbcal.nn.fields import FieldEncoder
from mbcal.types import NO_FIELDS, Behaviours, Catalog, SessionFields, SessionTensors

State = tuple[Tensor, ...]
"""The state of a network in B sessions: (h,) of a GRU or (h, c) of an LSTM, each (B, H); for a transformer see
`TransformerNet.begin`."""


class SessionNet(nn.Module):
    """A network over sessions: embeddings of items and behaviours, and a family's own `begin`, `forward`, `forward_step`.

    Args:
        catalog: The items.
        behaviours: The behaviours; a start symbol b_s, which stands before the first step, is added to them.
        config: Sizes and inputs.
        fields: Fields of users and steps that it reads. Where they are not given, they count as missing.
    """

    head: nn.Sequential
    """From hidden states to outputs; its last layer is linear."""

    def __init__(
        self, catalog: Catalog, behaviours: Behaviours, config: NetConfig, fields: SessionFields = NO_FIELDS
    ) -> None:
        super().__init__()
        self.config, self.start, self.fields = config, behaviours.start, fields
        self.items = ItemEmbedding(catalog, config)
        n_symbols = len(behaviours) + 1  # with the start symbol b_s
        self.behaviours = Embedding(n_symbols, config.embedding, config.embedding_scale)
        self.context = self._encoder("context", config.embedding)

    def _encoder(self, reads: Literal["user_features", "context"], size: int) -> FieldEncoder | None:
        """An encoder of the user's or the context's fields; None if the network reads none."""
        fields = self.fields.user if reads == "user_features" else self.fields.context
        return FieldEncoder(reads, fields, size, self.config.embedding_scale) if len(fields) else None

    # ---- what a family defines

    def begin(
        self,
        user: Tensor,
        history_items: Tensor,
        history_behaviours: Tensor,
        history_length: Tensor,
        user_features: Tensor | None = None,
    ) -> State:
        """Return the state before the first step.

        Args:
            user: (B,) users, int32.
            history_items: (B, L) catalogue rows, int32, oldest first, padded at the end.
            history_behaviours: (B, L) behaviours, uint8.
            history_length: (B,) how many steps of each history count, int32.
            user_features: (B, U) the users, encoded by `fields.user`; None if nothing is known about them.
        """
        raise NotImplementedError

    def with_user(self, state: State, user_features: Tensor) -> State:
        """Return the state before the first step, from the same without user features, for users with these (B, U)."""
        raise NotImplementedError

    def forward(self, state: State, items: Tensor, behaviours: Tensor, context: Tensor | None = None) -> Tensor:
        """Run over whole sessions.

        Args:
            state: The state before their first step.
            items: (B, T) catalogue rows.
            behaviours: (B, T). Step t depends on behaviours before t only.
            context: (B, T, K) the steps, encoded by `fields.context`; None if it is not known.

        Returns:
            Outputs (B, T, outputs).
        """
        raise NotImplementedError

    def forward_step(
        self, state: State, item: Tensor, previous: Tensor, context: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Run one step.

        Args:
            state: The state before it.
            item: (B,) the item shown.
            previous: (B,) the behaviour at the step before, or the start symbol.
            context: (B, K) the step, encoded by `fields.context`; None if it is not known.

        Returns:
            Outputs (B, outputs), and the state after the step.
        """
        raise NotImplementedError

    # ---- what all families share

    def merge(self, mask: Tensor, yes: State, no: State) -> State:
        """Return, session by session, the state `yes` where mask (B,) is true, else `no`."""
        return tuple(torch.where(mask.unsqueeze(1), a, b) for a, b in zip(yes, no, strict=True))

    def inputs(self, items: Tensor, behaviours: Tensor) -> Tensor:
        """Concatenate the embeddings of behaviours and items, [Emb(b), Emb(a)]: (…) and (…) -> (…, X)."""
        return torch.cat([self.behaviours(behaviours.int()), self.items(items)], -1)

    @property
    def step_size(self) -> int:
        """Width of `step_inputs`."""
        return self.config.embedding * (1 if self.context is None else 2) + self.items.size

    def step_inputs(self, items: Tensor, previous: Tensor, context: Tensor | None) -> Tensor:
        """The inputs of session steps, x = [Emb(b), Emb(a), Emb(c)]: (…), (…) and (…, K) -> (…, step_size)."""
        inputs = self.inputs(items, previous)
        if self.context is None:
            return inputs
        encoded = self.context.unknown(*items.shape) if context is None else self.context(context)
        return torch.cat([inputs, encoded], -1)

    def previous(self, behaviours: Tensor) -> Tensor:
        """b_{t-1} of every step, (B, T): the behaviours (B, T) shifted by one, the start symbol first."""
        first = torch.full_like(behaviours[:, :1], self.start)
        return torch.cat([first, behaviours[:, :-1]], 1)

    def begin_batch(self, batch: SessionTensors) -> State:
        """The state before the first step of B sessions."""
        return self.begin(*batch.history, batch.encoded_by(self.fields).user_features)

    def forward_batch(self, batch: SessionTensors) -> Tensor:
        """Outputs (B, T, outputs) of B sessions as they were logged."""
        batch = batch.encoded_by(self.fields)
        outputs: Tensor = self(self.begin_batch(batch), batch.items, batch.behaviours, batch.context)
        return outputs

    def copy(self) -> Self:
        """Return a copy that learns by itself."""
        copied = copy.deepcopy(self)
        for module in copied.modules():
            if isinstance(module, nn.RNNBase):
                module.flatten_parameters()  # cuDNN wants weights in one piece
        return copied

    @torch.no_grad()
    def frozen_copy(self) -> Self:
        """Return a copy for inference: no gradients, item embeddings in one table."""
        copied = self.copy().eval().requires_grad_(False)
        copied.items.cache_table()
        return copied


def expected_reward(logits: Tensor, rewards: Tensor) -> Tensor:
    """r_phi = sum_n R_n f_phi(b = B_n)  # Eq. EnvironmentModel.

    Args:
        logits: (…, K) outputs of a network of K behaviours.
        rewards: (K,) the reward of each behaviour.

    Returns:
        (…) expected rewards.
    """
    return torch.softmax(logits, -1) @ rewards


def sample_behaviour(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """Return the behaviours (…) in whose intervals of the cumulative distribution uniform numbers lie.

    Args:
        probabilities: (…, K) of K behaviours, up to a factor.
        uniform: (…) in [0, 1).
    """
    cumulative = probabilities.cumsum(-1)
    # the first behaviour whose cumulative probability exceeds the uniform number
    index = (cumulative <= uniform.unsqueeze(-1) * cumulative[..., -1:]).sum(-1)
    return index.clamp(max=probabilities.shape[-1] - 1)
