"""From a model to the content of a version: the scorer as plain arrays, and verification cases. The only part with torch."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from mbcal.errors import ModelError, OptionError
from mbcal.registry.verification import SCORES_PREFIX, score_difference, verification_cases, verification_scores
from mbcal.registry.version import MODEL_FILES, OPTIONAL_MODEL_FILES, UNKNOWN_PREFIX, VERSION_KIND, VERSION_SCHEMA
from mbcal.scoring.backend import to_numpy
from mbcal.scoring.item_projection import projections_to_arrays
from mbcal.scoring.scorer_io import scorer_from_arrays, scorer_to_arrays
from mbcal.storage.artifacts import MODEL_KIND, Artifact, write_artifact

if TYPE_CHECKING:
    from mbcal.agents import Agent

_REWRITTEN_KEYS = ("kind", "schema", "mbcal", "files", "content_hash", "version")
"""Keys of a model's manifest that a version does not take over."""


@dataclass(frozen=True)
class VersionContent:
    """The content of a version that has no name yet."""

    manifest: dict[str, Any]
    """The model's manifest, without what every folder has of its own."""
    scorer: dict[str, Any]
    """Description of the scorer, as JSON can hold it."""
    files: dict[str, dict[str, NDArray[Any]]]
    """The arrays of `scorer.safetensors` and `verification.safetensors`."""
    model_files: dict[str, bytes]

    def write(self, path: Path, parent: str | None, metrics: Mapping[str, Any]) -> None:
        """Write the version atomically.

        Args:
            path: Its folder, which must not exist. Its name is the version's name.
            parent: The live version.
            metrics: Plain values kept with the version.

        Raises:
            OutputError: If the folder cannot be written.
        """
        details = {
            "schema": VERSION_SCHEMA,
            "scorer": self.scorer,
            "parent": parent,
            "metrics": metrics,
            "published": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        write_artifact(path, VERSION_KIND, {**self.manifest, "version": details}, self.files, extra=self.model_files)


def prepare_version(model: str | Path | Agent) -> VersionContent:
    """Build the content of a version from a model, and check that it ranks without torch as the agent does.

    Args:
        model: A model folder, or a fitted agent.

    Raises:
        ModelError: If the model is damaged, or its scores without torch differ or are not finite.
    """
    with _saved_model(model) as (artifact, agent_class):
        scorer, arrays, verification = _scorer_files(artifact, agent_class)
        return VersionContent(
            manifest={key: value for key, value in artifact.manifest.items() if key not in _REWRITTEN_KEYS},
            scorer=scorer,
            files={"scorer": arrays, "verification": verification},
            model_files={name: MODEL_KIND.read(artifact.path, artifact.manifest, name) for name in _model_files(artifact)},
        )


def _model_files(artifact: Artifact) -> tuple[str, ...]:
    """The files of a model that a version has, too: what an agent needs, and what it has only of some logs."""
    return (*MODEL_FILES, *(name for name in OPTIONAL_MODEL_FILES if name in artifact.manifest["files"]))


def checked_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return metrics as they will be read back from JSON.

    Raises:
        OptionError: If JSON cannot hold them, or a number is not finite.
    """
    try:
        checked: dict[str, Any] = json.loads(json.dumps(dict(metrics), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionError(f"metrics: must be names with finite numbers, texts or lists of them ({error})") from error
    return checked


@contextlib.contextmanager
def _saved_model(model: str | Path | Agent) -> Iterator[tuple[Artifact, type[Agent] | None]]:
    """Yield a model as a folder, and its class if an agent was given (its class may be registered nowhere)."""
    from mbcal.agents import Agent

    if not isinstance(model, Agent):
        yield Artifact.open(model, MODEL_KIND), None
        return
    with tempfile.TemporaryDirectory(prefix="mbcal-") as folder:
        yield Artifact.open(model.save(Path(folder) / "model"), MODEL_KIND), type(model)


def _scorer_files(
    model: Artifact, agent_class: type[Agent] | None
) -> tuple[dict[str, Any], dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """Return the scorer's description and arrays, and the verification cases with the agent's own scores."""
    import torch

    from mbcal.agents import item_projections, load

    agent = load(model.path, "cpu") if agent_class is None else agent_class.load(model.path, "cpu")
    rows, behaviours = agent.domain.catalog.n_rows, len(agent.domain.behaviours)
    description, arrays = scorer_to_arrays(to_numpy(agent.fitted_scorer))
    unknown_items, projection_arrays = projections_to_arrays(item_projections(agent))
    cases = verification_cases(rows, behaviours, agent.domain.n_users, agent.domain.history, agent.fields)
    with torch.no_grad():
        scores = verification_scores(agent.fitted_scorer, cases, torch.from_numpy)
    try:
        scorer = scorer_from_arrays(description, arrays, rows, behaviours)
    except ModelError as error:
        raise ModelError(f"{model.path}: {error}; fit the model again") from error
    difference = score_difference(scores, verification_scores(scorer, cases))
    if difference:
        raise ModelError(f"{model.path}: ranks differently without torch ({difference}); it was not published")
    labelled_scores = {f"{SCORES_PREFIX}{name}": values for name, values in scores.items()}
    if unknown_items:
        description |= {"unknown_items": unknown_items}
        arrays |= {f"{UNKNOWN_PREFIX}{name}": array for name, array in projection_arrays.items()}
    return description, {**arrays, "seen": agent.seen()}, {**cases, **labelled_scores}
