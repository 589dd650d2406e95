"""Versions: what goes in comes out without torch, what is damaged never goes live, and a crash leaves the old one live."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from mbcal import cli, load
from mbcal.agents import AGENTS
from mbcal.errors import ModelError, OptionError, OutputError
from mbcal.registry import registry as registry_module
from mbcal.registry.registry import VERSION_KIND, Registry
from mbcal.registry.verification import verification_cases, verification_scores
from mbcal.scoring.backend import to_numpy
from mbcal.scoring.scorer_io import KINDS, scorer_from_arrays, scorer_to_arrays
from mbcal.scoring.scorers import LinUCBScorer, NearestScorer, NetScorer, RandomScorer
from mbcal.storage import atomic as folder
from mbcal.storage.artifacts import Artifact, write_artifact
from tests.support import batches
from tests.support.agents import NET, QUICK, offered, scores_along, small
from tests.support.command_line import refused


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model of every agent; not to be changed."""
    made = tmp_path_factory.mktemp("models")
    for name in AGENTS:
        small(name).save(made / name)
    kind = AGENTS["mbcal"]
    by_id = kind(kind.Config(net=dataclasses.replace(NET, user="id"), training=QUICK), "cpu")
    by_id.fit(batches.sessions(count=60, seed=3)).save(made / "by-id")
    return made


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "registry")


OPEN_WITHOUT_TORCH = """
import json, sys
sys.modules["torch"] = None
import numpy as np
from mbcal.registry.registry import Registry
given = np.load(sys.argv[2])
said = {}
for name in Registry(sys.argv[1]).versions():
    version = Registry(sys.argv[1]).open(name)
    state = version.scorer.begin(*(given[key] for key in ("user", "history_items", "history_behaviours", "history_length")))
    scores = []
    for step in range(given["items"].shape[1]):
        scores.append(version.scorer.score(state, given["candidates"]))
        state = version.scorer.observe(state, given["items"][:, step], given["behaviours"][:, step])
    said[name] = np.stack(scores, 1)
np.savez(sys.argv[3], **said)
"""


def test_every_agent_ranks_without_torch_as_the_library_does(models: Path, registry: Registry, tmp_path: Path) -> None:
    published = {registry.publish(models / name, activate=False): name for name in (*AGENTS, "by-id")}
    known, candidates = batches.sessions(count=12), offered(12)
    np.savez(tmp_path / "given.npz", candidates=candidates, **dict(known.arrays()))
    files = [str(tmp_path / "given.npz"), str(tmp_path / "said.npz")]
    subprocess.run([sys.executable, "-c", OPEN_WITHOUT_TORCH, str(registry.path), *files], check=True)
    said = np.load(tmp_path / "said.npz")
    assert list(said) == list(published) == registry.versions()
    for version, name in published.items():
        agent = load(registry.path / "versions" / version, "cpu")  # a version is a model, to rank by or to go on from
        assert np.allclose(said[version], scores_along(agent, known, candidates).numpy(), atol=1e-5), name
        opened = registry.open(version)
        assert (opened.seen == agent.seen()).all()
        assert opened.catalog.items == agent.domain.catalog.items
        assert (opened.behaviours, opened.horizon, opened.history) == (agent.domain.behaviours, 6, 4)
        assert opened.manifest["agent"] == agent.name
        for file in ("weights.safetensors", "optimiser.safetensors", "items.parquet"):
            assert (models / name / file).read_bytes() == (opened.path / file).read_bytes()


def test_a_version_warms_an_agent(models: Path, registry: Registry) -> None:
    name = registry.publish(models / "mbcal")
    more = batches.sessions(count=100, seed=4)
    direct, by_version = (load(path, "cpu").fit(more) for path in (models / "mbcal", registry.open(name).path))
    known = batches.sessions(count=12)
    assert (scores_along(direct, known, offered(12)) == scores_along(by_version, known, offered(12))).all()


