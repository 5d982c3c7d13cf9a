"""Metrics of reported models on public test data.

Reported models are computed from releases and test data count as public, so these cost no epsilon.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils.data import DataLoader, Dataset

from fedpriv.clients.client import Loss, check_finite
from fedpriv.errors import DataError, cut, in_short
from fedpriv.measuring import metrics
from fedpriv.oracle.backends.functional import Functional

_AT_ONCE = 16  # models in a forward pass
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Evaluator:
    """Test metrics: those of the table's `TESTED` that have a meaning.

    Args:
        model: Template; it is copied, and tested in eval mode.
        loss: Maps (outputs, targets) of a batch to their mean loss.
        test: Public test examples, as (input, target).
        batch_size: Examples at a time.
        batched: Whether vmap can batch the model. Then `of_each` evaluates several models in one forward pass, which
            takes half to two thirds of the time for linear layers; models with convolutions are evaluated one after
            another, since together they take two to three times as long (torch 2.13, CPU).
    """

    def __init__(
        self, model: nn.Module, loss: Loss, test: Dataset[Any], batch_size: int = 1000, *, batched: bool = False
    ) -> None:
        in_turn = any(isinstance(layer, _CONVOLUTIONS) for layer in model.modules())
        self._rows = _AT_ONCE if batched and not in_turn else 1
        # a copy, for a user may have put parts of the model in eval mode and not others
        self._functional, self._loss = Functional(copy.deepcopy(model).eval(), loss), loss
        parameter = next(model.parameters())
        self._batches = [(_like(x, parameter), _like(y, parameter)) for x, y in _read(test, batch_size)]
        if not self._batches:
            raise DataError("the test data are empty: give at least one example, or leave test data out")
        self._chosen: dict[int, list[tuple[Tensor, Tensor]]] = {}

    @torch.no_grad()
    def try_out(self, params: Tensor) -> None:
        """Evaluate the examples with the smallest and the largest target of each batch, to find errors early.

        Raises:
            DataError: model or loss cannot be computed on them; says why.
        """
        named = self._functional.unflatten(params)
        for inputs, targets in self._batches:
            first = targets.flatten(1)[:, 0] if targets.dim() > 1 else targets
            for at in {int(first.argmin()), int(first.argmax())}:
                one = slice(at, at + 1)
                try:
                    self._loss(self._functional.outputs(named, inputs[one]), targets[one])
                except Exception as error:  # whatever a user's model or loss raises
                    told = f"shape {tuple(inputs.shape[1:])} and target {cut(str(targets[at].tolist()))}"
                    fix = f"test data must be like the clients' ({in_short(error)})"
                    raise DataError(f"model and loss do not take a test example of {told}: {fix}") from error

    def __call__(self, params: Tensor) -> dict[str, float]:
        """`{"test_loss": ..., "test_accuracy": ...}` of one model `[dim]`."""
        return self._of(params[None], None)[0]

    def of_each(self, rows: Tensor, examples: int) -> list[dict[str, float]]:
        """The same for several models `[n, dim]`, on `examples` test examples that lie evenly among all."""
        return [found for part in rows.split(self._rows) for found in self._of(part, examples)]

    @torch.no_grad()
    def _of(self, rows: Tensor, examples: int | None) -> list[dict[str, float]]:
        totals = [dict[str, Tensor]() for _ in rows]
        for inputs, targets in self._batches if examples is None else self._some(examples):
            for outputs, total in zip(self._outputs(rows, inputs), totals, strict=True):
                for metric in metrics.TESTED:
                    part = metric.function(outputs, targets, self._loss)
                    if part is not None:
                        total[metric.name] = total.get(metric.name, 0.0) + part
        return [{name: metrics.value_of(part) for name, part in total.items()} for total in totals]

    def _outputs(self, rows: Tensor, inputs: Tensor) -> Iterable[Tensor]:
        """Of each model: `[n, dim], [b, ...] -> n times [b, ...]`."""

        def of_one(row: Tensor) -> Tensor:
            return self._functional.outputs(self._functional.unflatten(row), inputs)

        return vmap(of_one)(rows) if len(rows) > 1 else map(of_one, rows)

    def _some(self, examples: int) -> list[tuple[Tensor, Tensor]]:
        """The first ones may be easier than the rest, or all of one class."""
        if examples not in self._chosen:
            inputs, targets = (torch.cat(parts) for parts in zip(*self._batches, strict=True))
            count = min(examples, len(targets))
            at = torch.arange(count, device=targets.device) * len(targets) // count
            size = len(self._batches[0][1])
            self._chosen[examples] = list(zip(inputs[at].split(size), targets[at].split(size), strict=True))
        return self._chosen[examples]


def _read(test: Dataset[Any], batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    try:
        for inputs, targets in DataLoader(test, batch_size=batch_size):
            check_finite(inputs, targets)
            yield inputs, targets
    except Exception as error:  # whatever a user's data set raises
        fix = "give pairs (input, target) of tensors of one shape"
        raise DataError(f"the test data cannot be read ({in_short(error)}): {fix}") from error


def spread(values: Sequence[float]) -> dict[str, float]:
    """`{"min": ..., "mean": ..., "max": ...}`."""
    return {"min": min(values), "mean": sum(values) / len(values), "max": max(values)}


def _like(values: Tensor, parameter: Tensor) -> Tensor:
    return values.to(parameter) if values.is_floating_point() else values.to(parameter.device)
