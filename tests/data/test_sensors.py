"""Simulated sensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedpriv.data import load
from fedpriv.errors import ConfigError


def test_sensor_readings_follow_linear_model():
    split = load("sensors", n_sensors=400, readings=5, dim=3, seed=2)
    rows, values = (part.double().numpy() for part in split.train.tensors)
    tests, seen = (part.double().numpy() for part in split.test.tensors)
    assert rows.shape == (2000, 3)
    assert rows.min() >= 0
    assert 9.9 < rows.max() <= 10
    point = np.linalg.lstsq(rows, values, rcond=None)[0]
    # noise of variance 1, in training and in test readings
    assert np.square(rows @ point - values).mean() == pytest.approx(1, abs=0.15)
    assert np.square(tests @ point - seen).mean() == pytest.approx(1, abs=0.2)
    assert split.writers is not None
    assert split.writers.bincount().tolist() == [5] * 400
    assert split.n_classes is None


def test_sensors_depend_on_seed_only():
    first, again, other = load("sensors"), load("sensors"), load("sensors", seed=1)
    assert torch.equal(first.train.tensors[1], again.train.tensors[1])
    assert not torch.equal(first.train.tensors[1], other.train.tensors[1])


@pytest.mark.parametrize("name", ["n_sensors", "readings", "dim", "n_test"])
def test_sensors_zero_count_raises(name: str):
    with pytest.raises(ConfigError, match=rf"data\.{name} = 0: must be a whole number, at least 1"):
        load("sensors", **{name: 0})
