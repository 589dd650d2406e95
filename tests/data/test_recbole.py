"""RecBole's atomic files, as its documentation describes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from mbcal import Labels, Levels, RecBole, SessionConfig, prepare
from mbcal.errors import InputError, OptionError
from tests.support.command_line import mbcal_here
from tests.support.layouts import shuffled
from tests.support.logs import ONE_PART, read_back, steps, unpacked, zipped

INTER = (
    "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
    "196\t242\t3\t881250949\n196\t302\t4.5\t881250950\n22\t242\t1\t881250951\n"
)
ITEM = (
    "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq\n"
    '242\t"Kolya" 1\t1996\tComedy Drama\n302\tL.A. Confidential\t\t\n999\tNever rated\t1990\tWar\n'
)
ML = {"ml-100k/ml-100k.inter": INTER.encode(), "ml-100k/ml-100k.item": ITEM.encode()}
LENIENT = SessionConfig(split=(0, 1, 0), max_rejected=0.9)


def write(tmp_path: Path, inter: str, name: str = "log.inter") -> Path:
    (tmp_path / name).write_text(inter)
    return tmp_path / name


@pytest.mark.parametrize("way", ["zip", "folder", "files"])
def test_ratings_are_labels_and_their_own_rewards(tmp_path: Path, way: str) -> None:
    folder = unpacked(tmp_path / "raw", ML)
    paths = {
        "zip": zipped(tmp_path / "ml.zip", ML),
        "folder": folder,
        "files": [folder / "ml-100k/ml-100k.inter", folder / "ml-100k/ml-100k.item"],
    }
    store = prepare(RecBole(paths[way]), tmp_path / "store", ONE_PART)  # type: ignore[arg-type]
    assert steps(store) == {
        "196": [("242", "3", 881250949), ("302", "4.5", 881250950)],
        "22": [("242", "1", 881250951)],
    }
    assert store.behaviours.names == ("1", "3", "4.5")
    assert store.behaviours.rewards == (1, 3, 4.5)
    assert store.catalog.titles == ('"Kolya" 1', "L.A. Confidential")
    classes, years = store.catalog.features["class"], store.catalog.features["release_year"]
    assert [classes.values(row) for row in (2, 3)] == [("Comedy", "Drama"), ()]
    assert [years.values(row) for row in (2, 3)] == [("1996",), ()]
    assert store.manifest["source"] == "recbole"
    assert store.manifest["options"]["features"] == ["release_year", "class"]


def test_levels_rewards_and_chosen_features(tmp_path: Path) -> None:
    folder = unpacked(tmp_path / "raw", ML)
    options = "--levels 2,4 --rewards 0,1,9 --features class --title release_year --split 0,1,0 --out store"
    printed = mbcal_here("prepare", "recbole", str(folder), *options.split(), cwd=tmp_path)
    assert "3 steps of 2 users with 2 items" in printed
    store = prepare(
        RecBole(folder, rule=Levels((2, 4), (0, 1, 9)), features=["class"], title="release_year"),
        tmp_path / "same",
        ONE_PART,
    )
    assert store.behaviours.names == ("<2", "2..4", ">=4")
    assert store.behaviours.rewards == (0, 1, 9)
    assert (list(store.catalog.features), store.catalog.titles) == (["class"], ("1996", None))


def test_a_log_of_sessions_without_ratings_is_a_log_of_clicks(tmp_path: Path) -> None:
    log = write(tmp_path, "session_id:token\titem_id:token\ttimestamp:float\ns1\ta\t5\ns1\tb\t6\ns2\ta\t7\n")
    store = prepare(RecBole(log), tmp_path / "store", ONE_PART)
    assert steps(store) == {"s1": [("a", "click", 5), ("b", "click", 6)], "s2": [("a", "click", 7)]}
    assert store.behaviours.names == ("none", "click")
    assert store.behaviours.rewards == (0, 1)
    one_value = "user_id:token\titem_id:token\trating:float\ttimestamp:float\nu\ta\t1\t5\nu\tb\t1.0\t6\n"
    store = prepare(RecBole(write(tmp_path, one_value, "ones.inter")), tmp_path / "ones", ONE_PART)
    assert steps(store) == {"u": [("a", "click", 5), ("b", "click", 6)]}


def test_labels_and_sessions_from_columns(tmp_path: Path) -> None:
    header = "user_id:token\titem_id:token\tevent:token\tvisit:token\ttimestamp:float\n"
    log = write(tmp_path, f"{header}u\ta\tview\tv1\t5\nu\tb\tbuy\tv2\t6\nu\tc\tview\tv1\t7\n")
    reader = RecBole(log, behaviour="event", rule=Labels({"view": 0, "buy": 5}), session="visit")
    assert [session.steps for session in read_back(prepare(reader, tmp_path / "store", ONE_PART))] == [
        (("a", "view", 5), ("c", "view", 7)),
        (("b", "buy", 6),),
    ]
    with pytest.raises(OptionError, match=r"rewards: column 'event' holds no numbers; give a reward for each label"):
        prepare(RecBole(log, behaviour="event"), tmp_path / "no-rewards", ONE_PART)


def test_malformed_lines_and_empty_fields_are_rejected_with_their_reason(tmp_path: Path) -> None:
    bad = "\t242\t3\t1\n196\t\t3\t1\n196\t242\t\t1\n196\t242\t3\t\n196\t242\tgood\t1\n196\t242\n196\t242\t3\t1\t9\t9\n"
    store = prepare(RecBole(write(tmp_path, INTER + bad)), tmp_path / "store", LENIENT)
    assert store.manifest["counts"]["rows"] == 3
    assert store.manifest["rejected"] == {
        "behaviour is missing": 1,
        "behaviour is unknown": 1,
        "item is missing": 1,
        "line has the wrong shape": 2,
        "time is missing": 1,
        "user is missing": 1,
    }


def test_floats_are_numbers_and_lists_of_floats_vectors(tmp_path: Path) -> None:
    item = "item_id:token\tprice:float\tembedding:float_seq\n242\t2.5\t0.5 -1 2\n302\tcheap\t\n999\t7\t1 2 3\n"
    store = prepare(
        RecBole(unpacked(tmp_path / "raw", {"a.inter": INTER.encode(), "a.item": item.encode()})), tmp_path / "s", ONE_PART
    )
    price, embedding = store.catalog.features["price"], store.catalog.features["embedding"]
    assert (price.kind, embedding.kind) == ("number", "vector")
    assert [price.values(row) for row in (2, 3)] == [("2.5",), ()]
    assert embedding.dense[2].tolist() == [0.5, -1, 2]
    assert embedding.missing[2:].tolist() == [False, True]


def test_the_user_file_has_fields_of_users_and_context_those_of_steps(tmp_path: Path) -> None:
    inter = INTER.replace("timestamp:float\n", "timestamp:float\tdevice:token\thour:float\n")
    inter = "".join(f"{line}\ttv\t{k}\n" if k else f"{line}\n" for k, line in enumerate(inter.splitlines()))
    user = "user_id:token\tage:float\tgender:token\tlikes:token_seq\n196\t30\tF\ta b\n22\t\tM\t\n"
    folder = unpacked(tmp_path / "raw", {"a.inter": inter.encode(), "a.user": user.encode()})
    store = prepare(RecBole(folder, context=["device", "hour"]), tmp_path / "store", ONE_PART)
    fields = store.fields
    assert {field.name: field.kind for field in fields.user} == {"age": "number", "gender": "category"}
    assert {field.name: field.kind for field in fields.context} == {"device": "category", "hour": "number"}
    none = prepare(RecBole(folder, user_features=[]), tmp_path / "none", ONE_PART)
    assert (len(none.fields.user), len(none.fields.context)) == (0, 0)
    with pytest.raises(OptionError, match="user-features: 'likes' holds several categories"):
        prepare(RecBole(folder, user_features=["likes"]), tmp_path / "likes", ONE_PART)
    printed = mbcal_here(
        *("prepare", "recbole", str(folder), "--context", "device", "--user-features", "gender", "--out", "by-command"),
        cwd=tmp_path,
    )
    assert "device" in printed
    assert "gender" in printed


def test_item_files_that_differ_and_malformed_lines(tmp_path: Path) -> None:
    files = {
        "a.inter": INTER.encode(),
        "a.item": b"item_id:token\tkind:token\n242\tfilm\n242\n",
        "b.item": b"item_id:token\tkind:token\tsize:token\n302\tfilm\tbig\n",
    }
    store = prepare(RecBole(unpacked(tmp_path / "raw", files)), tmp_path / "store", ONE_PART)
    features = store.catalog.features
    assert [features["kind"].values(row) for row in (2, 3)] == [("film",), ("film",)]
    assert [features["size"].values(row) for row in (2, 3)] == [(), ("big",)]
    assert store.manifest["rejected"] == {"line of an item table has the wrong shape": 1}


@pytest.mark.parametrize(
    ("inter", "options", "message"),
    [
        ("user_id,item_id\n1,2\n", {}, "not a header of RecBole; its columns are NAME:TYPE"),
        ("user_id:token\titem_id:word\n1\t2\n", {}, "not a header of RecBole"),
        ("user_id:token\titem_id:token\n1\t2\n", {}, "no column 'timestamp'"),
        (INTER, {"behaviour": "ratings"}, "no column 'ratings'.*rating"),
        (INTER, {"features": ["class"]}, "the .item file: no column 'class'"),
    ],
)
def test_files_that_are_not_recbole(tmp_path: Path, inter: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        prepare(RecBole(write(tmp_path, inter), **options), tmp_path / "store")  # type: ignore[arg-type]


def test_many_distinct_numbers_need_levels(tmp_path: Path) -> None:
    rows = "".join(f"u\t{k}\t{k / 10}\t{k}\n" for k in range(13))
    with pytest.raises(OptionError, match=r"levels: column 'rating' has more than 12 distinct numbers; give cut points"):
        prepare(RecBole(write(tmp_path, INTER.splitlines()[0] + "\n" + rows)), tmp_path / "store")


def test_the_order_of_lines_does_not_matter(tmp_path: Path) -> None:
    stores = [
        prepare(RecBole(unpacked(tmp_path / f"raw-{seed}", shuffled(ML, True, seed))), tmp_path / f"{seed}", ONE_PART)
        for seed in range(3)
    ]
    assert len({store.content_hash for store in stores}) == 1
