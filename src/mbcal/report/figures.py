"""Figures of a run, as SVG and PNG."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from mbcal.evaluation.comparison import MARK
from mbcal.metrics import Mean
from mbcal.report.palette import COLOURS, REFERENCES, role, styles
from mbcal.report.standing import compare
from mbcal.report.summary import PROTOCOLS, RunSummary

INK, SOFT, GRID = "#333333", "#bbbbbb", "#eeeeee"


def draw_figures(summary: RunSummary) -> dict[str, bytes]:
    """Draw all figures of a run; contents by file name."""
    files: dict[str, bytes] = {}
    for protocol in PROTOCOLS:
        if summary.by_agent(protocol):
            files |= image_files(protocol, _reward_figure(summary, protocol))
            if summary.baseline in summary.rewards(protocol, summary.judges[0]):
                files |= image_files(f"{protocol}-gaps", _gap_figure(summary, protocol, summary.baseline or ""))
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
        figure.set_layout_engine(None)  # the parts are in place; to lay them out again takes as long as to draw them
    return files


def _line_figure(lines: Mapping[str, Mapping[str, Sequence[float]]], references: Mapping[str, float]) -> tuple[Any, Any]:
    """Draw lines with bands.

    Args:
        lines: By agent: `mean`, and the band's `low` and `high`, at 1, 2, 3, ….
        references: Values of horizontal lines by name.

    Returns:
        The figure and its axes.
    """
    figure = new_figure(8, 4.8)
    axes = figure.subplots()
    ends: list[tuple[float, str, str]] = []
    for name, value in references.items():
        axes.axhline(value, color=COLOURS["reference"], linestyle=":", linewidth=1)
        ends.append((value, name, COLOURS["reference"]))
    for agent, (own, dash) in styles(list(lines)).items():
        line = lines[agent]
        at = range(1, len(line["mean"]) + 1)
        style = (0, tuple(float(part) / 2 for part in dash.split())) if dash else "-"
        axes.plot(at, line["mean"], color=COLOURS[own], linestyle=style, linewidth=2.4 if own == "mbcal" else 1.6)
        axes.fill_between(at, line["low"], line["high"], color=COLOURS[own], alpha=0.13, linewidth=0)
        ends.append((line["mean"][-1], agent, COLOURS[own]))
    axes.spines[["top", "right"]].set_visible(False)
    _label_ends(axes, ends)
    return figure, axes


def _label_ends(axes: Any, ends: list[tuple[float, str, str]]) -> None:
    """Write names at the right ends of lines, apart from each other: value, name and colour of each."""
    low, high = axes.get_ylim()
    gap, last = (high - low) / 24, -math.inf
    for value, name, colour in sorted(ends):
        last = max(value, last + gap)
        at = (1.01, (last - low) / (high - low))
        axes.annotate(name, at, xycoords="axes fraction", va="center", fontsize=8, color=colour, annotation_clip=False)


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure, sizes in inches; equal figures give equal bytes."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "mbcal"
    return Figure(figsize=(width, height), dpi=120, layout="constrained")


def _reward_figure(summary: RunSummary, protocol: str) -> Any:
    """Reward and interval of every method and of the log, one panel per judge."""
    panels = {judge: summary.ranked_with_log(protocol, judge) for judge in summary.judges}
    means: dict[str, dict[str, Mean]] = {
        judge: {agent: mean for agent, mean, _ in ranked} for judge, ranked in panels.items() if ranked
    }
    figure, by_judge = _panels(summary, protocol, means)
    for axes in by_judge.values():
        axes.set_xlabel("reward per session, 95% interval")
    return figure


def _gap_figure(summary: RunSummary, protocol: str, base: str) -> Any:
    """Paired gap of every method and of the log to the baseline, one panel per judge; grey where it is not to be trusted."""
    gaps: dict[str, dict[str, Mean]] = {}
    for judge in summary.judges:
        rewards = summary.rewards_with_log(protocol, judge)
        if base in rewards:
            agents = [agent for agent, _, _ in summary.ranked_with_log(protocol, judge) if agent != base]
            gaps[judge] = {agent: compare(agent, base, rewards, summary.users).gap for agent in agents}
    figure, by_judge = _panels(summary, protocol, gaps)
    for name, axes in by_judge.items():
        low, high = axes.get_xlim()
        trust, legend = summary.trust.get(name), ""
        if trust is not None and not trust.problem:
            axes.axvspan(-trust.difference, trust.difference, color=SOFT, alpha=0.3, linewidth=0, zorder=0)
            legend = "\ngrey: within the simulator's own error; gaps to the log may be further off"
        axes.set_xlim(min(low, 0), max(high, 0))
        axes.axvline(0, color=INK, linewidth=0.8)
        axes.set_xlabel(f"reward per session minus {base}'s, paired 95% interval{legend}")
    return figure


def _panels(summary: RunSummary, protocol: str, means: Mapping[str, Mapping[str, Mean]]) -> tuple[Any, dict[str, Any]]:
    """Draw a row per agent and a panel per judge, given means by judge and agent, the top row first.

    Returns:
        The figure and the axes by judge.
    """
    most = max(1, *map(len, means.values()))
    figure = new_figure(5 * len(means) + 1, 0.32 * most + 1.8)
    figure.suptitle(PROTOCOLS[protocol])
    by_judge = dict(zip(means, figure.subplots(1, len(means), squeeze=False)[0], strict=True))
    for judge, axes in by_judge.items():
        for row, (agent, mean) in enumerate(means[judge].items()):
            _draw_interval(axes, row, agent, mean)
        axes.set_yticks(range(len(means[judge])), list(means[judge]))
        axes.set_ylim(len(means[judge]) - 0.4, -0.6)
        axes.set_title(_judged_by(summary, judge), fontsize=10)
    return figure, by_judge


def _judged_by(summary: RunSummary, judge: str) -> str:
    """The judge as a title, with a mark and what it can be trusted for if it has a warning."""
    trust = summary.trust.get(judge)
    if trust is None or not trust.is_low:
        return f"judged by {judge}"
    limit = "it cannot be trusted" if trust.problem else f"trusted for differences of {trust.difference:.3g} or more"
    return f"judged by {judge} {MARK}\n{limit}"


def _draw_interval(axes: Any, y: int, agent: str, mean: Mean) -> None:
    """One row: an interval and its mean, in the colour of the agent's role; references are hollow."""
    own = role(agent)
    axes.plot([mean.low, mean.high], [y, y], color=COLOURS[own], alpha=0.45, linewidth=4, solid_capstyle="butt")
    face = "white" if own == "reference" else COLOURS[own]
    axes.plot(mean.mean, y, "o", color=COLOURS[own], markerfacecolor=face, markersize=5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", color=GRID)


def _curve_figure(summary: RunSummary) -> Any:
    """Reward by round of Growing Batch-RL, with lines for the oracle, a random policy and the log."""
    curves = {agent: curve for agent, curve in summary.curves().items() if agent not in REFERENCES}
    figure, axes = _line_figure(curves, summary.references())
    title = f"{PROTOCOLS['growing']}, {_judged_by(summary, summary.judges[0])}"
    axes.set(xlabel="round", ylabel="reward per session", title=title)
    axes.xaxis.get_major_locator().set_params(integer=True)
    return figure
