"""Two versions compared by finished sessions, what the comparison says, and what becomes of a canary by it."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from mbcal.decision_log import Decision
from mbcal.errors import InputError, OptionError
from mbcal.release.comparison import DAY, compare_versions
from mbcal.release.ignored import Ignored, PartialVisits
from mbcal.release.judge import UNSERVED, CanaryConfig, judge_canary
from mbcal.release.outcomes import OutcomeReader, Outcomes, SessionRule
from tests.support.trials import SECOND, session_records, trial_records

BETTER, WORSE, EQUAL = (0.7, 0.5), (0.3, 0.5), (0.5, 0.5)
CONFIG = CanaryConfig(promote_after=50, min_seconds=0, sessions=SessionRule(idle=10, longest=60))
REWARDS = {"skip": 0.0, "click": 1.0, "like": 4.0}


def outcomes_of(sessions: int, likes: tuple[float, float], seed: int = 0) -> Outcomes:
    reader = OutcomeReader(REWARDS, CONFIG.sessions)
    for record in trial_records(sessions, canary="a", live="b", likes=likes, seed=seed):
        reader.add(record)
    return reader.outcomes(10**15)


def test_decisions_follow_the_limits() -> None:
    better, worse = (compare_versions(outcomes_of(1500, likes), "a", "b") for likes in (BETTER, WORSE))
    assert judge_canary(better, CONFIG, 0)[0] == "promote"
    assert judge_canary(better, replace(CONFIG, promote_after=500), 0)[0] == "wait"
    assert judge_canary(worse, CONFIG, 0)[0] == "withdraw"
    assert judge_canary(worse, replace(CONFIG, withdraw_below=0.9), 0)[0] == "wait"
    assert "steps with feedback" not in judge_canary(worse, CONFIG, 0)[1]
    silent = replace(
        worse, length=replace(worse.length, anytime_high=-0.1), a=replace(worse.a, length=replace(worse.a.length, mean=1.25))
    )
    hint = (
        "; it has 1.25 steps with feedback per session against 2: its sessions are shorter, or its feedback does not arrive"
    )
    assert judge_canary(silent, CONFIG, 0)[1].endswith(hint)
    shorter = replace(better, length=replace(better.length, anytime_high=-0.1))
    action, reason = judge_canary(shorter, CONFIG, 0)
    assert action == "wait"
    assert reason.endswith("its sessions are shorter, so a person has to decide")
    action, reason = judge_canary(shorter, CONFIG, 1e9)
    assert (action, reason.endswith("its sessions are shorter")) == ("withdraw", True)
    assert judge_canary(None, CONFIG, 10) == ("wait", UNSERVED)
    assert judge_canary(None, CONFIG, 1e9)[0] == "withdraw"
    for settings in (
        {"promote_after": 0},
        {"withdraw_below": 1.0},
        {"max_seconds": 0.0},
        {"min_seconds": -1.0},
        {"min_seconds": 100.0, "max_seconds": 99.0},
        {"promote_alpha": 0.5},
        {"user_loss": 1.1},
    ):
        with pytest.raises(OptionError, match="canary: "):
            CanaryConfig(**settings)  # type: ignore[arg-type]


def test_a_promotion_waits_for_rewards_that_come_later_and_a_withdrawal_does_not() -> None:
    better, worse = (compare_versions(outcomes_of(1500, likes), "a", "b") for likes in (BETTER, WORSE))
    day = 86400.0
    config = replace(CONFIG, min_seconds=2 * day, max_seconds=7 * day)
    for elapsed, served_days, rest in ((0.1, 1.0, "1.9 days"), (1.5, 2.0, "12.0 hours"), (3.0, 1.25, "18.0 hours")):
        action, reason = judge_canary(replace(better, days=served_days), config, elapsed * day)
        assert action == "wait"
        assert f"; better so far; promoted after {rest} more of usual traffic" in reason
        assert not reason.endswith("give more --canary-max-days")
    action, reason = judge_canary(replace(better, days=1.0), config, 6.1 * day)
    assert reason.endswith("the trial ends before: give more --canary-max-days")
    better = replace(better, days=2.0)
    assert judge_canary(better, config, 2 * day)[0] == "promote"
    for least, days, expected in ((6, 2.9, "wait"), (6, 3.0, "promote"), (1, 0.9, "wait"), (1, 1.0, "promote")):
        config = replace(CONFIG, min_seconds=least * day, max_seconds=10 * day)
        assert judge_canary(replace(better, days=days), config, 6 * day)[0] == expected
    config = replace(CONFIG, min_seconds=2 * day, max_seconds=7 * day)
    assert judge_canary(worse, config, 1.0)[0] == "withdraw"
    assert judge_canary(better, config, 6 * day, served=0.5 * day)[0] == "wait"  # servers gave it sessions late
    assert judge_canary(better, replace(config, undecided="promote"), 8 * day, served=0.5 * day)[0] == "wait"
    equal = compare_versions(outcomes_of(600, EQUAL, seed=3), "a", "b")
    assert "better so far" not in judge_canary(equal, config, 1.0)[1]
    assert CanaryConfig().min_seconds == 3 * day
    with pytest.raises(
        OptionError, match=r"at least and at most 3 \(--canary-min-days\) and 0.5 \(--canary-max-days\) days"
    ):
        CanaryConfig(max_seconds=0.5 * day)


@pytest.mark.parametrize(
    ("sessions", "days"), [([100, 100, 100], 3.0), ([1000, 0, 0, 0], 1.0), ([1000, 200, 200, 1000], 2.77), ([0, 50], 1.0)]
)
def test_days_without_traffic_do_not_count(sessions: list[int], days: float) -> None:
    outcomes = trial_outcomes(0, np.full(sum(sessions), 0.5), np.ones(sum(sessions)), users=sum(sessions))
    day = np.repeat(np.arange(len(sessions)), sessions)
    within = np.concatenate([np.arange(count) for count in sessions])
    comparison = compare_versions(replace(outcomes, began=day * 86_400_000_000 + within), "a", "b")
    assert comparison.days == pytest.approx(days, abs=0.05)


def test_late_rewards_that_a_canary_has_more_of_keep_it_from_being_withdrawn() -> None:
    worse = compare_versions(outcomes_of(1500, WORSE), "a", "b")
    for signs, own, other, action in (
        (0, 3.0, 0.5, "wait"),
        (0, 0.5, 0.5, "withdraw"),
        (0, 0.5, 3.0, "withdraw"),
        (-1, 0.5, 3.0, "wait"),
    ):
        partial = {
            "a": PartialVisits(late=5, reward=own * worse.a.sessions),
            "b": PartialVisits(late=5, reward=other * worse.b.sessions),
        }
        found = judge_canary(replace(worse, min_reward=float(signs)), CONFIG, 0, Ignored(partial_visits=partial))[0]
        assert (signs, own, other, found) == (signs, own, other, action)


def test_fewer_negative_rewards_promote_only_where_no_feedback_can_be_lost() -> None:
    """A dislike in 200 steps costs 30 clicks; the canary has 10% fewer clicks, and none of its dislikes arrives."""
    rng, count = np.random.default_rng(0), 40_000
    user = rng.integers(20_000, size=count).astype(np.int32)
    is_live = user % 2 == 1
    clicks = rng.binomial(10, np.where(is_live, 0.6, 0.54))
    dislikes = rng.binomial(10, np.where(is_live, 0.005, 0.0))
    lost = rng.binomial(10, np.where(is_live, 0.0, 0.005))
    offered = (10 + rng.binomial(10, np.where(is_live, 0.0, 0.05))).astype(np.int32)  # its sessions are longer
    length = offered - lost.astype(np.int32)
    columns = is_live.astype(np.int32), user, np.arange(count), clicks - 30.0 * dislikes, length
    rest = np.full(count, 0.1), clicks + 30.0 * dislikes
    outcomes = Outcomes(
        ("a", "b"), tuple(map(str, range(20_000))), *columns, *rest, -300.0, 10.0, min_step_reward=-30.0, offered=offered
    )
    config = replace(CONFIG, user_loss=1.0)
    comparison = compare_versions(outcomes, "a", "b")
    assert comparison.reward.anytime_low > 0.5
    assert comparison.b.negative == pytest.approx(1.5, abs=0.1)
    action, reason = judge_canary(comparison, config, 0)
    assert action == "wait"
    assert "of negative rewards that it has less of, and whose feedback may be lost, do not count" in reason
    whole = replace(outcomes, length=offered)  # nothing is missing, since every step has feedback
    assert judge_canary(compare_versions(whole, "a", "b"), config, 0)[0] == "promote"


def test_nothing_is_promoted_where_the_log_has_lost_records() -> None:
    better = compare_versions(outcomes_of(1500, BETTER), "a", "b")
    action, reason = judge_canary(better, CONFIG, 0, Ignored(lost=3))
    assert (action, "3 records of its trial are lost (mbcal log show): begin it anew" in reason) == ("wait", True)
    worse = compare_versions(outcomes_of(1500, WORSE), "a", "b")
    assert judge_canary(worse, CONFIG, 0, Ignored(lost=3))[0] == "withdraw"


def test_sentences_say_what_is_known() -> None:
    better = compare_versions(outcomes_of(900, BETTER), "a", "b")
    assert better.answer == "more"
    assert better.sentence().startswith("a earns more than b: +")
    assert compare_versions(outcomes_of(900, BETTER), "b", "a").sentence().startswith("b earns less than a: -")
    unclear = compare_versions(outcomes_of(300, EQUAL, seed=2), "a", "b")
    assert unclear.answer == "cannot tell"
    assert " more sessions for a difference of 5%" in unclear.sentence()
    assert unclear.sessions_missing(0.05) > 3 * unclear.sessions_missing(0.1) > 0
    few = compare_versions(outcomes_of(20, EQUAL), "a", "b")
    assert few.sentence() == "cannot tell yet; more sessions of more users for a difference of 5%"
    assert few.as_dict()["reward"]["anytime_low"] is None
    json.dumps(few.as_dict(), allow_nan=False)


def test_only_sessions_of_the_same_time_are_compared() -> None:
    reader = OutcomeReader(REWARDS, CONFIG.sessions)
    for number in range(200):  # b earns 4 before a began, and 0 beside it
        version, behaviour = ("b", "like") if number < 100 else ("ab"[number % 2], "skip")
        for record in session_records(f"s{number}", version, [behaviour], began=number * SECOND):
            reader.add(record)
    comparison = compare_versions(reader.outcomes(10**15), "a", "b")
    assert comparison.is_concurrent
    assert (comparison.a.reward.mean, comparison.b.reward.mean) == (0.0, 0.0)
    assert comparison.b.sessions in (49, 50)
    reader = OutcomeReader(REWARDS, CONFIG.sessions)
    for number in range(100):
        for record in session_records(f"s{number}", "a" if number < 50 else "b", ["like"], began=number * SECOND):
            reader.add(record)
    apart = compare_versions(reader.outcomes(10**15), "a", "b")
    assert not apart.is_concurrent
    assert apart.sentence().endswith("did not serve at the same time, so a difference may be due to the time")
    with pytest.raises(InputError, match="a: cannot be compared with itself"):
        compare_versions(reader.outcomes(10**15), "a", "a")
    with pytest.raises(InputError, match="c: no finished session in the log; versions with sessions are a, b"):
        compare_versions(reader.outcomes(10**15), "a", "c")


def trial_outcomes(seed: int, share: np.ndarray, level: np.ndarray, gain: float = 0.0, users: int = 300) -> Outcomes:
    """Sessions whose reward is normal around a level that changes with time; shares of the canary, a, likewise."""
    rng, count = np.random.default_rng(seed), len(share)
    user = rng.integers(users, size=count).astype(np.int32)
    is_live = rng.random(users)[user] >= share
    reward = level * np.where(is_live, 1.0, 1 + gain) + rng.normal(0, 0.45, count)
    names = tuple(map(str, range(users)))
    length = np.full(count, 5, np.int32)
    columns = is_live.astype(np.int32), user, np.arange(count), reward, length, np.full(count, 0.1), np.abs(reward)
    return Outcomes(("a", "b"), names, *columns, min_reward=-2.0, max_reward=4.0)


def test_a_share_that_changes_while_rewards_drift_promotes_nothing() -> None:
    time, actions = np.arange(4000), []
    share = np.where(time < 2050, 0.05, 0.5)
    for seed in range(12):
        outcomes = trial_outcomes(seed, share, np.where(time > 1500, 1.2, 1.0))
        comparison = compare_versions(outcomes, "a", "b")
        pooled = outcomes.reward[outcomes.version == 0].mean() - outcomes.reward[outcomes.version == 1].mean()
        assert pooled > 0.04
        assert abs(comparison.reward.value) < 0.05
        assert comparison.reward.value == pytest.approx(comparison.a.reward.mean - comparison.b.reward.mean)
        actions.append(judge_canary(comparison, CONFIG, 0)[0])
    assert actions.count("promote") == 0
    assert actions.count("withdraw") <= 2
    better = compare_versions(trial_outcomes(1, share, np.where(time > 1500, 1.2, 1.0), gain=0.15), "a", "b")
    assert judge_canary(better, CONFIG, 0)[0] == "promote"
    assert better.reward.value == pytest.approx(0.17, abs=0.04)


def test_drift_does_not_widen_the_limits() -> None:
    share = np.full(4000, 0.3)
    steady, drifting = (
        compare_versions(replace(trial_outcomes(2, share, level), max_reward=8.0), "a", "b")
        for level in (np.ones(4000), np.linspace(1.0, 5.0, 4000))
    )
    assert drifting.reward_difference.stderr == pytest.approx(steady.reward_difference.stderr, rel=0.05)


def test_versions_that_did_not_serve_together_are_not_judged() -> None:
    for gain in (0.5, -0.5):
        apart = compare_versions(trial_outcomes(0, np.repeat([0.0, 1.0], 500), np.ones(1000), gain), "a", "b")
        assert not apart.is_concurrent
        assert apart.answer == ("more" if gain > 0 else "less")
        action, reason = judge_canary(apart, CONFIG, 0)
        assert action == "wait"
        assert "did not serve at the same time" in reason
        assert judge_canary(apart, CONFIG, 1e9)[0] == "withdraw"


def test_a_reward_that_was_not_met_yet_delays_a_promotion() -> None:
    outcomes = trial_outcomes(0, np.full(2000, 0.5), np.ones(2000), gain=0.2, users=1000)
    assert judge_canary(compare_versions(outcomes, "a", "b"), CONFIG, 0)[0] == "promote"
    comparison = compare_versions(replace(outcomes, max_reward=100.0), "a", "b")
    action, reason = judge_canary(comparison, CONFIG, 0)
    assert action == "wait"
    assert reason.endswith("too few sessions to exclude that b earns rare rewards, of up to 100, not met yet")
    assert comparison.as_dict()["reward"]["anytime_low_rare"] < 0 < comparison.as_dict()["reward"]["anytime_low"]
    worse = trial_outcomes(0, np.full(2000, 0.5), np.ones(2000), gain=-0.2)
    assert judge_canary(compare_versions(replace(worse, max_reward=100.0), "a", "b"), CONFIG, 0)[0] == "withdraw"


def returning_outcomes(visits: tuple[int, int], seed: int = 0, switched: int = 0) -> Outcomes:
    """400 users, of a and of b in turn. Half of them earn 3 and have 6 visits; half earn 1 and have so many, by version.

    The first `switched` users have visits of both versions.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for user in range(400):
        version, earns = user % 2, 3.0 if user % 4 < 2 else 1.0
        for visit in range(6 if earns == 3.0 else visits[version]):
            other = user < switched and visit >= 3
            rows.append((1000 * visit + user, 1 - version if other else version, user, earns + rng.normal(0, 0.3)))
    began, version, user, reward = (np.asarray(column) for column in zip(*sorted(rows), strict=True))
    names, length = tuple(map(str, range(400))), np.full(len(rows), 5, np.int32)
    columns = (
        version.astype(np.int32),
        user.astype(np.int32),
        began.astype(np.int64),
        reward,
        length,
        np.full(len(rows), 0.1),
        np.abs(reward),
    )
    return Outcomes(("a", "b"), names, *columns, min_reward=0.0, max_reward=6.0)


