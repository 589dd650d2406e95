"""What keeps a log from showing that a candidate is worse, or no worse, whatever its numbers say.

What users do after a choice must be in the session of that choice, or the log shows only what it gained or cost at once.
Each function says in words what is wrong, for the reason of a verdict; nothing if all is well.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mbcal.agents.domain import Domain
from mbcal.decision_log.joined import JoinCounts, Joined
from mbcal.decision_log.visits import IDLE
from mbcal.evaluation.ope.difference import cumulative_weights
from mbcal.evaluation.ope.estimators import Floats
from mbcal.evaluation.ope.propensity import PolicyChoices
from mbcal.release.served_choices import ServedChoices
from mbcal.types import Sessions

SEND_ONE_SESSION = "send the same session with all requests of a visit, and the user with all or none"
ROUNDED = 0.01
"""Share of itself by which a logged propensity may be rounded."""


def ended_rows(joined: Joined, judging: NDArray[np.int64], tolerance: float) -> NDArray[np.int64]:
    """Return the judging sessions up to the first that may still be going on, in the order in which they began.

    What a choice costs later is missing from sessions that go on, while what it gains at once is there. To leave out these
    alone would keep the short ones. How long a session may pause and yet go on is what others show (`longest_pause`).

    Args:
        joined: The sessions.
        judging: (N,) which of them judge.
        tolerance: Share of those returned that may go on: one that never ends does not hold up all others.

    Returns:
        Their indices; if none would be left, more of them than that, which `partial_visits_problem` then says.
    """
    order = judging[np.argsort([joined.origins[row][0].time for row in judging.tolist()], kind="stable")]
    while True:  # the fewer are left, the better they show how long sessions pause
        n_going_on = np.cumsum(joined.may_go_on(longest_pause(joined, order, tolerance))[order])
        is_ended = np.flatnonzero(n_going_on <= tolerance * np.arange(1, len(order) + 1))
        if not len(is_ended) or is_ended[-1] + 1 == len(order):
            return np.sort(order)
        order = order[: is_ended[-1] + 1]


def longest_pause(joined: Joined, judging: NDArray[np.int64], tolerance: float) -> int:
    """Return how long judging sessions pause and yet go on, in microseconds; at least `IDLE` seconds.

    Args:
        joined: The sessions.
        judging: (N,) which of them judge.
        tolerance: Share of them that may pause for longer, and share of their reward that may come after longer pauses.
    """
    sessions, pauses = joined.sessions[judging], joined.pauses()[judging]
    by_count = _weighted_quantile(pauses.max(1), np.ones(len(judging)), tolerance * len(judging))
    rewards = np.abs(sessions.rewards, dtype=np.float64) * sessions.mask
    by_reward = _weighted_quantile(pauses.ravel(), rewards.ravel(), tolerance * _net_reward(sessions))
    return max(int(IDLE * 1e6), by_count, by_reward)


def _weighted_quantile(values: NDArray[np.int64], weights: Floats, most: float) -> int:
    """The least of some values for which all larger ones weigh at most so much; 0 if all together do."""
    order = np.argsort(-values, kind="stable")
    place = int(np.searchsorted(np.cumsum(weights[order]), most, side="right"))
    return int(values[order[place]]) if place < len(order) else 0


def partial_visits_problem(joined: Joined, judging: NDArray[np.int64], tolerance: float, largest_weight: float = 1.0) -> str:
    """Say why judging sessions may be parts of visits, whose other parts show what a choice led to; empty if they are whole.

    Args:
        joined: The sessions.
        judging: (N,) which of them judge.
        tolerance: Share of them that may be parts, and share of their reward that other parts may hold, since a choice may
            cost all of it. Sessions without a beginning, and decisions and sessions that may belong to any other, count
            wherever they are: any choice of the judging sessions may be what they lack.
        largest_weight: The largest weight that the candidate gives a judging session. Where rewards can be negative, parts
            count so often: the candidate may serve what leads to them so much more.
    """
    counts, size = joined.counts, len(judging)
    preceding, following = joined.sessions_followed_soon()
    pause = longest_pause(joined, judging, tolerance)
    n_going_on, n_preceding = (int(rows[judging].sum()) for rows in (joined.may_go_on(pause), preceding))
    sessions = joined.sessions
    often = largest_weight if min(sessions.behaviour_set.rewards) < 0 else 1.0
    earned = often * (np.abs(sessions.rewards) * sessions.mask).sum(1, dtype=np.float64)
    most = tolerance * _net_reward(sessions[judging])
    is_followed = n_preceding and earned[following & np.isin(sessions.user, sessions.user[judging])].sum() > most
    partial = {
        "sessions have no beginning": counts.missing_start,
        "decisions have neither session nor user": counts.unattributed,
        "visits may be known by user alone at first and by session alone later": counts.unmatched,
    }
    found = []
    if n_going_on > tolerance * size:
        why = f", as others do after {pause / 60e6:,.0f} minutes" if pause > IDLE * 1e6 else ""
        found.append(f"{n_going_on:,} of {size:,} judging sessions may still be going on{why}: update later")
    if n_preceding > tolerance * size or is_followed:
        follow = f"their users began another session within {IDLE / 60:.0f} minutes"
        found.append(f"during or after {n_preceding:,} of {size:,} judging sessions {follow}: {SEND_ONE_SESSION}")
    if sum(partial.values()) > tolerance * size or earned[joined.may_be_partial].sum() > most:
        named = ", ".join(f"{count:,} {words}" for words, count in partial.items() if count)
        found.append(f"{named}, beside {size:,} judging sessions: {SEND_ONE_SESSION}")
    return "; ".join(found)


def missing_feedback_problem(served: ServedChoices, sessions: Sessions, epsilon: Floats, tolerance: float) -> str:
    """Say that missing or late feedback may hide what the candidate's choices led to; empty if it cannot hide much.

    Each choice may hide a reward as large as there is. A late reward counts as often as the candidate would serve what it
    was given for. So does a missing one, if rewards can be negative: no feedback is then not the worst. A choice without
    feedback, or without session and user, at which the candidate itself chooses otherwise may change all that follows: it
    counts as the most that a session can earn, as often as the candidate leads there.

    Args:
        served: The choices of candidate and live version, and what they lack.
        sessions: (N, T) the sessions that judge.
        epsilon: (N, T) exploration with which each step was decided.
        tolerance: Share of the reward that may be hidden.
    """
    table = sessions.behaviour_set.rewards
    least, most = min(0.0, *table), max(0.0, *table)
    weights = np.maximum(cumulative_weights(sessions, served.choices[0], epsilon).max(1), 1)
    of_user = dict.fromkeys(served.missing_feedback | served.hidden_differences, 1.0)
    for user, weight in zip(sessions.user.tolist(), weights.tolist(), strict=True):
        if user in of_user:
            of_user[user] = max(of_user[user], weight)
    hidden = float(served.late_feedback @ weights)
    hidden += sum(count * (of_user[user] if least < 0 else 1) for user, count in served.missing_feedback.items())
    hidden += sum(count * of_user[user] for user, count in served.hidden_differences.items()) * sessions.horizon
    if hidden * (most - least) <= tolerance * _net_reward(sessions):
        return ""
    if n_hidden := sum(served.hidden_differences.values()):
        return (
            f"the candidate chooses otherwise at {n_hidden:,} or more choices that have no feedback, or "
            f"neither session nor user, which may change more than {tolerance:.1%} of the reward: send feedback on all items"
        )
    n_missing, n_late = sum(served.missing_feedback.values()), int(served.late_feedback.sum())
    what = " and ".join(
        (f"no feedback on {n_missing:,} choices",) * (n_missing > 0)
        + (f"feedback on {n_late:,} choices only after another session had begun",) * (n_late > 0)
    )
    return (
        f"users for whom the candidate chooses otherwise gave {what}, and so more than {tolerance:.1%} of the reward may be "
        "hidden: send feedback on all items, also on skipped ones, and update when it has come"
    )


def changed_feedback_problem(joined: Joined, judging: NDArray[np.int64], tolerance: float, largest_weight: float) -> str:
    """Say that further behaviours on items may hide what the candidate's choices led to; empty if they cannot hide much.

    Of a click and a later purchase of one item the click counts, and of a purchase and its cancellation the purchase. A
    candidate may lose what would raise rewards, and serve what would lower them the more often.

    Args:
        joined: The sessions.
        judging: (N,) which of them judge.
        tolerance: Share of the reward that further behaviours may change.
        largest_weight: The largest weight that the candidate gives a judging session.
    """
    steps = [step for row in judging.tolist() for step in joined.origins[row] if step.raised or step.lowered]
    hidden = sum(step.raised for step in steps) + largest_weight * sum(step.lowered for step in steps)
    if hidden <= tolerance * _net_reward(joined.sessions[judging]):
        return ""
    return (
        f"on {len(steps):,} items a further behaviour was reported after the one that counts, and so more than "
        f"{tolerance:.1%} of the reward may be hidden: report one behaviour per item, when it is final"
    )


def max_hidden_differences(sessions: Sessions, tolerance: float) -> float:
    """Return the number of `ServedChoices.hidden_differences` above which `missing_feedback_problem` surely says so."""
    table = sessions.behaviour_set.rewards
    width = sessions.horizon * (max(0.0, *table) - min(0.0, *table))
    return tolerance * float((np.abs(sessions.rewards) * sessions.mask).sum(dtype=np.float64)) / max(width, 1e-12)


def _net_reward(sessions: Sessions) -> float:
    """What the sessions earned together, without its sign."""
    return abs(float((sessions.rewards * sessions.mask).sum(dtype=np.float64)))


def propensity_mismatch_problem(live: PolicyChoices, sessions: Sessions, epsilon: Floats, tolerance: float) -> str:
    """Say that the live version, asked again, has other propensities than the log; empty if it has not.

    Another model had its name then, as where a registry was begun anew beside the log of the old one: a candidate that is no
    worse than that model may be worse than the version it would replace. Or the logged propensities are wrong.

    Args:
        live: Choices of the live version along the sessions.
        sessions: (N, T) the sessions that judge.
        epsilon: (N, T) exploration with which each step was decided.
        tolerance: Share of them, and of their reward, that may have other propensities.
    """
    logged = np.asarray(sessions.propensities, np.float64)
    is_other = (sessions.mask & (np.abs(live.propensities(epsilon) - logged) > ROUNDED * logged)).any(1)
    earned = np.abs(sessions.rewards[is_other] * sessions.mask[is_other]).sum(dtype=np.float64)
    if is_other.sum() <= tolerance * len(sessions) and earned <= tolerance * _net_reward(sessions):
        return ""
    return (
        f"in {int(is_other.sum()):,} of {len(sessions):,} judging sessions the live version would have chosen with other "
        "propensities than those logged: another model had its name, or they are wrong; give a new registry a new log"
    )


def lost_records_problem(counts: JoinCounts) -> str:
    """Say that the log has lost records, which may have shown what choices led to; empty if it has not."""
    return f"the log has lost records ({', '.join(counts.lost)})" if counts.lost else ""


def unlogged_inputs_problem(candidate: Domain, live: Domain) -> str:
    """Say what the candidate reads that the live version does not, and so is not logged; empty if there is nothing.

    It would choose by it once it is live, and was judged without.
    """
    found = []
    if candidate.history > live.history:
        found.append(
            f"the candidate reads {candidate.history} steps before a session, of which the live version logs {live.history}"
        )
    for kind, own, logged in (
        ("user features", candidate.fields.user, live.fields.user),
        ("context", candidate.fields.context, live.fields.context),
    ):
        if names := sorted(set(own.names) - set(logged.names)):
            found.append(f"the candidate reads {kind} that the live version does not log ({', '.join(names)})")
    return "; ".join(found)
