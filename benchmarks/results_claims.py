"""Verdicts on the claims of claims.toml, computed from the files in docs/results.

A claim is tested on every data set it names, pair by pair and judge by judge (`results_comparisons`). Where the truth is
known it judges alone; else every simulator must agree, and a gap that a simulator's own error could explain tells nothing.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from results_comparisons import TESTS
from results_evidence import FAILS, HOLDS, UNKNOWN, Claim, Evidence, Verdict
from results_experiments import ResultFiles

_DEFINED = tomllib.loads(Path(__file__).with_name("claims.toml").read_text("utf-8"))
CLAIMS = [
    Claim(**{key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()})
    for entry in _DEFINED["claims"]
]
"""All claims, in the order of the page."""
ANSWERS: list[str] = _DEFINED["answers"]["lines"]
"""What the page says first, with placeholders for evidence: `results_page.answer_block`."""


def evidence(claim: Claim, data: str, files: ResultFiles) -> Evidence | None:
    """The evidence that decides a claim on a data set: of what refutes it, or is weakest; None if nothing was measured."""
    compared = TESTS[claim.table](claim, data, files)
    pairs = [found for found in compared if found]
    if not pairs:
        return None
    if len(pairs) < len(compared):
        pairs = [[replace(entry, partial=True) for entry in by_judge] for by_judge in pairs]
    verdicts = [_joint([entry.verdict for entry in by_judge]) for by_judge in pairs]
    decided = _over_all(verdicts)
    deciding = [entry for verdict, by_judge in zip(verdicts, pairs, strict=True) if verdict == decided for entry in by_judge]
    if decided == UNKNOWN:
        deciding = [entry for entry in deciding if entry.verdict != HOLDS] or deciding
    least = min(deciding, key=lambda entry: entry.low - entry.bound)
    return replace(least, disputed=decided == UNKNOWN != least.verdict)


def overall_verdict(found: Sequence[Evidence | None]) -> Verdict | None:
    """The verdict on a claim over the data sets that were measured: one that refutes a claim is enough; None without any."""
    verdicts = [entry.verdict for entry in found if entry is not None]
    return _over_all(verdicts) if verdicts else None


def _joint(verdicts: Sequence[Verdict]) -> Verdict:
    """What judges say together: what all say, else nothing."""
    return verdicts[0] if len(set(verdicts)) == 1 else UNKNOWN


def _over_all(verdicts: Sequence[Verdict]) -> Verdict:
    """A claim about all of something: refuted by one, and true only if true of each."""
    return FAILS if FAILS in verdicts else UNKNOWN if UNKNOWN in verdicts else HOLDS