def test_a_canary_that_keeps_only_users_who_earn_much_is_not_promoted() -> None:
    """Reward per session rises since other users stay away; reward per user falls by a fifth."""
    lost = compare_versions(returning_outcomes((1, 6)), "a", "b")
    assert lost.reward.share == pytest.approx(0.39, abs=0.02)
    assert lost.visits.value == pytest.approx(-2.5, abs=0.02)
    assert lost.visits.share == pytest.approx(-2.5 / 6, abs=0.01)
    action, reason = judge_canary(lost, CONFIG, 0)
    assert action == "wait"
    less = "its users have fewer sessions and its users earn less in all their sessions, so a person has to decide"
    assert reason.endswith(less)
    assert lost.user_reward.share == pytest.approx(-0.2, abs=0.03)
    kept = compare_versions(returning_outcomes((6, 6)), "a", "b")
    assert (kept.visits.value, kept.visits.ci_high) == (0.0, 0.0)
    more = compare_versions(returning_outcomes((6, 1)), "a", "b")
    assert more.visits.value == pytest.approx(2.5, abs=0.02)


def test_few_users_of_both_versions_are_no_change_of_the_share() -> None:
    kept, few = (compare_versions(returning_outcomes((6, 6), switched=count), "a", "b") for count in (0, 4))
    assert (few.began, few.assignment_fixed_since) == (kept.began, kept.assignment_fixed_since) == (0, 0)
    assert few.visits.value == pytest.approx(0.0, abs=0.01)
    switched = compare_versions(returning_outcomes((6, 6), switched=200), "a", "b")
    assert switched.assignment_fixed_since == 3000  # the first session after the change
    assert switched.visits.value == pytest.approx(0.0, abs=0.01)


