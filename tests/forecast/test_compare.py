"""Several settings on one task: the runs are those of `train`, and their price counts the choice."""

from __future__ import annotations

import math
from typing import Any

import matplotlib as mpl
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import fedpriv
from fedpriv.errors import ConfigError

mpl.use("agg")
X = torch.randn(400, 4, generator=torch.Generator().manual_seed(0))
DATA, TEST = (TensorDataset(x, (x[:, 0] > 0).long()) for x in X.split(200))
COMMON: dict[str, Any] = {"privacy": fedpriv.Privacy(epsilon=2.0), "rounds": 4, "test": TEST}
SETTINGS: dict[str, dict[str, Any]] = {
    "fedavg": {"strategy": fedpriv.fedavg(1.0)},
    "iadmm": {"strategy": fedpriv.inexact_admm(), "rounds": 6},
}


def clients() -> list[fedpriv.Client]:
    torch.manual_seed(0)
    return fedpriv.make_clients(nn.Linear(4, 2), nn.CrossEntropyLoss(), [DATA])


def test_compare_trains_settings_and_seeds_and_composes():
    lines: list[str] = []
    comparison = fedpriv.compare(SETTINGS, clients, COMMON, seeds=2, progress=lines.append)
    assert lines == ["fedavg, seed 0", "fedavg, seed 1", "iadmm, seed 0", "iadmm, seed 1"]
    every = [result for results in comparison.results.values() for result in results]
    assert [result.rounds for result in every] == [4, 4, 6, 6]
    assert comparison.spent == fedpriv.total(every)
    assert comparison.spent is not None and 3 < comparison.spent.epsilon < 8
    table = comparison.table()
    assert table[0] == ["setting", "test accuracy, mean +- sd", "test loss, mean +- sd", "epsilon of one run", "rounds"]
    assert table[2][0] == "iadmm" and table[2][-2:] == ["2", "6"] and "+-" in table[2][1]
    assert "all 4 runs together, and so the choice of the best: epsilon=" in str(comparison)
    assert not torch.equal(every[0].params, every[1].params), "runs have noise of their own"


def test_compare_accepts_strategy_as_setting():
    comparison = fedpriv.compare({"fedavg": fedpriv.fedavg(1.0)}, clients, COMMON, seeds=1)
    assert comparison.results["fedavg"][0].rounds == 4


def test_compare_wrong_arguments_suggest_fix():
    with pytest.raises(ConfigError, match="lambda: make_clients"):
        fedpriv.compare(SETTINGS, clients(), COMMON)
    with pytest.raises(
        ConfigError, match=r'is an argument of train and not of compare: write common=\{"rounds": \.\.\.\}'
    ):
        fedpriv.compare(SETTINGS, clients, COMMON, rounds=3)
    with pytest.raises(ConfigError, match=r"settings\.a = 0\.5: must be a strategy"):
        fedpriv.compare({"a": 0.5}, clients, COMMON)


def test_compare_plot_has_curve_per_setting():
    figure = fedpriv.compare(SETTINGS, clients, COMMON, seeds=2).plot()
    left, right = figure.axes
    assert [line.get_label() for line in left.lines] == ["fedavg", "iadmm"]
    assert [len(line.get_xdata()) for line in right.lines] == [4, 6]


def test_compare_non_private_cost_is_infinite():
    options = {**COMMON, "privacy": fedpriv.Privacy(noise_on="none")}
    comparison = fedpriv.compare({"exact": {"strategy": fedpriv.fedavg(1.0)}}, clients, options, seeds=1)
    assert comparison.spent is not None and math.isinf(comparison.spent.epsilon)
    assert comparison.table()[1][-2] == "infinite"


@pytest.mark.parametrize(
    ("settings", "common", "reason"),
    [
        ({}, COMMON, "must contain at least one setting"),
        ({"a": {"stratgy": 1}}, COMMON, r"settings\.a\.stratgy.*did you mean 'strategy'"),
        ({"a": {"folder": "x"}}, COMMON, "several runs"),
        (SETTINGS, {**COMMON, "secret_seed": 1}, r"common\.secret_seed.*several runs"),
    ],
)
def test_compare_invalid_settings_raise(settings: Any, common: Any, reason: str):
    with pytest.raises(ConfigError, match=reason):
        fedpriv.compare(settings, clients, common)
