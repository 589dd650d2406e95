"""The base class of all networks over sessions."""

from __future__ import annotations

import copy
from typing import Self

import torch
from torch import Tensor, nn

from mbcal.nn.config import NetConfig
from mbcal.nn.embeddings import Embedding, ItemEmbedding
from mbcal.types import Behaviours, Catalog, SessionTensors

State = tuple[Tensor, ...]
"""The state of a network in B sessions: (h,) of a GRU or (h, c) of an LSTM, each (B, H); for a transformer see
`TransformerNet.begin`."""


class SessionNet(nn.Module):
    """A network over sessions: embeddings of items and behaviours, and a family's own `begin`, `forward`, `forward_step`.

    Args:
        catalog: The items.
        behaviours: The behaviours; a start symbol b_s, which stands before the first step, is added to them.
        config: Sizes and inputs.
    """

    head: nn.Sequential
    """From hidden states to outputs; its last layer is linear."""

    def __init__(self, catalog: Catalog, behaviours: Behaviours, config: NetConfig) -> None:
        super().__init__()
        self.config, self.start = config, behaviours.start
        self.items = ItemEmbedding(catalog, config)
        n_symbols = len(behaviours) + 1  # with the start symbol b_s
        self.behaviours = Embedding(n_symbols, config.embedding, config.embedding_scale)

    # ---- what a family defines

    def begin(self, user: Tensor, history_items: Tensor, history_behaviours: Tensor, history_length: Tensor) -> State:
        """Return the state before the first step.

        Args:
            user: (B,) users, int32.
            history_items: (B, L) catalogue rows, int32, oldest first, padded at the end.
            history_behaviours: (B, L) behaviours, uint8.
            history_length: (B,) how many steps of each history count, int32.
        """
        raise NotImplementedError

    def forward(self, state: State, items: Tensor, behaviours: Tensor) -> Tensor:
        """Run over whole sessions.

        Args:
            state: The state before their first step.
            items: (B, T) catalogue rows.
            behaviours: (B, T). Step t depends on behaviours before t only.

        Returns:
            Outputs (B, T, outputs).
        """
        raise NotImplementedError

    def forward_step(self, state: State, item: Tensor, previous: Tensor) -> tuple[Tensor, State]:
        """Run one step.

        Args:
            state: The state before it.
            item: (B,) the item shown.
            previous: (B,) the behaviour at the step before, or the start symbol.

        Returns:
            Outputs (B, outputs), and the state after the step.
        """
        raise NotImplementedError

    # ---- what all families share

    def merge(self, mask: Tensor, yes: State, no: State) -> State:
        """Return, session by session, the state `yes` where mask (B,) is true, else `no`."""
        return tuple(torch.where(mask.unsqueeze(1), a, b) for a, b in zip(yes, no, strict=True))

    def inputs(self, items: Tensor, behaviours: Tensor) -> Tensor:
        """Concatenate the embeddings of behaviours and items, x = [Emb(b), Emb(a)]: (…) and (…) -> (…, X)."""
        return torch.cat([self.behaviours(behaviours.int()), self.items(items)], -1)

    def previous(self, behaviours: Tensor) -> Tensor:
        """b_{t-1} of every step, (B, T): the behaviours (B, T) shifted by one, the start symbol first."""
        first = torch.full_like(behaviours[:, :1], self.start)
        return torch.cat([first, behaviours[:, :-1]], 1)

    def forward_batch(self, batch: SessionTensors) -> Tensor:
        """Outputs (B, T, outputs) of B sessions as they were logged."""
        outputs: Tensor = self(self.begin(*batch.history), batch.items, batch.behaviours)
        return outputs

    @torch.no_grad()
    def frozen_copy(self) -> Self:
        """Return a copy for inference: no gradients, item embeddings in one table."""
        copied = copy.deepcopy(self).eval().requires_grad_(False)
        copied.items.cache_table()
        for module in copied.modules():
            if isinstance(module, nn.RNNBase):
                module.flatten_parameters()
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
