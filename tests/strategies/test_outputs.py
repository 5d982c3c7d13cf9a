"""The moving average of the rounds' models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.config import load_config

RUN = Path(__file__).parents[1] / "run.yaml"


def by_torch(models: list[Tensor], decay: float) -> Tensor:
    """Of a module whose weight is a row, updated after each of these."""
    model = nn.Linear(models[0].numel(), 1, bias=False).double()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
    for row in models:
        model.weight.data = row[None].clone()
        average.update_parameters(model)
    return average.module.weight.detach()[0]


@pytest.mark.parametrize("expanded", [True, False])
def test_ema_matches_torch(expanded: bool) -> None:
    torch.manual_seed(0)
    models = [torch.randn(1 if expanded else 3, 4, dtype=torch.float64).expand(3, -1) for _ in range(6)]
    output = fp.Ema(0.7)
    state = output.init(models[0])
    for rows in models:
        found, state = output(rows, state)
    assert len(found) == (1 if expanded else 3)
    for i, row in enumerate(found):
        torch.testing.assert_close(row, by_torch([rows[i] for rows in models], 0.7), rtol=1e-12, atol=1e-12)


def training(folder: Path, average: fp.Ema | None, **options: Any) -> fp.Training:
    torch.manual_seed(0)
    data = [TensorDataset(torch.randn(6, 4), torch.randint(0, 3, (6,))) for _ in range(3)]
    clients = fp.make_clients(nn.Linear(4, 3), nn.CrossEntropyLoss(), data)
    settings = {"rounds": 6, "seed": 0, "secret_seed": 1, "checkpoint_every": 1}
    strategy = fp.gradient_descent(0.5, momentum=0.5, average=average)
    return fp.Training(clients, strategy, fp.Privacy(noise_multiplier=1.0), folder=folder, **settings, **options)


def test_ema_run_resumes_exactly(tmp_path: Path) -> None:
    whole = training(tmp_path / "a", fp.Ema(0.9))
    models = [whole.progress.received.chunk(2, 1)[1][0].double() for _ in whole]
    torch.testing.assert_close(whole.result().params.double(), by_torch(models, 0.9), rtol=1e-5, atol=1e-6)
    stopped = training(tmp_path / "b", fp.Ema(0.9))
    for report in stopped:
        if report.round == 4:
            break
    assert stopped.folder is not None
    stopped.folder.close()
    again = training(tmp_path / "b", fp.Ema(0.9), resume=True)
    list(again)
    assert torch.equal(again.result().params, whole.result().params)


def test_ema_from_yaml() -> None:
    config = load_config(RUN, ["strategy={name: fedavg, learning_rate: 1, average: {decay: .9}}"])
    assert config.recipe(10).strategy.output == fp.Ema(0.9)
    with pytest.raises(fp.ConfigError, match=r"strategy.average.decay = 1: must be a number in \(0, 1\)"):
        load_config(RUN, ["strategy={name: fedavg, learning_rate: 1, average: {decay: 1}}"])
    with pytest.raises(fp.ConfigError, match=r"average.decays = .* did you mean 'decay'"):
        load_config(RUN, ["strategy={name: fedavg, learning_rate: 1, average: {decays: 1}}"])
