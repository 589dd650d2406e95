"""Figures of a run, as SVG and PNG."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from mbcal.report.summary import PROTOCOLS, RunSummary

INK, SOFT = "#333333", "#bbbbbb"
COLOURS = (
    "#c0392b", "#e59866", "#2471a3", "#5dade2", "#1e8449", "#58d68d", "#7d3c98", "#b7950b", "#d35400", "#16a085", "#909497",
    "#d2b4de", "#a04000",
)  # fmt: skip


def colour(index: int) -> str:
    """Return the colour of the agent with this index; the same in every figure and on the page."""
    return COLOURS[index % len(COLOURS)]


def draw_figures(summary: RunSummary) -> dict[str, bytes]:
    """Draw all figures of a run; contents by file name."""
    files: dict[str, bytes] = {}
    for protocol in PROTOCOLS:
        if summary.by_agent(protocol):
            files |= image_files(protocol, _reward_figure(summary, protocol))
    if summary.by_agent("growing"):
        files |= image_files("curves", _curve_figure(summary))
    return files


def image_files(name: str, figure: Any) -> dict[str, bytes]:
    """Return a figure as SVG and PNG, contents by file name; equal figures give equal bytes."""
    files = {}
    for kind, metadata in (("svg", {"Date": None, "Creator": None}), ("png", {"Software": None})):
        out = io.BytesIO()
        figure.savefig(out, format=kind, metadata=metadata)
        files[f"{name}.{kind}"] = out.getvalue()
    return files


def line_figure(lines: Mapping[str, Mapping[str, Sequence[float]]]) -> tuple[Any, Any]:
    """Draw lines with bands.

    Args:
        lines: By agent: `mean`, the band's `low` and `high`, and optionally `at`, the x values (by default 1, 2, 3, …).

    Returns:
        The figure and its axes.
    """
    figure = _figure(8, 4.8)
    axes = figure.subplots()
    for index, (agent, line) in enumerate(lines.items()):
        at = line.get("at", range(1, len(line["mean"]) + 1))
        axes.plot(at, line["mean"], color=colour(index), label=agent)
        axes.fill_between(at, line["low"], line["high"], color=colour(index), alpha=0.15, linewidth=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure, axes


def _figure(width: float, height: float) -> Any:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "mbcal"  # equal figures, equal bytes
    return Figure(figsize=(width, height), dpi=120, layout="constrained")


def _reward_figure(summary: RunSummary, protocol: str) -> Any:
    """Reward and interval of every method, one panel per judge."""
    judges = [judge for judge in summary.judges if summary.rewards(protocol, judge)]
    order = [agent for agent, _, _ in summary.ranked(protocol, judges[0])][::-1]
    figure = _figure(4.5 * len(judges) + 1.5, 0.32 * len(order) + 1.2)
    for axes, judge in zip(figure.subplots(1, len(judges), squeeze=False)[0], judges, strict=True):
        for agent, mean, _ in summary.ranked(protocol, judge):
            y = order.index(agent)
            axes.plot([mean.low, mean.high], [y, y], color=SOFT, linewidth=4, solid_capstyle="butt")
            axes.plot(mean.mean, y, "o", color=INK, markersize=5)
        axes.set_yticks(range(len(order)), order)
        axes.set(title=f"judged by {judge}", xlabel="reward per session, 95% interval")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="x", color="#eeeeee")
    return figure


def _curve_figure(summary: RunSummary) -> Any:
    """Reward by round of Growing Batch-RL."""
    figure, axes = line_figure(summary.curves())
    axes.set(xlabel="round", ylabel="reward per session", title=f"Growing Batch-RL, judged by {summary.judges[0]}")
    axes.xaxis.get_major_locator().set_params(integer=True)
    return figure
