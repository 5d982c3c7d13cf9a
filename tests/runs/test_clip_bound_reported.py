"""The bound of adaptive clipping follows from released messages: each round reports it."""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import fedpriv as fp


def test_adaptive_clip_bound_in_history() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.rand(50, 4, generator=generator)
    datasets = [TensorDataset(rows[i : i + 10], (rows[i : i + 10, 0] > 0.5).long()) for i in range(0, 50, 10)]
    clients = fp.make_clients(torch.nn.Linear(4, 2), cross_entropy, datasets[1:])
    strategy = fp.adaptive_clipping(fp.fedavg(0.1), initial=0.1, clip_learning_rate=0.2)
    privacy = fp.Privacy(noise_on="message", unit="client", epsilon=50, clip=fp.Clip(1))
    result = fp.train(clients, strategy, privacy, rounds=4, test=datasets[0], seed=0, secret_seed=0)
    bounds = [row["clip_bound"] for row in result.history]
    assert len(bounds) == 4
    # a round moves the logarithm by 0.2 (b - 1/2), b in [0, 1]
    for before, after in zip([0.1, *bounds], bounds, strict=False):
        assert 0.9 < after / before < 1.11
    assert len({*bounds}) > 1
