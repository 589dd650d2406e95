"""What the columns of tables are called for readers, and what they mean. CSV files keep the short names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Column(NamedTuple):
    """A column for readers."""

    title: str
    meaning: str = ""
    """One or two sentences; empty where the title says it all."""


_COLUMNS: Mapping[str, Column] = {
    "judge": Column("judge", "Who responds to the methods: the truth of a generated world, or a simulator (learned users)."),
    "agent": Column("method", "The method that chose the items. “the log” is the policy that made the log."),
    "family": Column("simulator", "Kind of network: an LSTM or a transformer."),
    "reward per session": Column(
        "reward per session", "Sum of a session's rewards, not discounted; mean over test sessions, then over trainings."
    ),
    "spread over seeds": Column(
        "spread over trainings", "Standard deviation over trainings with other seeds: what another training changes."
    ),
    "seeds": Column("trainings", "How often the method was trained, each time with another seed."),
    "seed": Column("training", "Which training of the method, by its seed."),
    "agents": Column("methods", "Methods that both judges tested."),
    "low": Column("low", "Lower end of the 95% interval, clustered by user: what other test users would change."),
    "high": Column("high", "Upper end of the 95% interval, clustered by user."),
    "regret": Column("below the oracle", "Reward of the oracle, which plans in the true world, minus that of the method."),
    "rounds to 99%": Column("rounds to 99%", "First round from which the reward stays at 99% of the last round's or above."),
    "macro_f1": Column("macro-F1", "F1 of the most likely behaviour, plain mean over behaviours; 1 is perfect."),
    "weighted_f1": Column("weighted F1", "F1 of the most likely behaviour, weighted by how often each behaviour occurs."),
    "rmse": Column("error of the reward", "Root mean squared error of the expected reward of a step (RMSE)."),
    "nll": Column("log loss", "Negative log likelihood of the logged behaviour, per step (NLL); lower is better."),
    "baseline_nll": Column("log loss of frequencies", "The same for the frequencies of behaviours: what to beat."),
    "accuracy": Column("accuracy", "Share of steps whose most likely behaviour was the logged one."),
    "ece": Column("calibration error", "Mean gap between confidence and accuracy (ECE): 0.05 is five percentage points."),
    "drift": Column(
        "drift", "Largest gap at any step between simulated and logged mean reward, as a share of the reward of a step."
    ),
    "trusted from": Column(
        "trusted from", "Smallest difference in reward per session that its own error does not explain (docs/models.md)."
    ),
    "advantage": Column("advantage", "What is added to the instant reward (docs/methods/mbcal-plan.md)."),
    "judged reward": Column("judged reward", "Mean reward per session, by models of users who did not teach the policy."),
    "judged gain": Column("judged gain", "The same minus that of the best candidate before it."),
    "gain from": Column("from", "Lower end of the interval of the gain, over sessions and models."),
    "gain to": Column("to", "Upper end of the interval."),
    "MSE": Column("error of values", "Mean squared error of the value network on the sessions of its own test."),
    "label variance": Column("variance of labels", "Variance of what the value network is trained on."),
    "R²": Column("explained", "Share of the labels' variance that the network predicts (R²)."),
    "variance over futures": Column("noise of labels", "Variance of one label over resampled futures: not learnable."),
    "length": Column("steps per session", "Mean steps of a session, up to the horizon; users may leave before it."),
    "left": Column("left", "Share of sessions that ended because the user left."),
    "coverage": Column("items shown", "Share of the catalogue shown at least once."),
    "gini": Column("inequality", "Gini coefficient of exposure: 0 if all items are shown equally often, near 1 for one."),
    "diversity": Column("diversity", "Distinct values of the first single-valued item feature in a session, per step."),
    "repetition": Column("repetition", "Share of steps with the same value of that feature as the step before."),
    "Kendall's tau": Column("agreement", "Kendall's tau of the two rankings: 1 is the same ranking, -1 the reverse."),
}  # fmt: skip


_TESTS: Mapping[str, Column] = {
    "gap": Column("against {}", "Reward per session minus that of {}, paired: same users, candidates and noise."),
    "gap low": Column("from", "Lower end of the 95% interval of the gap to {}, clustered by user."),
    "gap high": Column("to", "Upper end of the 95% interval of the gap to {}, clustered by user."),
    "p": Column(
        "p", "Probability of at least such a gap to {} if there were none, with Holm's correction over the methods of one "
        "judge. “within its own error”: the judge cannot be trusted for so small a gap."
    ),
}  # fmt: skip
"""Columns of tests against a method, whose name replaces the braces."""


def column(name: str) -> Column:
    """Return how a column is shown; one without an entry is shown by its own name."""
    kind, _, base = name.partition(" to ")
    if base and kind in _TESTS:
        title, meaning = _TESTS[kind]
        return Column(title.format(base), meaning.format(base))
    return _COLUMNS.get(name, Column(name))


def is_p(name: str) -> bool:
    """Return whether a column holds p-values."""
    return name == "p" or name.startswith("p to ")
