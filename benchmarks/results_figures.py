"""Figures of the results pages, drawn from the files in docs/results alone: equal files give equal figures.

Colours are the report's: a strong one for MBCAL, another for what is ours, grey for baselines. Names stand at the ends of
lines and rows. Panels are in two columns, so that a figure can be read on a narrow page.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from results_comparisons import deciding_judges, mean_of_seeds, paired_gap, trusted_from
from results_evidence import Evidence
from results_experiments import ResultFiles, Row

from mbcal.environments.newsfeed import oracle
from mbcal.evaluation.comparison import LOG_ROW
from mbcal.report.figures import GRID, INK, SOFT, image_files, new_figure
from mbcal.report.palette import COLOURS, role, styles
from mbcal.storage.atomic import write_atomic

BEHAVIOURS_KEPT = "mbcal+counterfactual=behaviours"
NAMES = {BEHAVIOURS_KEPT: "mbcal, paper's label"}
"""What a method is called in figures, if not by its name."""
METHODS = (
    *("mbcal-plan", "mbcal", "mbcal-no-vr", BEHAVIOURS_KEPT, "dyna-q", "dqn", "ddqn", "ddpg", "mcpe"),
    *("gru4rec", "gru4rec-eps", "gru4rec-regression", "linucb", "popular", "random"),
)
"""All methods, in the order of rows."""
MAIN = ("mbcal-plan", "mbcal", "mbcal-no-vr", "dyna-q", "dqn", "mcpe", "gru4rec-regression")
"""Those in the overview of Batch-RL."""
STYLES = styles(list(METHODS))
"""Role and dash of every method, the same in all figures."""
GREY = COLOURS["reference"]
COLUMNS, WIDTH = 2, 6.8
"""Columns of panels, and the width of a figure in inches."""
DATA = ("netflix", "ml1m", "kuairand", "newsfeed", "leaving", "sardine")
TITLES = dict(zip(DATA, ("Netflix", "MovieLens", "KuaiRand", "newsfeed", "leaving", "SARDINE"), strict=True))
"""Short names, for figures and columns."""


class Point(NamedTuple):
    """A value with its interval."""

    low: float
    value: float
    high: float


class Panel(NamedTuple):
    """A panel whose rows are methods, with one point or two."""

    title: str
    rows: dict[str, list[Point]]
    lines: dict[str, float]
    """References: vertical lines by name."""
    untrusted: list[float]
    """Gaps up to these could be a judge's own error."""


def write_figures(files: ResultFiles) -> None:
    """Draw every figure for which there are files, into the same folder."""
    logs = [data for data in TITLES if data != "sardine"]
    drawn = {
        "overview-batch": gap_figure(files, logs, MAIN),
        "overview-growing": curve_figure(files, ["newsfeed", "leaving", "netflix", "ml1m", "kuairand"]),
        "overview-errors": error_figure(files, logs),
        "overview-regret": regret_figure(files, ["newsfeed", "leaving"]),
    }
    for data in TITLES:
        drawn[f"{data}-batch"] = gap_figure(files, [data], METHODS, every_judge=True)
        drawn[f"{data}-growing"] = curve_figure(files, [data])
        drawn[f"{data}-size"] = size_figure(files, data)
    for name, figure in drawn.items():
        if figure is not None:
            write_atomic(files.folder / f"{name}.svg", image_files(name, figure)[f"{name}.svg"])


# ---- rows


def gap_figure(files: ResultFiles, datasets: Sequence[str], methods: Sequence[str], every_judge: bool = False) -> Any:
    """Gap of methods to GRU4Rec in Batch-RL: a panel per data set, or per judge of one; None without results.

    Two simulators are drawn one below the other, the second hollow.
    """
    panels = []
    for data in datasets:
        judges = sorted({row["judge"] for row in files.rows(f"{data}-batch-gaps")}, key=_judge_order)
        groups = [[judge] for judge in judges] if every_judge else [[j for j in deciding_judges(data) if j in judges]]
        for group in filter(None, groups):
            found = {agent: _gaps(files, data, agent, group) for agent in methods}
            rows = {agent: [Point(gap.low, gap.value, gap.high) for gap in gaps] for agent, gaps in found.items() if gaps}
            title = f"{TITLES[data]}, {'two simulators' if len(group) == 2 else group[0]}"
            trusted = [gap for judge in group if (gap := trusted_from(files, f"{data}-batch", judge))]
            if rows:
                panels.append(Panel(title, rows, _reference_gaps(files, data, group[0]), trusted))
    return _row_figure(panels, methods, "reward per session minus GRU4Rec's, 95% interval over users and trainings")


