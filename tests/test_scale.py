"""The arithmetic of docs/scale.md, and the cluster files beside it."""

from __future__ import annotations

import importlib.util
from types import ModuleType
from typing import Any

import pytest

from tests.support.logs import ROOT

yaml = pytest.importorskip("yaml", reason="PyYAML comes with Ray; pip install 'mbcal[ray]'")
CLUSTER = ROOT / "examples/cluster"


def capacity() -> ModuleType:
    spec = importlib.util.spec_from_file_location("capacity", ROOT / "benchmarks/capacity.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_shows_what_the_script_computes() -> None:
    page, made = (ROOT / "docs/scale.md").read_text(), capacity()
    assert made.table() in page
    assert made.limits() in page
    assert made.shown(0.04567) == "0.0457"
    assert made.shown(123_456) == "123,000"


def test_the_script_takes_its_rates_from_the_measurements() -> None:
    performance, log = (ROOT / "docs/performance.md").read_text(), (ROOT / "docs/decision-log.md").read_text()
    for quoted in (
        "| 100,000,000 | 16.80 | 20.94 | 25.90 |",
        "| mbcal | 1,792 | 3,599 | 36,859 |",
        "| CPU each | 200 µs | 209 µs |",
    ):
        assert quoted in performance
    for phase in ("0.528", "0.041", "0.496", "0.115"):
        assert f"| {phase} |" in performance
    for quoted in ("(2.8 kB)", "8.2 times smaller", "11,320", "8,883"):
        assert quoted in log


@pytest.mark.usefixtures("ray_engine")  # who says where Ray listens, before Ray is imported
def test_the_cluster_for_ssh_is_what_ray_up_takes() -> None:
    from ray.autoscaler._private import util

    config = yaml.safe_load((CLUSTER / "ray-up.yaml").read_text())
    util.validate_config(util.prepare_config(config))  # by Ray's own schema
    starts = config["head_start_ray_commands"] + config["worker_start_ray_commands"]
    assert all("RAY_AUTH_MODE=token" in line for line in starts if "ray start" in line)
    assert not any("0.0.0.0" in line for line in starts)  # noqa: S104
    with pytest.raises(Exception, match="provider"):
        util.validate_config({**util.prepare_config(config), "provider": 3})


def test_the_cluster_for_kubernetes_is_whole_and_private() -> None:
    cluster, policy = yaml.safe_load_all((CLUSTER / "kuberay.yaml").read_text())
    assert (cluster["apiVersion"], cluster["kind"]) == ("ray.io/v1", "RayCluster")
    spec = cluster["spec"]
    assert spec["authOptions"] == {"mode": "token"}
    assert spec["headGroupSpec"]["serviceType"] == "ClusterIP"
    assert spec["rayVersion"] in (ROOT / "examples/cluster/ray-up.yaml").read_text()
    names = [group["groupName"] for group in spec["workerGroupSpecs"]]
    assert len(names) == len(set(names)) == 2
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        pod: dict[str, Any] = group["template"]["spec"]
        (container,) = pod["containers"]
        assert container["image"].endswith(spec["rayVersion"])
        assert container["resources"]["limits"] == container["resources"]["requests"]
        assert [mount["name"] for mount in container["volumeMounts"]] == [volume["name"] for volume in pod["volumes"]]
    for group in spec["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    assert policy["spec"]["podSelector"]["matchLabels"] == {"ray.io/cluster": cluster["metadata"]["name"]}
    assert policy["spec"]["policyTypes"] == ["Ingress"]
