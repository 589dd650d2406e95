"""Logs of shops in their published layouts: Yoochoose and RetailRocket."""

from __future__ import annotations

from pathlib import Path

import pytest

from mbcal import Labels, RetailRocket, SessionConfig, Yoochoose, prepare
from mbcal.errors import InputError
from tests.support.command_line import mbcal_here
from tests.support.layouts import shuffled
from tests.support.logs import ONE_PART, read_back, steps, unpacked, zipped

CLICKS = (
    "1,2014-04-07T10:51:09.277Z,214536502,0\n1,2014-04-07T10:54:09.868Z,214536500,S\n"
    "1,2014-04-07T10:54:46.998Z,214536502,3\n2,2014-04-07T13:56:37.614Z,214662742,2089046800\n"
)
BUYS = "1,2014-04-07T10:56:00.000Z,214536500,12462,1\n"
YOOCHOOSE = {
    "yoochoose-clicks.dat": CLICKS.encode(),
    "yoochoose-buys.dat": BUYS.encode(),
    "yoochoose-test.dat": b"not read unless named",
}
MORNING = 1396867869
EVENTS = (
    "timestamp,visitorid,event,itemid,transactionid\n"
    "1433221332117,257597,view,355908,\n1433221400000,257597,addtocart,355908,\n1433221500000,257597,transaction,355908,4000\n"
    "1433224214164,992329,view,248676,\n"
)
PROPERTIES = (
    "timestamp,itemid,property,value\n1435460400000,355908,categoryid,1338\n1433041200000,355908,categoryid,1116\n"
    "1433041200000,355908,888,1116713 960601 n277.200\n1433041200000,248676,available,1\n"
)
RETAILROCKET = {
    "events.csv": EVENTS.encode(),
    "item_properties_part1.csv": PROPERTIES.encode(),
    "item_properties_part2.csv": b"timestamp,itemid,property,value\n1433041200000,1,categoryid,7\n",
    "category_tree.csv": b"categoryid,parentid\n1116,213\n1338,213\n213,\n",
}


def test_yoochoose_clicks_and_buys(tmp_path: Path) -> None:
    store = prepare(Yoochoose(unpacked(tmp_path / "raw", YOOCHOOSE)), tmp_path / "store", ONE_PART)
    assert steps(store) == {
        "1": [
            ("214536502", "click", MORNING),
            ("214536500", "click", MORNING + 180),
            ("214536502", "click", MORNING + 217),
            ("214536500", "buy", MORNING + 291),
        ],
        "2": [("214662742", "click", MORNING + 11128)],
    }
    assert (store.behaviours.names, store.behaviours.rewards) == (("click", "buy"), (1, 5))
    features, rows = store.catalog.features, store.catalog.rows_of(["214536500", "214536502", "214662742"])
    assert [features["category"].values(row) for row in rows] == [(), ("3",), ()]
    assert [features["brand"].values(row) for row in rows] == [(), (), ("2089046800",)]


def test_yoochoose_clicks_alone_and_bad_lines(tmp_path: Path) -> None:
    bad = ",2014-04-07T10:51:09.277Z,5,0\n1,,5,0\n1,yesterday,5,0\n1,2014-04-07T10:51:09.277Z,,0\n1,2014\n"
    (tmp_path / "my clicks.dat").write_text(CLICKS + bad)
    config = SessionConfig(split=(0, 1, 0), max_rejected=0.9)
    store = prepare(Yoochoose(tmp_path / "my clicks.dat"), tmp_path / "store", config)
    assert store.manifest["rejected"] == {
        "item is missing": 1,
        "line has the wrong shape": 1,
        "time cannot be read": 1,
        "time is missing": 1,
        "user is missing": 1,
    }
    assert [len(session.steps) for session in read_back(store)] == [3, 1]
    with pytest.raises(InputError, match="no clicks file found"):
        prepare(Yoochoose(unpacked(tmp_path / "buys", {"yoochoose-buys.dat": BUYS.encode()})), tmp_path / "none")


def test_retailrocket_events_and_categories(tmp_path: Path) -> None:
    store = prepare(RetailRocket(zipped(tmp_path / "archive.zip", RETAILROCKET)), tmp_path / "store", ONE_PART)
    assert steps(store) == {
        "257597": [
            ("355908", "view", 1433221332),
            ("355908", "addtocart", 1433221400),
            ("355908", "transaction", 1433221500),
        ],
        "992329": [("248676", "view", 1433224214)],
    }
    assert store.behaviours.rewards == (1, 3, 5)
    features = store.catalog.features
    assert [features["category"].values(row) for row in (2, 3)] == [(), ("1116",)]  # the first that is known
    assert [features["parent"].values(row) for row in (2, 3)] == [(), ("213",)]


def test_retailrocket_events_alone_rewards_and_bad_lines(tmp_path: Path) -> None:
    bad = ",1,view,5,\nx,1,view,5,\n1433221332117,1,look,5,\n1433221332117,,view,5,\n1433221332117,1,view,,\n1,2\n"
    (tmp_path / "events.csv").write_text(EVENTS + bad)
    config = SessionConfig(split=(0, 1, 0), max_rejected=0.9)
    rewards = Labels({"view": 0, "addtocart": 1, "transaction": 9})
    store = prepare(RetailRocket(tmp_path / "events.csv", rewards), tmp_path / "store", config)
    assert (store.behaviours.rewards, store.catalog.features) == ((0, 1, 9), {})
    assert store.manifest["rejected"] == {
        "behaviour is unknown": 1,
        "item is missing": 1,
        "line has the wrong shape": 1,
        "time cannot be read": 1,
        "time is missing": 1,
        "user is missing": 1,
    }


@pytest.mark.parametrize(
    ("layout", "site"), [("recbole", "recbole.io"), ("mind", "msnews"), ("yoochoose", "kaggle"), ("retailrocket", "kaggle")]
)
def test_without_paths_the_command_says_where_to_download(tmp_path: Path, layout: str, site: str) -> None:
    printed = mbcal_here("prepare", layout, cwd=tmp_path)
    assert site in printed
    assert f"mbcal prepare {layout} " in printed


def test_commands_take_rewards(tmp_path: Path) -> None:
    unpacked(tmp_path / "yoochoose", YOOCHOOSE)
    unpacked(tmp_path / "retailrocket", RETAILROCKET)
    printed = mbcal_here("prepare", "yoochoose", "yoochoose", "--rewards", "click=0,buy=1", "--out", "y", cwd=tmp_path)
    assert "5 steps of 2 users with 3 items" in printed
    printed = mbcal_here("prepare", "retailrocket", "retailrocket", "--gap", "30", "--out", "r", cwd=tmp_path)
    assert "4 steps of 2 users with 2 items" in printed


@pytest.mark.parametrize(("reader", "files"), [(Yoochoose, YOOCHOOSE), (RetailRocket, RETAILROCKET)])
def test_the_order_of_lines_does_not_matter(
    tmp_path: Path, reader: type[Yoochoose] | type[RetailRocket], files: dict[str, bytes]
) -> None:
    stores = [
        prepare(
            reader(unpacked(tmp_path / f"raw-{seed}", shuffled(files, reader is RetailRocket, seed))), tmp_path / f"{seed}"
        )
        for seed in range(3)
    ]
    assert len({store.content_hash for store in stores}) == 1
