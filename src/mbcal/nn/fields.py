"""What user features and context add to a network: a linear function of their encoded rows (`types.fields`)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mbcal.distributed.group import SINGLE_WORKER, Group
from mbcal.scoring.fields import FieldTables
from mbcal.types import Fields, SessionTensors


class FieldEncoder(nn.Module):
    """The sum of what each field adds: a row of a table for a category, a projection of a number or a vector.

    A missing value adds nothing. Where a field is never missing in training, its mean effect is moved into `bias`
    (`centre`), so that a later value that is missing counts as an average one, not as something no one has seen.

    Args:
        reads: What it reads of sessions: `user_features` or `context`.
        fields: At least one.
        size: G, width of the result.
        scale: Standard deviation of the initial effect of all fields together.
    """

    bias: Tensor
    """(G,) what is added where nothing is known."""
    has_missing: Tensor
    """(fields,) bool, whether a value was missing in training."""
    seen: Tensor
    """(codes,) bool, whether a category had this value in training; others count as missing."""
    offsets: Tensor
    is_value: Tensor
    """(codes, 1) 1, and 0 for the code of a missing value."""

    def __init__(self, reads: str, fields: Fields, size: int, scale: float) -> None:
        super().__init__()
        self.reads, self.fields = reads, fields
        n_codes = int(fields.code_offsets[-1])
        scale /= len(fields) ** 0.5
        self.codes = nn.Parameter(scale * torch.randn(n_codes, size))
        self.floats = nn.Parameter(_initial_rows(fields, size, scale))
        self.register_buffer("bias", torch.zeros(size))
        self.register_buffer("has_missing", torch.zeros(len(fields), dtype=torch.bool))
        self.register_buffer("seen", torch.zeros(n_codes, dtype=torch.bool))
        self._register_codes()

    def _register_codes(self) -> None:
        """Set the buffers that are derived from the fields, which are saved with the model: they are not persistent."""
        *offsets, n_codes = self.fields.code_offsets.tolist()
        device = self.codes.device
        self.register_buffer("offsets", torch.tensor(offsets, dtype=torch.int64, device=device), persistent=False)
        is_value = torch.ones(n_codes, 1, device=device)
        is_value[offsets] = 0
        self.register_buffer("is_value", is_value, persistent=False)

    @torch.no_grad()
    def grow_values(self, fields: Fields) -> Tensor:
        """Add rows for new values of categories, which have no effect until a fit has seen them.

        Args:
            fields: The old fields, extended.

        Returns:
            (old codes,) the rows that the old codes have now.
        """
        begins, ends = self.offsets.tolist(), [*self.offsets[1:].tolist(), len(self.codes)]
        new_begins = fields.code_offsets.tolist()
        parts = [
            torch.arange(end - begin) + new_begin for begin, end, new_begin in zip(begins, ends, new_begins, strict=False)
        ]
        rows, count = torch.cat([torch.zeros(0, dtype=torch.int64), *parts]), new_begins[-1]
        self.fields = fields
        self.codes.data, self.codes.grad = spread_rows(self.codes.data, rows, count), None
        self.seen = spread_rows(self.seen, rows, count)
        self._register_codes()
        return rows

    def forward(self, rows: Tensor) -> Tensor:
        """Encoded rows (…, W) -> (…, G)."""
        n_codes = len(self.offsets)
        total = self.bias + rows[..., n_codes:] @ self.floats
        if n_codes:
            index = rows[..., :n_codes].long() + self.offsets
            total = total + nn.functional.embedding(index, self.codes * self.is_value).sum(-2)
        return total

    def unknown(self, *shape: int) -> Tensor:
        """The result (*shape, G) where nothing is known."""
        return self.bias.expand(*shape, -1)

    @torch.no_grad()
    def to_tables(self, weight: Tensor | None = None) -> FieldTables:
        """Return the effect as tables, without the bias.

        Args:
            weight: (units, G) of a layer that follows; None for none.
        """
        codes, floats = self.codes * self.is_value, self.floats.clone()
        if weight is not None:
            codes, floats = codes @ weight.T, floats @ weight.T
        return FieldTables(codes, floats, self.offsets.clone())

    def sums(self, rows: Tensor) -> Tensor:
        """How often every code occurs in rows (M, W), the sums of the other columns, and M: (codes + floats + 1,)."""
        n_codes = len(self.offsets)
        counts = (rows[:, :n_codes].long() + self.offsets).flatten().bincount(minlength=len(self.codes))
        total = torch.tensor([len(rows)], device=rows.device)
        return torch.cat([counts.double(), rows[:, n_codes:].double().sum(0), total.double()])

    @torch.no_grad()
    def centre(self, sums: Tensor) -> None:
        """Move the mean effect of fields that were never missing into the bias; values that never occurred have no effect.

        Args:
            sums: (codes + floats + 1,) those of all training rows; see `sums`.
        """
        counts, floats, total = sums[: len(self.codes)], sums[len(self.codes) : -1], float(sums[-1])
        if not total:
            return
        self.seen |= counts > 0
        self.codes.mul_(self.seen.unsqueeze(1))
        begin, n_codes = 0, len(self.offsets)
        ends = [*self.offsets[1:].tolist(), len(self.codes)]
        for number, field in enumerate(self.fields):
            if number < n_codes:
                codes = slice(int(self.offsets[number]), ends[number])
                shares, effects = counts[codes] / total, self.codes[codes]
                missing = bool(shares[0] > 0)
            else:
                columns = slice(begin, begin + field.width)
                shares, effects, begin = floats[columns] / total, self.floats[columns], columns.stop
                missing = bool(shares[-1] < 1)
            self.has_missing[number] |= missing
            if not self.has_missing[number]:
                mean = shares.to(effects.dtype) @ effects
                self.bias += mean
                if number < n_codes:
                    effects -= mean * self.seen[codes].unsqueeze(1)
                else:
                    effects[-1] -= mean


def spread_rows(tensor: Tensor, rows: Tensor, count: int) -> Tensor:
    """Move rows (N, …) to these places (N,) among `count` rows; the others are zero."""
    spread = tensor.new_zeros(count, *tensor.shape[1:])
    spread[rows.to(tensor.device)] = tensor
    return spread


def _initial_rows(fields: Fields, size: int, scale: float) -> Tensor:
    """The initial effect of numbers and vectors; that of being there at all is zero."""
    parts = [torch.zeros(0, size)]
    for field in fields.fields[fields.n_codes :]:
        length = field.width - 1
        parts += [scale / length**0.5 * torch.randn(length, size), torch.zeros(1, size)]
    return torch.cat(parts)


def centre_fields(net: nn.Module, sessions: SessionTensors, group: Group = SINGLE_WORKER) -> None:
    """Centre every field encoder of a network. Call after a fit.

    Args:
        net: The network.
        sessions: This worker's sessions, encoded by the network's fields.
        group: The workers that share the fit.
    """
    encoders = [module for module in net.modules() if isinstance(module, FieldEncoder)]
    for reads, rows in (("user_features", sessions.user_features), ("context", sessions.context)):
        readers = [encoder for encoder in encoders if encoder.reads == reads]
        if rows is None or not readers:
            continue
        sums = readers[0].sums((rows if rows.dim() == 2 else rows[sessions.mask]).to(readers[0].bias.device))
        group.all_reduce_sum(sums)
        for encoder in readers:
            encoder.centre(sums.to(encoder.bias.device))
