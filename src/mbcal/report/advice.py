"""A run in words, for a reader with five minutes: what was asked, how sure the answer is, and what to do next."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from itertools import combinations
from statistics import NormalDist
from typing import Any

import numpy as np

from mbcal.config import to_dict
from mbcal.evaluation.experiment.config import PRESETS, experiment_config
from mbcal.report.standing import MethodGap, Standing, compare
from mbcal.report.summary import JUDGES, PROTOCOLS, RunSummary

ENOUGH_SEEDS = 3
"""With fewer trainings, nothing is known of what another training would change."""
SEEDS = 5
"""How often the report advises to train each method instead."""
SEEN = NormalDist().inv_cdf(0.975) + NormalDist().inv_cdf(0.8)
"""A gap of this many standard errors is found different from zero, at 95%, with a chance of 80%."""


def asked(summary: RunSummary) -> str:
    """Return the question of the experiment."""
    settings = summary.run.settings
    methods = len({result.cell.agent for result in summary.results} - {"oracle"})
    ways = {
        "batch": "after learning from a log (Batch-RL)",
        "growing": f"after {settings.rounds} rounds of collecting and learning (Growing Batch-RL)",
    }
    done = " and ".join(ways[protocol] for protocol in PROTOCOLS if summary.by_agent(protocol))
    return f"Which of {methods} methods earns the most reward per session from users of {settings.data}, {done}?"


def certainty(summary: RunSummary) -> list[str]:
    """Return what is known of the error of the result, a sentence each."""
    rewards = summary.compared(summary.main_protocol, summary.judges[0])
    standing = summary.standing(summary.main_protocol, summary.judges[0])
    if standing is None:
        return []
    users, counts = np.unique(summary.users, return_counts=True)
    sentences = [
        f"Users: {len(summary.users):,} test sessions of {len(users):,} users, none learned from; the busiest has "
        f"{counts.max() / len(summary.users):.1%} of the sessions. 95% intervals are clustered by user."
    ]
    seeds = max(map(len, rewards.values()))
    if seeds == 1:
        sentences.append("Trainings: one of each method, so nothing is known of what another training would change.")
    else:
        spreads = {name: float(values.mean(1).std(ddof=1)) for name, values in rewards.items() if len(values) > 1}
        widest = max(spreads, key=lambda name: spreads[name])
        sentences.append(
            f"Trainings: {seeds} of each method. The means of {standing.best} have a standard deviation of "
            f"{spreads.get(standing.best, 0):.2g} over trainings; the largest is {spreads[widest]:.2g}, of {widest}."
        )
    gaps = {gap.other: gap for gap in (standing.runner_up, standing.baseline) if gap is not None}
    sentences += [
        f"{gap.method} against {other}: {gap.amount} per session, {_in_words(gap)}." for other, gap in gaps.items()
    ]
    if len(summary.judges) > 1 and len(rewards) > 2:
        sentences.append(_agreement(summary))
    return sentences


def _in_words(gap: MethodGap) -> str:
    words = {
        "level": "which may be nothing: the interval contains zero",
        "untrusted": "which is less than the judge can be trusted for",
        "ahead": "a lead that would hold with other test users (95%)",
        "behind": "a deficit that would hold with other test users (95%)",
    }
    return words[gap.relation] + (
        "; another training could undo it" if gap.overlap and gap.relation in ("ahead", "behind") else ""
    )


def _agreement(summary: RunSummary) -> str:
    """How far the second judge ranks the methods as the first does, among the pairs that both can tell apart."""
    judges = summary.judges[:2]
    rewards = {judge: summary.compared(summary.main_protocol, judge) for judge in judges}
    pairs = list(combinations([name for name in rewards[judges[0]] if name in rewards[judges[1]]], 2))
    relations = [
        [compare(*pair, rewards[judge], summary.users, summary.trust.get(judge)).relation for judge in judges]
        for pair in pairs
    ]
    told = [first == second for first, second in relations if {first, second} <= {"ahead", "behind"}]
    alike = f", and rank {sum(told)} of these alike" if told else ""
    names = f"{JUDGES[judges[0]]} and {JUDGES[judges[1]]}"
    return f"Judges: {names} can both tell {len(told)} of {len(pairs)} pairs of methods apart{alike}."


def next_steps(summary: RunSummary) -> list[tuple[str, str]]:
    """Return what to do next: sentences, each with a command or an empty text."""
    run, standing = summary.run, summary.standing(summary.main_protocol, summary.judges[0])
    folder = shlex.quote(str(run.folder))
    steps: list[tuple[str, str]] = []
    if run.missing:
        steps.append(
            (f"{len(run.missing)} of {len(run.cells)} cells are missing: resume.", f"mbcal experiment --resume {folder}")
        )
    if standing is None:
        return steps
    if run.settings.seeds < ENOUGH_SEEDS:
        text = f"Train each method {SEEDS} times, to see what another training changes."
        steps.append((text, repeat_command(summary, seeds=SEEDS)))
    nearest = standing.close[0] if standing.close else None
    if nearest is not None and nearest.relation == "level" and nearest.gap.mean:
        needed = len(summary.users) * (SEEN * nearest.gap.stderr / nearest.gap.mean) ** 2
        if math.isfinite(needed):
            text = (
                f"If {nearest.method} earns {nearest.gap.mean:.2g} per session more than {nearest.other}, about "
                f"{needed:,.0f} test sessions would show it with a chance of 80%; with fewer, take the simpler method."
            )
            steps.append((text, ""))
    for judge, trust in summary.trust.items():
        if trust.is_low:
            text = f"Improve {JUDGES[judge]} before relying on it: more simulator users, more epochs, more test sessions."
            steps.append((text, ""))
    if _is_worth_a_canary(summary, standing):
        model = shlex.quote(str(run.path(_best_cell(summary, standing.best), "models")))
        text = (
            f"Let real users decide: publish {standing.best} beside the live version, and make it the canary. Servers that "
            "run with --canary give it that share of users (docs/canary.md). VERSION is what the first command prints."
        )
        publish = f"mbcal registry publish {model} --registry REGISTRY --no-activate"
        steps.append((text, f"{publish}\nmbcal registry canary VERSION --registry REGISTRY"))
    return steps


def _is_worth_a_canary(summary: RunSummary, standing: Standing) -> bool:
    """Whether real users could decide for the best method: there are some, and it seems to earn more than the log."""
    second, log = standing.runner_up, standing.log
    return (
        not summary.is_generated
        and standing.best not in ("random", "popular")
        and (second is None or second.relation in ("ahead", "level"))
        and (log is None or log.gap.mean > 0)
    )


def _best_cell(summary: RunSummary, agent: str) -> Any:
    """The cell of the first training of a method."""
    return summary.by_agent(summary.main_protocol)[agent][0].cell


def repeat_command(summary: RunSummary, out: str = "RUN", **changes: Any) -> str:
    """Return the command that repeats a run: the nearest preset, and every setting that differs from it.

    Args:
        summary: The run.
        out: Folder of the new run.
        **changes: Top-level settings to change.
    """
    values = {**to_dict(summary.run.settings), **changes}
    by_preset = {
        name: list(_differences(values, to_dict(experiment_config({"data": values["data"]}, name)))) for name in PRESETS
    }
    preset = min(by_preset, key=lambda name: len(by_preset[name]))
    words = ["mbcal", "experiment", str(values["data"])]
    words += ["--preset", preset] if preset != "quick" else []
    for path, value in by_preset[preset]:
        text = ",".join(map(str, value)) if isinstance(value, list | tuple) else _toml(value)
        words += [f"--{path}", text] if path in ("agents", "seeds", "protocols") else ["--set", f"{path}={text}"]
    return shlex.join([*words, "--out", out])


def _differences(values: dict[str, Any], defaults: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Settings that differ from the defaults, by dotted path."""
    for name, value in values.items():
        default = defaults.get(name)
        if isinstance(value, dict) and isinstance(default, dict):
            yield from _differences(value, default, f"{prefix}{name}.")
        elif value != default:
            yield f"{prefix}{name}", value


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