def _judge_order(judge: str) -> int:
    return ("truth", "lstm", "transformer", "world").index(judge)


def _gaps(files: ResultFiles, data: str, agent: str, judges: Sequence[str]) -> list[Evidence]:
    found = (paired_gap(files, f"{data}-batch", judge, agent, "gru4rec") for judge in judges)
    return [entry for entry in found if entry is not None]


def _reference_gaps(files: ResultFiles, data: str, judge: str) -> dict[str, float]:
    """The log and the oracle minus GRU4Rec, if known."""
    earned = {row["agent"]: row["reward per session"] for row in files.rows(f"{data}-batch-batch") if row["judge"] == judge}
    levels = _levels(files, data, judge)
    return {name: level - earned["gru4rec"] for name, level in levels.items() if "gru4rec" in earned and name != "random"}


def error_figure(files: ResultFiles, datasets: Sequence[str]) -> Any:
    """Mean squared error of value regressions (the paper's Table 3) on a log scale; None without results."""
    panels = []
    for data in datasets:
        rows = {
            row["agent"]: [Point(*(row.get(f"{end}MSE") or row["MSE"] for end in ("lowest ", "", "highest ")))]
            for row in files.rows(f"{data}-batch-variance")
        }
        if rows:
            panels.append(Panel(TITLES[data], rows, {}, []))
    label = "mean squared error of the value regression (log scale), lowest to highest training"
    return _row_figure(panels, METHODS, label, scale="log")


def _row_figure(panels: Sequence[Panel], methods: Sequence[str], label: str, scale: str = "linear") -> Any:
    """Panels with a row for every method that one of them has; None without panels."""
    if not panels:
        return None
    shown = [agent for agent in methods if any(agent in panel.rows for panel in panels)]
    figure, grid = _panels(len(panels), 0.23 * len(shown) + 0.75)
    for number, (axes, panel) in enumerate(zip(grid, panels, strict=True)):
        axes.set_xscale(scale)
        for agent, points in panel.rows.items():
            for place, point in enumerate(points):
                y = len(shown) - 1 - shown.index(agent) - 0.26 * (place - (len(points) - 1) / 2)
                _draw_point(axes, y, agent, point, hollow=place > 0)
        if scale == "linear":
            axes.axvline(0, color=INK, linewidth=0.8)
            axes.locator_params(axis="x", nbins=5)
            _draw_references(axes, panel)
        axes.set_yticks(range(len(shown)), [NAMES.get(agent, agent) for agent in shown[::-1]])
        axes.tick_params(axis="y", labelleft=number % COLUMNS == 0)
        axes.set_ylim(-0.6, len(shown) - 0.4)
        axes.set_title(panel.title, fontsize=10, pad=16 if panel.lines else 6)
        axes.grid(axis="x", color=GRID)
    figure.supxlabel(label, fontsize=9)
    return figure


def _draw_point(axes: Any, y: float, agent: str, point: Point, hollow: bool) -> None:
    colour = COLOURS[role(agent)]
    axes.plot([point.low, point.high], [y, y], color=colour, alpha=0.55, linewidth=3, solid_capstyle="butt")
    axes.plot(point.value, y, "o", color=colour, markerfacecolor="white" if hollow else colour, markersize=5)


def _draw_references(axes: Any, panel: Panel) -> None:
    """Vertical lines that are not far from the rows, with names above them, and the zone that cannot be trusted."""
    low, high = axes.get_xlim()
    near = {name: at for name, at in panel.lines.items() if low - (high - low) / 2 < at < high + (high - low) / 2}
    for side, word, place in (("left", "below", 0.02), ("right", "above", 0.98)):
        far = [
            f"{name} {at:+.1f}" for name, at in panel.lines.items() if name not in near and (at < low) == (side == "left")
        ]
        if far:
            text, at = f"{word}: {', '.join(far)}", (place, 0.02)
            axes.annotate(text, at, xycoords="axes fraction", ha=side, fontsize=8, color=GREY)
    for name, at in near.items():
        axes.axvline(at, color=GREY, linewidth=1, linestyle=(0, (4, 2)))
        axes.annotate(name, (at, 1.01), xycoords=("data", "axes fraction"), ha="center", va="bottom", fontsize=8, color=GREY)
    for gap in panel.untrusted:
        axes.axvspan(-gap, gap, color=SOFT, alpha=0.2, linewidth=0, zorder=0)
    margin = (high - low) / 50
    axes.set_xlim(min(low, *(at - margin for at in near.values()), 0), max(high, *(at + margin for at in near.values()), 0))


