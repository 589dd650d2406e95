"""Versions of a registry in a few words each, from their manifests alone."""

from __future__ import annotations

from typing import Any

from mbcal.errors import ModelError
from mbcal.registry.pointer import Pointer, read_pointer
from mbcal.registry.registry import Registry


def version_summaries(registry: Registry, most: int | None = None) -> list[dict[str, Any]]:
    """Summarise the versions of a registry, oldest first.

    Args:
        registry: The registry.
        most: How many of the newest, and the live one; None for all.

    Returns:
        The summary of each; see `version_summary`.

    Raises:
        ModelError: If the registry's pointer is damaged.
    """
    pointer, names = read_pointer(registry.path), registry.versions()
    newest = names if most is None else names[-most:]
    return [_summary(registry, name, pointer) for name in names if name in newest or name == pointer.current]


def version_summary(registry: Registry, name: str) -> dict[str, Any]:
    """Summarise one version.

    Returns:
        Its name (`version`), `state` (live, canary, live before, withdrawn, or empty), `agent`, `published`, `parent`,
        `metrics`, and for a withdrawn canary the reason (`withdrawn`); name, state and the reason (`damaged`) if its
        manifest cannot be read.

    Raises:
        ModelError: If the registry's pointer is damaged.
    """
    return _summary(registry, name, read_pointer(registry.path))


def _summary(registry: Registry, name: str, pointer: Pointer) -> dict[str, Any]:
    states: dict[str | None, str] = {
        **dict.fromkeys(pointer.withdrawn, "withdrawn"),
        **dict.fromkeys(pointer.before, "live before"),
        pointer.canary: "canary",
        pointer.current: "live",
    }
    state = states.get(name, "")
    try:
        manifest = registry.manifest(name)
    except ModelError as error:
        return {"version": name, "state": state, "damaged": str(error)}
    details = manifest["version"]
    return {
        "version": name,
        "state": state,
        "agent": manifest.get("agent"),
        "published": details.get("published"),
        "parent": details.get("parent"),
        "metrics": details.get("metrics") or {},
        **({"withdrawn": pointer.withdrawn[name]} if name in pointer.withdrawn else {}),
    }
