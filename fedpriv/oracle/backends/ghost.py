"""Per-example gradients from one forward and one backward pass, stored as factors where they are large.

Linear, convolution and embedding layers record the factors of their gradients (`recorded`), from which norms and
weighted sums are computed (`factors`). Any other use of a parameter gets one copy of the parameter for each example, so
that plain autograd returns each example's gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from fedpriv.clients.client import Loss
from fedpriv.models.batching import vmap
from fedpriv.models.nested import Nested, first_leaf, map_tree
from fedpriv.oracle.backends.calls import Call, Cells
from fedpriv.oracle.backends.chains import Chain, WithBias, find_chain
from fedpriv.oracle.backends.factors import Dense, Gradients, OuterProducts
from fedpriv.oracle.backends.functional import ScoresOrLoss, is_one_row
from fedpriv.oracle.backends.per_example import PerExample, count_cached_examples
from fedpriv.oracle.backends.recorded import DivergingExamplesError, Recording
from fedpriv.oracle.backends.row_layers import compute_row_outputs
from fedpriv.oracle.backends.tables import sum_gradients
from fedpriv.privacy.clipping import NormName

_MAX_EXAMPLES = 512  # examples at once on any device: in longer sums rounding would matter (see `factors.LONGEST`)

_MEBIBYTES = 32  # of factors and gradients at once; for a transformer on a CPU this is 10 % faster than 16


class GhostBackend(PerExample):
    """Computes per-example gradients, many at a time, as factors where they are large.

    Vmap tracks the dimension of the examples, so no assumption is made about its position in a layer's input.

    Args:
        model: The clients' model; its own parameters are not used. Dropout draws a mask for each example.
        loss: Maps the outputs and targets of a batch of one to a scalar.
        chunk: Largest number of examples at once; on a CPU at most the number that suits its cache.
    """

    def __init__(self, model: nn.Module, loss: Loss, chunk: int | None = None) -> None:
        super().__init__(model, loss, min(chunk or _MAX_EXAMPLES, _MAX_EXAMPLES))
        self._keep: Callable[[Tensor], Tensor] = _identity
        self._rows_apart = True  # True if all operations of the model are known to keep examples apart
        self._chain = find_chain(model)

    def _fitting(self, params: Tensor, x: Nested, y: Nested, norm: NormName, views: int) -> int:
        gradients = [gradient.settled(norm) for gradient in self._gradients(params, x, y, views)]
        return count_cached_examples(
            sum(gradient.numbers for gradient in gradients) * params.element_size(), _MEBIBYTES
        )

    def _gradients(self, params: Tensor, x: Nested, y: Nested, views: int) -> list[Gradients]:
        gradients = self._recorded_gradients(params, x, y, views)
        if not gradients:
            # the model changes recorded tensors in place: copies are recorded from now on
            self._keep = Tensor.clone
            gradients = self._recorded_gradients(params, x, y, views)
        return gradients

    def _recorded_gradients(self, params: Tensor, x: Nested, y: Nested, views: int) -> list[Gradients]:
        """Returns the gradients, computed without vmap if possible; an empty list if the model changed a recorded
        tensor in place.
        """
        chain = self._chain
        if chain is not None and views == 1 and is_one_row(params) and isinstance(x, Tensor) and chain.takes(x):
            return self._chained_gradients(chain, params[0], x, y)
        if self._rows_apart and views == 1 and is_one_row(params):
            try:
                return self._gradients_without_vmap(params[0], x, y)
            except DivergingExamplesError:
                raise
            except Exception:  # errors of models that compute with hidden sizes, and `MixingRowsError`
                self._rows_apart = False
        return self._gradients_under_vmap(params, x, y, views)

    def _chained_gradients(self, chain: Chain, row: Tensor, x: Tensor, y: Nested) -> list[Gradients]:
        """Returns the gradients of a model that is a chain of linear layers and activations, computed with a few matrix
        products.
        """
        cells = _cells(x)
        targets = map_tree(lambda values: values.flatten(0, 1), y)
        gradient_of = partial(self._functional.output_gradients, targets=targets)
        gradients: dict[str, Gradients] = {}
        params = self._functional.unflatten(row.detach())
        for factors in chain.factors(params, x.flatten(0, 1).flatten(1), gradient_of):
            left = factors.delta.view(*cells, 1, -1)
            right = factors.input.view(*cells, 1, -1)
            weight = OuterProducts(left, right)
            if factors.layer.bias:
                gradients[factors.layer.weight] = WithBias(weight)
            else:
                gradients[factors.layer.weight] = weight
        # a bias directly follows its weight, also in its gradients
        return [gradients[name] for name, _ in self._functional.layout.shapes if name in gradients]

    def _gradients_without_vmap(self, row: Tensor, x: Nested, y: Nested) -> list[Gradients]:
        """Returns the gradients from one plain pass over all clients' examples as one batch; see `_recorded_gradients`.

        Raises:
            MixingRowsError: If the model is not known to keep the rows of a batch apart.
        """
        cells = _cells(x)
        calls: list[Call] = []
        x, y = map_tree(lambda values: values.flatten(0, 1), (x, y))
        with torch.enable_grad():
            # each is a leaf: slicing a row that has a gradient would be recorded
            params = {name: leaf.requires_grad_() for name, leaf in self._functional.unflatten(row.detach()).items()}
            outputs, copies = compute_row_outputs(self._functional, params, x, calls, self._keep)
            output_gradients = self._functional.closed_gradients(outputs, y)
            if output_gradients is None:
                objective = self._functional.losses(outputs, y).sum()
            else:
                # its gradient with respect to the outputs is this; for `grad_outputs` autograd would import sympy
                objective = torch.dot(outputs.flatten(), output_gradients.flatten())
            if any(call.input.changed or call.output.changed for call in calls):
                return []
            sought = [*copies.values(), *(call.output.stored for call in calls)]
            gradients = torch.autograd.grad(objective, sought, allow_unused=True)
        return self._parameter_gradients(row, copies, calls, gradients, cells)

    def _gradients_under_vmap(self, params: Tensor, x: Nested, y: Nested, views: int) -> list[Gradients]:
        """Returns the gradients; an empty list if the model changed a recorded tensor in place."""
        cells = _cells(x)
        unflatten = self._functional.unflatten
        calls: list[Call] = []
        one_row = is_one_row(params)
        flat_x, flat_y = map_tree(lambda values: values.flatten(0, 1), (x, y))
        # one copy of the parameters for each example; with one row the clients' examples are one long batch
        if one_row:
            shared = params[0]
            rows = shared.expand(math.prod(cells), -1)
            x = flat_x
            y_batch = flat_y
        else:
            shared = params
            rows = shared.unsqueeze(1).expand(*cells, -1)
            y_batch = y
        copies = {name: leaf.requires_grad_() for name, leaf in unflatten(rows.detach()).items()}
        example_levels = 1 if one_row else 2
        levels = example_levels + (views > 1)

        def scores_or_loss(copies: dict[str, Tensor], shared: dict[str, Tensor], x: Nested, y: Nested) -> ScoresOrLoss:
            with Recording(copies, shared, calls, levels, example_levels, self._keep):
                return self._functional.scores_or_loss(copies, x, y)

        if views == 1:
            example_function = scores_or_loss
        else:
            # views are further positions of an example and share its copies of parameters
            example_function = vmap(scores_or_loss, in_dims=(None, None, 0, 0), randomness="different")
        examples_vmap = vmap(example_function, in_dims=(0, None, 0, 0), randomness="different")
        if one_row:
            batch_function = examples_vmap
        else:
            batch_function = vmap(examples_vmap, randomness="different")
        with torch.enable_grad():
            # autograd computes only the gradients of copies and recorded outputs
            results = batch_function(copies, unflatten(shared.detach().requires_grad_()), x, y_batch)
            scores, losses = cast("tuple[object, Tensor]", results)
            if isinstance(scores, Tensor):
                if views == 1:
                    targets = flat_y
                else:
                    targets = map_tree(lambda values: values.flatten(0, 1), flat_y)
                losses = self._functional.losses(scores.flatten(0, levels - 1), targets)
            if any(call.input.changed or call.output.changed for call in calls):
                return []
            inputs = [*copies.values(), *(call.output.stored for call in calls)]
            if views == 1:
                objective = losses.sum()
            else:
                objective = losses.sum() / views
            gradients = torch.autograd.grad(objective, inputs, allow_unused=True)
        return self._parameter_gradients(params, copies, calls, gradients, cells)

    def _parameter_gradients(
        self,
        params: Tensor,
        copies: Mapping[str, Tensor],
        calls: list[Call],
        gradients: Sequence[Tensor | None],
        cells: Cells,
    ) -> list[Gradients]:
        """Returns each parameter's gradients: the sum of the gradients of its copies and of recorded layers."""
        sizes = {name: shape.numel() for name, shape in self._functional.layout.shapes}
        terms: dict[str, list[Gradients]] = {name: [] for name in sizes}
        for name, whole in zip(copies, gradients, strict=False):
            if whole is not None:
                terms[name].append(Dense(whole.reshape(*cells, -1)))
        for call, output in zip(calls, gradients[len(copies) :], strict=True):
            if output is None:  # the loss does not depend on it
                continue
            for name, term in call.gradients(output, cells):
                terms[name].append(term)
        for name, summands in terms.items():
            if not summands:  # the loss does not depend on it
                summands.append(Dense(params.new_zeros(*cells, sizes[name])))
        return [sum_gradients(summands) for summands in terms.values()]


def _cells(x: Nested) -> Cells:
    clients, examples, *_ = first_leaf(x).shape
    return clients, examples


def _identity(tensor: Tensor) -> Tensor:
    return tensor
