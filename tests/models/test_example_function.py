"""A user's function of one example: whatever it does, no example decides about another one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import fedpriv as fp
from fedpriv import ConfigError

X = torch.tensor([[1.0, -2.0], [0.5, 3.0], [-4.0, 0.0], [2.0, 2.0]])
Y = torch.tensor([0, 1, 1, 0])
WEIGHTS = torch.tensor([1.0, 2.0])


def flags(function, x: Tensor = X, y: Tensor = Y) -> list[bool]:
    (group,) = fp.SubsetLossAtMost(function, 0.1, fraction=0.5).sums().groups
    return group.members(x, y).tolist()


def of_values(x, y):
    return (x @ WEIGHTS > 1) & (y == 1)


def test_flags_match_function_of_single_examples():
    assert (
        flags(of_values)
        == [bool(of_values(X[i : i + 1], Y[i : i + 1])) for i in range(4)]
        == [False, True, False, False]
    )


def test_dictionaries_of_inputs_accepted():
    doubled = {"age": X[:, :1], "all": X}
    assert flags(lambda x, y: (x["age"] + x["all"]).sum() > 0, doubled) == [True, True, False, True]


def test_memory_of_first_example_has_no_effect():
    seen = list[Tensor]()

    def at_least_first(x, y):
        seen.append(x)
        return x[:, 0] >= seen[0][:, 0]

    assert flags(at_least_first) == [True] * 4  # compared with itself
    assert flags(at_least_first, X - 100) == [True] * 4
    assert len(seen) == 1  # and not called again


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x[0, 0] > 0 if x.sum() > 0 else y == 1,
        lambda x, y: torch.tensor([x[0, 0].item() > 0]),
        lambda x, y: torch.tensor([bool(x.numpy().sum() > 0)]),
        lambda x, y: x[:, 0] > torch.rand(1),
        lambda x, y: WEIGHTS.add_(x[0]).sum() > 0,
        lambda x, y: x[:, 0],
        lambda x, y: x > 0,
        lambda x, y: "yes",
        lambda x, y: x[:, 7] > 0,
    ],
)
def test_other_than_torch_operations_on_one_example_raise(function):
    with pytest.raises(ConfigError, match=r"problem\.constraints\.SubsetLossAtMost.*one example"):
        flags(function)
    assert WEIGHTS.tolist() == [1.0, 2.0]


def test_error_same_for_all_data():
    def branching(x, y):
        return x[:, 0] > 0 if x.sum() > 0 else y == 1

    texts = set()
    for x in (X, -X, X * float("nan")):
        with pytest.raises(ConfigError) as error:
            flags(branching, x)
        texts.add(str(error.value))
    assert len(texts) == 1