def test_publish_activate_and_roll_back_in_order(models: Path, registry: Registry) -> None:
    assert registry.versions() == []
    assert registry.current() is None
    with pytest.raises(ModelError, match=r"no version is live; publish a model with 'mbcal registry publish'"):
        registry.open()
    with pytest.raises(ModelError, match="no version was live before now"):
        registry.rollback()
    first = registry.publish(models / "popular", metrics={"reward": 80.5})
    second = registry.publish(models / "random")
    third = registry.publish(models / "linucb", activate=False)
    assert [first, second, third] == registry.versions() == ["v000001", "v000002", "v000003"]
    assert registry.current() == registry.open().name == second
    assert [registry.open(name).parent for name in registry.versions()] == [None, first, second]
    assert registry.open(first).metrics == {"reward": 80.5}
    registry.activate(third)
    registry.activate(third)  # already live: nothing to remember
    assert registry.previous_versions() == [first, second]
    assert [registry.rollback(), registry.rollback()] == [second, first]
    with pytest.raises(ModelError, match="no version was live before v000001, so there is none to roll back to"):
        registry.rollback()
    assert registry.current() == first
    assert registry.publish(models / "random") == "v000004"
    assert registry.rollback() == first


def test_gc_keeps_the_live_one_what_it_may_go_back_to_and_what_is_new(models: Path, registry: Registry) -> None:
    assert registry.gc(0) == []
    names = [registry.publish(models / "random", activate=False) for _ in range(6)]
    assert registry.gc(0) == []  # nothing is live yet
    for name in (names[0], names[1], names[3], names[4]):
        registry.activate(name)
    (registry.path / "versions" / ".v000099.partial-abc").mkdir()
    with pytest.raises(OptionError, match="keep: must be 0 or more, got -1"):
        registry.gc(-1)
    assert registry.gc(1) == [names[0], names[1], names[2]]
    assert not list((registry.path / "versions").glob(".*"))
    assert registry.versions() == [names[3], names[4], names[5]]
    assert registry.previous_versions() == [names[3]]
    assert registry.rollback() == names[3]
    assert registry.gc(9) == []
    registry.activate(names[5])
    assert registry.gc(0) == [names[3], names[4]]
    assert registry.publish(models / "random", activate=False) == "v000007"


def test_a_number_is_never_given_twice(models: Path, registry: Registry) -> None:
    for _ in range(3):
        registry.publish(models / "random")
    registry.gc(0)
    shutil.rmtree(registry.path / "versions" / "v000003")  # by hand
    assert registry.publish(models / "random") == "v000004"


def fixed_up(path: Path, arrays: dict[str, Any] | None = None, **changes: Any) -> None:
    """Write a version anew with other arrays or words, hashes and all."""
    opened = Artifact.open(path, VERSION_KIND)
    said = {key: value for key, value in opened.manifest.items() if key not in ("files", "content_hash")}
    extra = {name: (path / name).read_bytes() for name in ("weights.safetensors", "optimiser.safetensors", "items.parquet")}
    files = {"scorer": opened.arrays("scorer") if arrays is None else arrays, "verification": opened.arrays("verification")}
    said["version"] = {**said["version"], **changes}
    write_artifact(path, VERSION_KIND, said, files, overwrite=True, extra=extra)


def described(**changes: Any) -> Callable[[Path], None]:
    """Other words about the scorer, `terms` being how many."""

    def damage(path: Path) -> None:
        said = Artifact.open(path, VERSION_KIND).manifest["version"]["scorer"]
        terms = said["terms"][: changes.get("terms", 2)]
        fixed_up(path, scorer={**said, **changes, "terms": terms})

    return damage


