from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from mbcal import Behaviours, Catalog, Feature, Sessions
from mbcal.errors import InputError, OptionError
from mbcal.types import MASK_ROW, UNKNOWN_ROW

LABELS = Behaviours(("skip", "click", "like"), (0.0, 1.0, 5.0))
CATALOG = Catalog(("a", "b", "c"), {"kind": Feature.single("kind", ["x", None, "y"])})


def make(**changes: Any) -> Sessions:
    arrays: dict[str, Any] = {
        "items": np.array([[2, 3, 0], [4, 2, 3]], np.int32),
        "behaviours": np.array([[1, 2, 0], [0, 1, 1]], np.uint8),
        "length": np.array([2, 3], np.int32),
        "user": np.array([0, 7], np.int32),
        "history_items": np.array([[0, 0], [1, 0]], np.int32),
        "history_behaviours": np.array([[0, 0], [2, 0]], np.uint8),
        "history_length": np.array([0, 1], np.int32),
        "candidates": np.array([[2, 3, 4, 0], [2, 3, 4, 1]], np.int32),
        "propensities": np.array([[0.5, 1.0, 0], [0.1, 0.2, 0.3]], np.float32),
        "timestamps": np.array([[5, 6, 0], [1, 1, 9]], np.int64),
    }
    return Sessions(CATALOG, LABELS, **{**arrays, **changes})


def test_rewards_and_masks_respect_length() -> None:
    sessions = make()
    assert sessions.rewards.tolist() == [[1, 5, 0], [0, 1, 1]]
    assert sessions.mask.tolist() == [[True, True, False], [True, True, True]]
    assert sessions.history_mask.tolist() == [[False, False], [True, False]]
    assert sessions.horizon == 3
    assert len(sessions) == 2


def test_slices_share_memory_and_masks_pick_rows() -> None:
    sessions = make()
    assert np.shares_memory(sessions[1:].items, sessions.items)
    assert sessions[np.array([False, True])].user.tolist() == [7]
    assert sessions[[1, 0]].user.tolist() == [7, 0]
    assert sessions[:1].catalog is CATALOG


def test_tensors_are_views_of_the_same_memory() -> None:
    sessions = make()
    tensors = sessions.tensors()
    for name, array in sessions.arrays():
        tensor = getattr(tensors, name)
        assert tensor.data_ptr() == array.ctypes.data, name
        assert torch.equal(tensor, torch.from_numpy(array))


def test_optional_arrays_stay_absent() -> None:
    sessions = make(candidates=None, propensities=None, timestamps=None)
    assert sessions[:1].candidates is None
    assert sessions.tensors().timestamps is None


