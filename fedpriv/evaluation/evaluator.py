"""Metrics of reported models on public test data.

Reported models are computed from releases and test data count as public, so these cost no epsilon.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils.data import DataLoader, Dataset

from fedpriv.clients.client import Loss
from fedpriv.clients.layout import Layout, copy_trainable
from fedpriv.clients.reading import Pair, check_finite, pair_of
from fedpriv.data.nested import Nested, each, first, joined
from fedpriv.distributed.devices import fetched
from fedpriv.errors import DataError, cut, in_short
from fedpriv.evaluation import metrics
from fedpriv.evaluation.custom_metrics import MetricSet
from fedpriv.evaluation.tasks import Task, task_of
from fedpriv.models.example_losses import example_losses
from fedpriv.oracle.backends.functional import Functional

_AT_ONCE = 16  # models in a forward pass
_EXAMPLES = 2**14  # of all models in a forward pass on another device than a processor
_RANKED = ("binary", "multilabel")  # tasks with metrics of all examples together
Batches = list[Pair]
Answer = tuple[Tensor | list[Any], Nested]
"""Each model's outputs on a batch, and the targets."""
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Evaluator:
    """Test metrics: those of the table's `TESTED` that have a meaning.

    Args:
        model: Template; it is copied, and tested in eval mode.
        loss: Maps (outputs, targets) of a batch to their mean loss.
        test: Public test examples, as (input, target).
        batch_size: Examples at a time.
        batched: Whether to let vmap batch the model, where it can. Then `of_each` evaluates several models in one
            forward pass, which takes half to two thirds of the time for linear layers; on a processor models with
            convolutions are evaluated one after another, since together they take two to three times as long (torch
            2.13).
        own: The user's own metrics, of single models.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        test: Dataset[Any],
        batch_size: int = 1000,
        *,
        batched: bool = False,
        own: MetricSet | None = None,
    ) -> None:
        self._own = own or MetricSet()
        self._batched, self._in_turn = batched, any(isinstance(layer, _CONVOLUTIONS) for layer in model.modules())
        # a copy, for a user may have put parts of the model in eval mode and not others
        self._functional, self._loss = Functional(copy_trainable(model).eval(), loss), loss
        parameter = next(model.parameters())
        self._parameter, self._batch_size = parameter, batch_size
        self._start = Layout.of(model).row_of(model)
        self._batches = self.batches_of(test)
        self._chosen: dict[int, Batches] = {}
        self._metrics = [row for row in metrics.TESTED if row.name not in self._own.names]

    @cached_property
    @torch.no_grad()
    def task(self) -> Task:
        """What is predicted, by the loss, all test targets and the shape of outputs."""
        inputs, targets = joined(self._batches)
        few = each(lambda t: t[:2], inputs)
        outputs = self._functional.outputs(self._functional.unflatten(self._start), few)
        return task_of(self._loss, outputs, targets)

    @torch.no_grad()
    def try_out(self, params: Tensor) -> None:
        """Evaluate the examples with the smallest and the largest target of each batch, to find errors early.

        Raises:
            DataError: model or loss cannot be computed on them; says why.
        """
        named = self._functional.unflatten(params)
        for inputs, targets in self._batches:
            if first(targets).dim() > 1:
                labels = first(targets).flatten(1)[:, 0]
            else:
                labels = first(targets)
            for at in {int(labels.argmin()), int(labels.argmax())}:
                x, y = each(lambda t, at=at: t[at : at + 1], (inputs, targets))
                try:
                    self._mean_loss(self._functional.outputs(named, x), y)
                except Exception as error:  # whatever a user's model or loss raises
                    told = f"shape {tuple(first(x).shape[1:])} and target {cut(str(first(y)[0].tolist()))}"
                    fix = f"test data must be like the clients' ({in_short(error)})"
                    raise DataError(f"model and loss do not take a test example of {told}: {fix}") from error
        if self._own.given:
            self(params)
        self._batched = self._batched and self._can_batch(params)

    def batches_of(self, test: Dataset[Any]) -> Batches:
        """The examples of a test set, where the model is.

        Raises:
            DataError: there are none, or they cannot be read.
        """
        like = self._parameter
        batches = [each(lambda t: _like(t, like), both) for both in _read(test, self._batch_size)]
        if not batches:
            raise DataError("the test data are empty: give at least one example, or leave test data out")
        return batches

    @torch.no_grad()
    def on(self, params: Tensor, batches: Batches) -> dict[str, float]:
        """Metrics of one model `[dim]` on other test examples; without the user's own."""
        return self._read([self._totals(self._answers(params[None], batches))])[0]

    @torch.no_grad()
    def names(self, params: Tensor) -> list[str]:
        """Names of the metrics that have a meaning for this model `[dim]`."""
        one = each(lambda t: t[:1], self._batches[0])
        of_all = [row.name for row in self._metrics if row.whole and self.task.kind in _RANKED]
        return [*self._totals(self._answers(params[None], [one])), *of_all, *self._own.names]

    @torch.no_grad()
    def _can_batch(self, params: Tensor) -> bool:
        """Whether vmap can batch the model as it is in eval mode, and outputs are one tensor."""
        try:
            inputs = each(lambda t: t[:2], self._batches[0][0])
            return isinstance(self._outputs(params.expand(2, -1), inputs), Tensor)
        except Exception:  # whatever torch or a user's model raises
            return False

    @torch.no_grad()
    def __call__(self, params: Tensor) -> dict[str, float]:
        """`{"test_loss": ..., "test_accuracy": ...}` of one model `[dim]`, and the user's own metrics."""
        answers = self._answers(params[None], self._batches)
        if not self._own.given:
            return self._read([self._totals(answers)])[0]
        kept = [*answers]
        of_own = self._own.of([(outputs[0], targets) for outputs, targets in kept])
        return self._read([self._totals(kept)])[0] | of_own

    @torch.no_grad()
    def of_each(self, rows: Tensor, examples: int) -> list[dict[str, float]]:
        """The same for several models `[n, dim]`, on `examples` test examples that lie evenly among all."""
        batches = self._some(examples)
        parts = rows.split(self._models_at_once(batches, rows))
        return self._read([self._totals(self._answers(part, batches)) for part in parts])

    def _mean_loss(self, outputs: Any, targets: Nested) -> Tensor:  # noqa: ANN401
        """The mean of the examples' losses, which is what a run minimises; see `example_losses`."""
        if isinstance(outputs, Tensor):
            return example_losses(self._loss, outputs, targets).mean()
        return self._loss(outputs, targets)

    def _models_at_once(self, batches: Batches, rows: Tensor) -> int:
        if rows.device.type == "cpu":
            if self._batched and not self._in_turn:
                return _AT_ONCE
            return 1
        if self._batched:
            return max(_EXAMPLES // len(first(batches[0])), 1)
        return 1

    def _answers(self, rows: Tensor, batches: Batches) -> Iterator[Answer]:
        """Each model's outputs `[n, b, ...]` on each batch, and the targets."""
        for inputs, targets in batches:
            yield self._outputs(rows, inputs), targets

    def _totals(self, answers: Iterable[Answer]) -> dict[str, Tensor]:
        """By metric: numerators and denominators of each model, `[n, 2, groups]`."""
        totals: dict[str, Tensor] = {}
        by_batch = [metric for metric in self._metrics if not metric.whole]
        if self.task.kind in _RANKED:
            of_all = [metric for metric in self._metrics if metric.whole]
        else:
            of_all = []
        kept: list[Answer] = []
        for outputs, targets in answers:
            for metric in by_batch:
                part = self._parts(metric, outputs, targets)
                if part is not None:
                    if metric.name in totals:
                        totals[metric.name] = totals[metric.name] + part
                    else:
                        totals[metric.name] = part
            kept += [(outputs, targets)] if of_all else []
        for metric in of_all:
            all_outputs = [torch.cat(parts) for parts in zip(*(outputs for outputs, _ in kept), strict=True)]
            part = self._parts(metric, all_outputs, joined([targets for _, targets in kept]))
            if part is not None and bool(part[:, 1].any()):  # else no label has both values
                totals[metric.name] = part
        return totals

    def _parts(
        self, metric: metrics.Metric[metrics.OfTest], outputs: Tensor | list[Any], targets: Nested
    ) -> Tensor | None:
        """Of each model's outputs `[n, b, ...]`; None where the metric has no meaning."""

        def of_one(outputs: Any) -> Tensor | None:  # noqa: ANN401
            return metric.function(outputs, targets, self._mean_loss, self.task)

        found = of_one(outputs[0])
        if found is None or len(outputs) == 1:
            if found is None:
                return None
            return found.unsqueeze(0)
        if metric.together and isinstance(outputs, Tensor):
            return vmap(of_one)(outputs)
        others = (of_one(other) for other in outputs[1:])
        return torch.stack([found, *(part for part in others if part is not None)])

    def _read(self, totals: Sequence[dict[str, Tensor]]) -> list[dict[str, float]]:
        """Each model's metrics; all are copied from the device at once."""
        names = list(totals[0])
        parts = fetched([torch.cat([total[name] for total in totals]) for name in names])
        roots = {row.name for row in self._metrics if row.root}
        of_models = zip(
            *(
                [metrics.value_of(model, root=name in roots) for model in part]
                for name, part in zip(names, parts, strict=True)
            ),
            strict=True,
        )
        return [dict(zip(names, values, strict=True)) for values in of_models]

    def _outputs(self, rows: Tensor, inputs: Nested) -> Tensor | list[Any]:
        """Of each model: `[n, dim], [b, ...] -> [n, b, ...]`, or a list of the models' outputs."""

        def of_one(row: Tensor) -> Any:  # noqa: ANN401
            return self._functional.outputs(self._functional.unflatten(row), inputs)

        if len(rows) > 1:
            return vmap(of_one)(rows)
        return [of_one(rows[0])]

    def _some(self, examples: int) -> Batches:
        """The first ones may be easier than the rest, or all of one class."""
        if examples not in self._chosen:
            both = joined(self._batches)
            size, of_all, label = len(first(self._batches[0])), len(first(both)), first(both)
            count = min(examples, of_all)
            at = torch.arange(count, device=label.device) * of_all // count
            self._chosen[examples] = [each(lambda t, part=part: t[part], both) for part in at.split(size)]
        return self._chosen[examples]


def _read(test: Dataset[Any], batch_size: int) -> Iterator[Pair]:
    try:
        for batch in DataLoader(test, batch_size=batch_size):
            both = pair_of(batch)
            check_finite(*both)
            yield both
    except Exception as error:  # whatever a user's data set raises
        fix = "give pairs (input, target) of tensors of one shape, or of dicts and tuples of tensors"
        raise DataError(f"the test data cannot be read ({in_short(error)}): {fix}") from error


def spread(values: Sequence[float]) -> dict[str, float]:
    """`{"min": ..., "mean": ..., "max": ...}`."""
    return {"min": min(values), "mean": sum(values) / len(values), "max": max(values)}


def _like(values: Tensor, parameter: Tensor) -> Tensor:
    if values.is_floating_point():
        return values.to(parameter)
    return values.to(parameter.device)
