"""What every network over sessions has in common."""

from __future__ import annotations

import copy
from typing import Self

import torch
from torch import Tensor, nn

from mbcal.nn.config import NetConfig
from mbcal.nn.embeddings import Embedding, ItemEmbedding
from mbcal.types import Behaviours, Catalog, SessionTensors

State = tuple[Tensor, ...]
"""(h,) of a GRU or (h, c) of an LSTM, each (…, H)."""


class SessionNet(nn.Module):
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

    def forward_step(self, state: State, item: Tensor, previous: Tensor) -> tuple[Tensor, State]:
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

    def forward_batch(self, batch: SessionTensors) -> Tensor:
        """Outputs for a batch as it was logged."""
        outputs: Tensor = self(self.begin(*batch.history), batch.items, batch.behaviours)
        return outputs

    @torch.no_grad()
    def frozen_copy(self) -> Self:
        """A copy that only answers: its weights never move, its item embeddings lie in one table."""
        copied = copy.deepcopy(self).eval().requires_grad_(False)
        copied.items.cache_table()
        for module in copied.modules():
            if isinstance(module, nn.RNNBase):
                module.flatten_parameters()
        return copied


def expected_reward(logits: Tensor, rewards: Tensor) -> Tensor:
    """r_phi = sum_n R_n f_phi(b = B_n): (…, behaviours) -> (…)  # Eq. EnvironmentModel."""
    return torch.softmax(logits, -1) @ rewards
