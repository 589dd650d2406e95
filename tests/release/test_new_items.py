"""Items that users met in the decision log become known by an update, with the features that requests gave."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mbcal import Catalog, Feature, GRU4Rec, load
from mbcal.decision_log import Decision, DecisionLog, Feedback
from mbcal.decision_log.archive import read_parquet, to_parquet
from mbcal.decision_log.new_items import extend_by_log, named_items
from mbcal.decision_log.new_values import extend_by_values
from mbcal.decision_log.records import Record
from mbcal.decision_log.segments import parquet_paths
from mbcal.nn.fields import FieldEncoder
from mbcal.registry.registry import Registry
from mbcal.release.update import update
from mbcal.types import Field, Fields, NumberFeature, SessionFields, VectorFeature
from tests.support.releases import GATE, PUBLISHING, agent, let_the_log_say
from tests.support.toys import CATALOG, logged
from tests.support.workers import ThreadedEngine

KNOWN = Catalog(
    ("a", "b"),
    {
        "kind": Feature.single("kind", ["news", "arts"]),
        "words": NumberFeature.create("words", [3.0, None]),
        "embedding": VectorFeature.create("embedding", [[1.0, 2.0], None]),
    },
)


def decision(
    number: int, items: list[str], features: dict[str, dict[str, object]] | None = None, **changes: object
) -> Decision:
    values: dict[str, object] = {
        "id": f"d{number:05d}",
        "time": number,
        "session": f"s{number}",
        "user": f"u{number}",
        "step": 0,
        "version": "v000001",
        "epsilon": 0.5,
        "history": [],
        "shown": [],
        "candidates": items,
        "items": items,
        "propensities": [0.5] * len(items),
        "features": features or {},
    }
    return Decision(**{**values, **changes})  # type: ignore[arg-type]


RECORDS: list[Record] = [
    decision(1, ["new", "a"], {"new": {"kind": ["sport"], "words": 5.0, "embedding": [3.0, 4.0]}}),
    decision(2, ["new", "never"], {"new": {"words": 7.0}, "never": {"words": 1.0}}),
    decision(3, ["bad"], {"bad": {"embedding": [1.0], "words": "many", "colour": "red"}}, shown=[("shown", "yes")]),
    Feedback("d00001", "new", "yes", 9, "f1"),
    Feedback("d00003", "bad", "yes", 9, "f2"),
    Feedback("d00009", "elsewhere", "yes", 9, "f3"),
]


def test_items_that_users_met_are_appended_with_their_latest_features() -> None:
    for seed in range(4):
        shuffled = random.Random(seed).sample(RECORDS, len(RECORDS))
        grown = extend_by_log(KNOWN, shuffled)
        assert grown.items == ("a", "b", "bad", "new", "shown")
        assert [grown.features[name].values(5) for name in ("kind", "words", "embedding")] == [
            ("sport",),
            ("7",),
            ("3", "4"),
        ]
        assert all(not feature.values(4) and not feature.values(6) for feature in grown.features.values())
    assert extend_by_log(KNOWN, RECORDS[5:]) is KNOWN


def test_features_survive_the_compaction_of_the_log(tmp_path: Path) -> None:
    numbered = list(enumerate(RECORDS, 1))
    for path, content in zip(parquet_paths(tmp_path, 1), to_parquet(numbered), strict=True):
        path.write_bytes(content)
    assert list(read_parquet(tmp_path, 1)) == numbered


def write_log(folder: Path, users: int) -> None:
    """Every user meets a known item and the new one, and likes the new one."""
    draw = np.random.default_rng(0)
    log = DecisionLog(folder)
    for user in range(users):
        names = [CATALOG.items[k] for k in draw.permutation(len(CATALOG))[:4]]
        log.append(
            decision(
                2 * user, ["fresh", *names], propensities=[0.7, 0.5, 0.4, 0.5, 1.0], user=f"u{user}", session=f"s{user}"
            )
        )
        log.append(Feedback(f"d{2 * user:05d}", "fresh", "like", 2 * user, f"f{2 * user}"))
        log.append(Feedback(f"d{2 * user:05d}", names[0], "skip", 2 * user, f"f{2 * user + 1}"))
    log.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_after_an_update_the_item_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    registry = Registry(tmp_path / "registry")
    before = agent(60, epochs=3)
    registry.publish(before)
    write_log(tmp_path / "log", 150)
    let_the_log_say("no worse", monkeypatch)
    engine = ThreadedEngine(workers) if workers else None
    verdict = update(registry, tmp_path / "log", epochs=3, gate=PUBLISHING, device="cpu", engine=engine)
    assert (verdict.action, verdict.version) == ("published", "v000002")
    assert verdict.counts is not None
    assert verdict.counts.new_items == 1
    version = registry.open("v000002")
    assert version.catalog.items == (*CATALOG.items, "fresh")
    assert version.seen[-1]
    assert not registry.open("v000001").catalog.rows_of(["fresh"])[0] > 1


def test_a_candidate_of_the_grown_catalogue_is_judged(tmp_path: Path) -> None:
    """The real comparison by the log: the live version is grown in memory to judge the other."""
    registry = Registry(tmp_path / "registry")
    registry.publish(agent(60, epochs=3))
    write_log(tmp_path / "log", 150)
    candidate = agent(60, epochs=3)
    candidate.extend_catalog(Catalog(("other",)))
    verdict = update(registry, tmp_path / "log", gate=GATE, candidate=candidate, device="cpu")
    assert verdict.answer in ("no worse", "cannot tell", "worse")
    assert verdict.difference is not None
    assert candidate.domain.catalog.items == (*CATALOG.items, "other", "fresh")


def test_values_of_categories_that_requests_gave_are_appended_whatever_the_order() -> None:
    fields = SessionFields(
        Fields((Field("country", "category", ("at",)),)),
        Fields((Field("device", "category", ("tv",)), Field("hour", "number"))),
    )
    records: list[Record] = [
        decision(1, ["a"], context={"device": "watch", "hour": 7, "weather": "rain"}, user_features={"country": "de"}),
        decision(2, ["a"], context={"device": 7, "hour": "late"}),
        decision(3, ["a"], context={"device": [1, 2]}, user_features={"country": None}),
        decision(4, ["a"], context={"device": "tv"}),
    ]
    for ordered in (records, records[::-1]):
        grown = extend_by_values(fields, ordered)
        assert grown.user.fields[0].vocabulary == ("at", "de")
        assert grown.context.fields[0].vocabulary == ("tv", "7", "watch")
        assert grown.context.fields[1] == fields.context.fields[1]
    assert extend_by_values(fields, records[3:]) == fields


def test_if_there_is_no_room_for_all_the_most_frequent_get_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mbcal.decision_log.new_values.MAX_VALUES", 2)
    fields = SessionFields(Fields(), Fields((Field("device", "category", ("tv",)),)))
    devices = ["rare", "car", "car", "rarer"]
    grown = extend_by_values(fields, [decision(k, ["a"], context={"device": name}) for k, name in enumerate(devices)])
    assert grown.context.fields[0].vocabulary == ("tv", "car")


def test_after_an_update_a_new_value_of_the_context_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry, sessions = Registry(tmp_path / "registry"), logged(60)
    fields = SessionFields(Fields(), Fields((Field("device", "category", ("tv",)),)))
    context = sessions.mask[..., None].astype(np.float32)
    before = GRU4Rec(hidden=8, embedding=4, epochs=1, device="cpu").fit(replace(sessions, context=context, fields=fields))
    registry.publish(before)
    with DecisionLog(tmp_path / "log") as log:
        for user in range(150):
            names = list(CATALOG.items[:2])
            given: dict[str, object] = {"context": {"device": ("tv", "watch")[user % 2]}, "user": f"u{user}"}
            log.append(decision(user, names, propensities=[0.75, 1.0], **given))
            log.append(Feedback(f"d{user:05d}", names[0], "like", user, f"f{user}"))
    let_the_log_say("no worse", monkeypatch)
    verdict = update(registry, tmp_path / "log", epochs=1, gate=GATE, device="cpu")
    assert verdict.version == "v000002"
    learned = load(registry.open("v000002").path, "cpu")
    assert learned.fields.context.fields[0].vocabulary == ("tv", "watch")
    encoder = next(module for module in learned.nets["behaviour"].modules() if isinstance(module, FieldEncoder))
    assert encoder.seen.tolist() == [False, True, True]


def test_an_export_names_every_item_of_the_log_with_its_latest_features() -> None:
    grown = named_items(KNOWN, RECORDS)
    assert grown.items[:2] == KNOWN.items
    assert set(grown.items[2:]) == {"new", "never", "bad", "shown", "elsewhere"}
    (row, never) = grown.rows_of(["new", "never"])
    assert (grown.features["kind"].values(row), grown.features["words"].values(row)) == (("sport",), ("7",))
    assert grown.features["words"].values(never) == ("1",)
    assert named_items(KNOWN, RECORDS[::-1]).items == grown.items
    assert named_items(KNOWN, []) is KNOWN
