"""Simulated sensors that measure one point: a regression without a file."""

from __future__ import annotations

import numpy as np
import torch
from torch.utils.data import TensorDataset

from fedpriv.data.base import Split
from fedpriv.settings import Count, Whole, validate_arguments


@validate_arguments("data")
def sensors(
    *, n_sensors: Count = 100, readings: Count = 3, dim: Count = 2, n_test: Count = 1000, seed: Whole = 0
) -> Split:
    """Simulates readings `v = <M, x> + N(0, 1)` of one x ~ N(0, I), rows M uniform on [0, 10].

    Inputs are M `[..., dim]`, targets v.

    Args:
        n_sensors: Number of sensors: the clients, with `partition: {kind: by_writer}`.
        readings: Number of readings of each sensor.
        dim: Dimension of x.
        n_test: Number of test readings of the same x.
        seed: Seed of all draws.

    Returns:
        The training and test examples.

    Source: Xie, Liu and Chai (2025), eq 42; they refer to another paper for the distributions, which are our reading.
    """
    draws = np.random.default_rng(seed)
    point = draws.standard_normal(dim)
    datasets: list[TensorDataset] = []
    for count in (n_sensors * readings, n_test):
        rows = draws.uniform(0, 10, (count, dim))
        values = rows @ point + draws.standard_normal(count)
        datasets.append(TensorDataset(torch.from_numpy(rows).float(), torch.from_numpy(values).float()))
    owners = torch.arange(n_sensors).repeat_interleave(readings)
    return Split(datasets[0], datasets[1], None, owners, f"{readings} readings of each of {n_sensors} sensors")
