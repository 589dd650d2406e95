"""A simulator's report card as a figure: calibration, drift, and which behaviours it takes for which."""

from __future__ import annotations

import io

import numpy as np

from mbcal.environments.report_card import ReportCard
from mbcal.types import Behaviours

INK, REAL, MODEL, SOFT = "#333333", "#444444", "#c0392b", "#dddddd"


def draw_report_card(card: ReportCard, behaviours: Behaviours, title: str) -> bytes:
    """A PNG. Names are shown as they are: a dollar sign in one begins no formula."""
    import matplotlib as mpl

    with mpl.rc_context({"text.parse_math": False}):
        return _draw(card, behaviours, title)


def _draw(card: ReportCard, behaviours: Behaviours, title: str) -> bytes:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4.2), dpi=120, layout="constrained")
    figure.suptitle(
        f"{title}: NLL {card.nll:.3f} (shares alone {card.baseline_nll:.3f}), macro-F1 {card.macro_f1:.3f}, "
        f"weighted-F1 {card.weighted_f1:.3f}, RMSE {card.rmse:.3f}",
        color=INK,
    )
    calibration, drift, mistakes = figure.subplots(1, 3)

    bins = {name: np.asarray(values) for name, values in card.reliability.items()}
    used = bins["count"] > 0
    calibration.plot([0, 1], [0, 1], color=SOFT, zorder=0)
    calibration.plot(bins["confidence"][used], bins["accuracy"][used], "o-", color=MODEL, label="most likely behaviour")
    share = calibration.twinx()
    share.bar(bins["confidence"][used], bins["count"][used] / bins["count"].sum(), width=0.04, color=SOFT, zorder=0)
    share.set_ylim(0, 1)
    share.set_yticks([])
    calibration.set_zorder(share.get_zorder() + 1)
    calibration.patch.set_visible(False)
    calibration.set(title=f"Calibration (ECE {card.ece:.3f})", xlabel="confidence", ylabel="how often right; bars: share")

    steps = np.arange(1, len(card.real) + 1)
    simulated, error = np.asarray(card.simulated), 1.96 * np.asarray(card.error)
    drift.plot(steps, card.real, color=REAL, label="real users")
    drift.plot(steps, simulated, color=MODEL, label="simulator on its own behaviours")
    drift.fill_between(steps, simulated - error, simulated + error, color=MODEL, alpha=0.2, linewidth=0)
    drift.xaxis.get_major_locator().set_params(integer=True)
    drift.set(title=f"Drift (largest gap {card.drift:.1%})", xlabel="step", ylabel="mean reward")
    drift.legend(frameon=False)

    table = np.asarray(card.confusion, float)
    shares = table / np.maximum(table.sum(1, keepdims=True), 1)
    mistakes.imshow(shares, cmap="Reds", vmin=0, vmax=1)
    short = [name if len(name) <= 12 else f"{name[:11]}…" for name in behaviours.names]
    mistakes.set_xticks(range(len(short)), short, rotation=90, fontsize=8)
    mistakes.set_yticks(range(len(short)), short, fontsize=8)
    mistakes.set(title=f"What came (rows) and what was likeliest\n(accuracy {card.accuracy:.1%})")

    for axes in (calibration, share, drift):
        axes.spines[["top", "right"]].set_visible(False)
    out = io.BytesIO()
    figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()
