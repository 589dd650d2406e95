"""A causal transformer over history and session, with the methods of `SessionNet`.

::

    keys     h_1 h_2 … h_L | u | x_1 x_2 …    history steps [Emb(b), Emb(a)], the user's features if there are any, then
                                               session steps [Emb(b_{t-1}), Emb(a_t)], with their context if there is any
    queries           x_t                      sees every history step, the user and the session up to itself

Simulators of this family show whether a ranking of methods holds beyond one kind of simulator. The state holds the keys and
values so far, so that a step costs one query.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mbcal.nn.base import SessionNet, State
from mbcal.nn.config import NetConfig
from mbcal.nn.embeddings import Embedding
from mbcal.types import NO_FIELDS, Behaviours, Catalog, SessionFields

LAYERS, HEADS, POSITIONS = 2, 2, 64
"""Blocks, attention heads per block, and distinct positions: those beyond the last share its embedding."""


class TransformerNet(SessionNet):
    """Transformer blocks of width W = `config.width`, rounded up to a multiple of the heads.

    `config.user` is ignored: the history is always read.

    Args:
        catalog: The items.
        behaviours: The behaviours.
        config: Sizes and inputs.
        outputs: Numbers per step.
        fields: See `SessionNet`.
    """

    def __init__(
        self,
        catalog: Catalog,
        behaviours: Behaviours,
        config: NetConfig,
        outputs: int,
        fields: SessionFields = NO_FIELDS,
    ) -> None:
        super().__init__(catalog, behaviours, config, fields)
        width = config.width + config.width % HEADS
        self.read = nn.Linear(config.embedding + self.items.size, width)  # inputs of history steps
        self.show = nn.Linear(self.step_size, width)  # inputs of session steps
        self.before = Embedding(POSITIONS, width, config.embedding_scale)  # steps between a history step and the session
        self.within = Embedding(POSITIONS, width, config.embedding_scale)  # index of a session step
        self.blocks = nn.ModuleList(_Block(width) for _ in range(LAYERS))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs))
        self.user_features = self._encoder("user_features", width)

    def begin(
        self,
        user: Tensor,
        history_items: Tensor,
        history_behaviours: Tensor,
        history_length: Tensor,
        user_features: Tensor | None = None,
    ) -> State:
        """See `SessionNet`.

        Returns:
            The state: the next step's index (B,); which of the P keys so far may be attended to, (B, P) bool; then keys
            and values of every block, each (B, P, W). The last key is the user's, if the network reads user features.
        """
        size, span = history_items.shape
        index = torch.arange(span, device=user.device)
        age = (history_length.unsqueeze(1) - 1 - index).clamp(0, POSITIONS - 1)
        usable = index < history_length.unsqueeze(1)
        x = self.read(self.inputs(history_items, history_behaviours)) + self.before(age)
        # a padded step may attend to itself, so that no row of the mask is empty; no other step attends to it
        allowed = (index.unsqueeze(1) >= index) & usable.unsqueeze(1) | torch.eye(span, dtype=torch.bool, device=x.device)
        no_past = x.new_zeros(size, 0, x.shape[-1])
        cache: list[Tensor] = []
        for block in self.blocks:
            x, key, value = block(x, no_past, no_past, allowed)
            cache += [key, value]
        state = (torch.zeros_like(user), usable, *cache)
        if self.user_features is None:
            return state
        unknown = self.user_features.unknown(size) if user_features is None else self.user_features(user_features)
        return self._append(state, unknown.unsqueeze(1))[1]

    def with_user(self, state: State, user_features: Tensor) -> State:
        """See `SessionNet`. The key of the unknown user is replaced."""
        if self.user_features is None:
            return state
        step, *keys = state
        without = (step, *(part[:, :-1] for part in keys))
        return self._append(without, self.user_features(user_features).unsqueeze(1))[1]

    def forward(self, state: State, items: Tensor, behaviours: Tensor, context: Tensor | None = None) -> Tensor:
        """See `SessionNet`."""
        outputs, _ = self._extend(state, items, self.previous(behaviours), context)
        return outputs

    def forward_step(
        self, state: State, item: Tensor, previous: Tensor, context: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """See `SessionNet`."""
        context = None if context is None else context.unsqueeze(1)
        outputs, state = self._extend(state, item.unsqueeze(1), previous.unsqueeze(1), context)
        return outputs.squeeze(1), state

    def merge(self, mask: Tensor, yes: State, no: State) -> State:
        """See `SessionNet`. The shorter state is padded with keys that may not be attended to."""
        span = max(yes[1].shape[1], no[1].shape[1])

        def padded(part: Tensor) -> Tensor:
            missing = span - part.shape[1]
            return nn.functional.pad(part, (0, 0, 0, missing) if part.dim() == 3 else (0, missing))

        step = torch.where(mask, yes[0], no[0])
        usable, *cache = (
            torch.where(mask.view(-1, *[1] * (a.dim() - 1)), padded(a), padded(b))
            for a, b in zip(yes[1:], no[1:], strict=True)
        )
        used = usable.any(0)  # drop keys that no session may attend to any more, so that the state stays bounded
        return step, usable[:, used], *(part[:, used] for part in cache)

    def _extend(self, state: State, items: Tensor, previous: Tensor, context: Tensor | None) -> tuple[Tensor, State]:
        """Append session steps, items and previous behaviours (B, Q): outputs (B, Q, outputs) and the state after them."""
        step, count = state[0], items.shape[1]
        index = torch.arange(count, device=items.device)
        position = self.within((step.unsqueeze(1) + index).clamp(max=POSITIONS - 1))
        x, (_, *keys) = self._append(state, self.show(self.step_inputs(items, previous, context)) + position)
        outputs: Tensor = self.head(x)
        return outputs, (step + count, *keys)

    def _append(self, state: State, x: Tensor) -> tuple[Tensor, State]:
        """Append inputs (B, Q, W): what the blocks make of them (B, Q, W), and the state with their keys and values."""
        step, usable, *cache = state
        size, count, _ = x.shape
        index = torch.arange(count, device=x.device)
        causal = (index.unsqueeze(1) >= index).expand(size, count, count)
        allowed = torch.cat([usable.unsqueeze(1).expand(-1, count, -1), causal], 2)
        next_cache: list[Tensor] = []
        for number, block in enumerate(self.blocks):
            x, key, value = block(x, cache[2 * number], cache[2 * number + 1], allowed)
            next_cache += [key, value]
        next_usable = torch.cat([usable, usable.new_ones(size, count)], 1)
        return x, (step, next_usable, *next_cache)


class _Block(nn.Module):
    """Self-attention and a two-layer MLP, each with layer normalisation before and a residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor, past_key: Tensor, past_value: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Attend to past and new steps.

        Args:
            x: (B, Q, W) new steps.
            past_key: (B, P, W).
            past_value: (B, P, W).
            allowed: (B, Q, P + Q) bool, which key each query may attend to.

        Returns:
            The new steps (B, Q, W), and all keys and values (B, P + Q, W).
        """
        query, key, value = self.qkv(self.norm(x)).chunk(3, -1)
        key, value = torch.cat([past_key, key], 1), torch.cat([past_value, value], 1)

        def heads(part: Tensor) -> Tensor:
            return part.view(*part.shape[:2], HEADS, part.shape[2] // HEADS).transpose(1, 2)  # (B, heads, P, W / heads)

        attended = nn.functional.scaled_dot_product_attention(heads(query), heads(key), heads(value), allowed.unsqueeze(1))
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(x), key, value
