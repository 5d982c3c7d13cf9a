"""Tests of your own code, without private data: `pytest`."""

import torch
from algorithm import heavy_ball
from data import CLASSES, patients
from model import Net

import fedpriv


def test_a_row_is_encoded_within_its_public_ranges() -> None:
    """Without a look at other rows; a value outside of its range counts as the nearest end."""
    split = patients()
    inputs, target = split.train[0]
    assert inputs.abs().max() <= 1
    assert int(target) in range(len(CLASSES))


def test_the_model_treats_examples_alone() -> None:
    """So that an example changes its own gradient and no other one."""
    model = Net(n_features=4, n_classes=2)
    batch = torch.randn(3, 4)
    assert torch.allclose(model(batch)[1], model(batch[1:2])[0], atol=1e-6)


def test_the_algorithm_finds_a_minimum_without_noise() -> None:
    """On data that a line divides."""
    inputs = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    targets = (inputs[:, 0] > 0).long()
    owner = torch.utils.data.TensorDataset(inputs, targets)
    clients = fedpriv.make_clients(torch.nn.Linear(2, 2), torch.nn.functional.cross_entropy, [owner])
    result = fedpriv.train(clients, heavy_ball(), fedpriv.Privacy(noise_on="none"), rounds=50, test=owner)
    assert result.test_accuracy is not None
    assert result.test_accuracy > 0.95
