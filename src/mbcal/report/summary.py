"""The results of a run, summarised: rewards by method, rankings, curves, and the result in a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbcal.environments.newsfeed import oracle
from mbcal.evaluation.experiment.run import CellRecord, Run
from mbcal.evaluation.significance import compare_to
from mbcal.metrics import Mean, mean_interval
from mbcal.storage.artifacts import SIMULATOR_KIND, Artifact

PROTOCOLS: Mapping[str, str] = {"batch": "Batch-RL", "growing": "Growing Batch-RL"}
"""Titles by name, in the order of the report."""
_JUDGES: Mapping[str, str] = {
    "truth": "the newsfeed's truth",
    "lstm": "the LSTM simulator",
    "transformer": "the transformer simulator",
    "world": "the world itself",
}


class RunSummary:
    """What a report shows of a run, finished or not. Results are read once, on construction.

    Args:
        run: The run.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.judges = run.judge_names
        self.results = list(run.results())

    @cached_property
    def users(self) -> NDArray[np.int32]:
        """(N,) user of every test session."""
        return self.run.test_users()

    @cached_property
    def report_cards(self) -> dict[str, dict[str, Any]]:
        """Report cards of the simulators among the judges, as plain values."""
        folders = {judge: self.run.folder / "simulators" / judge for judge in self.judges if judge not in ("truth", "world")}
        return {judge: Artifact.open(path, SIMULATOR_KIND).manifest["report_card"] for judge, path in folders.items()}

    def by_agent(self, protocol: str) -> dict[str, list[CellRecord]]:
        """Return the results under a protocol by agent, seeds in order."""
        results: dict[str, list[CellRecord]] = {}
        for result in self.results:
            if result.cell.protocol == protocol:
                results.setdefault(result.cell.agent, []).append(result)
        return results

    def rewards(self, protocol: str, judge: str) -> dict[str, NDArray[np.float32]]:
        """Return rewards (seeds, N) by agent; agents that this judge did not test are left out."""
        return {
            agent: np.stack([result.rewards[judge] for result in results if judge in result.rewards])
            for agent, results in self.by_agent(protocol).items()
            if any(judge in result.rewards for result in results)
        }

    def mean(self, rewards: NDArray[np.float32]) -> Mean:
        """Return the mean of rewards (seeds, N): averaged over seeds, with an interval that is clustered by user."""
        return mean_interval(rewards.mean(0), self.users)

    def ranked(self, protocol: str, judge: str) -> list[tuple[str, Mean, float | None]]:
        """Return agents, best first: name, mean with interval, and standard deviation over seeds (None for one seed)."""
        entries = [
            (agent, self.mean(rewards), float(rewards.mean(1).std(ddof=1)) if len(rewards) > 1 else None)
            for agent, rewards in self.rewards(protocol, judge).items()
        ]
        return sorted(entries, key=lambda entry: -entry[1].mean)

    def oracle_reward(self) -> float | None:
        """Return the oracle's mean reward per session; None if the truth does not judge, or the oracle is not done."""
        rewards = self.rewards("batch", "truth").get(oracle.NAME) if "truth" in self.judges else None
        return None if rewards is None else self.mean(rewards).mean

    def curves(self) -> dict[str, dict[str, list[float]]]:
        """Return the reward by round of Growing Batch-RL, by agent: `mean` over seeds, `low` and `high` seed."""
        curves = {}
        for agent, results in self.by_agent("growing").items():
            seeds = np.array([[entry["mean"] for entry in result.record["rounds"]] for result in results])
            curves[agent] = {"mean": seeds.mean(0).tolist(), "low": seeds.min(0).tolist(), "high": seeds.max(0).tolist()}
        return curves

    def headline(self) -> str:
        """Return the result in one sentence."""
        protocol = "batch" if self.by_agent("batch") else "growing"
        judge = self.judges[0]
        rewards = {name: values for name, values in self.rewards(protocol, judge).items() if name != oracle.NAME}
        if not rewards:
            return "No method is done yet."
        best, mean, _ = next(entry for entry in self.ranked(protocol, judge) if entry[0] in rewards)
        text = f"{best} earns most: {mean.mean:.2f} per session [{mean.low:.2f}, {mean.high:.2f}] in {PROTOCOLS[protocol]}"
        base = "gru4rec" if best != "gru4rec" else "mbcal"
        if base in rewards:
            gap = compare_to(base, {name: rewards[name] for name in (base, best)}, self.users)[best].gap
            one_percent = abs(self.mean(rewards[base]).mean) / 100
            percent, low, high = (value / one_percent for value in (gap.mean, gap.low, gap.high))
            text += f", {percent:+.1f}% against {base} [{low:+.1f}, {high:+.1f}]"
        seeds = max(len(values) for values in rewards.values())
        trained = "one training of each" if seeds == 1 else f"{seeds} trainings of each"
        return f"{text} (judged by {_JUDGES[judge]}, {len(self.users):,} test sessions, {trained})."

    def warnings(self) -> list[str]:
        """Return reasons not to trust the results."""
        return [
            f"The {judge} simulator is no better than the frequencies of behaviours (NLL {card['nll']:.3f}, "
            f"{card['baseline_nll']:.3f} for the frequencies): do not trust its ranking; train it longer or on more data."
            for judge, card in self.report_cards.items()
            if card["nll"] >= card["baseline_nll"]
        ]