# ---- curves


def curve_figure(files: ResultFiles, datasets: Sequence[str]) -> Any:
    """Reward by round of Growing Batch-RL, a panel per data set, bands from lowest to highest training; None without any.

    Grey is what a simulator that judges cannot tell from GRU4Rec's last reward.
    """
    known = {data: rows for data in datasets if (rows := files.rows(f"{data}-growing-curves"))}
    if not known:
        return None
    figure, grid = _panels(len(known), 2.5)
    for axes, (data, rows) in zip(grid, known.items(), strict=True):
        judge = next((row["judge"] for row in files.rows(f"{data}-growing-growing")), deciding_judges(data)[0])
        lines = {agent: [row for row in rows if row["agent"] == agent] for agent in METHODS}
        if len(known) > 1:
            del lines[BEHAVIOURS_KEPT]
        _draw_lines(axes, lines, "round", ("lowest seed", "highest seed"), _levels(files, data, judge))
        axes.set_xlabel("round", fontsize=9)
        axes.set_title(f"{TITLES[data]}, judged by {judge}", fontsize=10)
        _draw_error(axes, lines["gru4rec"], trusted_from(files, f"{data}-growing", judge))
        axes.xaxis.get_major_locator().set_params(integer=True, nbins=5)
    figure.supylabel("reward per session", fontsize=9)
    return figure


def _draw_error(axes: Any, rows: Sequence[Row], error: float | None) -> None:
    """The zone around the last reward of a method within which a judge, by its own error, tells nothing."""
    if rows and error:
        low, high = axes.get_ylim()
        last = rows[-1]["reward per session"]
        axes.axhspan(last - error, last + error, color=SOFT, alpha=0.2, linewidth=0, zorder=0)
        axes.set_ylim(low, high)
        axes.set_title(f"{axes.get_title()}\ngrey: within its error of GRU4Rec", fontsize=9)


def _levels(files: ResultFiles, data: str, judge: str) -> dict[str, float]:
    """References: what random choices, the log and the oracle earn under a judge."""
    rows = files.rows(f"{data}-growing-growing") + files.rows(f"{data}-batch-batch")
    earned = {row["agent"]: row["reward per session"] for row in rows if row["judge"] == judge}
    planned = [row["oracle"] for row in files.rows("planning-error") if row["data"] == data and judge == "truth"]
    earned |= {oracle.NAME: sum(planned) / len(planned)} if planned and oracle.NAME not in earned else {}
    return {name: earned[name] for name in ("random", LOG_ROW, oracle.NAME) if name in earned}


def size_figure(files: ResultFiles, data: str) -> Any:
    """Reward by size of the log under the deciding judge, with the spread over trainings; None below two sizes."""
    judge = deciding_judges(data)[0]
    rows = [_with_spread(row) for row in files.rows(f"{data}-size-size") if row["judge"] == judge]
    sizes = sorted({row["log sessions"] for row in rows})
    if len(sizes) < 2:
        return None
    figure, (axes,) = _panels(1, 2.8)
    rows.sort(key=lambda row: row["log sessions"])
    lines = {agent: [row for row in rows if row["agent"] == agent] for agent in METHODS}
    _draw_lines(axes, lines, "log sessions", ("below", "above"), {})
    axes.set(xscale="log", xlabel="sessions of the log learned from", ylabel="reward per session")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    axes.set_title(f"{TITLES[data]}, {judge}", fontsize=10)
    return figure


def _with_spread(row: Row) -> Row:
    """A row with a band: the reward, and a standard deviation over trainings below and above it."""
    reward, spread = row["reward per session"], row["spread over seeds"] or 0.0
    return {**row, "below": reward - spread, "above": reward + spread}


