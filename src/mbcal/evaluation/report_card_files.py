"""A simulator's report card as files: JSON, and a figure of calibration, drift and confusion."""

from __future__ import annotations

import io
import json
from dataclasses import asdict
from typing import Any

import numpy as np

from mbcal.environments.report_card import ReportCard
from mbcal.types import Behaviours

INK, REAL, MODEL, SOFT = "#333333", "#444444", "#c0392b", "#dddddd"
MAX_LABEL = 12
"""Longest name of a behaviour that the figure shows in full."""


def report_card_files(card: ReportCard, behaviours: Behaviours, title: str) -> dict[str, bytes]:
    """Return `report-card.json` and `report-card.png`: contents by file name.

    Args:
        card: The report card.
        behaviours: The simulator's behaviours, which name the rows of the confusion matrix.
        title: Title of the figure.
    """
    record = {**asdict(card), "drift": card.drift, "length_drift": card.length_drift}
    return {
        "report-card.json": json.dumps(record, indent=2, allow_nan=False).encode(),
        "report-card.png": draw_report_card(card, behaviours, title),
    }


def draw_report_card(card: ReportCard, behaviours: Behaviours, title: str) -> bytes:
    """Draw a report card as a PNG; equal cards give equal bytes."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"text.parse_math": False}):  # a dollar sign in a name begins no formula
        figure = Figure(figsize=(13, 4.2), dpi=120, layout="constrained")
        figure.suptitle(
            f"{title}: NLL {card.nll:.3f} (baseline {card.baseline_nll:.3f}), macro-F1 {card.macro_f1:.3f}, "
            f"weighted-F1 {card.weighted_f1:.3f}, RMSE {card.rmse:.3f}",
            color=INK,
        )
        calibration, drift, confusion = figure.subplots(1, 3)
        _draw_calibration(calibration, card)
        _draw_drift(drift, card)
        _draw_confusion(confusion, card, behaviours)
        out = io.BytesIO()
        figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


def _draw_calibration(axes: Any, card: ReportCard) -> None:
    """Accuracy by confidence, over bars of how often each confidence occurs."""
    bins = {name: np.asarray(values) for name, values in card.reliability.items()}
    used = bins["count"] > 0
    axes.plot([0, 1], [0, 1], color=SOFT, zorder=0)
    axes.plot(bins["confidence"][used], bins["accuracy"][used], "o-", color=MODEL, label="most likely behaviour")
    share = axes.twinx()
    share.bar(bins["confidence"][used], bins["count"][used] / bins["count"].sum(), width=0.04, color=SOFT, zorder=0)
    share.set_ylim(0, 1)
    share.set_yticks([])
    axes.set_zorder(share.get_zorder() + 1)
    axes.patch.set_visible(False)
    axes.set(title=f"Calibration (ECE {card.ece:.3f})", xlabel="confidence", ylabel="accuracy; bars: share of steps")
    for panel in (axes, share):
        panel.spines[["top", "right"]].set_visible(False)


def _draw_drift(axes: Any, card: ReportCard) -> None:
    """Mean reward by step: as logged, and the simulator on its own behaviours."""
    steps = np.arange(1, len(card.real) + 1)
    simulated, error = np.asarray(card.simulated), 1.96 * np.asarray(card.error)
    axes.plot(steps, card.real, color=REAL, label="logged")
    axes.plot(steps, simulated, color=MODEL, label="simulator on its own behaviours")
    axes.fill_between(steps, simulated - error, simulated + error, color=MODEL, alpha=0.2, linewidth=0)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(title=f"Drift (largest gap {card.drift:.1%})", xlabel="step", ylabel="mean reward")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_confusion(axes: Any, card: ReportCard, behaviours: Behaviours) -> None:
    """Shares of predicted behaviours (columns) by logged behaviour (rows)."""
    counts = np.asarray(card.confusion, float)
    axes.imshow(counts / np.maximum(counts.sum(1, keepdims=True), 1), cmap="Reds", vmin=0, vmax=1)
    labels = [name if len(name) <= MAX_LABEL else f"{name[: MAX_LABEL - 1]}…" for name in behaviours.names]
    axes.set_xticks(range(len(labels)), labels, rotation=90, fontsize=8)
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.set(title=f"Logged (rows) and most likely behaviour\n(accuracy {card.accuracy:.1%})")
