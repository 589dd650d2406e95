"""Figures of the results pages, drawn from the files in docs/results alone: equal files give equal figures.

Methods have the same colour and mark in every figure. Colours are those of Okabe and Ito, which colour-blind readers tell
apart; marks and dashes differ as well. No figure has more than seven methods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from results_claims import Evidence, deciding_judges, mean_of_seeds, paired_gap
from results_experiments import ResultFiles, Row

from mbcal.report.figures import GRID, INK, SOFT, image_files, new_figure
from mbcal.storage.atomic import write_atomic


class Style(NamedTuple):
    """How a method is drawn."""

    colour: str
    marker: str
    dash: Any = "-"


STYLES: Mapping[str, Style] = {
    "mbcal-plan": Style("#d55e00", "D"),
    "mbcal": Style("#0072b2", "o"),
    "mbcal-no-vr": Style("#56b4e9", "s", (0, (5, 2))),
    "dyna-q": Style("#009e73", "^", (0, (3, 1.5))),
    "dqn": Style("#e69f00", "v", (0, (1, 1.2))),
    "mcpe": Style("#cc79a7", "P", (0, (6, 2, 1, 2))),
    "gru4rec-regression": Style("#999999", "X", (0, (1, 2.5))),
    "gru4rec": Style("#000000", "*", (0, (8, 3))),
    "gru4rec-eps": Style("#000000", "*", (0, (8, 3))),
}
"""By method, in the order of legends."""
GAPS = ("mbcal-plan", "mbcal", "mbcal-no-vr", "dyna-q", "dqn", "mcpe", "gru4rec-regression")
CURVES = ("mbcal-plan", "mbcal", "mbcal-no-vr", "dyna-q", "dqn", "gru4rec")
LINES = ("mbcal-plan", "mbcal", "mbcal-no-vr", "dqn", "mcpe", "gru4rec")
ERRORS = ("mbcal", "mbcal-no-vr", "dqn", "dyna-q", "mcpe")
DATA = ("netflix", "ml1m", "kuairand", "newsfeed", "leaving", "sardine")
TITLES = dict(zip(DATA, ("Netflix", "MovieLens", "KuaiRand", "newsfeed", "leaving", "SARDINE"), strict=True))
"""Short names, for figures and columns."""


def write_figures(files: ResultFiles) -> None:
    """Draw every figure for which there are files, into the same folder."""
    logs = [data for data in TITLES if data != "sardine"]
    drawn = {
        "overview-batch": gap_figure(files, logs),
        "overview-growing": curve_figure(files, ["newsfeed", "leaving", "netflix", "ml1m", "kuairand"]),
        "overview-errors": error_figure(files, logs),
        "overview-regret": regret_figure(files, ["newsfeed", "leaving"]),
    }
    for data in TITLES:
        drawn[f"{data}-batch"] = gap_figure(files, [data], every_judge=True)
        drawn[f"{data}-growing"] = curve_figure(files, [data])
        drawn[f"{data}-size"] = size_figure(files, data)
    for name, figure in drawn.items():
        if figure is not None:
            write_atomic(files.folder / f"{name}.svg", image_files(name, figure)[f"{name}.svg"])


def gap_figure(files: ResultFiles, datasets: Sequence[str], every_judge: bool = False) -> Any:
    """Gap of methods to GRU4Rec in Batch-RL: a panel per data set, or per judge of one; None without results.

    Two simulators are drawn one below the other, the second hollow.
    """
    panels: list[tuple[str, list[tuple[str, list[Evidence]]]]] = []
    for data in datasets:
        judges = sorted({row["judge"] for row in files.rows(f"{data}-batch-gaps")}, key=_judge_order)
        groups = [[judge] for judge in judges] if every_judge else [[j for j in deciding_judges(data) if j in judges]]
        for group in filter(None, groups):
            rows = [(agent, _gaps(files, data, agent, group)) for agent in GAPS]
            title = f"{TITLES[data]}\n{'two simulators' if len(group) == 2 else group[0]}"
            if any(found for _, found in rows):
                panels.append((title, rows))
    if not panels:
        return None
    shown = [agent for agent in GAPS if any(found for _, rows in panels for name, found in rows if name == agent)]
    figure = new_figure(max(1.9 * len(panels), 4) + 1.3, 0.4 * len(shown) + 1.4)
    for number, (axes, (title, rows)) in enumerate(zip(_row_of_axes(figure, len(panels)), panels, strict=True)):
        for agent, found in rows:
            for place, entry in enumerate(found):
                y = len(shown) - 1 - shown.index(agent) - 0.24 * (place - (len(found) - 1) / 2)
                _draw_interval(axes, y, agent, entry, hollow=place > 0)
        axes.axvline(0, color=INK, linewidth=0.8)
        axes.set_yticks(range(len(shown)), shown[::-1] if number == 0 else [""] * len(shown))
        axes.set_ylim(-0.6, len(shown) - 0.4)
        axes.set_title(title, fontsize=9)
        axes.locator_params(axis="x", nbins=4)
    figure.supxlabel("reward per session minus GRU4Rec's, 95% interval over users and trainings", fontsize=9)
    return figure


def _judge_order(judge: str) -> int:
    return ("truth", "lstm", "transformer", "world").index(judge)


def _gaps(files: ResultFiles, data: str, agent: str, judges: Sequence[str]) -> list[Evidence]:
    found = (paired_gap(files, f"{data}-batch", judge, agent, "gru4rec") for judge in judges)
    return [entry for entry in found if entry is not None]


def _draw_interval(axes: Any, y: float, agent: str, entry: Evidence, hollow: bool) -> None:
    style = STYLES[agent]
    axes.plot([entry.low, entry.high], [y, y], color=style.colour, linewidth=2, solid_capstyle="butt")
    face = "white" if hollow else style.colour
    axes.plot(entry.value, y, style.marker, color=style.colour, markerfacecolor=face, markersize=6)
    _tidy(axes)
    axes.grid(axis="x", color=GRID)


def curve_figure(files: ResultFiles, datasets: Sequence[str]) -> Any:
    """Reward by round of Growing Batch-RL, a panel per data set, bands from lowest to highest training; None without any."""
    panels = {data: rows for data in datasets if (rows := files.rows(f"{data}-growing-curves"))}
    if not panels:
        return None
    figure = new_figure(4.6 * len(panels) + 1.8, 3.8)
    for axes, (data, rows) in zip(_row_of_axes(figure, len(panels)), panels.items(), strict=True):
        for agent in CURVES:
            own = [row for row in rows if row["agent"] == agent]
            if own:
                at = [row["round"] for row in own]
                _draw_line(axes, agent, at, own, ("lowest seed", "highest seed"))
        for name, level in _levels(files, data).items():
            axes.axhline(level, color=SOFT, linewidth=1)
            axes.annotate(name, (1.01, level), xycoords=("axes fraction", "data"), va="center", fontsize=7, color=INK)
        axes.set(xlabel="round", ylabel="reward per session")
        axes.set_title(f"{TITLES[data]}, judged by {_first_judge(files, data)}", fontsize=10)
        axes.xaxis.get_major_locator().set_params(integer=True)
    _legend(figure)
    return figure


def _first_judge(files: ResultFiles, data: str) -> str:
    return str(next((row["judge"] for row in files.rows(f"{data}-growing-growing")), "the first judge"))


def _draw_line(axes: Any, agent: str, at: Sequence[float], rows: Sequence[Mapping[str, Any]], band: tuple[str, str]) -> None:
    style = STYLES[agent]
    means, low, high = ([row[column] for row in rows] for column in ("reward per session", *band))
    axes.plot(at, means, color=style.colour, linestyle=style.dash, linewidth=1.8, label=agent)
    axes.fill_between(at, low, high, color=style.colour, alpha=0.12, linewidth=0)
    _tidy(axes)
    axes.grid(axis="y", color=GRID)


def _levels(files: ResultFiles, data: str) -> dict[str, float]:
    """References of a growing figure: what random choices and the oracle earn under the judge of the curves."""
    judge = _first_judge(files, data)
    rows = files.rows(f"{data}-growing-growing") + files.rows(f"{data}-batch-batch")
    earned = {row["agent"]: row["reward per session"] for row in rows if row["judge"] == judge}
    return {name: earned[name] for name in ("random", "oracle") if name in earned}


def size_figure(files: ResultFiles, data: str) -> Any:
    """Reward against the size of the log, under the judge that decides, with the spread over trainings; None if unknown."""
    judge = deciding_judges(data)[0]
    rows = [row for row in files.rows(f"{data}-size-size") if row["judge"] == judge]
    if not rows:
        return None
    figure = new_figure(6.4, 3.8)
    axes = figure.subplots()
    for agent in LINES:
        own = sorted((row for row in rows if row["agent"] == agent), key=lambda row: row["log sessions"])
        if own:
            _draw_line(
                axes, agent, [row["log sessions"] for row in own], [_with_spread(row) for row in own], ("below", "above")
            )
    sizes = sorted({row["log sessions"] for row in rows})
    axes.set(xscale="log", xlabel="sessions of the log learned from", ylabel="reward per session")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    axes.set_title(f"{TITLES[data]}, judged by {judge}", fontsize=10)
    _legend(figure)
    return figure


def _with_spread(row: Row) -> Row:
    """A row with a band: the reward, and a standard deviation over trainings below and above it."""
    reward, spread = row["reward per session"], row["spread over seeds"] or 0.0
    return {**row, "below": reward - spread, "above": reward + spread}


def error_figure(files: ResultFiles, datasets: Sequence[str]) -> Any:
    """Mean squared error of value regressions (the paper's Table 3) on a log scale; None without results."""
    found = {data: {row["agent"]: row for row in files.rows(f"{data}-batch-variance")} for data in datasets}
    found = {data: rows for data, rows in found.items() if rows}
    if not found:
        return None
    figure = new_figure(7.0, 0.5 * len(found) + 1.6)
    axes = figure.subplots()
    for y, rows in enumerate(reversed(found.values())):
        axes.axhline(y, color=GRID, linewidth=1, zorder=0)
        for place, agent in enumerate(ERRORS):
            if agent in rows:
                at, style = y + 0.13 * (2 - place), STYLES[agent]
                axes.plot(rows[agent]["MSE"], at, style.marker, color=style.colour, markersize=6, label=agent)
        _tidy(axes)
    axes.set_yticks(range(len(found)), [TITLES[data] for data in reversed(found)])
    axes.set_ylim(-0.6, len(found) - 0.4)
    axes.set(xscale="log", xlabel="mean squared error of the value regression (squared rewards, log scale)")
    _legend(figure)
    return figure


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
    figure = new_figure(7.4, 0.45 * len(bars) + 1.4)
    axes = figure.subplots()
    for y, (_, (true, in_truth, best, imagined)) in enumerate(reversed(bars)):
        model_error, rest = in_truth - true, best - in_truth
        axes.barh(y, model_error, color="#d55e00", height=0.55, label="model error in the continuation")
        axes.barh(y, rest, left=model_error, color="#56b4e9", height=0.55, label="instant reward and policy error")
        axes.plot(imagined - true, y, "k|", markersize=16, markeredgewidth=2, label="imagined")
    axes.set_yticks(range(len(bars)), [name for name, _ in reversed(bars)])
    axes.set(xlabel="reward per session above what planning earns; bars end at the oracle")
    _tidy(axes)
    _legend(figure)
    return figure


def _row_of_axes(figure: Any, count: int) -> Any:
    return figure.subplots(1, count, squeeze=False)[0]


def _tidy(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)


def _legend(figure: Any) -> None:
    """One legend for all panels, above them; every method once."""
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    columns = min(len(handles), 6)
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside upper center",
        ncols=columns,
        frameon=False,
        fontsize=8,
        handlelength=3,
    )
