"""Scorers are written and read without change, and every array is checked."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mbcal import load
from mbcal.agents import AGENTS
from mbcal.errors import ModelError
from mbcal.registry.verification import verification_cases, verification_scores
from mbcal.scoring.backend import to_numpy
from mbcal.scoring.scorer_io import KINDS, scorer_from_arrays, scorer_to_arrays
from mbcal.scoring.scorers import LinUCBScorer, NearestScorer, NetScorer, RandomScorer
from tests.support import batches
from tests.support.agents import small
from tests.support.registries import with_value


class OwnScorer(RandomScorer):
    """A scorer that cannot be written to files."""


def test_scorers_are_read_as_they_were_written(models: Path) -> None:
    assert set(KINDS) == {type(to_numpy(small(name).fitted_scorer)) for name in AGENTS}
    rows, labels = batches.CATALOG.n_rows, len(batches.LABELS)
    cases = verification_cases(rows, labels, 60, 4)
    for name in (*AGENTS, "by-id"):
        scorer = to_numpy(load(models / name, "cpu").fitted_scorer)
        description, arrays = scorer_to_arrays(scorer)
        back = scorer_from_arrays(json.loads(json.dumps(description, sort_keys=True)), arrays, rows, labels)
        assert type(back) is type(scorer)
        for key, value in verification_scores(scorer, cases).items():
            assert (verification_scores(back, cases)[key] == value).all()
    with pytest.raises(ModelError, match="a OwnScorer cannot be written; known are NetScorer, ItemScorer"):
        scorer_to_arrays(OwnScorer(1))


def test_scorers_of_every_kind_are_checked(models: Path) -> None:
    rows, labels = batches.CATALOG.n_rows, len(batches.LABELS)
    for name, kind in (("ddpg", NearestScorer), ("linucb", LinUCBScorer), ("mbcal", NetScorer)):
        description, arrays = scorer_to_arrays(to_numpy(small(name).fitted_scorer))
        assert description["kind"] == KINDS[kind]
        for key, array in arrays.items():
            for wrong in (array[:-1], array[..., None], with_value(array, np.inf)):
                with pytest.raises(ModelError, match="scorer: "):
                    scorer_from_arrays(description, {**arrays, key: wrong}, rows, labels)
        for part in set(description) - {"kind"}:
            for value in ("?", None, True, float("nan"), {}):
                with pytest.raises(ModelError, match="scorer: "):
                    scorer_from_arrays({**description, part: value}, arrays, rows, labels)
