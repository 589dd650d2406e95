"""`mbcal registry` from publish to gc."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mbcal import cli
from mbcal.registry.registry import Registry
from tests.support.command_line import refused


def output_of(*arguments: str) -> str:
    """The standard output of a command, run in this process."""
    done = CliRunner().invoke(cli.app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_command_from_publish_to_gc(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--registry", "live"]
    output = output_of("registry", "publish", str(models / "mbcal"), *options, "--metric", "reward=81.25")
    assert output == "v000001 is live, the first of this registry; to serve it: mbcal serve --registry live\n"
    output = output_of("registry", "publish", str(models / "random"), *options, "--no-activate", "--json")
    assert json.loads(output) == {"version": "v000002", "current": "v000001"}
    assert output_of("registry", "activate", "v000002", *options) == "v000002 is live\n"
    table = output_of("registry", "list", *options).splitlines()
    assert len(table) == 3
    assert table[0].split() == ["version", "state", "agent", "published", "parent", "notes"]
    assert all(word in table[1] for word in ("v000001", "live before", "mbcal", "reward 81.25"))
    listed = json.loads(output_of("registry", "list", *options, "--json"))
    assert (listed["current"], listed["before"]) == ("v000002", ["v000001"])
    assert [row["metrics"] for row in listed["versions"]] == [{"reward": 81.25}, {}]
    shown = output_of("registry", "show", "v000001", *options)
    assert "v000001 (live before), verified" in shown
    assert "12, of which " in shown
    assert json.loads(output_of("registry", "show", *options, "--json"))["agent"] == "random"
    assert "v000001 is live again instead of v000002" in output_of("registry", "rollback", *options)
    assert output_of("registry", "gc", *options) == "nothing to remove\n"
    output_of("registry", "activate", "v000002", *options)
    assert output_of("registry", "gc", "--keep", "0", *options) == "removed v000001\n"
    ranked = output_of("rank", "live/versions/v000002", "--candidates", "item 1,item 2", "--json")
    assert len(json.loads(ranked)) == 2
    (tmp_path / "live/versions/v000002/manifest.json").write_text("{")
    assert "damaged" in output_of("registry", "list", *options)


def test_a_canary_and_the_checks_of_an_update_are_listed_in_words(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    registry, options = Registry("live"), ["--registry", "live"]
    registry.publish(models / "random", metrics={"reward": 80.5})
    checks = [
        {"name": "log", "answer": "cannot tell", "detail": "why"},
        {"name": "simulator", "answer": "no worse", "detail": "900 sessions"},
    ]
    registry.publish(models / "popular", metrics={"checks": checks}, activate=False)
    assert "v000002 is the canary beside v000001" in output_of("registry", "canary", "v000002", *options)
    live, canary = output_of("registry", "list", *options).splitlines()[1:]
    assert live.split()[:3] == ["v000001", "live", "random"]
    assert live.rstrip().endswith("reward 80.5")
    assert canary.split()[:3] == ["v000002", "canary", "popular"]
    assert canary.rstrip().endswith("log: cannot tell; simulator: no worse")
    assert json.loads(output_of("registry", "list", *options, "--json"))["canary"] == "v000002"
    shown = output_of("registry", "show", "v000002", *options)
    assert "v000002 (canary), verified" in shown
    assert "cannot tell. why" in shown
    output = output_of("registry", "withdraw", "--reason", "users complained", *options)
    assert output == "v000002 is withdrawn; v000001 serves all sessions\n"
    assert "users complained" in output_of("registry", "list", *options)
    output_of("registry", "canary", "v000002", *options)
    assert output_of("registry", "promote", *options) == "v000002 is live instead of v000001\n"


def test_the_command_refuses_mistakes(two: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    helped = output_of("registry", "--help")
    assert all(word in helped for word in ("publish", "rollback", "activate", "gc", "list", "show"))
    options = ["--registry", str(two)]
    for arguments, words in (
        (["list", "--registry", "nowhere"], "nowhere: no such folder; create one with 'mbcal registry publish'"),
        (["list", "--registry", "."], ".: not a registry (no versions folder)"),
        (["show", "v000077", *options], "has no version 'v000077'; known are v000001, v000002"),
        (["activate", "v000077", *options], "has no version 'v000077'"),
        (["rollback", *options], "no version was live before v000001"),
        (["withdraw", *options], "there is no canary; start one with 'mbcal registry canary VERSION'"),
        (["canary", "v000001", *options], "v000001 is live already"),
        (["gc", "--keep", "-1", *options], "keep: must be 0 or more, got -1"),
        (["publish", "nothing", *options], "nothing: no such folder; make a model with 'mbcal fit'"),
        (["publish", "nothing", *options, "--metric", "reward"], "metric: 'reward' is not NAME=VALUE"),
        (["publish", "nothing", *options, "--metric", "reward=nan"], "metrics: must be names with finite numbers"),
    ):
        error = refused("registry", *arguments, cwd=tmp_path, capsys=capsys)
        assert words in error
        assert "\n" not in error
