"""Constraints that hold in sum over clients, against known answers."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.errors import ConfigError


def trained(targets: list[float], weights: list[float] | None = None) -> dict:
    """Each client's objective is `(w - y)^2`; in sum, `weights (w - y + 1) <= 0`."""
    data = [TensorDataset(torch.ones(2, 1), torch.full((2, 1), target)) for target in targets]
    below = fp.Function(lambda model, x, y: (model(x).mean() - y.mean() + 1).view(1))
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    clients = fp.make_coupled_clients(model, nn.MSELoss(), data, below, weights=weights)
    run = fp.Training(
        clients,
        fp.proximal_al(fp.Outer(10.0, 1e-3, 1e-3, 1e-4), 0.3),
        fp.Privacy(noise_on="none"),
        rounds=500,
        compute=fp.Compute(dtype="float64", device="cpu"),
    )
    list(run)
    result = run.result()
    return result.to_json() | {"w": result.params[-1].item(), "slacks": result.params[:-1].tolist()}


def test_coupled_constraint_known_optimum() -> None:
    """The sum allows w <= 3 - 1; the multiplier is 2 (3 - 2) / 3 for each client, and slacks are w - y + 1."""
    result = trained([1.0, 2.0, 6.0])
    assert result["converged"]
    assert result["w"] == pytest.approx(2.0, abs=1e-3)
    assert result["slacks"] == pytest.approx([2.0, 1.0, -3.0], abs=1e-3)
    assert [row[0] for row in result["multipliers"]] == pytest.approx([2 / 3] * 4, abs=1e-3)


def test_coupled_weights_shift_optimum() -> None:
    """With weights 3 and 1 the sum is `3 (w - 0) + (w - 3) <= 0`; without the constraint w would be 2.5."""
    assert trained([1.0, 4.0], [3.0, 1.0])["w"] == pytest.approx(0.75, abs=1e-3)


def test_coupled_weight_count_raises() -> None:
    with pytest.raises(ConfigError, match="one number for each of the 2 data sets"):
        trained([1.0, 4.0], [1.0])