def test_candidates_may_differ_by_step() -> None:
    by_step = np.ones((2, 3, 5), np.int32)
    assert make(candidates=by_step).candidates is by_step
    with pytest.raises(InputError, match="candidates has shape"):
        make(candidates=np.ones((2, 4, 5), np.int32))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("items", np.array([[2, 9, 0], [4, 2, 3]], np.int32), r"items must lie in 0\.\.4, got 0\.\.9"),
        ("items", np.array([[2, 0, 0], [4, 2, 3]], np.int32), "masking item inside"),
        ("items", np.array([[2, 3, 4], [4, 2, 3]], np.int32), "must be 0 after the end"),
        ("items", np.array([[2, 3, 0], [4, 2, 3]], np.int64), "items must be int32, got int64"),
        ("items", np.array([2, 3], np.int32), r"shape \(N, T\)"),
        ("behaviours", np.array([[1, 2, 0], [0, 1, 3]], np.uint8), "behaviours must lie"),
        ("behaviours", np.array([[1, 2, 1], [0, 1, 1]], np.uint8), "must be 0 after the end"),
        ("behaviours", np.zeros((3, 3), np.uint8), "but N is 2 elsewhere"),
        ("length", np.array([2, 4], np.int32), r"lengths of items must lie in 0\.\.3"),
        ("user", np.array([0, -1], np.int32), "user must be 0 or more"),
        ("history_length", np.array([0, 3], np.int32), "lengths of history_items"),
        ("candidates", np.array([[9], [2]], np.int32), "candidates must lie"),
        ("propensities", np.array([[0.5, 0, 0], [0.1, 0.2, 0.3]], np.float32), r"\(0, 1\]"),
        ("propensities", np.array([[0.5, 1.5, 0], [0.1, 0.2, 0.3]], np.float32), r"\(0, 1\]"),
        ("timestamps", np.array([[6, 5, 0], [1, 1, 9]], np.int64), "those of row 0 do"),
    ],
)
def test_wrong_arrays_are_refused(field: str, value: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make(**{field: value})


def test_sessions_without_a_step_are_refused() -> None:
    empty = {name: array.copy() for name, array in make().arrays() if name in ("items", "behaviours")}
    for array in empty.values():
        array[0] = 0
    with pytest.raises(InputError, match="length must be at least 1"):
        make(**empty, length=np.array([0, 3], np.int32))


def test_one_row_is_asked_for_as_a_slice_and_any_slice_has_tensors() -> None:
    sessions = make()
    with pytest.raises(TypeError, match=r"write sessions\[1:2\]"):
        sessions[1]  # type: ignore[index]
    assert sessions[::-1].tensors().user.tolist() == [7, 0]


def test_concat_joins_only_what_fits() -> None:
    sessions = make()
    both = Sessions.concat([sessions, sessions[:1]])
    assert both.user.tolist() == [0, 7, 0]
    with pytest.raises(InputError, match="same arrays"):
        Sessions.concat([sessions, make(timestamps=None)])
    other = dataclasses.replace(sessions, catalog=Catalog(("a", "b", "c")))
    with pytest.raises(InputError, match="same catalogue"):
        Sessions.concat([sessions, other])


def test_behaviours_by_name_and_start() -> None:
    assert LABELS.start == 3
    assert LABELS.index("like") == 2
    with pytest.raises(InputError, match="Did you mean 'click'"):
        LABELS.index("clik")


def test_levels_include_their_lower_cut() -> None:
    levels = Behaviours.from_cuts([0.5, 3, 10])
    assert levels.names == ("<0.5", "0.5..3", "3..10", ">=10")
    assert levels.rewards == (1.0, 2.0, 3.0, 4.0)
    assert levels.level(np.array([0.4, 0.5, 2.9, 3, 10, 99])).tolist() == [0, 1, 1, 2, 3, 3]
    with pytest.raises(OptionError, match="labels, not levels"):
        LABELS.level(np.array([1.0]))


@pytest.mark.parametrize(
    ("names", "rewards", "cuts", "message"),
    [
        (("a",), (1.0,), (), "at least two"),
        (("a", "a"), (1.0, 2.0), (), "must differ"),
        (("a", "b"), (1.0,), (), "2 names but 1 rewards"),
        (("a", "b"), (1.0, float("nan")), (), "finite"),
        (("a", "b"), (1.0, 2.0), (1.0, 2.0), "make 3 levels"),
        (("a", "b", "c"), (1.0, 2.0, 3.0), (2.0, 1.0), "rising"),
        (tuple(map(str, range(256))), (1.0,) * 256, (), "at most 255"),
    ],
)
def test_wrong_behaviours_are_refused(names: Any, rewards: Any, cuts: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Behaviours(names, rewards, cuts)


def test_catalog_puts_special_rows_first() -> None:
    assert CATALOG.n_rows == 5
    assert CATALOG.rows_of(["c", "never seen", "a"]).tolist() == [4, UNKNOWN_ROW, 2]
    assert [CATALOG.name_of(row) for row in range(5)] == ["<mask>", "<unknown>", "a", "b", "c"]
    titled = Catalog(("a", "b"), titles=("Amélie", None))
    assert [titled.title_of(row) for row in range(4)] == ["<mask>", "<unknown>", "Amélie", "b"]


def test_single_feature_codes() -> None:
    kind = CATALOG.features["kind"]
    assert kind.codes.tolist() == [MASK_ROW, UNKNOWN_ROW, 2, UNKNOWN_ROW, 3]
    assert kind.cardinality == 4
    assert [kind.values(row) for row in range(5)] == [(), (), ("x",), (), ("y",)]


def test_multi_feature_codes_and_numbers_in_their_order() -> None:
    tags = Feature.multi("tags", [["10", "9"], [], ["9"]])
    assert tags.vocabulary == ("9", "10")
    assert tags.offsets is not None
    assert tags.offsets.tolist() == [0, 1, 2, 4, 4, 5]
    assert tags.codes.tolist() == [MASK_ROW, UNKNOWN_ROW, 3, 2, 2]
    assert [tags.values(row) for row in range(tags.n_rows)] == [(), (), ("10", "9"), (), ("9",)]


def test_wrong_catalogues_are_refused() -> None:
    with pytest.raises(InputError, match="names must differ"):
        Catalog(("a", "a"))
    with pytest.raises(InputError, match="describes 4 rows, the catalogue has 5"):
        Catalog(("a", "b", "c"), {"kind": Feature.single("kind", ["x", "y"])})
    with pytest.raises(InputError, match="2 items but 1 titles"):
        Catalog(("a", "b"), titles=("x",))
    with pytest.raises(InputError, match="codes must lie"):
        Feature("f", ("x",), np.array([0, 1, 3], np.int32))
    with pytest.raises(InputError, match="offsets end at 2"):
        Feature("f", ("x",), np.array([0, 1, 2], np.int32), np.array([0, 1, 2]))
