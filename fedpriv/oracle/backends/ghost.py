"""Per-example gradients from one forward and one backward pass, as factors where they are large.

Linear, convolution and embedding layers keep what their gradients are products of (`recorded`), from which norms and
weighted sums follow (`factors`). All other uses of parameters get one copy of the parameter for each example, so that
plain autograd returns each example's gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import vmap

from fedpriv.clients.client import Loss
from fedpriv.data.nested import Nested, each, first
from fedpriv.oracle.backends.factors import Dense, Gradients
from fedpriv.oracle.backends.functional import ScoresOrLoss, all_alike
from fedpriv.oracle.backends.per_example import PerExample, in_cache
from fedpriv.oracle.backends.recorded import Call, Cells, Recording
from fedpriv.privacy.clipping import NormName

_MOST = 512  # examples at once on any device: in sums of more, rounding would weigh (see `factors.LONGEST`)


class GhostBackend(PerExample):
    """Per-example gradients, many at a time, as factors where they are large.

    Vmap keeps examples apart, so that no layer is asked which dimension of its input they are in.

    Args:
        model: The clients' model; its own parameters are not used. Dropout draws a mask for each example.
        loss: Maps the outputs and targets of a batch of one to a scalar.
        chunk: Largest number of examples at once; on a CPU never more than suits its cache.
    """

    def __init__(self, model: nn.Module, loss: Loss, chunk: int | None = None) -> None:
        super().__init__(model, loss, min(chunk or _MOST, _MOST))
        self._keep: Callable[[Tensor], Tensor] = _as_it_is

    def _fitting(self, params: Tensor, x: Nested, y: Nested, norm: NormName, views: int) -> int:
        gradients = [found.settled(norm) for found in self._gradients(params, x, y, views)]
        return in_cache(sum(found.numbers for found in gradients) * params.element_size())

    def _gradients(self, params: Tensor, x: Nested, y: Nested, views: int) -> list[Gradients]:
        if not (found := self._run(params, x, y, views)):
            self._keep = Tensor.clone
            found = self._run(params, x, y, views)
        return found

    def _run(self, params: Tensor, x: Nested, y: Nested, views: int) -> list[Gradients]:
        """The gradients; none if the model changed in place what was to be kept."""
        cells, unflatten, calls = _cells(x), self._functional.unflatten, list[Call]()
        alike, flat = all_alike(params), each(lambda values: values.flatten(0, 1), (x, y))
        if alike:
            shared, (x, of_each) = (params[0], flat)
        else:
            shared, (x, of_each) = (params, (x, y))
        if alike:
            own = shared.expand(math.prod(cells), -1)
        else:
            own = shared.unsqueeze(1).expand(*cells, -1)
        leaves = {name: leaf.requires_grad_() for name, leaf in unflatten(own.detach()).items()}
        levels = (1 if alike else 2) + (views > 1)

        def scores_or_loss(own: dict[str, Tensor], shared: dict[str, Tensor], x: Nested, y: Nested) -> ScoresOrLoss:
            with Recording(own, shared, calls, levels, self._keep):
                return self._functional.scores_or_loss(own, x, y)

        # views are further positions of an example, which share its copies of parameters
        over_views = vmap(scores_or_loss, in_dims=(None, None, 0, 0), randomness="different")
        if views == 1:
            of_example = scores_or_loss
        else:
            of_example = over_views
        over_examples = vmap(of_example, in_dims=(0, None, 0, 0), randomness="different")
        if alike:
            over = over_examples
        else:
            over = vmap(over_examples, randomness="different")
        with torch.enable_grad():
            # of what needs gradients only leaves and recorded outputs get one
            of_one = over(leaves, unflatten(shared.detach().requires_grad_()), x, of_each)
            scores, losses = cast("tuple[object, Tensor]", of_one)
            if isinstance(scores, Tensor):
                if views == 1:
                    targets = flat[1]
                else:
                    targets = each(lambda values: values.flatten(0, 1), flat[1])
                losses = self._functional.losses(scores.flatten(0, levels - 1), targets)
            if any(call.input.changed or call.output.changed for call in calls):
                return []
            inputs = [*leaves.values(), *(call.output.stored for call in calls)]
            if views == 1:
                mean = losses.sum()
            else:
                mean = losses.sum() / views
            gradients = torch.autograd.grad(mean, inputs, allow_unused=True)
        return _by_parameter(leaves, calls, gradients, cells)


def _by_parameter(
    leaves: dict[str, Tensor], calls: list[Call], gradients: Sequence[Tensor | None], cells: Cells
) -> list[Gradients]:
    """Each parameter's gradients: those of its copies, and of the layers that were recorded."""
    terms: dict[str, list[Gradients]] = {name: [] for name in leaves}
    for name, whole in zip(leaves, gradients, strict=False):
        if whole is not None:
            terms[name].append(Dense(whole.reshape(*cells, -1)))
    for call, output in zip(calls, gradients[len(leaves) :], strict=True):
        for name, term in call.gradients(output, cells) if output is not None else ():
            terms[name].append(term)
    for name, leaf in leaves.items():
        if not terms[name]:  # the loss does not depend on it
            terms[name].append(Dense(torch.zeros_like(leaf).reshape(*cells, -1)))
    return [reduce(Gradients.plus, found) for found in terms.values()]


def _cells(x: Nested) -> Cells:
    clients, examples, *_ = first(x).shape
    return clients, examples


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor
