"""What the pages of a store, model, simulator, registry and decision log show, as plain values. No torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mbcal.data import Store
from mbcal.data.describe import describe
from mbcal.decision_log.segments import segment_numbers
from mbcal.environments.report_card import ReportCard
from mbcal.environments.trust import simulator_trust
from mbcal.errors import MbcalError
from mbcal.registry.pointer import read_pointer
from mbcal.registry.registry import Registry
from mbcal.registry.summary import version_summaries
from mbcal.registry.updates import read_updates
from mbcal.storage.artifacts import MODEL_KIND, SIMULATOR_KIND, Artifact
from mbcal.storage.manifest import ArtifactKind


def store_view(folder: Path) -> dict[str, Any]:
    """Return the statistics of a store; every file of it is read and checked.

    Raises:
        StoreError: If a file is missing or damaged.
    """
    return describe(Store.open(folder))


def model_view(folder: Path) -> dict[str, Any]:
    """Return what a model's manifest says, and whether every file has the hash it should have.

    Raises:
        ModelError: If the manifest is damaged.
    """
    manifest = MODEL_KIND.open(folder)
    return {
        **_checked(folder, manifest, MODEL_KIND),
        "agent": manifest["agent"],
        "config": manifest["config"],
        "training": manifest.get("training") or {},
        "provenance": manifest.get("provenance") or {},
        "behaviours": manifest["behaviours"],
        "horizon": manifest["horizon"],
        "history": manifest["history"],
        "mbcal": manifest["mbcal"],
        "warnings": manifest.get("warnings") or [],
    }


def simulator_view(folder: Path) -> dict[str, Any]:
    """Return what a simulator's manifest says: settings, training record, report card, and what it can be trusted for.

    Raises:
        ModelError: If the manifest is damaged.
    """
    manifest = SIMULATOR_KIND.open(folder)
    card = manifest.get("report_card") and ReportCard(**manifest["report_card"])
    trust = simulator_trust(card, manifest["behaviours"]["rewards"])
    return {
        **_checked(folder, manifest, SIMULATOR_KIND),
        "trust": {"sentence": trust.warning or trust.sentence, "is_low": trust.is_low, "drift": card and card.drift},
        "config": manifest["config"],
        "training": {"simulator": manifest["training"]},
        "provenance": manifest.get("provenance") or {},
        "report_card": manifest.get("report_card"),
        "temperature": manifest["temperature"],
        "mbcal": manifest["mbcal"],
    }


def registry_view(folder: Path) -> dict[str, Any]:
    """Return the versions of a registry and its last updates.

    Raises:
        ModelError: If the pointer is damaged.
    """
    pointer = read_pointer(folder)
    return {
        "live": pointer.current,
        "canary": pointer.canary,
        "before": list(pointer.before),
        "withdrawn": dict(pointer.withdrawn),
        "versions": version_summaries(Registry(folder)),
        "updates": read_updates(folder, most=100),
    }


def log_view(folder: Path) -> dict[str, Any]:
    """Return the segments of a decision log; records are not read."""
    files = [folder / f"segment-{number:06d}.log" for number in segment_numbers(folder)]
    return {
        "segments": [{"name": file.name, "bytes": file.stat().st_size, "changed": file.stat().st_mtime} for file in files]
    }


def _checked(folder: Path, manifest: dict[str, Any], kind: ArtifactKind) -> dict[str, Any]:
    """Every file with its size, and why it cannot be trusted if its hash is wrong."""
    artifact, files = Artifact(folder, kind, manifest), []
    for name, entry in sorted(manifest["files"].items()):
        problem = None
        try:
            if Path(name).name != name:
                raise artifact.damage_error(f"{name!r} is not the name of a file")
            kind.read(folder, manifest, name)
        except MbcalError as error:
            problem = str(error).replace(f"{folder}/", "")
        files.append({"name": name, "bytes": entry["bytes"], "problem": problem})
    return {"files": files}
