"""What `soak.py` found: samples and disturbances as CSV, a figure, and a verdict with the rule behind each part of it."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from soak_load import Load
from soak_servers import Server

from mbcal.decision_log import Decision, Loss, read_log

MAX_RECOVERY = 3.0
"""Longest recovery, in seconds, from a disturbance after which no process has to start."""
MAX_UNEXPECTED = 0.005
"""Largest share of requests refused or broken while nothing was disturbed: the machine has other work, too."""
SETTLED_SECONDS = 60.0
"""Seconds after which caches of a process are full; its memory is judged from there on."""


@dataclass(frozen=True)
class Sample:
    """One second."""

    seconds: float
    memory: float
    """MiB of all processes of the server."""
    starts: int
    """How often the server was started so far."""
    ok: int
    refused: int
    broken: int
    other: int
    p50: float
    """Milliseconds from when a request was due to its answer."""
    p99: float


@dataclass(frozen=True)
class Disturbance:
    """Something that was done to the server."""

    kind: str
    start: float
    end: float
    recovery: float
    """Seconds from its end (of a kill: from the kill) to the first of five answers in a row; infinite if there were none."""


@dataclass(frozen=True)
class Finding:
    """One part of the verdict."""

    name: str
    passed: bool
    detail: str


def judge(
    samples: Sequence[Sample],
    disturbances: Sequence[Disturbance],
    load: Load,
    server: Server,
    max_slope: float,
    max_start: float,
) -> list[Finding]:
    """Return every part of the verdict."""
    findings = [*_log_findings(load, server)]
    bad = {status: count for status, count in load.statuses.items() if status not in ("200", "503", "broken")}
    findings.append(Finding("statuses", not bad, f"{dict(load.statuses)}; nothing but 200 and 503 may be answered"))
    same = f"{load.repeated:,} rankings asked again, {load.differing} with another answer"
    same = f"{same}, and {load.forgotten} after more than the {load.remembered:,} rankings that are remembered"
    findings.append(Finding("repeated ids", not load.differing, same))
    findings.append(Finding("given up", not load.given_up, f"{load.given_up} requests without an answer for 30 s"))
    slow = [
        f"{entry.kind} at {entry.start:.0f} s: {entry.recovery:.1f} s"
        for entry in disturbances
        if entry.recovery > (max_start if entry.kind in ("kill", "restart") else MAX_RECOVERY)
    ]
    longest = max((entry.recovery for entry in disturbances), default=0.0)
    detail = f"{len(disturbances)} disturbances, the longest recovery took {longest:.1f} s"
    findings.append(Finding("recovery", not slow, "; ".join([detail, *slow])))
    unexpected, total = _quiet_errors(samples, disturbances)
    detail = f"{unexpected:,} of {total:,} answers refused or broken while nothing was disturbed"
    findings.append(Finding("quiet", unexpected <= MAX_UNEXPECTED * max(total, 1), detail))
    slope = memory_slope(samples)
    if slope is None:
        findings.append(Finding("memory", True, f"not judged: no process lived {2 * SETTLED_SECONDS:.0f} s"))
    else:
        findings.append(Finding("memory", slope <= max_slope, f"{slope:+.2f} MiB per minute, at most {max_slope:g} allowed"))
    return findings


def _log_findings(load: Load, server: Server) -> list[Finding]:
    """Whether every acknowledged decision and feedback is in the log, once."""
    lost: list[Loss] = []
    ranked, with_feedback, repeated = bytearray(len(load.ranked)), bytearray(len(load.ranked)), 0
    for record in read_log(server.log, lost):
        name = record.id if isinstance(record, Decision) else record.decision
        if not name.startswith("soak-"):
            continue  # a probe
        number = int(name[5:])
        if isinstance(record, Decision):
            repeated += ranked[number]
            ranked[number] = 1
        else:
            with_feedback[number] = 1
    missing = sum(a and not b for a, b in zip(load.ranked, ranked, strict=True))
    missing_feedback = sum(a and not b for a, b in zip(load.with_feedback, with_feedback, strict=True))
    acknowledged = f"{sum(load.ranked):,} decisions and {sum(load.with_feedback):,} feedback acknowledged"
    return [
        Finding("durability", not missing + missing_feedback, f"{acknowledged}; lost {missing} and {missing_feedback}"),
        Finding("logged once", not repeated, f"{repeated} decisions are in the log twice"),
        Finding("log", not lost, "; ".join(map(str, lost)) or "no damaged or missing record"),
    ]


def _quiet_errors(samples: Sequence[Sample], disturbances: Sequence[Disturbance]) -> tuple[int, int]:
    """Requests that were refused or broken in seconds without a disturbance, and all requests of those seconds."""
    errors = total = 0
    for sample in samples:
        near = [entry for entry in disturbances if entry.start <= sample.seconds <= entry.end + entry.recovery + 2.5]
        if not near:
            errors += sample.refused + sample.broken + sample.other
            total += sample.ok + sample.refused + sample.broken + sample.other
    return errors, total


def memory_slope(samples: Sequence[Sample]) -> float | None:
    """Median slope of memory, MiB per minute, while the settled process that lived longest ran; None if none settled."""
    lives = [[sample for sample in samples if sample.starts == start] for start in {sample.starts for sample in samples}]
    life = max(lives, key=len, default=[])
    settled = [sample for sample in life if sample.seconds - life[0].seconds >= SETTLED_SECONDS]
    if not settled or settled[-1].seconds - settled[0].seconds < SETTLED_SECONDS:
        return None
    times, sizes = np.array([sample.seconds for sample in settled]), np.array([sample.memory for sample in settled])
    half = len(times) // 2  # slopes between points half a life apart: robust against noise from second to second
    return float(np.median((sizes[half:] - sizes[: len(sizes) - half]) / (times[half:] - times[: len(times) - half])) * 60)


def write_results(
    out: Path,
    samples: Sequence[Sample],
    disturbances: Sequence[Disturbance],
    findings: Sequence[Finding],
    skipped: Sequence[str],
    load: Load,
) -> None:
    """Write the CSV files, the figure and the verdict, and print the verdict."""
    for name, rows, kind in (("samples", samples, Sample), ("disturbances", disturbances, Disturbance)):
        with (out / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([entry.name for entry in fields(kind)])
            writer.writerows([round(value, 3) if isinstance(value, float) else value for value in asdict(row).values()]
                             for row in rows)  # fmt: skip
    _draw(out / "soak.png", samples, disturbances)
    passed = all(finding.passed for finding in findings)
    verdict: dict[str, Any] = {
        "verdict": "PASS" if passed else "FAIL",
        "findings": [asdict(finding) for finding in findings],
        "skipped": list(skipped),
        "problems": load.problems[:20],
    }
    (out / "verdict.json").write_text(json.dumps(verdict, indent=2) + "\n")
    for finding in findings:
        print(f"{'passed' if finding.passed else 'FAILED'}  {finding.name}: {finding.detail}")
    for line in [*(f"skipped {entry}" for entry in skipped), *load.problems[:20]]:
        print(line)
    print(verdict["verdict"])


def _draw(path: Path, samples: Sequence[Sample], disturbances: Sequence[Disturbance]) -> None:
    """Memory, answers and latency over time, disturbances shaded."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    figure, (memory, answers, latency) = plt.subplots(3, 1, figsize=(11, 8), sharex=True, layout="constrained")
    times = [sample.seconds for sample in samples]
    memory.plot(times, [sample.memory or math.nan for sample in samples], color="#222222")
    memory.set_ylabel("memory, MiB")
    memory.set_ylim(bottom=0)
    for name, colour in (("ok", "#2a7f4f"), ("refused", "#d99000"), ("broken", "#8a8a8a"), ("other", "#c1272d")):
        answers.plot(times, [getattr(sample, name) for sample in samples], color=colour, label=name)
    answers.set_ylabel("answers per second")
    answers.legend(loc="upper right", ncols=4, frameon=False)
    for name, colour in (("p50", "#2a5fa5"), ("p99", "#9ab8dd")):
        latency.plot(times, [getattr(sample, name) for sample in samples], color=colour, label=name)
    latency.set_ylabel("latency, ms")
    latency.set_yscale("log")
    latency.set_xlabel("seconds")
    latency.legend(loc="upper right", ncols=2, frameon=False)
    for entry in disturbances:
        for axis in (memory, answers, latency):
            axis.axvspan(entry.start, entry.end + min(entry.recovery, 60), color="#c1272d", alpha=0.08, lw=0)
        memory.text(entry.start, memory.get_ylim()[1], entry.kind.replace("_", " "), rotation=90, va="top", fontsize=6)
    figure.savefig(path, dpi=110)