def hourly_outcomes(canary_evenings: int, gain: float) -> Outcomes:
    """400 users with six visits each, in the evening or at lunch. An evening earns 3, lunch 1, and `gain` more with a."""
    rng, rows = np.random.default_rng(3), []
    for user in range(400):
        version = user % 2
        evenings = 3 if version else canary_evenings
        for visit in range(6):
            hour, level = (visit, 3.0) if visit < evenings else (visit + 100, 1.0)
            reward = level * (1 if version else 1 + gain) + rng.normal(0, 0.3)
            rows.append((1000 * hour + user, version, user, reward))
    began, version, user, reward = (np.asarray(column) for column in zip(*sorted(rows), strict=True))
    names, length = tuple(map(str, range(400))), np.full(len(rows), 5, np.int32)
    indices = (version.astype(np.int32), user.astype(np.int32), began.astype(np.int64))
    return Outcomes(("a", "b"), names, *indices, reward, length, np.full(len(rows), 0.1), np.abs(reward), -1.0, 5.0)


def test_a_canary_whose_users_come_at_poorer_hours_is_not_promoted() -> None:
    """20% more within every hour, and 20% less per user, since two of three evening visits are at lunch now."""
    moved = compare_versions(hourly_outcomes(canary_evenings=1, gain=0.2), "a", "b")
    assert moved.answer == "more"
    assert moved.visits.value == 0
    assert moved.user_reward.value == pytest.approx(1.2 * (3 + 5) - (9 + 3), abs=0.15)
    action, reason = judge_canary(moved, CONFIG, 0)
    assert (action, "its users earn less in all their sessions" in reason) == ("wait", True)
    assert judge_canary(compare_versions(hourly_outcomes(canary_evenings=3, gain=0.2), "a", "b"), CONFIG, 0)[0] == "promote"


