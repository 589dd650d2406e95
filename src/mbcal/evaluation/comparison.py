"""Models side by side: rewards and paired differences under judges, as values, text and JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbcal.environments.trust import Trust
from mbcal.evaluation.coverage import Coverage
from mbcal.metrics import Mean, mean_interval

LOG_ROW = "the log"
"""How tables name the logged sessions themselves: what the logging policy earned from the same users."""
MARK = "(!)"
"""Stands beside the warning of a simulator, and beside the numbers that it concerns (`Trust.marks`)."""


@dataclass(frozen=True)
class ModelResult:
    """One model under one judge."""

    judge: str
    model: str
    """The model's folder, or the name of an agent given as an object; `chance` is the random policy."""
    agent: str
    """The method."""
    reward: Mean
    """Mean reward per session, with an interval that is clustered by user."""
    gap: Mean
    """Difference to the first model, paired session by session; 0 for the first model itself."""
    coverage: Coverage | None = None
    """How far its choices lie outside the store's train part; None in a world, which needs no log to judge."""
    length: float | None = None
    """Mean steps of a session; None if users cannot leave."""
    left: float | None = None
    """Share of sessions that the user left; None if users cannot leave."""


@dataclass(frozen=True)
class ModelComparison:
    """Models under judges."""

    rows: list[ModelResult]
    """By judge, and under each judge the models in the given order, then the random policy."""
    logged: Mean | None
    """Reward per session of the same sessions as they were logged; None if new episodes were played instead."""
    sessions: int
    """Number of test sessions served."""
    seed: int
    trust: Mapping[str, Trust] = field(default_factory=dict)
    """By judge: for what differences it can be trusted; only simulators are in it."""

    @property
    def judges(self) -> list[str]:
        """Names of the judges, in order."""
        return list(dict.fromkeys(row.judge for row in self.rows))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as JSON can hold them; ends of an infinite interval are None."""
        rows = [
            {
                "judge": row.judge,
                "model": row.model,
                "agent": row.agent,
                "sessions": row.reward.count,
                "mean": row.reward.mean,
                "interval": _finite_ends(row.reward),
                "gap": row.gap.mean,
                "gap_interval": _finite_ends(row.gap),
                **({} if row.length is None else {"length": row.length, "left": row.left}),
                "rare_items": None if row.coverage is None else row.coverage.rare,
                "shifted_items": None if row.coverage is None else row.coverage.shifted,
                **_trust_record(self.trust.get(row.judge)),
            }
            for row in self.rows
        ]
        logged = None if self.logged is None else {"mean": self.logged.mean, "interval": _finite_ends(self.logged)}
        return {"rows": rows, "logged": logged, "seed": self.seed, "warnings": self.warnings}

    @property
    def warnings(self) -> list[str]:
        """Of every simulator that cannot be trusted far, and of models that leave what the log covers, where it guesses."""
        farthest: dict[str, Coverage] = {}
        for row in self.rows:
            if row.judge in self.trust and row.coverage is not None and row.coverage.is_low:
                farthest[row.model] = max(row.coverage, farthest.get(row.model, row.coverage), key=lambda low: low.shifted)
        by_judge = [f"{judge}: {trust.warning}" for judge, trust in self.trust.items() if trust.warning]
        return by_judge + [coverage.warning(model) for model, coverage in farthest.items()]

    @property
    def columns(self) -> list[str]:
        """Columns of `table`."""
        staying = ["steps", "left"] if any(row.length is not None for row in self.rows) else []
        return ["model", "reward per session", "95% interval", "difference to first", *staying]

    def table(self, judge: str) -> list[tuple[str, ...]]:
        """Return one row of text per model under a judge: model, reward, 95% interval, difference to the first model.

        Where users can leave, also the steps of a session, and the share of sessions that the user left. The last row is the
        log itself. Differences that are smaller than a simulator can be trusted for say so, and are marked if it has a
        warning; all its numbers are if it can be trusted for nothing.
        """
        rows, trust = [row for row in self.rows if row.judge == judge], self.trust.get(judge)

        def mark(gap: float | None = None) -> str:
            return f" {MARK}" if trust is not None and trust.marks(gap) else ""

        texts: list[tuple[str, ...]] = [
            (
                row.model,
                f"{row.reward.mean:.3f}{mark()}",
                _interval_text(row.reward, ".3f"),
                "" if row is rows[0] else _gap_text(row.gap, trust) + mark(row.gap.mean),
                *([] if row.length is None or row.left is None else [f"{row.length:.2f}", f"{row.left:.1%}"]),
            )
            for row in rows
        ]
        if self.logged is not None:
            staying = [""] * (len(self.columns) - 4)
            texts.append((LOG_ROW, f"{self.logged.mean:.3f}", _interval_text(self.logged, ".3f"), "", *staying))
        return texts

    def heading(self, judge: str) -> str:
        """Return the title of a judge's table, with what the judge can be trusted for."""
        trust = self.trust.get(judge)
        lines = [f"judged by {judge}, {self.sessions:,} test sessions"]
        if trust is not None:
            lines.append(f"{MARK} {trust.warning}" if trust.warning else trust.sentence)
        return "\n".join(lines)

    def __str__(self) -> str:
        lines = []
        for judge in self.judges:
            lines.append(self.heading(judge))
            lines += [" ".join(filter(None, row)) for row in self.table(judge)]
        return "\n".join([*lines, *(f"Warning: {warning}" for warning in self.warnings)])


def compare_rewards(
    judge: str, names: Sequence[tuple[str, str]], rewards: Sequence[NDArray[np.float32]], users: NDArray[np.int32]
) -> list[ModelResult]:
    """Return the results of models under one judge.

    Args:
        judge: Name of the judge.
        names: Name and method of each model.
        rewards: Reward of every session of each model, (N,) each, paired.
        users: (N,) user of every session.
    """
    return [
        ModelResult(judge, name, agent, mean_interval(values, users), mean_interval(values - rewards[0], users))
        for (name, agent), values in zip(names, rewards, strict=True)
    ]


def _finite_ends(mean: Mean) -> list[float | None]:
    """Ends of an interval; None where they are infinite, because there is one user."""
    return [end if math.isfinite(end) else None for end in (mean.low, mean.high)]


def _interval_text(mean: Mean, form: str) -> str:
    return f"[{mean.low:{form}}, {mean.high:{form}}]" if math.isfinite(mean.stderr) else ""


def _gap_text(gap: Mean, trust: Trust | None) -> str:
    """A difference with its interval; one that the judge cannot be trusted for says so."""
    small = "" if trust is None or trust.covers(gap.mean) else " too small for this judge (within its own error)"
    return f"{gap.mean:+.3f} {_interval_text(gap, '+.3f')}{small}"


def _trust_record(trust: Trust | None) -> dict[str, Any]:
    """What JSON says of a simulator beside each of its numbers."""
    difference = None if trust is None or math.isinf(trust.difference) else trust.difference
    return {"trusted_difference": difference, "warning": None if trust is None else trust.warning}
