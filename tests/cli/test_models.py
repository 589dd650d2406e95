"""simulator, fit, rank and evaluate as their user meets them; and everything that user can get wrong."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from mbcal import NewsfeedConfig, Store, load, prepare_newsfeed
from mbcal.agents.mbcal import MIXES
from mbcal.data.cutting import SessionConfig
from tests.support.command_line import HEADER, REWARDS, ROWS, TABLE, mbcal, mbcal_here, refused
from tests.support.logs import write_csv

SMALL = ["--hidden", "8", "--embedding", "8", "--epochs", "2", "--device", "cpu"]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store, a simulator and two models, made by the commands; not to be changed."""
    folder = tmp_path_factory.mktemp("shop")
    prepare_newsfeed(folder / "feed", NewsfeedConfig(sessions=600, items=100), SessionConfig(horizon=5, history=4))
    said = mbcal("simulator", "feed", "--out", "sim", *SMALL, cwd=folder).stdout
    assert "sessions of users it never saw" in said
    for agent in ("mbcal", "gru4rec"):
        done = mbcal("fit", "feed", "--agent", agent, "--out", agent, *SMALL, cwd=folder)
        said = done.stdout
        assert "Warning: The log is too small to learn from: 2" in done.stderr
        assert f"{agent}: {agent}, fitted on" in said
        assert "held-out loss" in said
    return folder


@pytest.fixture
def copy(shop: Path, tmp_path: Path) -> Path:
    shutil.copytree(shop, tmp_path / "shop")
    return tmp_path / "shop"


def test_lengths_that_are_all_equal_are_not_drawn(shop: Path) -> None:
    shown = mbcal_here("describe", "feed", cwd=shop)
    assert "Session lengths" in shown
    assert "Session length by outcome" not in shown


def test_the_simulator_leaves_its_report_card(shop: Path) -> None:
    card = json.loads((shop / "sim" / "report-card.json").read_text())
    assert {"nll", "accuracy", "macro_f1", "weighted_f1", "rmse", "ece", "reliability", "real", "simulated", "drift"} <= set(
        card
    )
    assert len(card["real"]) == len(card["simulated"]) == 5
    assert (shop / "sim" / "report-card.png").read_bytes().startswith(b"\x89PNG")
    assert not list(shop.glob(".*"))  # no checkpoint is left of a fit that ended


def test_the_simulator_as_json_and_of_the_other_family(copy: Path) -> None:
    said = mbcal_here("simulator", "feed", "--out", "sim2", "--family", "transformer", *SMALL, "--json", cwd=copy)
    assert json.loads(said)["steps"] == 5 * len(Store.open(copy / "feed").sessions("test"))
    rows = json.loads(
        mbcal_here("evaluate", "mbcal", "--data", "feed", "--simulator", "sim", "--simulator", "sim2", "--json", cwd=copy)
    )["rows"]
    assert {row["judge"] for row in rows} == {"sim", "sim2"}