def changed(name: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        arrays = Artifact.open(path, VERSION_KIND).arrays("scorer")
        fixed_up(path, {**arrays, name: change(arrays[name])})

    return damage


def without(name: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        arrays = Artifact.open(path, VERSION_KIND).arrays("scorer")
        fixed_up(path, {key: array for key, array in arrays.items() if key != name})

    return damage


def poked(array: Any, value: float) -> Any:
    array = array.copy()
    array.flat[array.size // 2] = value
    return array


def flipped(name: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        data = bytearray((path / name).read_bytes())
        data[len(data) // 2] ^= 1
        (path / name).write_bytes(data)

    return damage


def truncated(name: str) -> Callable[[Path], None]:
    return lambda path: (path / name).write_bytes((path / name).read_bytes()[:-1])


FILES = ["scorer.safetensors", "verification.safetensors", "items.parquet", "weights.safetensors", "optimiser.safetensors"]
TABLE = "future/cell/items"
DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    **{f"flipped {name}": (flipped(name), rf"{name}: damaged \(hash mismatch\)") for name in FILES},
    **{f"truncated {name}": (truncated(name), rf"{name}: damaged \(hash mismatch\)") for name in FILES},
    **{
        f"missing {name}": (lambda path, name=name: (path / name).unlink(), f"{name}: missing from the model")
        for name in FILES
    },
    "flipped manifest": (flipped("manifest.json"), "manifest.json: damaged"),
    "truncated manifest": (lambda path: (path / "manifest.json").write_bytes(b"{"), "manifest.json: damaged"),
    "missing manifest": (lambda path: (path / "manifest.json").unlink(), "no manifest.json"),
    "gone": (shutil.rmtree, "has no version 'v000002'; known are v000001"),
    "NaN": (changed(TABLE, lambda table: poked(table, np.nan)), f"'{TABLE}' holds NaN or infinity"),
    "infinity": (changed(TABLE, lambda table: poked(table, -np.inf)), f"'{TABLE}' holds NaN or infinity"),
    "fewer rows": (changed(TABLE, lambda table: table[:-1]), rf"'{TABLE}' has shape \(13, 24\), it must be \(14, 24\)"),
    "flat": (changed(TABLE, np.ravel), rf"'{TABLE}' has shape \(336,\), it must be \(14, 24\)"),
    "head": (changed("instant/head/2", lambda table: table[:2]), r"'instant/head/2' has shape \(2, \d+\), it must be \(3, "),
    "integers": (changed(TABLE, lambda table: table.astype(np.int32)), "'future/cell/items' holds int32"),
    "no array": (without("instant/history/bias"), "'instant/history/bias' is missing"),
    "no rewards": (without("instant/rewards"), "'instant/rewards' is missing"),
    "no seen": (without("seen"), "'seen' must hold 14 truths"),
    "seen": (changed("seen", lambda seen: seen[1:]), "'seen' must hold 14 truths"),
    "other numbers": (changed("future/head/3", lambda bias: bias + 0.01), "golden cases do not come out: .* off by 0.01"),
    "one term less": (described(terms=1), "belongs to no part"),
    "no terms": (described(terms=0), "has no terms"),
    "other kind": (described(kind="tree"), "kind 'tree' is unknown; known are net, item"),
    "start": (described(start=99), r"start must be a whole number in 0\.\.3, got 99"),
    "no start": (described(start=None), "start must be a whole number"),
    "no scorer": (lambda path: fixed_up(path, scorer=None), "the manifest does not describe one"),
    "schema": (lambda path: fixed_up(path, schema=9), "a version of schema 9, not 1"),
}  # fmt: skip


@pytest.fixture(scope="module")
def two(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A registry with one version live and one waiting; not to be changed."""
    made = Registry(tmp_path_factory.mktemp("two") / "registry")
    made.publish(models / "popular")
    made.publish(models / "mbcal", activate=False)
    return made.path


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_refused_and_the_old_version_stays_live(two: Path, tmp_path: Path, case: str) -> None:
    shutil.copytree(two, tmp_path / "registry")
    registry = Registry(tmp_path / "registry")
    damage, words = DAMAGE[case]
    damage(registry.path / "versions" / "v000002")
    for attempt in (registry.open, registry.activate):
        with pytest.raises(ModelError, match=words) as refusal:
            attempt("v000002")
        assert "\n" not in str(refusal.value)
    assert registry.current() == registry.open().name == "v000001"
    assert registry.previous_versions() == []


def test_rolling_back_to_a_damaged_version_is_refused(models: Path, registry: Registry) -> None:
    registry.publish(models / "popular")
    registry.publish(models / "random")
    flipped("items.parquet")(registry.path / "versions" / "v000001")
    with pytest.raises(ModelError, match=r"v000001/items\.parquet: damaged"):
        registry.rollback()
    assert registry.current() == "v000002"
    assert registry.previous_versions() == ["v000001"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'{"current": 3, "before": [], "newest": 0}',
                                     b'{"current": "../../x", "before": [], "newest": 0}'])  # fmt: skip
def test_a_damaged_pointer_is_one_sentence(models: Path, registry: Registry, content: bytes) -> None:
    registry.publish(models / "random")
    (registry.path / "current.json").write_bytes(content)
    with pytest.raises(ModelError, match=r"current.json: damaged .*; remove it and run 'mbcal registry activate'"):
        registry.current()
    (registry.path / "current.json").unlink()
    registry.activate("v000001")
    assert registry.current() == "v000001"


def test_mistakes_in_publishing_leave_nothing(models: Path, registry: Registry, tmp_path: Path) -> None:
    for metrics in ({"x": float("nan")}, {"x": object()}):
        with pytest.raises(OptionError, match="metrics: must be names with finite numbers"):
            registry.publish(models / "random", metrics=metrics)
    with pytest.raises(ModelError, match="nothing: no such folder; make a model with 'mbcal fit'"):
        registry.publish(tmp_path / "nothing")
    assert not registry.path.exists()
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter").write_text("dear")
    with pytest.raises(OutputError, match="home: already exists and is no registry"):
        Registry(tmp_path / "home").publish(models / "random")
    registry.publish(models / "random")
    for name in ("v000009", "../..", "current", ""):
        with pytest.raises(ModelError, match="has no version"):
            registry.activate(name)


def test_a_model_that_ranks_otherwise_without_torch_is_not_published(
    models: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = load(models / "popular", "cpu")
    agent.nets["counts"].steps[3] = float("nan")
    agent.save(models.parent / "nan-model", overwrite=True)
    with pytest.raises(ModelError, match="nan-model: scorer: 'values' holds NaN or infinity; fit the model again"):
        registry.publish(models.parent / "nan-model")
    monkeypatch.setattr(registry_module, "to_numpy", lambda scorer: dataclasses.replace(to_numpy(scorer), start=0))
    with pytest.raises(ModelError, match=r"ranks otherwise without torch \(score is off by .*\), so it is not published"):
        registry.publish(models / "gru4rec")
    assert registry.versions() == []


class OwnScorer(RandomScorer):
    """Of a kind no file knows."""


def test_scorers_come_back_as_they_were(models: Path) -> None:
    assert set(KINDS) == {type(to_numpy(small(name).fitted_scorer)) for name in AGENTS}
    rows, labels = batches.CATALOG.n_rows, len(batches.LABELS)
    cases = verification_cases(rows, labels, 60, 4)
    for name in (*AGENTS, "by-id"):
        scorer = to_numpy(load(models / name, "cpu").fitted_scorer)
        said, arrays = scorer_to_arrays(scorer)
        back = scorer_from_arrays(json.loads(json.dumps(said, sort_keys=True)), arrays, rows, labels)
        assert type(back) is type(scorer)
        for key, value in verification_scores(scorer, cases).items():
            assert (verification_scores(back, cases)[key] == value).all()
    with pytest.raises(ModelError, match="a OwnScorer cannot be written; known are NetScorer, ItemScorer"):
        scorer_to_arrays(OwnScorer(1))


def test_scorers_of_every_kind_are_checked(models: Path) -> None:
    rows, labels = batches.CATALOG.n_rows, len(batches.LABELS)
    for name, kind in (("ddpg", NearestScorer), ("linucb", LinUCBScorer), ("mbcal", NetScorer)):
        said, arrays = scorer_to_arrays(to_numpy(small(name).fitted_scorer))
        assert said["kind"] == KINDS[kind]
        for key, array in arrays.items():
            for wrong in (array[:-1], array[..., None], poked(array, np.inf)):
                with pytest.raises(ModelError, match="scorer: "):
                    scorer_from_arrays(said, {**arrays, key: wrong}, rows, labels)
        for part in set(said) - {"kind"}:
            for value in ("?", None, True, float("nan"), {}):
                with pytest.raises(ModelError, match="scorer: "):
                    scorer_from_arrays({**said, part: value}, arrays, rows, labels)


def test_publishers_at_once_get_different_numbers(models: Path, registry: Registry) -> None:
    with ThreadPoolExecutor(4) as pool:
        names = list(pool.map(lambda _: registry.publish(models / "random"), range(8)))
    assert sorted(names) == registry.versions() == [f"v{number:06d}" for number in range(1, 9)]
    assert sorted([*registry.previous_versions(), registry.current() or ""]) == registry.versions()  # none was forgotten


PUBLISH = "import sys; from mbcal.registry.registry import Registry; print(Registry(sys.argv[1]).publish(sys.argv[2]))"


def test_processes_at_once_never_tear_the_pointer(models: Path, registry: Registry) -> None:
    registry.publish(models / "random")
    command = [sys.executable, "-c", PUBLISH, str(registry.path), str(models / "random")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    while any(process.poll() is None for process in running):
        assert registry.current() in registry.versions()
        time.sleep(0.001)
    said = [process.communicate()[0].strip() for process in running]
    assert sorted(said) == ["v000002", "v000003"]
    assert registry.open().name in said


KILLED = """
import json, os, signal, sys
from mbcal import agents
from mbcal.storage import artifacts as bundle
from mbcal.storage import atomic as folder
from mbcal.registry import registry
owners = {"os": os, "folder": folder, "registry": registry, "bundle": bundle, "Registry": registry.Registry}
def killed(verb, path, argument, moment):
    owner, name, after = moment.split(":")
    real, left = getattr(owners[owner], name), [int(after)]
    def count(*given, **named):
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*given, **named)
    setattr(owners[owner], name, count)
    getattr(registry.Registry(path), verb)(argument)
for job in json.loads(sys.argv[1]):
    child = os.fork()
    if not child:
        killed(*job)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL, job
"""
MOMENTS = [
    "registry:write_artifact:0",
    "bundle:file_entry:2",  # half of the files are there
    "bundle:write_manifest:0",
    "folder:fsync:1",
    "os:rename:0",
    "folder:fsync:7",  # renamed, but not yet flushed
    "registry:_verified:0",
    "Registry:_go_live:0",
    "registry:write_atomic:0",
    "os:replace:0",
]


def kill_at(moments: list[str], verb: str, argument: str | int, start: Path) -> dict[str, Registry]:
    """A registry for each moment at which a process was killed in it, all having begun like `start`."""
    there = {moment: Registry(start.with_name(f"killed-{place}")) for place, moment in enumerate(moments)}
    for registry in there.values():
        shutil.copytree(start, registry.path)
    jobs = [(verb, str(registry.path), argument, moment) for moment, registry in there.items()]
    subprocess.run([sys.executable, "-c", KILLED, json.dumps(jobs)], check=True)
    return there


def test_a_publisher_killed_anywhere_leaves_the_old_version_live(models: Path, registry: Registry) -> None:
    first = registry.publish(models / "popular")
    before = (registry.path / "current.json").read_bytes()
    for moment, left in kill_at(MOMENTS, "publish", str(models / "random"), registry.path).items():
        assert (left.path / "current.json").read_bytes() == before, moment
        assert left.open().name == first
        for name in left.versions():
            left.open(name)  # whole, or not there
        following = left.publish(models / "linucb")  # nothing is locked, nothing is in the way
        assert left.open().name == following
        left.gc(1)
        assert not list((left.path / "versions").glob(".*")), moment
        assert left.rollback() == first


def test_a_gc_killed_anywhere_leaves_whole_versions(models: Path, registry: Registry) -> None:
    for _ in range(4):
        registry.publish(models / "random")
    moments = ["os:rename:0", "os:rename:1", "registry:write_atomic:0", "os:replace:0", "os:rmdir:1"]
    for moment, left in kill_at(moments, "gc", 1, registry.path).items():
        assert left.current() == "v000004", moment
        for name in {*left.versions(), *left.previous_versions()}:
            left.open(name)
        left.gc(1)
        assert left.versions() == ["v000003", "v000004"]
        assert sorted(entry.name for entry in left.path.iterdir()) == [".lock", "current.json", "versions"]


@pytest.mark.parametrize("where", ["write_manifest", "fsync", "write_bytes"])
def test_a_full_disk_is_one_sentence(models: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    first = registry.publish(models / "random")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        if where == "write_bytes":
            patch.setattr(Path, "write_bytes", full)
        else:
            patch.setattr(
                "mbcal.storage.artifacts.write_manifest" if where == "write_manifest" else "mbcal.storage.atomic.fsync", full
            )
        with pytest.raises(OutputError, match="the disk is full"):
            registry.publish(models / "random")
    assert registry.current() == first
    assert registry.versions() == [first]
    assert not list((registry.path / "versions").glob(".*"))


def told(*arguments: str) -> str:
    """What a command says, in this process."""
    done = CliRunner().invoke(cli.app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_command_from_publish_to_gc(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    where = ["--registry", "live"]
    said = told("registry", "publish", str(models / "mbcal"), *where, "--metric", "reward=81.25")
    assert said == "v000001 is live; take it back with: mbcal registry rollback --registry live\n"
    said = told("registry", "publish", str(models / "random"), *where, "--no-activate", "--json")
    assert json.loads(said) == {"version": "v000002", "current": "v000001"}
    assert told("registry", "activate", "v000002", *where) == "v000002 is live\n"
    table = told("registry", "list", *where).splitlines()
    assert len(table) == 3
    assert all(word in table[1] for word in ("v000001", "live before", "mbcal", "reward 81.25"))
    listed = json.loads(told("registry", "list", *where, "--json"))
    assert (listed["current"], listed["before"]) == ("v000002", ["v000001"])
    assert [row["metrics"] for row in listed["versions"]] == [{"reward": 81.25}, {}]
    shown = told("registry", "show", "v000001", *where)
    assert "v000001 (live before), verified" in shown
    assert "12, of which the model has met" in shown
    assert json.loads(told("registry", "show", *where, "--json"))["agent"] == "random"
    assert "v000001 is live again, v000002 no more" in told("registry", "rollback", *where)
    assert told("registry", "gc", *where) == "nothing to remove\n"
    told("registry", "activate", "v000002", *where)
    assert told("registry", "gc", "--keep", "0", *where) == "removed v000001\n"
    ranked = told("rank", "live/versions/v000002", "--candidates", "item 1,item 2", "--json")
    assert len(json.loads(ranked)) == 2
    (tmp_path / "live/versions/v000002/manifest.json").write_text("{")
    assert "damaged" in told("registry", "list", *where)


def test_the_command_teaches_and_refuses(two: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    helped = told("registry", "--help")
    assert all(word in helped for word in ("publish", "rollback", "activate", "gc", "list", "show"))
    there = ["--registry", str(two)]
    for arguments, words in (
        (["list", "--registry", "nowhere"], "nowhere: no such folder; 'mbcal registry publish' makes one"),
        (["list", "--registry", "."], ".: not a registry (no versions within)"),
        (["show", "v000077", *there], "has no version 'v000077'; known are v000001, v000002"),
        (["activate", "v000077", *there], "has no version 'v000077'"),
        (["rollback", *there], "no version was live before v000001"),
        (["gc", "--keep", "-1", *there], "keep: must be 0 or more, got -1"),
        (["publish", "nothing", *there], "nothing: no such folder; make a model with 'mbcal fit'"),
        (["publish", "nothing", *there, "--metric", "reward"], "metric: 'reward' is not NAME=VALUE"),
        (["publish", "nothing", *there, "--metric", "reward=nan"], "metrics: must be names with finite numbers"),
    ):
        error = refused("registry", *arguments, cwd=tmp_path, capsys=capsys)
        assert words in error
        assert "\n" not in error


def test_opening_needs_no_lock(two: Path) -> None:
    """A reader of a registry it may not write to."""
    reader = Registry(two)
    lock = two / ".lock"
    kept = lock.read_bytes()
    lock.unlink()
    assert reader.open().name == "v000001"
    assert not lock.exists()
    lock.write_bytes(kept)


def test_a_live_version_removed_while_it_is_read_gives_way_to_the_next(
    models: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.publish(models / "random")
    real = registry_module._verified

    def slow(opened: Artifact) -> Any:
        monkeypatch.setattr(registry_module, "_verified", real)
        registry.publish(models / "popular")
        assert registry.gc(0) == ["v000001"]
        return real(opened)

    monkeypatch.setattr(registry_module, "_verified", slow)
    assert registry.open().name == "v000002"


def test_write_whole_flushes_before_it_renames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    real = folder.fsync
    monkeypatch.setattr(folder, "fsync", lambda path: (done.append(path.name), real(path)))
    folder.write_atomic(tmp_path / "current.json", b"{}")
    assert done[0].startswith(".current.json.partial-")
    assert done[1] == tmp_path.name
