"""Who is held out, and where sessions and networks are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mbcal.errors import OptionError
from mbcal.training.device import resolve_device
from mbcal.training.device_data import DeviceSessions
from mbcal.training.holdout import split_held_out_users
from tests.support.batches import sessions


def test_no_user_is_both_trained_on_and_held_out() -> None:
    users = np.repeat(np.arange(1000, dtype=np.int32), 3)
    rows, held_out = split_held_out_users(users, 0.3, seed=0)
    assert sorted([*rows, *held_out]) == list(range(3000))
    assert not set(users[rows]) & set(users[held_out])
    assert len(set(users[held_out])) == pytest.approx(300, abs=45)  # three standard deviations
    assert len({tuple(split_held_out_users(users, 0.3, seed)[1].tolist()) for seed in range(20)}) == 20
    assert len(split_held_out_users(users, 0.0, seed=0)[1]) == 0


def test_who_is_held_out_depends_on_the_user_alone() -> None:
    """Not on which other users there are, nor on their number."""
    users = np.arange(1000, dtype=np.int32)
    held_out = set(split_held_out_users(users, 0.2, seed=3)[1].tolist())
    for subset in (users[:100], users[500:], users[::7], np.repeat(users[:50], 4)):
        again = {int(subset[row]) for row in split_held_out_users(subset, 0.2, seed=3)[1]}
        assert again == held_out & set(subset.tolist())


@given(share=st.floats(0.001, 0.999), count=st.integers(1, 5), seed=st.integers(0, 100))
def test_with_few_users_both_sides_have_one(share: float, count: int, seed: int) -> None:
    rows, held_out = split_held_out_users(np.arange(count, dtype=np.int32), share, seed)
    assert len(rows) >= 1
    assert len(held_out) >= min(count - 1, 1)


def test_devices() -> None:
    assert resolve_device("cpu") == torch.device("cpu")
    with pytest.raises(OptionError, match="'gpu' is unknown"):
        resolve_device("gpu")
    if not torch.cuda.is_available():
        assert resolve_device("auto") == torch.device("cpu")
        with pytest.raises(OptionError, match="cuda was asked for, but PyTorch sees no GPU here"):
            resolve_device("cuda")


def test_sessions_on_the_cpu_are_not_copied() -> None:
    known = sessions(count=20)
    data = DeviceSessions(known, torch.device("cpu"))
    assert data.tensors.items.data_ptr() == torch.from_numpy(known.items).data_ptr()
    assert data[torch.tensor([3, 5])].items.tolist() == known.items[[3, 5]].tolist()
