"""The commands, Python examples and example scripts of the documentation run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.csv import read_csv

import mbcal
from tests.support.documents import README, blocks, commands_of, run, run_in_shell
from tests.support.layouts import COMBINED, ML_20M, kuairand
from tests.support.logs import ROOT, write_csv, zipped
from tests.support.sample_logs import write_sample_logs
from tests.support.worlds import KEYS


def test_readme_opens_with_the_two_commands() -> None:
    assert [line.split("#")[0].strip() for line in blocks(README, "bash")[0].splitlines()] == ["make demo", "make test"]
    makefile = (ROOT / "Makefile").read_text()
    for target in ("setup", "demo", "test", "check", "bench", "clean"):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_every_readme_command_runs(workshop: Path) -> None:
    commands = commands_of(README, 1)
    assert len(commands) == 4
    run_in_shell(commands, workshop)


def test_every_command_of_getting_started_runs(workshop: Path) -> None:
    commands = commands_of((ROOT / "docs/getting-started.md").read_text())
    assert len(commands) == 14
    run(commands, workshop)


def test_every_command_of_the_guide_runs(workshop: Path) -> None:
    guide = (ROOT / "docs/models.md").read_text()
    commands = commands_of(guide)
    assert len(commands) == 6
    run(commands, workshop)
    code = "".join(blocks(guide, "python")).replace("TrainingConfig(epochs=3)", "TrainingConfig(epochs=1)")
    assert "epochs=1" in code
    done = subprocess.run([sys.executable, "-c", code], cwd=workshop, capture_output=True, text=True, check=True)
    assert re.search(r"^item-00\d\d \{'instant': [\d.]+, 'future': -?[\d.]+\}\nDiscrete\(40\) \(8, 40\)$", done.stdout)


def test_every_command_on_the_service_runs(workshop: Path) -> None:
    page = (ROOT / "docs/service.md").read_text()
    commands = commands_of(page)
    assert len(commands) == 10
    run(commands, workshop)
    code = "".join(blocks(page, "python"))
    done = subprocess.run([sys.executable, "-c", code], cwd=workshop, capture_output=True, text=True, check=True)
    assert done.stdout == "v000002 v000001 (1, 2)\n"


def test_every_command_on_experiments_runs(workshop: Path) -> None:
    shutil.copytree(ROOT / "examples", workshop / "examples")
    prepare = "mbcal prepare newsfeed --sessions 800 --out feed"
    experiments = commands_of((ROOT / "docs/experiments.md").read_text())
    own = commands_of((ROOT / "docs/new-method.md").read_text())[:1]
    assert len(experiments) == 5
    small = [re.sub("--agents all --seeds 3", "--agents mbcal,random --seeds 1", line) for line in experiments]
    run([prepare, *small, *own], workshop)


def test_every_command_on_worlds_runs(workshop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a tiny world, since SARDINE takes its time."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
    page = (ROOT / "docs/worlds.md").read_text().replace("sardine/SingleItem-BoredInf-v0", KEYS)
    commands = commands_of(page)
    assert len(commands) == 6
    sizes = "log_sessions=100 test_sessions=20 rounds=1 round_sessions=50 training.epochs=1 net.hidden=8"
    commands[-1] = commands[-1].replace("mbcal,gru4rec,", "") + "".join(f" --set {size}" for size in sizes.split())
    run(commands, workshop)
    [code] = blocks(page, "python")
    done = subprocess.run([sys.executable, "-c", code], cwd=workshop, capture_output=True, text=True, check=True)
    assert re.match(rf"judged by gym:{KEYS}, 20 test sessions\ngru4rec [\d.]+ .*\nchance [\d.]+ ", done.stdout)


@pytest.mark.cluster
@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed; pip install 'mbcal[ray]'")
def test_every_command_on_scale_runs(workshop: Path) -> None:
    commands = commands_of((ROOT / "docs/scale.md").read_text())
    assert len(commands) == 2
    run([commands[0].replace("mbcal,gru4rec,random --seeds 2", "mbcal --seeds 1"), commands[1]], workshop)


def test_every_command_on_time_and_clicks_runs(tmp_path: Path) -> None:
    """On the logs that docs/data.md shows."""
    write_sample_logs(tmp_path)
    commands = [command for page in ("time", "clicks") for command in commands_of((ROOT / f"docs/{page}.md").read_text())]
    assert len(commands) == 3
    run(commands, tmp_path)


def test_every_command_on_features_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs/features.md").read_text()
    devices, actions = ("tv", "phone", "web"), ("skip", "click")
    rows = [
        (f"u{k % 40}", f"d{k * k % 29}", 1_700_000_000 + 900 * k, actions[k % 2], devices[k % 3], k % 24) for k in range(400)
    ]
    write_csv(tmp_path / "log.csv", rows, ("uid", "doc", "ts", "action", "device", "hour"))
    write_csv(tmp_path / "users.csv", [(f"u{k}", ("at", "de")[k % 2], 20 + k) for k in range(40)], ("id", "country", "age"))
    commands = commands_of(page)
    assert len(commands) == 3
    run(commands, tmp_path)
    monkeypatch.chdir(tmp_path)
    prepare, rank = blocks(page, "python")
    tables = {"frame": read_csv("log.csv"), "users": read_csv("users.csv")}
    store = eval(prepare.replace('"store"', '"again"'), {"mbcal": mbcal, **tables})  # noqa: S307  # the page's own code
    assert store.fields.describe() == "users by country (category), age (number); steps by device (category), hour (number)"
    assert store.fields == mbcal.Store.open("store").fields
    ranked = eval(rank, {"agent": mbcal.load("model", "cpu"), "history": [], "candidates": ["d1", "d4"]})  # noqa: S307  # likewise
    assert {entry.item for entry in ranked} == {"d1", "d4"}


@pytest.mark.parametrize("word", ["drift", "calibration error, ECE", "full session", "too small for this judge"])
def test_the_glossary_explains_words_that_commands_print(word: str) -> None:
    rows = [line.split(" | ") for line in (ROOT / "docs/glossary.md").read_text().splitlines() if line.startswith("| ")]
    [meaning] = [row[1] for row in rows if row[0] == f"| {word}"]
    assert len(meaning) > 60


def test_every_method_has_its_page() -> None:
    from mbcal.agents import AGENTS

    assert {page.stem for page in (ROOT / "docs/methods").glob("*.md")} == set(AGENTS)


def test_the_python_example_of_the_readme_runs(workshop: Path) -> None:
    [code] = blocks(README, "python")
    code = code.replace("MBCAL()", "MBCAL(epochs=4)").replace("Simulator()", "Simulator(epochs=4)")
    assert code.count("epochs=4") == 2
    done = subprocess.run([sys.executable, "-c", code], cwd=workshop, capture_output=True, text=True, check=True)
    outcome, recommendations, best = done.stdout.splitlines()
    assert re.search(r"\b(8|9)\d\.\d+ \[[\d.]+, [\d.]+\]", outcome)
    assert len(re.findall(r"item-\d{4}", recommendations)) == 5
    assert re.match(r"item-00(02|20) -?[\d.]+ \{'instant': [\d.]+, 'future': -?[\d.]+\}$", best)
    assert (workshop / "my-agent" / "manifest.json").exists()


def test_the_python_example_of_the_newsfeed_runs(workshop: Path) -> None:
    code = blocks((ROOT / "docs/newsfeed.md").read_text(), "python")[0].replace('"feed"', '"small"')
    prepare = "import mbcal; mbcal.prepare_newsfeed('small', mbcal.NewsfeedConfig(sessions=800))\n"
    done = subprocess.run([sys.executable, "-c", prepare + code], cwd=workshop, capture_output=True, text=True, check=True)
    printed = re.fullmatch(r"next reward: ([\d.]+) by the oracle, ([\d.]+) at random\n", done.stdout)
    assert printed is not None
    assert 3 < float(printed[2]) < 6


def test_the_off_policy_example_runs(workshop: Path) -> None:
    code = blocks((ROOT / "docs/off-policy.md").read_text(), "python")[0]
    small = re.sub(r"epochs=\d", "epochs=1", code).replace("60_000", "2_000")
    done = subprocess.run([sys.executable, "-c", small], cwd=workshop, capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == 13
    assert re.match(r"policy ips [\d.]+ \[[\d.]+, [\d.]+\] bca, [\d.]+ of \d+ sessions effective", done.stdout)


def test_example_of_policies_runs(workshop: Path) -> None:
    prepare = [sys.executable, "-m", "mbcal", "prepare", "newsfeed", "--sessions", "800", "--out", "feed"]
    subprocess.run(prepare, cwd=workshop, capture_output=True, check=True)
    example = [sys.executable, str(ROOT / "examples/newsfeed_policies.py"), "feed"]
    done = subprocess.run(example, cwd=workshop, capture_output=True, text=True, check=True)
    means = {line.split()[0]: float(line.split()[1]) for line in done.stdout.splitlines()}
    assert means["random"] < means["oracle"] - 10


def test_links_between_documents_lead_somewhere() -> None:
    pages = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CHANGELOG.md")] + list((ROOT / "docs").rglob("*.md"))
    for page in pages:
        for target, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", page.read_text()):
            if "://" not in target:
                file = page.parent / target if target else page
                assert file.exists(), f"{page.name}: {target}"
                assert not anchor or anchor in anchors(file), f"{page.name}: {target}#{anchor}"


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.fixture
def workshop(tmp_path: Path) -> Path:
    """A folder that holds what the README's commands name, at a small size."""
    zipped(tmp_path / "ml-20m.zip", ML_20M)
    zipped(tmp_path / "netflix-prize.zip", {"combined_data_1.txt": COMBINED})
    kuairand(tmp_path)
    log = {
        "uid": list(range(30)),
        "doc": [k % 5 for k in range(30)],
        "ts": list(range(30)),
        "action": ["skip", "click", "like"] * 10,
    }
    pq.write_table(pa.table(log), tmp_path / "log.parquet")
    write_csv(tmp_path / "docs.csv", [(k, "news", "a|b") for k in range(5)], ("doc", "category", "tags"))
    write_csv(tmp_path / "plays.csv", [(k % 3, k % 5, 60 * k, k / 2) for k in range(30)], ("uid", "doc", "ts", "seconds"))
    return tmp_path


def test_every_promise_names_tests_and_benchmarks_that_exist() -> None:
    rows = re.findall(r"^\| (\d+) \| .*? \| (.*) \| (.+) \|$", (ROOT / "docs/promises.md").read_text(), re.MULTILINE)
    assert [int(number) for number, _, _ in rows] == list(range(1, 27))
    for number, checks, figure in rows:
        named = re.findall(r"`((?:tests|benchmarks)/[\w/]+\.py)(?:::(\w+))?`", checks)
        assert named, number
        assert figure.strip(), number
        for file, test in named:
            content = (ROOT / file).read_text()
            assert not test or f"def {test}(" in content, f"{file}::{test}"