def test_a_simulator_that_can_hardly_be_trusted_warns_at_once(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the words of evaluate; also with --json, whose output stays JSON."""
    options = ("--hidden", "2", "--embedding", "2", "--epochs", "1", "--learning-rate", "1e-9", "--device", "cpu", "--json")
    json.loads(mbcal_here("simulator", "feed", "--out", "useless", *options, cwd=copy))
    warned = capsys.readouterr().err
    said = mbcal_here("evaluate", "gru4rec", "--data", "feed", "--simulator", "useless", "--json", cwd=copy)
    [warning] = [entry for entry in json.loads(said)["warnings"] if entry.startswith("useless: ")]
    assert "no better than the frequencies of behaviours" in warning
    assert f"Warning: {warning}" in warned.splitlines()


def test_agents_see_less_than_the_simulator(shop: Path) -> None:
    features = {name: json.loads((shop / name / "manifest.json").read_text())["config"] for name in ("mbcal", "sim")}
    assert features["mbcal"]["net"]["features"] == ["category", "type", "source"]
    assert features["sim"]["features"] is None  # all of them


def test_rank_shows_both_parts_and_their_sum(shop: Path) -> None:
    given = ["--history", "item-01:dwell-03,item-02:dwell-12", "--candidates", "item-05,item-06,item-07"]
    ranked = json.loads(mbcal("rank", "mbcal", *given, "--json", cwd=shop).stdout)
    assert {entry["item"] for entry in ranked} == {"item-05", "item-06", "item-07"}
    for entry in ranked:
        assert entry["score"] == pytest.approx(entry["parts"]["instant"] + entry["parts"]["future"])
    library = load(shop / "mbcal", "cpu").rank(
        [("item-01", "dwell-03"), ("item-02", "dwell-12")], ["item-05", "item-06", "item-07"]
    )
    assert [entry.score for entry in library] == [entry["score"] for entry in ranked]
    table = mbcal_here("rank", "mbcal", *given, cwd=shop)
    assert all(column in table for column in ("instant reward", "future advantage", "total"))
    assert "title" not in table  # these items have none
    as_pairs = [
        "--history",
        '[["item-01", "dwell-03"], ["item-02", "dwell-12"]]',
        "--candidates",
        '["item-05", "item-06", "item-07"]',
    ]
    assert json.loads(mbcal_here("rank", "mbcal", *as_pairs, "--json", cwd=shop)) == ranked
    later = json.loads(mbcal_here("rank", "mbcal", *given, "--shown", "item-09:dwell-01", "--json", cwd=shop))
    assert later != ranked


def test_fit_takes_a_mix_that_is_chosen(shop: Path) -> None:
    mbcal_here("fit", "feed", "--out", "mixed", "--set", "mix=auto", "--set", "training.patience=7", *SMALL, cwd=shop)
    made = load(shop / "mixed", "cpu")
    assert made.config.mix == "auto"
    assert made.config.training.patience == 7  # it wins over an option
    assert float(made.nets["mix"].value) in (0.0, *MIXES)


def test_fields_are_json_objects(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rank = ("rank", "mbcal", "--candidates", "item-01,item-02")
    said = refused(*rank, "--context", "[1]", cwd=shop, capsys=capsys)
    assert "context: must be a JSON object of names and values, got '[1]'" in said
    assert mbcal_here(*rank, "--context", "{}", cwd=shop) == mbcal_here(*rank, cwd=shop)


def test_rank_new_items_when_asked(shop: Path) -> None:
    said = mbcal_here("rank", "mbcal", "--candidates", "item-05,brand new", "--allow-unknown", cwd=shop)
    assert "brand new (new)" in said


def test_evaluate_gives_means_intervals_and_paired_gaps(shop: Path) -> None:
    said = json.loads(
        mbcal_here("evaluate", "mbcal", "gru4rec", "--data", "feed", "--simulator", "sim", "--truth", "--json", cwd=shop)
    )
    assert [(row["judge"], row["model"]) for row in said["rows"]] == [
        (judge, model) for judge in ("sim", "the generated users themselves") for model in ("mbcal", "gru4rec", "chance")
    ]
    first, second, _ = said["rows"][:3]
    assert first["gap"] == 0
    assert second["gap"] == pytest.approx(second["mean"] - first["mean"])
    for row in said["rows"]:
        assert row["interval"][0] < row["mean"] < row["interval"][1]
    width = [row["interval"][1] - row["interval"][0] for row in said["rows"]]
    assert second["gap_interval"][1] - second["gap_interval"][0] < width[1]  # common noise makes differences sharper
    table = mbcal_here("evaluate", "mbcal", "--data", "feed", "--simulator", "sim", "--sessions", "50", cwd=shop)
    assert "50 test sessions" in table
    assert "the log: what the logging policy earned in the same test sessions" in table
    rows = [line.split()[:3] for line in table.splitlines()]
    is_useless = "(!) The simulator is no better than the frequencies" in table  # then every number is marked
    assert (["mbcal", f"{float(rows[3][1]):.3f}", "(!)"] in rows) == is_useless
    assert [words[:2] for words in rows if words[:2] == ["the", "log"]]
    assert is_useless or "(!) Large" in table
    assert all(row["warning"] and row["judge"] == "sim" for row in said["rows"][:3])
    assert all(row["warning"] is row["trusted_difference"] is None for row in said["rows"][3:])


def test_evaluate_warns_beside_its_numbers_of_models_that_leave_the_log(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ("evaluate", "gru4rec", "--data", "feed", "--simulator", "sim", "--sessions", "20")
    monkeypatch.setattr("mbcal.evaluation.coverage.MANY_RARE", 1.0)
    assert "leaves what the log covers" not in mbcal_here(*command, cwd=shop)
    monkeypatch.setattr("mbcal.evaluation.coverage.MANY_RARE", -1.0)
    assert "Warning: gru4rec leaves what the log covers" in mbcal_here(*command, cwd=shop)
    by_truth = ("evaluate", "gru4rec", "--data", "feed", "--truth", "--sessions", "20")
    assert "leaves what the log covers" not in mbcal_here(*by_truth, cwd=shop)  # which guesses nowhere


def test_same_command_same_model(copy: Path) -> None:
    mbcal("fit", "feed", "--out", "again", *SMALL, cwd=copy)
    mbcal("fit", "feed", "--out", "other", "--seed", "1", *SMALL, cwd=copy)
    weights = [(copy / name / "weights.safetensors").read_bytes() for name in ("mbcal", "again", "other")]
    assert weights[0] == weights[1] != weights[2]


def test_warm_start_goes_on_from_a_model(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["fit", "feed", "--from", "mbcal", "--epochs", "2", "--out", "warm"]
    mbcal(*command, "--learning-rate", "0.002", cwd=copy)
    warm = load(copy / "warm", "cpu")
    assert warm.n_fits == 2
    assert warm.config.training.learning_rate == warm.optimisers["advantage"].param_groups[0]["lr"] == 0.002
    for more, said in (
        (["--agent", "gru4rec"], "mbcal holds a mbcal agent; choose the agent mbcal"),
        (["--gamma", "0.5"], "gamma: a model keeps its own when it is fitted further"),
        (["--hidden", "9"], "hidden: a model keeps its own when it is fitted further"),
        (["--seed", "9"], "seed: a model keeps its own when it is fitted further"),
    ):
        assert said in refused(*command[:-1], "x", *more, cwd=copy, capsys=capsys)


def test_stopped_and_given_again_the_command_goes_on(copy: Path) -> None:
    command = ["fit", "feed", "--out", "long", "--hidden", "8", "--embedding", "8", "--epochs", "12", "--patience", "12"]
    running = subprocess.Popen(
        [sys.executable, "-m", "mbcal", *command], cwd=copy, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not list((copy / ".long.checkpoint").glob("[0-9]*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    running.communicate()
    assert not (copy / "long").exists()
    done = mbcal(*command, cwd=copy)
    assert "resuming from the last checkpoint" in done.stderr
    mbcal(*[part.replace("long", "straight") for part in command], cwd=copy)
    assert (copy / "long/weights.safetensors").read_bytes() == (copy / "straight/weights.safetensors").read_bytes()
    assert not (copy / ".long.checkpoint").exists()


RANK = ["rank", "mbcal", "--candidates", "item-05"]
FIT = ["fit", "feed", "--out", "new", *SMALL]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["rank", "nothing", "--candidates", "a"], "nothing: no such folder; make a model with 'mbcal fit'"),
        (["rank", "feed", "--candidates", "a"], "feed: a store, not a model"),
        (["rank", "sim", "--candidates", "a"], "sim: a simulator, not a model"),
        (["rank", "mbcal", "--candidates", ""], "candidates: none were given"),
        (["rank", "mbcal", "--candidates", "item-05,item-05"], "'item-05' is there twice"),
        (["rank", "mbcal", "--candidates", "item-5"], "'item-5' is unknown to the model; add --allow-unknown"),
        (["rank", "mbcal", "--candidates", "[1, 2]"], "'1' is unknown to the model"),
        (["rank", "mbcal", "--candidates", "[1.5]"], "names are text or whole numbers, got 1.5"),
        (["rank", "mbcal", "--candidates", '["a"'], "starts like JSON but is not valid JSON"),
        ([*RANK, "--history", "item-01:dwell-01," * 5], "5 steps, the model was fitted on at most 4; give the latest 4"),
        ([*RANK, "--history", "item-01:dwell-1"], "behaviour 'dwell-1' is unknown"),
        ([*RANK, "--history", "item-01"], "'item-01' is not ITEM:BEHAVIOUR"),
        ([*RANK, "--history", '[["item-01"]]'], "history: steps are (item, behaviour) pairs, got ['item-01']"),
        ([*FIT, "--agent", "mbcall"], "agent: 'mbcall' is unknown; known are mbcal, mbcal-plan, mbcal-no-vr"),
        ([*FIT, "--agent", "mbcall"], "Did you mean 'mbcal'?"),
        ([*FIT, "--features", "categori"], "no 'categori'"),
        ([*FIT, "--user", "name"], "user: 'name' is unknown; known are history, id, none"),
        ([*FIT, "--epochs", "0"], "epochs: must be a whole number from 1 to 1,000,000, got 0"),
        ([*FIT, "--gamma", "1.5"], "gamma: must be in [0, 1], got 1.5"),
        ([*FIT, "--set", "mix=1.5"], "mix: must be in [0, 1], or auto, got 1.5"),
        ([*FIT, "--set", "mix=some"], "mix: must be a number, or one of auto; got 'some'"),
        ([*FIT, "--set", "mask_rate=much"], "mask_rate: must be"),
        ([*FIT, "--set", "mask"], "set: 'mask' is not NAME=VALUE"),
        ([*FIT, "--set", "mask_rat=0.1"], "set: 'mask_rat' is unknown; known are"),
        ([*FIT, "--agent", "gru4rec", "--gamma", "0.9"], "gru4rec: gamma: unknown; known are batch"),
        (["fit", "feed", "--out", "mbcal"], "mbcal: already exists; add --overwrite to replace it"),
        (["fit", "feed", "--out", "feed", "--overwrite"], "feed: already exists; it is not a model, so it is not replaced"),
        (["fit", "mbcal", "--out", "new"], "mbcal: a model, not a store; make a store with 'mbcal prepare'"),
        (["evaluate", "mbcal", "--data", "feed"], "simulator: missing; give --simulator SIM"),
        (["evaluate", "mbcal", "--data", "feed", "--simulator", "mbcal"], "mbcal: a model, not a simulator"),
        (["evaluate", "mbcal", "--data", "feed", "--truth", "--epsilon", "3"], "epsilon: must be in [0, 1], got 3"),
        (["fit", "feed", "--out", "new", "--workers", "2"], "workers: only --engine ray has workers"),
        (["fit", "feed", "--out", "new", "--address", "auto"], "address: names a Ray cluster; add --engine ray"),
        (["fit", "feed", "--out", "new", "--engine", "ray", "--device", "cuda"], "workers of --engine ray need --gpus 1"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else "",
)  # fmt: skip
def test_mistakes_are_one_sentence_and_exit_code_2(
    shop: Path, command: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = refused(*command, cwd=shop, capsys=capsys)
    assert said in error
    assert "\n" not in error
    assert not (shop / "new").exists()


def test_ray_asked_for_and_absent(shop: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    error = refused("fit", "feed", "--out", "new", "--engine", "ray", cwd=shop, capsys=capsys)
    assert error == "mbcal: engine: ray is not installed; pip install 'mbcal[ray]'"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize("command", [["fit", "feed", "--out", "new"], ["rank", "mbcal", "--candidates", "item-05"]], ids=str)
def test_cuda_asked_for_and_absent(shop: Path, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    error = refused(*command, "--device", "cuda", cwd=shop, capsys=capsys)
    assert error == "mbcal: device: cuda was asked for, but PyTorch sees no GPU here; use --device cpu or auto"


@pytest.mark.parametrize("name", ["weights.safetensors", "optimiser.safetensors", "items.parquet"])
def test_a_damaged_model_is_refused(copy: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = copy / "mbcal" / name
    whole = file.read_bytes()
    for data in (whole[:-1], whole[:100] + bytes([whole[100] ^ 1]) + whole[101:], b""):
        file.write_bytes(data)
        error = refused(*RANK, cwd=copy, capsys=capsys)
        assert f"mbcal/{name}: damaged (hash mismatch); fit the model again" in error
    file.unlink()
    assert f"{name}: missing from the model" in refused(*RANK, cwd=copy, capsys=capsys)


def test_a_manifest_that_was_touched_is_refused(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = copy / "mbcal" / "manifest.json"
    said = json.loads(file.read_text())
    for change, words in (
        ({"schema": 99}, "schema 99, this mbcal reads schema 1; fit the model again"),
        ({"fits": 7}, "damaged (content hash mismatch)"),
        ({"files": None}, "damaged"),
    ):
        file.write_text(json.dumps({**said, **change}))
        assert words in refused(*RANK, cwd=copy, capsys=capsys)
    file.write_text("{")
    assert "manifest.json: damaged" in refused(*RANK, cwd=copy, capsys=capsys)


def test_a_model_whose_hashes_fit_but_whose_content_does_not(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from mbcal.storage import artifacts as bundle

    opened = bundle.Artifact.open(copy / "mbcal", bundle.MODEL_KIND)
    said = {key: value for key, value in opened.manifest.items() if key not in ("files", "content_hash")}
    weights = opened.arrays("weights")
    for change, arrays, words in (
        ({}, {**weights, "environment/head.2.bias": weights["environment/head.2.bias"][:3]}, "damaged"),
        ({"config": {**said["config"], "hiden": 3}}, weights, "hiden: unknown"),
        ({"agent": "mbcl"}, weights, "holds a 'mbcl' agent, which is not an installed method"),
    ):
        files = {"weights": arrays, "optimiser": opened.arrays("optimiser")}
        bundle.write_artifact(copy / "mbcal", bundle.MODEL_KIND, {**said, **change}, files, opened.catalog, overwrite=True)
        assert words in refused(*RANK, cwd=copy, capsys=capsys)


def test_models_and_simulators_of_other_data_are_refused(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_csv(copy / "log.csv", ROWS, HEADER)
    mbcal_here(*TABLE, *REWARDS, "--horizon", "5", "--out", "other", cwd=copy)
    error = refused("evaluate", "mbcal", "--data", "other", "--simulator", "sim", cwd=copy, capsys=capsys)
    assert "the simulator knows the behaviours dwell-01" in error
    mbcal_here("simulator", "other", "--out", "othersim", *SMALL, cwd=copy)
    error = refused("evaluate", "mbcal", "--data", "other", "--simulator", "othersim", cwd=copy, capsys=capsys)
    assert "mbcal knows the behaviours dwell-01, " in error
    assert "the data has skip, click, like" in error
    error = refused("evaluate", "mbcal", "--data", "other", "--truth", cwd=copy, capsys=capsys)
    assert "only the generated newsfeed knows its truth; this store is table" in error


def test_another_store_of_the_same_log_is_refused(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Users are numbered within a store: elsewhere the same number may be a user the model has seen."""
    write_csv(copy / "log.csv", ROWS, HEADER)
    for seed in ("0", "1"):
        mbcal_here(*TABLE, *REWARDS, "--horizon", "5", "--seed", seed, "--out", f"split{seed}", cwd=copy)
    mbcal_here("simulator", "split0", "--out", "sim0", *SMALL, cwd=copy)
    mbcal_here("simulator", "split1", "--out", "sim1", *SMALL, cwd=copy)
    mbcal_here("fit", "split0", "--out", "model0", *SMALL, cwd=copy)
    error = refused("evaluate", "model0", "--data", "split1", "--simulator", "sim0", cwd=copy, capsys=capsys)
    assert "the simulator was fitted on another store" in error
    error = refused("evaluate", "model0", "--data", "split1", "--simulator", "sim1", cwd=copy, capsys=capsys)
    assert "model0 was fitted on another store" in error


def test_a_store_without_history_serves_both_families(copy: Path) -> None:
    prepare_newsfeed(copy / "young", NewsfeedConfig(sessions=200, items=100), SessionConfig(horizon=3, history=0))
    for family in ("lstm", "transformer"):
        mbcal_here("simulator", "young", "--family", family, "--out", family, *SMALL, cwd=copy)
    mbcal_here("fit", "young", "--out", "young-model", *SMALL, cwd=copy)
    said = mbcal_here("evaluate", "young-model", "--data", "young", "--simulator", "transformer", "--json", cwd=copy)
    assert len(json.loads(said)["rows"]) == 2


def test_a_full_disk_leaves_one_sentence_and_the_checkpoint_before(copy: Path) -> None:
    script = "ulimit -f 40; exec " + " ".join(
        [sys.executable, "-m", "mbcal", "fit", "feed", "--out", "big", "--hidden", "64", "--epochs", "2"]
    )
    done = subprocess.run(["bash", "-c", script], cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "the disk is full" in done.stderr
    assert not (copy / "big").exists()
