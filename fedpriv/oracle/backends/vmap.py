"""Batched per-example gradients with `torch.func`, for any model that vmap can batch."""

from __future__ import annotations

from torch import Tensor
from torch.func import grad

from fedpriv.models.batching import vmap
from fedpriv.models.nested import Nested, first_leaf, map_tree
from fedpriv.oracle.backends.factors import Dense, Gradients
from fedpriv.oracle.backends.functional import is_one_row
from fedpriv.oracle.backends.per_example import PerExample, count_cached_examples
from fedpriv.privacy.clipping import NormName


class VmapBackend(PerExample):
    """Computes per-example gradients, many at a time.

    If all clients have the same parameters, one vmap computes the examples of all clients.

    Args:
        model: The clients' model; its own parameters are not used. Dropout draws a mask for each example.
        loss: Maps the outputs and targets of a batch of one to a scalar.
        chunk: Largest number of examples at once. On a CPU the limit is at most 4 to 512, with about 16 MiB of
            gradients, which suits its cache and is the default; a GPU is faster with more.
    """

    def _fitting(self, params: Tensor, x: Nested, y: Nested, norm: NormName, views: int) -> int:
        return max(count_cached_examples(params.shape[1] * params.element_size()) // views, 1)

    def _gradients(self, params: Tensor, x: Nested, y: Nested, views: int) -> list[Gradients]:
        cells = first_leaf(x).shape[:2]
        if views == 1:
            loss = self._functional.example_loss
        else:
            loss = self._functional.mean_loss
        example_gradients = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")
        if is_one_row(params):
            # one vmap over [c * b, ...]
            x, y = map_tree(lambda values: values.flatten(0, 1), (x, y))
            gradients = example_gradients(self._functional.unflatten(params[0]), x, y)
            return [Dense(g.reshape(*cells, -1)) for g in gradients.values()]
        gradients = vmap(example_gradients, randomness="different")(self._functional.unflatten(params), x, y)
        return [Dense(g.reshape(*g.shape[:2], -1)) for g in gradients.values()]
