"""A second family of networks: a causal transformer over history and session, behind the verbs of `nets.Net`.

::

    keys     h_1 h_2 … h_H | x_1 x_2 …        history steps [Emb(b), Emb(a)], then session steps [Emb(b_{t-1}), Emb(a_t)]
    queries           x_t                      sees every history step and the session up to itself

Simulators of this family judge whether a ranking of methods holds beyond one kind of simulator. The state is the keys and
values so far, so answering step by step costs no more than one step.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mbcal.nn.base import SessionNet, State
from mbcal.nn.config import NetConfig
from mbcal.types import Behaviours, Catalog

LAYERS, HEADS, POSITIONS = 2, 2, 64
"""Positions beyond the last are taken for the last."""


class TransformerNet(SessionNet):
    """Transformer blocks of width `hidden`; `user` is always 'history'."""

    def __init__(self, catalog: Catalog, behaviours: Behaviours, config: NetConfig, outputs: int) -> None:
        super().__init__(catalog, behaviours, config)
        width = config.hidden + config.hidden % HEADS
        self.read = nn.Linear(config.embedding + self.items.size, width)
        self.show = nn.Linear(config.embedding + self.items.size, width)
        self.before = nn.Embedding(POSITIONS, width)  # how many steps before the session
        self.within = nn.Embedding(POSITIONS, width)  # which step of the session
        self.blocks = nn.ModuleList(_Block(width) for _ in range(LAYERS))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs))

    def begin(self, user: Tensor, history_items: Tensor, history_behaviours: Tensor, history_length: Tensor) -> State:
        """Keys and values of the history: (step (B,), usable (B, P), key and value (B, P, width) of every block)."""
        size, span = history_items.shape
        place = torch.arange(span, device=user.device)
        age = (history_length.unsqueeze(1) - 1 - place).clamp(0, POSITIONS - 1)
        usable = place < history_length.unsqueeze(1)
        x = self.read(self.inputs(history_items, history_behaviours)) + self.before(age)
        # a padded step may look at itself, so that no row of the attention is empty; nobody looks at it
        allowed = (place.unsqueeze(1) >= place) & usable.unsqueeze(1) | torch.eye(span, dtype=torch.bool, device=x.device)
        nothing = x.new_zeros(size, 0, x.shape[-1])
        kept: list[Tensor] = []
        for block in self.blocks:
            x, key, value = block(x, nothing, nothing, allowed)
            kept += [key, value]
        return torch.zeros_like(user), usable, *kept

    def forward(self, state: State, items: Tensor, behaviours: Tensor) -> Tensor:
        """All steps at once."""
        outputs, _ = self._extend(state, items, self.previous(behaviours))
        return outputs

    def forward_step(self, state: State, item: Tensor, previous: Tensor) -> tuple[Tensor, State]:
        """One step."""
        outputs, state = self._extend(state, item.unsqueeze(1), previous.unsqueeze(1))
        return outputs.squeeze(1), state

    def merge(self, mask: Tensor, yes: State, no: State) -> State:
        """Session by session the one state or the other: the shorter is padded with keys that nobody may use."""
        span = max(yes[1].shape[1], no[1].shape[1])

        def padded(part: Tensor) -> Tensor:
            missing = span - part.shape[1]
            return nn.functional.pad(part, (0, 0, 0, missing) if part.dim() == 3 else (0, missing))

        step = torch.where(mask, yes[0], no[0])
        usable, *kept = (
            torch.where(mask.view(-1, *[1] * (a.dim() - 1)), padded(a), padded(b))
            for a, b in zip(yes[1:], no[1:], strict=True)
        )
        used = usable.any(0)  # keys that no session may use any more are dropped, so that the state stays bounded
        return step, usable[:, used], *(part[:, used] for part in kept)

    def _extend(self, state: State, items: Tensor, previous: Tensor) -> tuple[Tensor, State]:
        step, usable, *kept = state
        count = items.shape[1]
        place = torch.arange(count, device=items.device)
        x = self.show(self.inputs(items, previous)) + self.within((step.unsqueeze(1) + place).clamp(max=POSITIONS - 1))
        causal = (place.unsqueeze(1) >= place).expand(len(items), count, count)
        allowed = torch.cat([usable.unsqueeze(1).expand(-1, count, -1), causal], 2)
        after: list[Tensor] = []
        for number, block in enumerate(self.blocks):
            x, key, value = block(x, kept[2 * number], kept[2 * number + 1], allowed)
            after += [key, value]
        seen = torch.cat([usable, torch.ones_like(items, dtype=torch.bool)], 1)
        outputs: Tensor = self.head(x)
        return outputs, (step + count, seen, *after)


class _Block(nn.Module):
    """Attention and a small MLP, each normed before and added after."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor, past_key: Tensor, past_value: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x (B, Q, W), past keys and values (B, P, W), allowed (B, Q, P + Q) -> x, keys and values (B, P + Q, W)."""
        query, key, value = self.qkv(self.norm(x)).chunk(3, -1)
        key, value = torch.cat([past_key, key], 1), torch.cat([past_value, value], 1)

        def heads(part: Tensor) -> Tensor:
            return part.view(*part.shape[:2], HEADS, part.shape[2] // HEADS).transpose(1, 2)  # (B, heads, P, W / heads)

        seen = nn.functional.scaled_dot_product_attention(heads(query), heads(key), heads(value), allowed.unsqueeze(1))
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.mlp(x), key, value
