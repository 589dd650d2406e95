"""Figures of a run, as SVG and PNG."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from mbcal.report.tables import RunSummary

INK, SOFT = "#333333", "#bbbbbb"
COLOURS = (
    "#c0392b", "#e59866", "#2471a3", "#5dade2", "#1e8449", "#58d68d", "#7d3c98", "#b7950b", "#d35400", "#16a085", "#909497",
    "#d2b4de", "#a04000",
)  # fmt: skip


def colour(place: int) -> str:
    """Of the n-th agent, everywhere the same."""
    return COLOURS[place % len(COLOURS)]


def draw_figures(findings: RunSummary) -> dict[str, bytes]:
    """File name -> content."""
    made: dict[str, bytes] = {}
    for protocol in ("batch", "growing"):
        if findings.of(protocol):
            made |= image_files(protocol, _bars(findings, protocol))
    if findings.of("growing"):
        made |= image_files("curves", _curves(findings))
    return made


def image_files(name: str, figure: Any) -> dict[str, bytes]:
    """A figure as SVG and PNG by file name: equal figures, equal bytes."""
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


def _bars(findings: RunSummary, protocol: str) -> Any:
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


def _curves(findings: RunSummary) -> Any:
    figure, axes = line_figure(findings.curves())
    axes.set(xlabel="round", ylabel="reward per session", title=f"Growing Batch-RL, judged by {findings.judges[0]}")
    axes.xaxis.get_major_locator().set_params(integer=True)
    return figure


def line_figure(lines: Mapping[str, Mapping[str, Sequence[float]]]) -> tuple[Any, Any]:
    """A figure and its axes: by agent the `mean` within a band from `low` to `high`, `at` these places or at 1, 2, 3, …"""
    figure = _figure(8, 4.8)
    axes = figure.subplots()
    for place, (agent, line) in enumerate(lines.items()):
        at = line.get("at", range(1, len(line["mean"]) + 1))
        axes.plot(at, line["mean"], color=colour(place), label=agent)
        axes.fill_between(at, line["low"], line["high"], color=colour(place), alpha=0.15, linewidth=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure, axes
