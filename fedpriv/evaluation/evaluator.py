"""Metrics of reported models on public test data.

Reported models are computed from released values, and test data are treated as public, so these metrics do not increase
epsilon.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, Dataset

from fedpriv.clients.client import Loss
from fedpriv.clients.layout import Layout, copy_trainable
from fedpriv.clients.reading import Pair, check_finite, split_pair
from fedpriv.distributed.devices import fetch_to_cpu
from fedpriv.errors import DataError, summarize_error, truncate
from fedpriv.evaluation import metrics
from fedpriv.evaluation.custom_metrics import MetricSet
from fedpriv.evaluation.tasks import Task, infer_task
from fedpriv.models.batching import vmap
from fedpriv.models.example_losses import example_losses
from fedpriv.models.nested import Nested, concatenate_trees, first_leaf, map_tree
from fedpriv.oracle.backends.functional import Functional

_AT_ONCE = 16  # models in a forward pass
_EXAMPLES = 2**14  # of all models in a forward pass on another device than a processor
_NO_TOKEN_METRICS = (
    "test accuracy and perplexity are left out. They count the targets at each position, but which target value a "
    "custom loss function ignores is unknown. Use torch.nn.CrossEntropyLoss(ignore_index=...), or functools.partial "
    "of torch.nn.functional.cross_entropy, or pass your own metrics"
)
_RANKED = ("binary", "multilabel")  # tasks with metrics of all examples together
Batches = list[Pair]
Answer = tuple[Tensor | list[Any], Nested]
"""Each model's outputs on a batch, and the targets."""
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Evaluator:
    """Computes the test metrics of models: the members of `metrics.TESTED` that are defined for the task.

    Args:
        model: The model; it is copied and tested in eval mode, with the parameters that are passed to each call.
        loss: Maps (outputs, targets) of a batch to their mean loss.
        test: Public test examples, as (input, target).
        batch_size: Examples at a time.
        batched: True allows vmap to batch several models, if vmap supports the model. Then `of_each` evaluates several
            models in one forward pass, which takes half to two thirds of the time for linear layers; on a CPU, models
            with convolutions are evaluated one after another, because together they take two to three times as long
            (torch 2.13).
        custom: Custom metrics, which are computed for single models only.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        test: Dataset[Any],
        batch_size: int = 1000,
        *,
        batched: bool = False,
        custom: MetricSet | None = None,
    ) -> None:
        self._custom = custom or MetricSet()
        self._batched = batched
        self._needs_gradients = False
        self._has_convolutions = any(isinstance(layer, _CONVOLUTIONS) for layer in model.modules())
        # a copy, since the user's model stays in the mode in which its layers are
        self._functional = Functional(copy_trainable(model).eval(), loss)
        self._given_loss = loss
        self._loss = self._functional.loss
        self._parameter = next(model.parameters())
        self._batch_size = batch_size
        self._start = Layout.of(model).row_of(model)
        self._batches = self.batches_of(test)
        self._chosen: dict[int, Batches] = {}
        self._metrics = [row for row in metrics.TESTED if row.name not in self._custom.names]

    @cached_property
    @torch.no_grad()
    def task(self) -> Task:
        """The task of the model, by the loss, all test targets and the shape of outputs."""
        inputs, targets = concatenate_trees(self._batches)
        few = map_tree(lambda t: t[:2], inputs)
        outputs = self._forward(self._functional.unflatten(self._start), few)
        return infer_task(self._given_loss, outputs, targets)

    @property
    def warnings(self) -> list[str]:
        """Metrics that are left out because the loss does not show which targets it ignores."""
        if self.task.kind == "tokens" and self.task.ignored is None:
            return [_NO_TOKEN_METRICS]
        return []

    @torch.no_grad()
    def try_out(self, params: Tensor) -> None:
        """Evaluates the examples with the smallest and the largest target of each batch, to find errors early.

        Raises:
            DataError: If the model, loss or a metric cannot be computed on them; the message contains the reason.
        """
        named = self._functional.unflatten(params)
        for inputs, targets in self._batches:
            labels = first_leaf(targets).reshape(len(first_leaf(targets)), -1)
            if labels.dtype == torch.bool:
                labels = labels.byte()
            for index in {int(labels.amin(1).argmin()), int(labels.amax(1).argmax())}:
                x, y = map_tree(lambda t, index=index: t[index : index + 1], (inputs, targets))
                try:
                    self._totals([([self._forward(named, x)], y)])
                except Exception as error:  # a user's model or loss can raise anything
                    description = (
                        f"shape {tuple(first_leaf(x).shape[1:])} and target {truncate(str(first_leaf(y)[0].tolist()))}"
                    )
                    fix = "give the test data the same form as the clients' data"
                    raise DataError(
                        f"the model and the loss cannot process a test example of {description} "
                        f"({summarize_error(error)}): {fix}"
                    ) from error
        if self._custom.metrics_by_name:
            self(params)
        self._batched = self._batched and self._can_batch(params)

    def batches_of(self, test: Dataset[Any]) -> Batches:
        """Returns the examples of a test set in batches, on the model's device.

        Raises:
            DataError: If there are no examples, or they cannot be read.
        """
        parameter = self._parameter
        batches = [map_tree(lambda t: _like(t, parameter), pair) for pair in _read(test, self._batch_size)]
        if not batches:
            raise DataError("the test data are empty: pass at least one example, or leave test data out")
        return batches

    @torch.no_grad()
    def on(self, params: Tensor, batches: Batches) -> dict[str, float]:
        """Returns metrics of one model `[dim]` on other test examples; without custom metrics."""
        return self._read([self._totals(self._answers(params[None], batches))])[0]

    @torch.no_grad()
    def names(self, params: Tensor) -> list[str]:
        """Returns the names of the metrics that have a meaning for this model `[dim]`."""
        first_example = map_tree(lambda t: t[:1], self._batches[0])
        of_all_examples = [row.name for row in self._metrics if row.whole and self.task.kind in _RANKED]
        return [*self._totals(self._answers(params[None], [first_example])), *of_all_examples, *self._custom.names]

    @torch.no_grad()
    def _can_batch(self, params: Tensor) -> bool:
        """Returns True if vmap can batch the model as it is in eval mode, and outputs are one tensor."""
        try:
            inputs = map_tree(lambda t: t[:2], self._batches[0][0])
            return isinstance(self._outputs(params.expand(2, -1), inputs), Tensor)
        except Exception:  # torch or a user's model can raise anything
            return False

    @torch.no_grad()
    def __call__(self, params: Tensor) -> dict[str, float]:
        """Returns `{"test_loss": ..., "test_accuracy": ...}` of one model `[dim]`, and the custom metrics."""
        answers = self._answers(params[None], self._batches)
        if not self._custom.metrics_by_name:
            return self._read([self._totals(answers)])[0]
        answers_of_batches = [*answers]
        custom_values = self._custom.compute([(outputs[0], targets) for outputs, targets in answers_of_batches])
        return self._read([self._totals(answers_of_batches)])[0] | custom_values

    @torch.no_grad()
    def of_each(self, rows: Tensor, examples: int) -> list[dict[str, float]]:
        """Returns the test metrics of several models `[n, dim]`, on `examples` test examples that are evenly spread
        among all.
        """
        batches = self._spread_examples(examples)
        chunks = rows.split(self._models_per_pass(batches, rows))
        return self._read([self._totals(self._answers(chunk, batches)) for chunk in chunks])

    def _forward(self, named: dict[str, Tensor], inputs: Nested) -> Any:  # noqa: ANN401 - whatever a model returns
        """Returns a model's outputs, computed without gradients unless its forward pass needs them."""
        if not self._needs_gradients:
            try:
                return self._functional.outputs(named, inputs)
            except RuntimeError:  # e.g. of `torch.autograd.grad` in a forward pass
                pass
        with torch.enable_grad():
            outputs = self._functional.outputs(named, map_tree(Tensor.detach, inputs))
        self._needs_gradients = True
        return tree_map(lambda part: part.detach() if isinstance(part, Tensor) else part, outputs)

    def _mean_loss(self, outputs: Any, targets: Nested) -> Tensor:  # noqa: ANN401
        """Returns the mean of the examples' losses, which a run minimises; see `example_losses`."""
        if isinstance(outputs, Tensor):
            return example_losses(self._loss, outputs, targets).mean()
        return self._loss(outputs, targets)

    def _models_per_pass(self, batches: Batches, rows: Tensor) -> int:
        """Returns how many models are evaluated in one forward pass."""
        if not self._batched:
            return 1
        if rows.device.type != "cpu":
            return max(_EXAMPLES // len(first_leaf(batches[0])), 1)
        if self._has_convolutions:
            return 1
        return _AT_ONCE

    def _answers(self, rows: Tensor, batches: Batches) -> Iterator[Answer]:
        """Yields each model's outputs `[n, b, ...]` on each batch, and the targets."""
        for inputs, targets in batches:
            yield self._outputs(rows, inputs), targets

    def _totals(self, answers: Iterable[Answer]) -> dict[str, Tensor]:
        """Returns numerators and denominators of each model by metric, `[n, 2, groups]`."""
        totals: dict[str, Tensor] = {}
        by_batch = [metric for metric in self._metrics if not metric.whole]
        of_all_examples = list[metrics.Metric[metrics.OfTest]]()
        if self.task.kind in _RANKED:
            of_all_examples = [metric for metric in self._metrics if metric.whole]
        kept_answers: list[Answer] = []
        for outputs, targets in answers:
            for metric in by_batch:
                terms = self._ratio_terms(metric, outputs, targets)
                if terms is not None:
                    if metric.name in totals:
                        totals[metric.name] = totals[metric.name] + terms
                    else:
                        totals[metric.name] = terms
            if of_all_examples:
                kept_answers.append((outputs, targets))
        for metric in of_all_examples:
            all_outputs = [
                torch.cat(outputs_of_batches)
                for outputs_of_batches in zip(*(outputs for outputs, _ in kept_answers), strict=True)
            ]
            terms = self._ratio_terms(metric, all_outputs, concatenate_trees([targets for _, targets in kept_answers]))
            if terms is not None and bool(terms[:, 1].any()):  # otherwise no label has both values
                totals[metric.name] = terms
        return totals

    def _ratio_terms(
        self, metric: metrics.Metric[metrics.OfTest], outputs: Tensor | list[Any], targets: Nested
    ) -> Tensor | None:
        """Returns numerators and denominators of a metric, `[n, 2, groups]`; None where the metric has no meaning.

        Args:
            metric: The metric.
            outputs: Each model's outputs, `[n, b, ...]`, or a list of them.
            targets: The targets of the batch.
        """

        def terms_of(outputs: Any) -> Tensor | None:  # noqa: ANN401
            return metric.function(outputs, targets, self._mean_loss, self.task)

        first_terms = terms_of(outputs[0])
        if first_terms is None:
            return None
        if len(outputs) == 1:
            return first_terms.unsqueeze(0)
        if metric.together and isinstance(outputs, Tensor):
            return vmap(terms_of)(outputs)
        others = (terms_of(other) for other in outputs[1:])
        return torch.stack([first_terms, *(terms for terms in others if terms is not None)])

    def _read(self, totals: Sequence[dict[str, Tensor]]) -> list[dict[str, float]]:
        """Returns each model's metrics; all are copied from the device at once."""
        names = list(totals[0])
        terms_by_name = fetch_to_cpu([torch.cat([total[name] for total in totals]) for name in names])
        row_of = {row.name: row for row in self._metrics}
        columns = [
            [
                metrics.compute_value(of_model, root=row_of[name].root, exponential=row_of[name].exponential)
                for of_model in terms
            ]
            for name, terms in zip(names, terms_by_name, strict=True)
        ]
        return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]

    def _outputs(self, rows: Tensor, inputs: Nested) -> Tensor | list[Any]:
        """Returns each model's outputs: `[n, dim], [b, ...] -> [n, b, ...]`, or a list of the models' outputs."""

        def outputs_of(row: Tensor) -> Any:  # noqa: ANN401
            return self._forward(self._functional.unflatten(row), inputs)

        if len(rows) > 1:
            return vmap(outputs_of)(rows)
        return [outputs_of(rows[0])]

    def _spread_examples(self, examples: int) -> Batches:
        """Returns `examples` test examples that are evenly spread among all, because the first ones may be easier, or
        all of one class.
        """
        if examples not in self._chosen:
            all_examples = concatenate_trees(self._batches)
            total = len(first_leaf(all_examples))
            count = min(examples, total)
            indices = torch.arange(count, device=first_leaf(all_examples).device) * total // count
            batches = indices.split(len(first_leaf(self._batches[0])))
            self._chosen[examples] = [map_tree(lambda t, batch=batch: t[batch], all_examples) for batch in batches]
        return self._chosen[examples]


def _read(test: Dataset[Any], batch_size: int) -> Iterator[Pair]:
    try:
        for batch in DataLoader(test, batch_size=batch_size):
            pair = split_pair(batch)
            check_finite(*pair)
            yield pair
    except Exception as error:  # a user's data set can raise anything
        fix = (
            "each example must be a pair (input, target) of tensors, or of dicts and tuples of tensors, of equal shapes"
        )
        raise DataError(f"the test data cannot be read ({summarize_error(error)}): {fix}") from error


def summarize_range(values: Sequence[float]) -> dict[str, float]:
    """Returns `{"min": ..., "mean": ..., "max": ...}` of some values."""
    return {"min": min(values), "mean": sum(values) / len(values), "max": max(values)}


def _like(values: Tensor, parameter: Tensor) -> Tensor:
    if values.is_floating_point():
        return values.to(parameter)
    return values.to(parameter.device)
