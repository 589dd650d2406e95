"""The gate judges what is served: asked again about its own log, a version chooses what it chose."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import numpy as np
import pytest

from mbcal import AgentConfig, Behaviours, Catalog, GRU4Rec, NetConfig, TrainingConfig
from mbcal.agents.base import Agent
from mbcal.decision_log.join import join_sessions
from mbcal.decision_log.joined import Joined, StepOrigin, served_before_feedback
from mbcal.decision_log.records import SKEW, Decision, Feedback, Record
from mbcal.errors import LogError
from mbcal.evaluation.ope.propensity import policy_choices
from mbcal.registry.registry import Registry
from mbcal.registry.version import Version
from mbcal.release.served_choices import _late_feedback, _LatestAnswers, served_choices
from mbcal.release.update import update
from mbcal.serving.ranker import Ranker
from tests.support.batches import sessions
from tests.support.trials import write_quickly
from tests.support.versions import ITEMS, fitted

LABELS = ("skip", "click", "like")


def opened(agent: Agent, folder: Path) -> Version:
    """The agent as the service opens it."""
    registry = Registry(folder)
    return registry.open(registry.publish(agent))


def served_log(version: Version, *, count: int = 40, k: int = 3, requests: int = 4, seed: int = 0) -> Iterator[Record]:
    """Sessions of several requests without exploration: k items each, feedback late or missing, some items unknown."""
    ranker, draw = Ranker(version), np.random.default_rng(seed)
    for number in range(count):
        shown: list[tuple[str, str]] = []
        late: list[tuple[str, str]] = []
        history = [(str(draw.choice(ITEMS)), str(draw.choice(LABELS))) for _ in range(int(draw.integers(0, 4)))]
        for step in range(requests):
            names = [*draw.permutation(ITEMS)[:8].tolist(), "new 1", "new 2"]
            ranked = ranker.rank(history, names, shown, k=k, epsilon=0.0, uniform=np.ones((k, 2)))
            items, name = [entry.item for entry in ranked], f"d{number}-{step}"
            time = 1_000_000 * (1000 * number + step)
            yield Decision(
                name,
                time,
                f"s{number}",
                f"u{number % 7}",
                len(shown),
                "v1",
                0.0,
                history,
                list(shown),
                names,
                items,
                [1.0] * len(items),
            )
            shown += late
            late = []
            for item in items:
                if draw.random() < 0.7:
                    behaviour = str(draw.choice(LABELS))
                    yield Feedback(name, item, behaviour, time + 1, f"f-{name}-{item}")
                    (late if draw.random() < 0.3 else shown).append((item, behaviour))


@pytest.mark.parametrize("kind", ["history", "id"])
def test_a_version_chooses_along_its_own_log_what_it_chose(kind: str, tmp_path: Path) -> None:
    config = AgentConfig(net=NetConfig(hidden=8, embedding=5, user=kind), training=TrainingConfig(epochs=2))  # type: ignore[arg-type]
    agent = GRU4Rec(config, "cpu").fit(sessions(count=120, seed=3))
    version = opened(agent, tmp_path)
    records = list(served_log(version))
    domain = agent.domain
    joined = join_sessions(records, domain.catalog, domain.behaviours, horizon=5, history=domain.history)
    rows = np.arange(len(joined.sessions))
    (found, _), unjudged, *_ = served_choices([version, version], records, joined, rows)
    assert unjudged == 0
    mask = joined.sessions.mask
    assert mask.sum() > 200
    assert np.array_equal(found.best[mask], found.logged[mask])
    assert (found.propensities(0.0)[mask] == 1).all()
    decision = {record.id: record for record in records if isinstance(record, Decision)}
    for row, column in np.argwhere(mask).tolist():
        origin = joined.origins[row][column]
        left = [name for name in decision[origin.decision].candidates if name not in dict(decision[origin.decision].shown)]
        assert found.count[row, column] == len(left) - origin.rank
    # the same sessions replayed item by item are another policy
    replayed = policy_choices(agent, joined.sessions)
    assert (replayed.best[mask] != replayed.logged[mask]).any()


def test_the_further_estimates_are_of_what_would_be_served(tmp_path: Path) -> None:
    """Replayed item by item, the live version would seem to choose otherwise than it did."""
    config = AgentConfig(net=NetConfig(hidden=8, embedding=5), training=TrainingConfig(epochs=2))
    agent, registry = GRU4Rec(config, "cpu").fit(sessions(count=120, seed=3)), Registry(tmp_path / "registry")
    version = registry.open(registry.publish(agent))
    records = (
        msgspec.structs.replace(record, version=version.name) if isinstance(record, Decision) else record
        for record in served_log(version)
    )
    write_quickly(tmp_path / "log", records)
    verdict = update(registry, tmp_path / "log", candidate=agent, device="cpu", min_sessions=10, judge_share=0.5)
    found = {(one.of, one.name): one for one in verdict.estimates}
    for of in ("policy", "baseline"):
        assert (found[of, "ips"].weight, found[of, "ips"].ess) == (pytest.approx(1), pytest.approx(found[of, "ips"].n))
        assert found[of, "pdis"].value == pytest.approx(found["log", "mean"].value)


def test_feedback_that_comes_in_the_next_window_may_depend_on_it(tmp_path: Path) -> None:
    """Versions that differ in the last window alone: judged if all earlier feedback was there before, and not otherwise.

    Clocks may differ: feedback that seems to be older, but that the server did not know, may have come later.
    """
    agent, other = fitted("gru4rec"), fitted("gru4rec", seed=1)
    versions = [opened(agent, tmp_path / "a"), opened(other, tmp_path / "b")]
    rankers, domain = [Ranker(version) for version in versions], agent.domain

    def first(ranker: Ranker, names: list[str]) -> str:
        return ranker.rank([], names, [], k=1, epsilon=0.0, uniform=np.ones((1, 2)))[0].item

    pairs = [[one, two] for one in ITEMS for two in ITEMS if one < two]
    alike = next(pair for pair in pairs if len({first(ranker, pair) for ranker in rankers}) == 1)
    unlike = next(pair for pair in pairs if len({first(ranker, pair) for ranker in rankers}) == 2)
    for late, known, expected in ((15, 1, 0), (15, 0, 1), (25, 0, 1)):
        records: list[Record] = []
        for number, names in enumerate((alike, unlike)):
            name, time, item = f"d{number}", 10 * (number + 1), first(rankers[0], names)
            records.append(Decision(name, time, "s", "u", known * number, "v1", 0.0, [], [], names, [item], [1.0]))
            records.append(Feedback(name, item, "click", time + 1 if number else late, f"f{number}"))
        joined = join_sessions(records, domain.catalog, domain.behaviours, horizon=1, history=domain.history)
        assert served_choices(versions, records, joined, np.arange(2)).n_unweighted_differences == expected


def test_whether_windows_are_linked_is_found_without_comparing_all_steps() -> None:
    """As comparing each window with every step before it; answers come in any order, and servers know more or less."""
    draw = np.random.default_rng(0)
    for _ in range(300):
        seconds = np.sort(draw.integers(0, 300, 12))
        steps = [
            StepOrigin(f"d{number // 2}", int(at) * 10**6, 0, int(at + draw.integers(0, 200)) * 10**6, known, number)
            for number, (at, known) in enumerate(zip(seconds, draw.integers(0, 12, 12).tolist(), strict=True))
        ]
        answers = _LatestAnswers()
        for number, step in enumerate(steps):
            assert answers.any_after(step) == any(served_before_feedback(step, other) for other in steps[:number])
            answers.add([step])
    begin = time.perf_counter()
    long = _LatestAnswers()
    for number in range(30_000):
        step = StepOrigin(f"d{number}", number * 10**9, 0, number * 10**9 + 1, 0, number)
        assert not long.any_after(step)
        long.add([step])
    assert time.perf_counter() - begin < 5  # minutes, if each were compared with all


def test_late_feedback_is_found_without_comparing_all_sessions() -> None:
    """As comparing each step with every session of its user; sessions in parts, and one visit without end."""
    draw = np.random.default_rng(0)

    def found(names: list[str], users: list[int], begins: list[int], delays: list[int], differs: list[bool]) -> list[int]:
        records: list[Record] = []
        for number, (name, user, begin, delay) in enumerate(zip(names, users, begins, delays, strict=True)):
            records.append(Decision(f"d{number}", begin, name, f"u{user}", number, "v1", 0.0, [], [], ["i1"], ["i1"], [1.0]))
            records.append(Feedback(f"d{number}", "i1", "click", begin + delay, f"f{number}"))
        joined = join_sessions(records, Catalog(("i1",)), Behaviours(LABELS, (0.0, 1.0, 3.0)), horizon=1)
        order = [int(origins[0].decision[1:]) for origins in joined.origins]
        late = _late_feedback(joined, np.arange(len(order)), np.asarray(differs)[order])
        return [int(late[order.index(number)]) for number in range(len(order))]

    for _ in range(100):
        names, users = [f"s{number}" for number in draw.integers(0, 3, 12)], draw.integers(0, 2, 12).tolist()
        begins = (np.sort(draw.choice(900, 12, replace=False)) * 10**6).tolist()
        delays, differs = (draw.integers(1, 400, 12) * 10**6).tolist(), (draw.random(12) < 0.7).tolist()
        all_of = list(zip(names, users, begins, differs, strict=True))
        expected = []
        for name, user, begin, delay in zip(names, users, begins, delays, strict=True):
            later = [
                at for other, whose, at, is_other in all_of if is_other and whose == user and at > begin and other != name
            ]
            expected.append(int(bool(later) and later[0] <= begin + delay + SKEW * 10**6))
        assert found(names, users, begins, delays, differs) == expected
    count = 20_000
    origins = tuple((StepOrigin(f"d{number}", number * 10**7, 0, number * 10**7 + 1, 0, number),) for number in range(count))
    users_of = SimpleNamespace(user=np.zeros(count, np.int64))
    endless = SimpleNamespace(origins=origins, session_names=("visit",) * count, sessions=users_of)
    begin = time.perf_counter()
    assert not _late_feedback(cast(Joined, endless), np.arange(count), np.ones(count, np.bool_)).any()
    assert time.perf_counter() - begin < 3  # half a minute, if each were compared with all


def test_another_version_chooses_otherwise_and_lost_decisions_are_an_error(tmp_path: Path) -> None:
    agent, other = fitted("gru4rec"), fitted("gru4rec", seed=1)
    live, candidate = opened(agent, tmp_path / "a"), opened(other, tmp_path / "b")
    records = list(served_log(live, count=10))
    domain = agent.domain
    joined = join_sessions(records, domain.catalog, domain.behaviours, horizon=5, history=domain.history)
    rows = np.arange(len(joined.sessions))[2:]
    (same, another), unjudged, *_ = served_choices([live, candidate], records, joined, rows)
    assert unjudged > 0  # some items had no feedback, some sessions go on beyond the horizon
    mask = joined.sessions[rows].mask
    assert np.array_equal(same.best[mask], same.logged[mask])
    assert 0.1 < (another.best[mask] != another.logged[mask]).mean() < 1
    assert np.array_equal(same.count, another.count)
    lost = joined.origins[int(rows[-1])][0].decision
    with pytest.raises(LogError, match="1 decisions have left the log while it was judged; run the update again"):
        served_choices([live], (r for r in records if r.id != lost), joined, rows[-1:])


def test_choices_whose_effect_the_log_does_not_show_are_counted(tmp_path: Path) -> None:
    agent, other = fitted("gru4rec"), fitted("gru4rec", seed=1)
    live, candidate = opened(agent, tmp_path / "a"), opened(other, tmp_path / "b")
    records = list(served_log(live, count=30, k=1, requests=3))
    decisions = [record for record in records if isinstance(record, Decision)]
    answers = [Feedback(record.id, record.items[0], "click", record.time + 1, f"f{record.id}") for record in decisions]
    domain = agent.domain

    def unjudged(feedback: list[Feedback], horizon: int) -> int:
        joined = join_sessions([*decisions, *feedback], domain.catalog, domain.behaviours, horizon=horizon)
        found = served_choices([candidate, live], [*decisions, *feedback], joined, np.arange(len(joined.sessions)))
        return found.n_unweighted_differences + sum(found.hidden_differences.values())

    assert unjudged(answers, horizon=3) == 0  # all is answered, and no session goes on
    assert unjudged(answers, horizon=2) > 0  # the third step of a session may depend on the first two
    assert unjudged(answers[::3], horizon=3) > 0  # what came of most choices is unknown
    assert unjudged([answer for answer in answers if answer.decision.endswith("-0")], horizon=3) > 0
    unseen = [msgspec.structs.replace(record, time=record.time - 1) for record in decisions]
    decisions[:0] = unseen  # of killed workers: nobody saw them, and the later ones with their ids were answered
    assert unjudged(answers, horizon=3) == 0