def _draw_lines(
    axes: Any, lines: Mapping[str, Sequence[Row]], at: str, band: tuple[str, str], levels: Mapping[str, float]
) -> None:
    """A line with a band for every method that has rows, and a grey one for every reference; names at their ends."""
    ends: list[tuple[float, str, str]] = []
    for agent, rows in lines.items():
        if rows:
            own, dash = STYLES[agent]
            places, means, low, high = ([row[column] for row in rows] for column in (at, "reward per session", *band))
            pattern = (0, tuple(float(part) / 2 for part in dash.split())) if dash else "-"
            axes.plot(places, means, color=COLOURS[own], linestyle=pattern, linewidth=2.2 if own == "mbcal" else 1.6)
            axes.fill_between(places, low, high, color=COLOURS[own], alpha=0.13, linewidth=0)
            ends.append((means[-1], NAMES.get(agent, agent), COLOURS[own]))
    low, high = axes.get_ylim()
    near = {name: level for name, level in levels.items() if low - (high - low) < level < high + (high - low)}
    for name, level in near.items():
        axes.axhline(level, color=SOFT, linewidth=1)
        ends.append((level, name, GREY))
    far = [f"{name} {level:.1f}" for name, level in levels.items() if name not in near]
    if far:
        axes.annotate(f"below: {', '.join(far)}", (0.98, 0.03), xycoords="axes fraction", ha="right", fontsize=8, color=GREY)
    axes.grid(axis="y", color=GRID)
    _label_ends(axes, ends)


def _label_ends(axes: Any, ends: Sequence[tuple[float, str, str]]) -> None:
    """Write names at the right ends of lines, apart from each other: value, name and colour of each."""
    low, high = axes.get_ylim()
    step, places = (high - low) / 13, []
    for value, _, _ in sorted(ends):
        places.append(max([value, *(place + step for place in places[-1:])]))
    ceiling = high
    for index in reversed(range(len(places))):
        places[index] = min(places[index], ceiling)
        ceiling = places[index] - step
    for place, (_, name, colour) in zip(places, sorted(ends), strict=True):
        axes.annotate(name, (1.02, place), xycoords=("axes fraction", "data"), va="center", fontsize=8.5, color=colour)


# ---- what planning loses


def regret_figure(files: ResultFiles, datasets: Sequence[str]) -> Any:
    """What planning earns, and what the rest to the oracle is lost to; None without results."""
    bars: list[tuple[str, list[float]]] = []
    for data in datasets:
        rows = [row for row in files.rows("planning-error") if row["data"] == data]
        for models in sorted({row["models"] for row in rows}):
            own = [row for row in rows if row["models"] == models]
            columns = ("true", "planned in the true world", "oracle", "imagined")
            means = [mean_of_seeds([row[column] for row in own])[0] for column in columns]
            bars.append((f"{TITLES[data]}, {models} model{'s' * (models > 1)}", means))
    if not bars:
        return None
    figure, (axes,) = _panels(1, 0.45 * len(bars) + 0.9)
    places = range(len(bars))[::-1]
    true, in_truth, best, imagined = zip(*(means for _, means in bars), strict=True)
    model_error, regret, overrated = (list(map(operator.sub, to, true)) for to in (in_truth, best, imagined))
    axes.barh(places, regret, color=SOFT, height=0.5, label="instant reward and policy error")
    axes.barh(places, model_error, color=COLOURS["ours"], height=0.5, label="model error in the continuation")
    axes.plot(overrated, places, "|", color=INK, markersize=18, markeredgewidth=2.5, label="imagined")
    for place, end in zip(places, regret, strict=True):
        axes.annotate("oracle", (end, place), (4, 0), textcoords="offset points", va="center", fontsize=8.5, color=GREY)
    axes.set_yticks(places, [name for name, _ in bars])
    axes.set_xlabel("reward per session above what planning earns", fontsize=9)
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=8.5, handlelength=1.2, columnspacing=1.2)
    return figure


def _panels(count: int, height: float) -> tuple[Any, list[Any]]:
    """A figure and its panels, each `height` inches high."""
    columns = min(count, COLUMNS)
    rows = math.ceil(count / columns)
    figure = new_figure(WIDTH, rows * height + 0.4)
    figure.get_layout_engine().set(h_pad=0.08)
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in grid[count:]:
        axes.remove()
    for axes in grid[:count]:
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8.5)
        axes.set_axisbelow(True)
    return figure, grid[:count]
