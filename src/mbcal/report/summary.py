"""The results of a run, summarised: rewards by method, rankings, curves, and the result in a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbcal.environments.newsfeed import oracle
from mbcal.environments.report_card import ReportCard
from mbcal.environments.trust import Trust, simulator_trust
from mbcal.evaluation.comparison import LOG_ROW
from mbcal.evaluation.experiment.run import CellRecord, Run
from mbcal.evaluation.models import TRUTH_TITLE
from mbcal.metrics import Mean, mean_interval
from mbcal.report.standing import Standing, baseline_of, standing
from mbcal.storage.artifacts import SIMULATOR_KIND, Artifact

PROTOCOLS: Mapping[str, str] = {"batch": "Batch-RL", "growing": "Growing Batch-RL"}
"""Titles by name, in the order of the report."""
JUDGES: Mapping[str, str] = {
    "truth": TRUTH_TITLE,
    "lstm": "the LSTM simulator",
    "transformer": "the transformer simulator",
    "world": "the world itself",
}
"""Judges in words."""


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
        """Return the results under a protocol by agent, trainings in order."""
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

    def rewards_with_log(self, protocol: str, judge: str) -> dict[str, NDArray[Any]]:
        """Return `rewards` with what the log earned in the same sessions, (1, N), as `LOG_ROW`."""
        rewards: dict[str, NDArray[Any]] = dict(self.rewards(protocol, judge))
        if rewards and self.logged_rewards is not None:
            rewards[LOG_ROW] = self.logged_rewards[None]
        return rewards

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

    def ranked_with_log(self, protocol: str, judge: str) -> list[tuple[str, Mean, float | None]]:
        """Return `ranked` with the log among the agents (`LOG_ROW`): what the logging policy earned in the same sessions."""
        entries = self.ranked(protocol, judge)
        logged = self.logged if entries else None
        added = [] if logged is None else [(LOG_ROW, logged, None)]
        return sorted([*entries, *added], key=lambda entry: -entry[1].mean)

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

    @cached_property
    def logged_rewards(self) -> NDArray[np.float64] | None:
        """(N,) reward of the same test sessions as they were logged; None in a Gymnasium world, which has no log."""
        if self.run.settings.is_world:
            return None
        return np.asarray(self.run.test_sessions(self.run.store()).rewards.sum(1), np.float64)

    def references(self) -> dict[str, float]:
        """Return what the oracle, a random policy and the log earn under the first judge, as far as they are known."""
        judge = self.judges[0]
        earned = {**self.rewards("growing", judge), **self.rewards("batch", judge)}
        found = {name: float(earned[name].mean()) for name in (oracle.NAME, "random") if name in earned}
        return found if self.logged is None else {**found, LOG_ROW: self.logged.mean}

    @property
    def logged(self) -> Mean | None:
        """What the logging policy earned in the same test sessions; None in a Gymnasium world."""
        return None if self.logged_rewards is None else mean_interval(self.logged_rewards, self.users)

    @cached_property
    def is_generated(self) -> bool:
        """Whether the users are generated: those of a Gymnasium world, or of the newsfeed."""
        return self.run.settings.is_generated or self.run.store().manifest["source"] == "newsfeed"

    @cached_property
    def trust(self) -> dict[str, Trust]:
        """By simulator among the judges: for what differences it can be trusted."""
        rewards = self.run.store().behaviours.rewards if self.report_cards else ()
        return {judge: simulator_trust(ReportCard(**card), rewards) for judge, card in self.report_cards.items()}

    def compared(self, protocol: str, judge: str) -> dict[str, NDArray[np.float32]]:
        """Return the rewards (seeds, N) of the methods to compare: all but the oracle."""
        return {name: values for name, values in self.rewards(protocol, judge).items() if name != oracle.NAME}

    @property
    def baseline(self) -> str | None:
        """The method that others are compared with; None if no known baseline is done."""
        return baseline_of([result.cell.agent for result in self.results])

    def standing(self, protocol: str, judge: str) -> Standing | None:
        """Return who leads under a protocol and a judge; None if no method is done."""
        rewards = self.compared(protocol, judge)
        if not rewards:
            return None
        return standing(rewards, self.users, self.baseline, self.trust.get(judge), self.logged_rewards)

    def headline(self) -> str:
        """Return the result in a few sentences, as text."""
        return " ".join(self.sentences())

    def sentences(self) -> list[str]:
        """Return who leads, after growing rounds, too, and what was measured: a sentence each."""
        return [sentence for sentence in (self.result(), self.after_rounds(), self.measured()) if sentence]

    def result(self) -> str:
        """Return who leads in Batch-RL (Growing Batch-RL if that is all there is), by the first judge.

        A second sentence says so if no method is known to earn more than the log.
        """
        standing = self.standing(self.main_protocol, self.judges[0])
        return "No method is done yet." if standing is None else f"{standing.sentence()} {standing.log_sentence()}".rstrip()

    @property
    def main_protocol(self) -> str:
        """The protocol of the headline."""
        return "batch" if self.by_agent("batch") else "growing"

    def measured(self) -> str:
        """Return what was measured, in a short sentence."""
        rewards = self.compared(self.main_protocol, self.judges[0])
        if not rewards:
            return ""
        seeds, users = max(len(values) for values in rewards.values()), len(np.unique(self.users))
        trained = "one training of each method" if seeds == 1 else f"{seeds} trainings of each method"
        return (
            f"Measured: reward per session in {PROTOCOLS[self.main_protocol]}, judged by {JUDGES[self.judges[0]]}, "
            f"{len(self.users):,} test sessions of {users:,} users, {trained}."
        )

    def after_rounds(self) -> str:
        """Return who leads in Growing Batch-RL, and whether that disagrees with Batch-RL; empty unless both are done."""
        judge = self.judges[0]
        batch, growing = (self.standing(protocol, judge) for protocol in PROTOCOLS)
        if batch is None or growing is None:
            return ""
        if batch.best in growing.leaders and growing.best in batch.leaders:
            return f"After the last round of Growing Batch-RL, {growing.sentence()}"
        return f"Growing Batch-RL disagrees: there {growing.sentence()}"

    def warnings(self) -> dict[str, str]:
        """Return reasons not to trust what a judge says, by judge: of every simulator that cannot be trusted far.

        Only that of the first judge concerns the headline.
        """
        return {
            judge: f"{JUDGES[judge][0].upper()}{JUDGES[judge][1:]}: {trust.warning}"
            for judge, trust in self.trust.items()
            if trust.warning
        }
