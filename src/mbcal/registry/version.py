"""One version of a model on disk: its files, its manifest, and the checks made when it is opened. No torch.

::

    v000001/manifest.json              the model's manifest, and under "version" the scorer, the parent and the metrics
    v000001/weights.safetensors, …     the files of the model, unchanged
    v000001/scorer.safetensors         the scorer's arrays, and which items the model has seen
    v000001/verification.safetensors   verification cases and the scores the agent gave them
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbcal.data.cutting import SessionConfig
from mbcal.errors import MbcalError, ModelError
from mbcal.registry.verification import SCORES_PREFIX, case_problem, score_difference, verification_scores
from mbcal.scoring.scorer_io import scorer_from_arrays
from mbcal.scoring.scorers import Scorer
from mbcal.scoring.unknown_items import UnknownItems, add_spare_rows
from mbcal.storage.artifacts import SCHEMA, Artifact
from mbcal.storage.catalog_io import names_catalog, table_declarations, table_vocabulary
from mbcal.storage.manifest import ArtifactKind
from mbcal.types import NO_FIELDS, Behaviours, Catalog
from mbcal.types.feature_values import FeatureDeclaration

VERSION_SCHEMA = 1
VERSION_KIND = ArtifactKind(
    "model",
    SCHEMA,
    "publish a model with 'mbcal registry publish'",
    "publish the model again, or roll back to another version",
    ModelError,
)
MODEL_FILES = ("weights.safetensors", "optimiser.safetensors", "items.parquet")
OPTIONAL_MODEL_FILES = ("support.safetensors",)
"""Files that a version takes over from its model: always, and if the model has them."""
UNKNOWN_PREFIX = "unknown items/"
"""Before the names of the scorer file's arrays by which unknown items are scored."""


@dataclass(frozen=True, eq=False, repr=False)
class Version:
    """A version that was opened and verified, ready to rank."""

    name: str
    path: Path
    manifest: Mapping[str, Any]
    scorer: Scorer
    catalog: Catalog
    """Names and titles of the items, without features: the scorer's tables contain them."""
    behaviours: Behaviours
    horizon: int
    history: int
    seen: NDArray[np.bool_]
    """(rows,) which items occurred in training."""
    parent: str | None
    """The version that was live when this one was published."""
    metrics: Mapping[str, Any]
    features: Mapping[str, FeatureDeclaration] = field(default_factory=dict)
    """Item features of the catalogue it was fitted on: what requests may say about unknown items."""
    unknown_items: UnknownItems | None = None
    """Scores unknown items by their features; None if the model reads none, or is no sum of networks."""

    def __repr__(self) -> str:
        return f"<Version {self.name}: {self.manifest['agent']}, {len(self.catalog):,} items>"


def read_version_manifest(path: Path) -> dict[str, Any]:
    """Read the manifest of a version. The other files must exist but are not read.

    Raises:
        ModelError: If the manifest is missing or damaged, or is not that of a version.
    """
    manifest = VERSION_KIND.open(path)
    schema = manifest["version"].get("schema") if isinstance(manifest.get("version"), dict) else None
    if schema != VERSION_SCHEMA:
        problem = "a model, not a version" if schema is None else f"a version of schema {schema}, not {VERSION_SCHEMA}"
        raise ModelError(f"{path}: {problem}; {VERSION_KIND.remedy}")
    return manifest


def open_version(path: Path) -> Version:
    """Open a version and verify it: hashes, shapes, finite numbers, and the scores of the verification cases.

    Raises:
        ModelError: If anything is damaged or does not fit.
    """
    artifact = Artifact(path, VERSION_KIND, read_version_manifest(path))
    try:
        return _verify(artifact)
    except ModelError as error:
        if str(path) in str(error):
            raise
        raise artifact.damage_error(str(error)) from error
    except (
        LookupError,
        TypeError,
        ValueError,
        ArithmeticError,
        AttributeError,
        OSError,
        MbcalError,
    ) as error:  # valid hashes, wrong content
        raise artifact.damage_error(f"{type(error).__name__}: {error}") from error


def _verify(artifact: Artifact) -> Version:
    manifest, details = artifact.manifest, artifact.manifest["version"]
    sizes = SessionConfig(horizon=int(manifest["horizon"]), history=int(manifest["history"]))  # checks the ranges
    for name in MODEL_FILES[:-1]:
        VERSION_KIND.read(artifact.path, manifest, name)
    items = artifact.items_file
    catalog, behaviours = names_catalog(items), artifact.behaviours
    arrays, cases = artifact.arrays("scorer"), artifact.arrays("verification")
    seen = arrays.pop("seen", None)
    if seen is None or seen.dtype != bool or seen.shape != (catalog.n_rows,):
        raise ModelError(f"scorer: 'seen' must hold {catalog.n_rows} booleans, one per catalogue row")
    projection_arrays = {
        name.removeprefix(UNKNOWN_PREFIX): arrays.pop(name) for name in list(arrays) if name.startswith(UNKNOWN_PREFIX)
    }
    described = (details["scorer"] or {}).get("unknown_items", {})
    tables = add_spare_rows(arrays, described)
    scorer = scorer_from_arrays(details["scorer"], arrays, catalog.n_rows, len(behaviours))
    problem = case_problem(cases, catalog.n_rows, len(behaviours), getattr(scorer, "fields", NO_FIELDS))
    if not problem:
        expected = {
            name.removeprefix(SCORES_PREFIX): scores for name, scores in cases.items() if name.startswith(SCORES_PREFIX)
        }
        problem = score_difference(expected, verification_scores(scorer, cases))
    if problem:
        raise ModelError(f"verification failed: {problem}")
    unknown_items = None
    if described:
        unknown_items = UnknownItems.create(
            scorer, tables, described, projection_arrays, lambda name: table_vocabulary(items, name)
        )
        scorer = unknown_items.scorer
    return Version(
        name=artifact.path.name,
        path=artifact.path,
        manifest=manifest,
        scorer=scorer,
        catalog=catalog,
        behaviours=behaviours,
        horizon=sizes.horizon,
        history=sizes.history,
        seen=seen,
        parent=details["parent"],
        metrics=dict(details["metrics"]),
        features=table_declarations(items),
        unknown_items=unknown_items,
    )