def test_a_change_of_the_share_does_not_hide_that_users_come_at_poorer_hours() -> None:
    """Since then their first visits are at poorer hours, too: they had met the canary before."""
    rows, noise = [], np.random.default_rng(1)
    for user in range(400):
        is_evening, version = user % 2 == 0, int(user % 100 >= 50)
        for day in range(6):
            met = 0 if user % 100 in (50, 51) and day >= 3 else version  # the share is raised from 50% to 52%
            at_lunch = not is_evening or (met == 0 and day > 0)
            reward = (1.0 if at_lunch else 3.0) * (1.2 if met == 0 else 1.0) + noise.normal(0, 0.1)
            rows.append((day * DAY + (0 if at_lunch else DAY // 3) + user * 1000, met, user, reward))
    began, version, user, reward = (np.asarray(column) for column in zip(*sorted(rows), strict=True))
    indices = (version.astype(np.int32), user.astype(np.int32), began.astype(np.int64))
    sessions = (reward, np.full(len(rows), 5, np.int32), np.full(len(rows), 0.1), np.abs(reward))
    comparison = compare_versions(Outcomes(("a", "b"), tuple(map(str, range(400))), *indices, *sessions, 0.0, 5.0), "a", "b")
    assert comparison.assignment_fixed_since > 2 * DAY
    assert comparison.user_reward.share == pytest.approx(1.2 / 2 - 1, abs=0.05)


def test_a_canary_whose_users_come_at_richer_hours_is_not_withdrawn_once_they_surely_earn_more() -> None:
    """10% less within every hour, and 20% more per user."""
    moved = compare_versions(hourly_outcomes(canary_evenings=5, gain=-0.1), "a", "b")
    assert moved.answer == "less"
    action, reason = judge_canary(moved, CONFIG, 0)
    assert action == "wait"
    assert moved.user_reward.value == pytest.approx(0.9 * (15 + 1) - 12, abs=0.15)
    assert "but its users earn more in all their sessions (" in reason


def test_what_users_earn_is_counted_by_whole_days() -> None:
    """Of the third day only the morning was seen, when users of the canary come."""
    user = np.tile(np.arange(80, dtype=np.int32), 3)
    day = np.repeat(np.arange(3), 80)
    began = day * DAY + user + np.where((user % 2 == 1) & (day > 0), DAY // 3, 0)
    seen = (day < 2) | (user % 2 == 0)
    columns = (
        (user % 2)[seen],
        user[seen],
        began[seen],
        np.ones(200),
        np.full(200, 5, np.int32),
        np.full(200, 0.1),
        np.ones(200),
    )
    outcomes = Outcomes(("a", "b"), tuple(map(str, range(80))), *columns, min_reward=0.0, max_reward=2.0)
    comparison = compare_versions(outcomes, "a", "b")
    for gap in (comparison.visits, comparison.user_reward):
        assert (gap.value, gap.ci_low, gap.base) == (0.0, 0.0, 2.0)


def test_a_promotion_needs_that_the_reward_per_user_is_not_much_lower() -> None:
    better = compare_versions(trial_outcomes(0, np.full(12_000, 0.5), np.ones(12_000), 0.2, 3000), "a", "b")
    assert judge_canary(better, replace(CONFIG, user_loss=0.0), 0)[0] == "promote"
    for value, low, action, words in (
        (0.1, -0.2, "promote", "earns more"),
        (
            0.1,
            -0.5,
            "wait",
            "not promoted, since its users could earn 12% less in all their sessions; about 1,300 more users",
        ),
        (-0.1, -0.2, "wait", "not promoted, since its users earned less so far in all their sessions (-0.1 per user)"),
        (0.1, -np.inf, "wait", "too little is known of what users earn in all their sessions: send the user"),
    ):
        gap = replace(better.user_reward, value=value, ci_low=low, ci_high=1.0, base=4.0)
        found, reason = judge_canary(replace(better, user_reward=gap), CONFIG, 0)
        assert (found, words in reason) == (action, True)
        assert judge_canary(replace(better, user_reward=gap), replace(CONFIG, user_loss=1.0), 0)[0] == "promote"
        config = replace(CONFIG, undecided="promote", max_seconds=1.0)
        is_unsure = low < -0.4 or value < 0
        assert judge_canary(replace(better, user_reward=gap), config, 2.0)[0] == ("wait" if is_unsure else "promote")
    equal = compare_versions(trial_outcomes(0, np.full(12_000, 0.5), np.ones(12_000), 0.0, 3000), "a", "b")
    gap = replace(equal.user_reward, value=-0.1, ci_low=-0.2, ci_high=0.1, base=4.0)  # as in half of trials
    assert judge_canary(replace(equal, user_reward=gap), config, 2.0)[0] == "promote"
    once = trial_outcomes(0, np.full(2000, 0.5), np.ones(2000), 0.2, users=10**6)
    nobody_back = compare_versions(replace(once, user=np.arange(2000, dtype=np.int32)), "a", "b")
    assert nobody_back.visits.ci_low == nobody_back.user_reward.ci_low == -np.inf


def test_a_canary_whose_users_come_back_more_often_is_not_withdrawn_unless_they_earn_less() -> None:
    worse = compare_versions(trial_outcomes(0, np.full(2000, 0.5), np.ones(2000), gain=-0.2), "a", "b")
    assert judge_canary(worse, CONFIG, 0)[0] == "withdraw"
    for visits_low, best, expected in ((0.1, 0.5, "wait"), (0.1, -0.1, "withdraw"), (-0.1, 0.5, "withdraw")):
        visits = replace(worse.visits, value=0.9, share=0.3, ci_low=visits_low)
        earned = replace(worse.user_reward, value=-0.2, ci_low=-0.9, ci_high=best)
        for elapsed in (0.0, 1e9):  # also at the end of the trial
            action, reason = judge_canary(replace(worse, visits=visits, user_reward=earned), CONFIG, elapsed)
            assert action == expected
            more = "but its users have more sessions (+30.0%), and may earn as much, so a person has to decide"
            assert reason.endswith(more) == (action == "wait")


@pytest.mark.parametrize("version", [0, 1])
def test_one_visit_with_very_many_rewards_hides_no_difference(version: int) -> None:
    """It counts as the largest session that is not rare. What was cut keeps a canary from being promoted if it is much."""
    for gain, decided in ((0.2, "promote"), (-0.2, "withdraw")):
        outcomes = trial_outcomes(0, np.full(4000, 0.5), np.ones(4000), gain, users=2000)
        visit = int(np.flatnonzero(outcomes.version == version)[50])
        for reward, action in ((20.0, decided), (5000.0, "withdraw" if gain < 0 else "wait")):
            rewards, sizes = outcomes.reward.copy(), outcomes.size.copy()
            rewards[visit] = sizes[visit] = reward
            comparison = compare_versions(replace(outcomes, reward=rewards, size=sizes), "a", "b")
            assert (comparison.a.cut, comparison.b.cut)[version] == reward - outcomes.max_reward
            found, reason = judge_canary(comparison, CONFIG, 0)
            assert found == action
            assert ("2.5 per session that long sessions earned beyond 4 do not count" in reason) == (action == "wait")
    assert "of the rewards of very long sessions" in comparison.sentence()
    assert comparison.as_dict()["ab"[version]]["cut"] == 4996.0


def test_long_sessions_of_many_users_keep_no_better_canary_from_being_promoted() -> None:
    """Where 3% of the reward lies beyond what counts: it is charged to the canary, which earns more than that."""
    outcomes = trial_outcomes(0, np.full(8000, 0.5), np.ones(8000), 0.3, users=4000)
    reward = np.abs(outcomes.reward)
    reward[::100] = 7.0
    outcomes = replace(outcomes, reward=reward, size=reward, min_reward=0.0)
    comparison = compare_versions(outcomes, "a", "b")
    assert comparison.b.cut > 0.02 * comparison.b.size
    assert judge_canary(comparison, CONFIG, 0)[0] == "promote"
    longer = np.where(outcomes.version == 0, 0.6 * reward, reward)  # a earns less, but in long sessions of many users
    longer[(outcomes.version == 0) & (np.arange(8000) % 20 == 1)] = 14.0
    comparison = compare_versions(replace(outcomes, reward=longer, size=longer), "a", "b")
    assert longer[outcomes.version == 0].mean() > longer[outcomes.version == 1].mean()
    capped = np.minimum(longer, 4.0)
    assert capped[outcomes.version == 0].mean() < 0.95 * capped[outcomes.version == 1].mean()
    assert judge_canary(comparison, CONFIG, 0)[0] != "withdraw"


def test_users_who_left_before_the_share_was_changed_are_not_forgotten() -> None:
    """A canary drives users away, then its share is lowered: those who are left come back as often as others."""
    rng, users, days = np.random.default_rng(0), 4000, 8
    place = rng.random(users)
    left = (place < 0.5) & (rng.random(users) < 0.4)
    rows = [
        (day * 1000 + int(1000 * rng.random()), user, day)
        for day in range(days)
        for user in range(users)
        if rng.random() < 0.5 and not (left[user] and day >= 1)
    ]
    began, user, day = (np.array(column) for column in zip(*sorted(rows), strict=True))
    is_live = place[user] >= np.where(day < 4, 0.5, 0.2)
    reward = 1 + 0.2 * ~is_live + rng.normal(0, 0.3, len(user))
    columns = is_live.astype(np.int32), user.astype(np.int32), began, reward, np.full(len(user), 5, np.int32)
    names = tuple(map(str, range(users)))
    outcomes = Outcomes(
        ("a", "b"), names, *columns, np.full(len(user), 0.1), np.abs(reward), min_reward=-2.0, max_reward=4.0
    )
    comparison = compare_versions(outcomes, "a", "b")
    assert comparison.earlier_visits is not None
    assert comparison.earlier_visits.ci_high < 0
    action, reason = judge_canary(comparison, CONFIG, 0)
    assert (action, "fewer sessions before its share was changed" in reason) == ("wait", True)
    assert judge_canary(replace(comparison, earlier_visits=None), CONFIG, 0)[0] == "promote"


def test_lost_feedback_with_negative_rewards_keeps_a_canary_from_being_promoted() -> None:
    """Dislikes of the canary that do not arrive raise its reward, and leave more of its items without feedback."""
    better = compare_versions(trial_outcomes(0, np.full(4000, 0.5), np.ones(4000), 0.2, users=2000), "a", "b")
    assert better.min_reward < 0
    for lower, least, expected in (
        (-0.2, -2.0, "promote"),
        (-0.3, -2.0, "wait"),
        (-0.3, 0.0, "promote"),
        (-np.inf, -2.0, "wait"),
    ):
        answered = replace(better.feedback_gap, anytime_low=lower, anytime_high=0.1)  # of 5 steps
        action, reason = judge_canary(replace(better, feedback_gap=answered, min_reward=least), CONFIG, 0)
        assert action == expected
        assert reason.endswith("feedback, and lost feedback may have negative rewards") == (action == "wait")


def raised_share(shares: tuple[float, float], lost: float, seed: int = 0) -> Outcomes:
    """4,000 users for two days of 1,000 units; the share changes after one. Users of a come back less often.

    a earns 20% more.
    """
    rng, users = np.random.default_rng(seed), 4000
    user = rng.choice(users, size=12_000, p=(activity := rng.exponential(size=users)) / activity.sum())
    began = np.sort(rng.integers(2000, size=len(user)))
    is_a = rng.random(users)[user] < np.where(began < 1000, *shares)
    is_first = np.isin(np.arange(len(user)), np.unique(user, return_index=True)[1])
    came = ~is_a | is_first | (rng.random(len(user)) >= lost)
    reward = 1 + 0.2 * is_a + rng.normal(0, 0.3, len(user))
    length, epsilon = np.full(len(user), 5, np.int32), np.full(len(user), 0.1)
    columns = ((~is_a).astype(np.int32), user.astype(np.int32), began, reward, length, epsilon, np.abs(reward))
    return Outcomes(
        ("a", "b"), tuple(map(str, range(users))), *(column[came] for column in columns), min_reward=0.0, max_reward=4.0
    )


@pytest.mark.parametrize("shares", [(0.1, 0.5), (0.05, 0.9), (0.5, 0.1)])
def test_sessions_per_user_are_compared_since_the_share_was_changed(shares: tuple[float, float]) -> None:
    """Of all users who met one version alone, those of b in the range that a was given later did not come back."""
    lost, kept = (compare_versions(raised_share(shares, lost), "a", "b") for lost in (0.4, 0.0))
    assert 990 <= lost.assignment_fixed_since <= 1010
    assert lost.visits.ci_high < 0
    assert judge_canary(lost, CONFIG, 0)[0] == "wait"
    assert kept.visits.ci_low < 0 < kept.visits.ci_high
    assert judge_canary(kept, CONFIG, 0)[0] == "promote"
    action, reason = judge_canary(kept, replace(CONFIG, min_seconds=7200.0), 9e4, served=3600.0)
    assert action == "wait"
    assert "promoted after 1.0 hours more of usual traffic, since users met both versions as the share was changed" in reason
    constant = compare_versions(raised_share((0.3, 0.3), 0.0), "a", "b")
    assert constant.assignment_fixed_since == constant.began


def test_a_canary_on_machines_that_explore_less_is_not_promoted() -> None:
    """Half of the users come to a machine with epsilon 0.4 and without the canary; the share of the other one is half."""
    outcomes = trial_outcomes(0, np.full(2000, 0.5), np.ones(2000), gain=0.2, users=1000)
    assert abs(compare_versions(outcomes, "a", "b").exploration.value) < 1e-9
    is_other = (outcomes.version == 1) & (outcomes.user % 2 == 0)
    confounded = compare_versions(replace(outcomes, epsilon=np.where(is_other, 0.4, 0.1)), "a", "b")
    assert confounded.exploration.value == pytest.approx(-0.15, abs=0.03)
    action, reason = judge_canary(confounded, CONFIG, 0)
    assert (action, reason.endswith("it explored less than b, so a person has to decide")) == ("wait", True)
    alike = replace(outcomes, epsilon=np.where(np.arange(2000) < 1000, 0.4, 0.1))  # changed for all, in the middle
    assert judge_canary(compare_versions(alike, "a", "b"), CONFIG, 0)[0] == "promote"


def test_few_rewards_that_came_late_may_be_most_of_the_reward() -> None:
    better = compare_versions(outcomes_of(1500, BETTER), "a", "b")
    n_late = 10  # below 1% of the sessions
    for reward, action in ((1.0, "promote"), (100.0, "wait")):
        ignored = Ignored(partial_visits={"b": PartialVisits(late=n_late, reward=n_late * reward)})
        found, reason = judge_canary(better, CONFIG, 0, ignored)
        assert found == action
        assert ("not promoted, since 10 decisions have rewards that came after the end" in reason) == (action == "wait")


def test_what_either_version_hides_is_a_share_of_its_own_sessions_and_reward() -> None:
    """The canary, a, has 30% of the sessions. What the two may hide together is more than what one of them may."""
    better = compare_versions(outcomes_of(1500, BETTER), "a", "b")
    most = {side.version: (int(0.01 * side.sessions), 0.03 * side.size) for side in (better.a, better.b)}
    assert 3 <= most["a"][0] < most["b"][0] < 0.01 * 1500
    for partial, action in (
        ({name: PartialVisits(missing_start=count, reward=reward) for name, (count, reward) in most.items()}, "promote"),
        ({"a": PartialVisits(missing_start=most["a"][0] + 1)}, "wait"),
        ({"b": PartialVisits(late=1, reward=1.01 * most["b"][1])}, "wait"),
        ({"b": PartialVisits(unattributed=most["b"][0] + 1)}, "wait"),
        ({"older": PartialVisits(unattributed=most["b"][0] + 1)}, "wait"),  # of neither: it counts for the live version
    ):
        found, reason = judge_canary(better, CONFIG, 0, Ignored(partial_visits=partial))
        assert found == action, (partial, reason)
    both = judge_canary(
        better, CONFIG, 0, Ignored(partial_visits={name: PartialVisits(missing_start=99, reward=5.0) for name in "ab"})
    )[1]
    for side in (better.a, better.b):
        beside = (
            f"99 sessions have no beginning in the log, worth 5, beside {side.sessions:,} sessions of {side.version}, worth"
        )
        assert beside in both


def test_further_behaviours_keep_a_canary_back_and_the_reason_says_what_to_send() -> None:
    """Clicks rise and purchases fall, and the purchases were reported on items that had a click already."""
    better = compare_versions(outcomes_of(1500, BETTER), "a", "b")
    for worth, action in ((0.02, "promote"), (0.04, "wait")):
        further = PartialVisits(changed=7, reward=worth * better.b.size)
        found, reason = judge_canary(better, CONFIG, 0, Ignored(partial_visits={"b": further}))
        assert found == action
        said = "7 further behaviours were reported on items that had one, as a purchase after a click, worth" in reason
        assert said == reason.endswith("the first one counts: report one behaviour per item, when it is final")
        assert said == (action == "wait")


def test_what_a_canary_takes_back_is_its_own_loss() -> None:
    """Orders that are cancelled: below the limit of what may be apart, and as much as the canary gains."""
    better = compare_versions(outcomes_of(1500, BETTER), "a", "b")
    sure = better.reward_difference.safe_lower(CONFIG.promote_alpha)
    for share, action in ((0.5, "promote"), (1.1, "wait")):
        lost = share * float(sure) * better.a.sessions
        partial = PartialVisits(changed=9, reward=lost, lowered=lost)
        size = replace(better.a, size=100 * lost)
        found, _ = judge_canary(replace(better, a=size), CONFIG, 0, Ignored(partial_visits={"a": partial}))
        assert found == action


def test_lost_feedback_of_the_live_version_does_not_promote() -> None:
    """Clients report on all items, and of the live version a tenth does not arrive: the canary seems to earn more."""
    whole = outcomes_of(1500, BETTER)
    is_live = whole.version == whole.versions.index("b")
    for factor, action in ((1.0, "promote"), (1.25, "wait")):
        offered = np.where(is_live, np.ceil(whole.length * factor), whole.length).astype(np.int32)
        found, reason = judge_canary(compare_versions(replace(whole, offered=offered), "a", "b"), CONFIG, 0)
        assert found == action, reason
        assert ("whose rewards may be lost" in reason) == (action == "wait")


def test_late_rewards_are_charged_to_the_canary() -> None:
    """However many have them: it must gain more than those of the live version, and its own if these may be losses."""
    outcomes = trial_outcomes(0, np.full(2000, 0.5), np.ones(2000), gain=0.08, users=1000)
    outcomes = replace(outcomes, reward=np.maximum(outcomes.reward, 0.0))
    for least, charged in ((0.0, "b"), (-0.5, "ab")):
        better = compare_versions(replace(outcomes, min_reward=least), "a", "b")
        spare = float(better.reward_difference.safe_lower(CONFIG.promote_alpha))
        assert 0 < spare < 0.02 * better.b.reward.mean
        for side in (better.a, better.b):
            for share, action in ((0.99, "promote"), (1.01, "wait" if side.version in charged else "promote")):
                late = PartialVisits(late=side.sessions // 10, reward=share * spare * side.sessions)
                found, reason = judge_canary(better, CONFIG, 0, Ignored(partial_visits={side.version: late}))
                assert found == action
                hint = f"; {share * spare:.3g} per session that came late or in parts of visits do not count"
                assert reason.endswith(hint) == (action == "wait")


def test_rewards_of_both_signs_do_not_cancel_beside_late_ones() -> None:
    """Skips cost what likes earn. Ten late rewards are 0.5% of all, but more than 3% of the sum with signs."""
    reader = OutcomeReader({"skip": -1.0, "like": 1.0}, CONFIG.sessions)
    for record in trial_records(1500, canary="a", live="b", likes=(0.6, 0.45)):
        reader.add(record)
    better = compare_versions(reader.outcomes(10**15), "a", "b")
    assert (better.a.size, better.b.size) == (2 * better.a.sessions, 2 * better.b.sessions)
    assert 0.03 * better.b.sessions * abs(better.b.reward.mean) < 10
    assert (
        judge_canary(better, CONFIG, 0, Ignored(partial_visits={"b": PartialVisits(late=10, reward=10.0)}))[0] == "promote"
    )


def test_rewards_that_do_not_vary_and_sessions_that_suffice_are_named() -> None:
    reader = OutcomeReader(REWARDS, CONFIG.sessions)
    for number in range(400):
        steps = session_records(f"s{number}", "ab"[number % 2], ["like"], user=f"u{number % 80}", began=number * SECOND)
        for record in steps:
            reader.add(record)
    same = compare_versions(reader.outcomes(10**15), "a", "b")
    assert same.sentence() == "cannot tell yet; the rewards of these sessions do not vary"
    assert "about 0" not in judge_canary(same, CONFIG, 0)[1]
    unclear = compare_versions(outcomes_of(900, EQUAL, seed=2), "a", "b")
    assert unclear.sessions_missing(3.0) == 0
    assert unclear.sentence(3.0).endswith("; these sessions would show a difference of 300%")


def test_sessions_that_name_no_user_do_not_dilute_a_loss_of_visits() -> None:
    """The canary earns more per session, and its users come back half as often. Most sessions name no user."""
    reader, rng, number = OutcomeReader(REWARDS, CONFIG.sessions), np.random.default_rng(0), 0

    def add(version: str, user: str, visit: int) -> None:
        nonlocal number
        number += 1
        steps = ["like" if rng.random() < (0.7 if version == "a" else 0.5) else "skip" for _ in range(2)]
        began = SECOND + (visit * 10_000 + number % 10_000) * 5 * SECOND
        for record in session_records(f"s{number}", version, steps, user="named or not", began=began):
            reader.add(msgspec.structs.replace(record, user=user) if isinstance(record, Decision) else record)

    for user in range(60):
        for visit in range(1 + (user % 4 < (1 if user % 2 else 3))):
            add("ab"[user % 2 == 0], f"u{user}", visit)
    named = compare_versions(reader.outcomes(10**15), "a", "b")
    for _ in range(3000):
        add("ab"[number % 2], "", 0)
    mixed = compare_versions(reader.outcomes(10**15), "a", "b")
    assert mixed.a.sessions > 1400
    assert mixed.visits == named.visits
    assert mixed.visits.share is not None
    assert mixed.visits.share < -0.2
    action, reason = judge_canary(mixed, CONFIG, 0)
    assert action == "wait"
    assert "so a person has to decide" in reason or "its users could earn" in reason


def test_sessions_that_name_no_user_do_not_hide_a_change_of_the_share() -> None:
    """Ten of 100 named users have the other version in the second half, beside 3,000 sessions without a user."""
    user = np.concatenate([np.tile(np.arange(100), 2), np.arange(100, 3100)]).astype(np.int32)
    began = np.concatenate([np.arange(200), np.linspace(0, 199, 3000)]).astype(np.int64) * SECOND
    version = (user % 2).astype(np.int32)
    version[100:110] = 0
    order, ones = np.argsort(began, kind="stable"), np.ones(3200)
    names = tuple(f"u{number}" if number < 100 else f"anonymous:{number}" for number in range(3100))
    columns = (version[order], user[order], began[order], ones, ones.astype(np.int32), ones, ones)
    comparison = compare_versions(Outcomes(("a", "b"), names, *columns, min_reward=0.0, max_reward=1.0), "a", "b")
    assert comparison.assignment_fixed_since >= 100 * SECOND
    assert comparison.earlier_visits is not None
