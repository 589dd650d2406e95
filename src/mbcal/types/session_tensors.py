"""Sessions as torch tensors on one device."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from mbcal.errors import InputError
from mbcal.types.catalog import Behaviours, Catalog
from mbcal.types.fields import NO_FIELDS, SessionFields
from mbcal.types.session_base import ARRAYS, SessionsBase, recode_arrays

if TYPE_CHECKING:
    import torch

    from mbcal.types.sessions import Sessions


@dataclass(frozen=True, eq=False, repr=False)
class SessionTensors(SessionsBase):
    """`Sessions` as tensors on one device, with the same shapes. They come from valid sessions and are not checked again."""

    catalog: Catalog
    behaviour_set: Behaviours
    items: torch.Tensor
    behaviours: torch.Tensor
    length: torch.Tensor
    user: torch.Tensor
    history_items: torch.Tensor
    history_behaviours: torch.Tensor
    history_length: torch.Tensor
    candidates: torch.Tensor | None = None
    propensities: torch.Tensor | None = None
    timestamps: torch.Tensor | None = None
    user_features: torch.Tensor | None = None
    context: torch.Tensor | None = None
    origin: str = ""
    fields: SessionFields = NO_FIELDS

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, rows: slice | torch.Tensor) -> Self:
        """Return some of the sessions; a slice shares memory."""
        return self._map(lambda tensor: tensor[rows])

    def to(self, device: str | torch.device) -> Self:
        """Return the same sessions on another device."""
        return self._map(lambda tensor: tensor.to(device))

    def without(self, *names: str) -> Self:
        """Return the same sessions without these optional tensors."""
        removed: dict[str, Any] = dict.fromkeys(names)
        return dataclasses.replace(self, **removed)

    def encoded_by(self, fields: SessionFields) -> Self:
        """Return the same sessions with user features and context encoded by the fields of a model.

        Fields that these sessions lack are missing values; those that the model does not have are left out.
        """
        if fields == self.fields:
            return self
        recoded = recode_arrays(self, fields, lambda *shape: self.items.new_zeros(shape).float())
        return dataclasses.replace(self, fields=fields, **recoded)

    def sessions(self) -> Sessions:
        """Return the same sessions as numpy arrays."""
        from mbcal.types.sessions import unchecked_sessions

        return unchecked_sessions(self, {name: tensor.cpu().numpy() for name, tensor in self.tensors()})

    @classmethod
    def concat(cls, parts: Sequence[SessionTensors]) -> SessionTensors:
        """Join sessions of one catalogue, with the same optional tensors, along the first axis."""
        import torch

        names = [name for name, _ in parts[0].tensors()]
        joined: dict[str, Any] = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
        return dataclasses.replace(parts[0], **joined)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (name, tensor) for every tensor that is present."""
        for name in ARRAYS:
            tensor = getattr(self, name)
            if tensor is not None:
                yield name, tensor

    def _map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Self:
        changed: dict[str, Any] = {name: change(tensor) for name, tensor in self.tensors()}
        return dataclasses.replace(self, **changed)

    @property
    def horizon(self) -> int:
        """T, the longest possible session."""
        return self.items.shape[1]

    @property
    def device(self) -> torch.device:
        return self.items.device

    def require_candidates(self) -> torch.Tensor:
        """Return the candidates (B, C) or (B, T, C); raises InputError if absent."""
        if self.candidates is None:
            raise InputError("sessions: these have no candidates; sample them first")
        return self.candidates

    def context_at(self, step: int | torch.Tensor) -> torch.Tensor | None:
        """The context (B, K) of a step, or of steps (B,); beyond a session's end that of its last. None if there is none."""
        if self.context is None:
            return None
        last = (self.length.long() - 1).clamp(max=step)
        return self.context.gather(1, last[:, None, None].expand(-1, 1, self.context.shape[2])).squeeze(1)

    def continued_context(self, length: torch.Tensor) -> torch.Tensor | None:
        """The context (B, T, K) of these sessions with other lengths (B,): steps beyond the logged ones repeat the last."""
        import torch

        if self.context is None:
            return None
        step = torch.arange(self.items.shape[1], device=self.items.device)
        last = torch.minimum(step, self.length.unsqueeze(1).long() - 1)
        context = self.context.gather(1, last.unsqueeze(2).expand_as(self.context))
        return context * (step < length.unsqueeze(1)).unsqueeze(2)

    @property
    def mask(self) -> torch.Tensor:
        """(B, T) bool: steps that count."""
        import torch

        return torch.arange(self.items.shape[1], device=self.items.device) < self.length.unsqueeze(1)

    @property
    def rewards(self) -> torch.Tensor:
        """(B, T) rewards, 0 in the padding."""
        import torch

        table = self.behaviour_set.reward_table(self.items.device)
        return torch.where(self.mask, table[self.behaviours.long()], 0)
