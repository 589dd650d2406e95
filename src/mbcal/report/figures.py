"""Figures of a run, as SVG and PNG."""

from __future__ import annotations

import io
from typing import Any

from mbcal.report.tables import Findings

INK, SOFT = "#333333", "#bbbbbb"
COLOURS = (
    "#c0392b", "#e59866", "#2471a3", "#5dade2", "#1e8449", "#58d68d", "#7d3c98", "#b7950b", "#d35400", "#16a085", "#909497",
    "#d2b4de", "#a04000",
)  # fmt: skip


def colour(place: int) -> str:
    """Of the n-th agent, everywhere the same."""
    return COLOURS[place % len(COLOURS)]


def draw_figures(findings: Findings) -> dict[str, bytes]:
    """File name -> content."""
    made: dict[str, bytes] = {}
    for protocol in ("batch", "growing"):
        if findings.of(protocol):
            made |= _files(protocol, _bars(findings, protocol))
    if findings.of("growing"):
        made |= _files("curves", _curves(findings))
    return made


def _files(name: str, figure: Any) -> dict[str, bytes]:
    files = {}
    for kind, metadata in (("svg", {"Date": None, "Creator": None}), ("png", {"Software": None})):
        out = io.BytesIO()
        figure.savefig(out, format=kind, metadata=metadata)
        files[f"{name}.{kind}"] = out.getvalue()
    return files


def _figure(width: float, height: float) -> Any:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "mbcal"  # the same figure, the same bytes
    return Figure(figsize=(width, height), dpi=120, layout="constrained")


def _bars(findings: Findings, protocol: str) -> Any:
    judges = [judge for judge in findings.judges if findings.rewards(protocol, judge)]
    order = [agent for agent, _, _ in findings.ranked(protocol, judges[0])][::-1]
    figure = _figure(4.5 * len(judges) + 1.5, 0.32 * len(order) + 1.2)
    for axes, judge in zip(figure.subplots(1, len(judges), squeeze=False)[0], judges, strict=True):
        for agent, mean, _ in findings.ranked(protocol, judge):
            place = order.index(agent)
            axes.plot([mean.low, mean.high], [place, place], color=SOFT, linewidth=4, solid_capstyle="butt")
            axes.plot(mean.mean, place, "o", color=INK, markersize=5)
        axes.set_yticks(range(len(order)), order)
        axes.set(title=f"judged by {judge}", xlabel="reward per session, 95% interval")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="x", color="#eeeeee")
    return figure


def _curves(findings: Findings) -> Any:
    figure = _figure(8, 4.8)
    axes = figure.subplots()
    for place, (agent, curve) in enumerate(findings.curves().items()):
        rounds = range(1, len(curve["mean"]) + 1)
        axes.plot(rounds, curve["mean"], color=colour(place), label=agent)
        axes.fill_between(rounds, curve["low"], curve["high"], color=colour(place), alpha=0.15, linewidth=0)
    axes.set(xlabel="round", ylabel="reward per session", title=f"Growing Batch-RL, judged by {findings.judges[0]}")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure
