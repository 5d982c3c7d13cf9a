"""Computes clipped sums for linear models with a closed formula, without storing per-example gradients.

The gradient of one example is an outer product, `delta (x, 1)^T` with `delta = d loss / d outputs`. Its l1 or l2 norm
is the product of the norms of `delta` and `(x, 1)`, and the sum of clipped gradients is a matrix product. The same
formulas hold for differences of gradients at two points, with `delta` replaced by the difference of the two deltas.
Source: Goodfellow, 2015, arXiv:1510.01799, for l2.
"""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fedpriv.clients.batch import Batch
from fedpriv.clients.client import Loss
from fedpriv.errors import ConfigError
from fedpriv.models.nested import first_leaf, map_tree
from fedpriv.oracle.backends.chains import is_flatten, traced_nodes
from fedpriv.oracle.backends.functional import Functional, count, is_finite, is_on_cpu, is_one_row, without_nan
from fedpriv.oracle.backends.summation import sum_of_products
from fedpriv.privacy.clipping import Clip, NormName
from fedpriv.privacy.hulls import RowClip

_ENTRIES = 2**20  # of whole gradients that are held at once


class GradientNorms(NamedTuple):
    """Norms of the gradients of single examples.

    Attributes:
        norms: The norms, `[k, b]`; infinity or NaN where a gradient is not finite.
        are_finite: True if all norms, including the norms for padding, are known to be finite.
    """

    norms: Tensor
    are_finite: bool


class LinearBackend:
    """Computes per-example gradients of a single linear layer.

    Guarantee: each example adds a vector with norm at most `clip.bound` to its client's row, and nothing to other rows.

    Args:
        model: One `nn.Linear`, alone or on the flattened input, with nothing frozen.
        loss: Maps the outputs and targets of a batch of one to a scalar.
        chunk: Unused, since no per-example gradients are stored.

    Raises:
        ConfigError: If the model is not a single linear layer.
    """

    def __init__(self, model: nn.Module, loss: Loss, chunk: int | None = None) -> None:
        layer = _only_layer(model)
        if layer is None:
            fix = (
                "needs a model of one nn.Linear on the flattened input without frozen parameters, but this model is "
                f"a {type(model).__name__}; use 'auto'"
            )
            raise ConfigError("compute.backend", "linear", fix)
        self._shape = layer.weight.shape
        self._has_bias = len(list(layer.parameters())) == 2
        self._functional = Functional(model, loss)
        # a full-batch run uses the same batches in every round: the norms of their inputs are computed once
        self._norms: WeakKeyDictionary[Batch, dict[NormName, Tensor]] = WeakKeyDictionary()

    @staticmethod
    def supports(model: nn.Module) -> bool:
        """Returns True if the model is one `nn.Linear`, alone or on the flattened input, with nothing frozen."""
        return _only_layer(model) is not None

    def clipped_sum(
        self, params: Tensor, batch: Batch, clip: Clip | None, anchor: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """See `Backend.clipped_sum`.

        Raises:
            ConfigError: If examples have several views, because the gradient of the mean loss of several views is not
                an outer product.
        """
        _check_one_view(batch)
        x = _inputs(batch)
        deltas = self._deltas(params, x, batch)
        if anchor is not None:
            deltas = deltas - self._deltas(anchor, x, batch)
        if batch.weights is not None:
            deltas = deltas * batch.weights.unsqueeze(2)
        if clip is None:
            sums = self._outer_sum(deltas, batch.mask, x)
            return sums, count(self._broken(deltas, batch, sums) & batch.mask)
        if isinstance(clip, RowClip):
            return self._sum_of_rows(deltas, batch.mask, x, clip)
        norms, are_finite = self._gradient_norms(deltas, x, batch, clip)
        weights = clip.factors(norms) * batch.mask
        if are_finite:
            # then no term of the sum is NaN, and no further check is needed
            sums = self._products(deltas.double() * weights.unsqueeze(2), x)
            return sums, torch.zeros(batch.mask.shape[0], dtype=torch.long, device=sums.device)
        sums = self._outer_sum(deltas.double(), weights, x)
        is_broken = ~(norms < torch.inf)  # a comparison with NaN is false; `isfinite` takes four operations
        return sums, count(batch.mask & is_broken)

    def largest_norm(self, params: Tensor, batch: Batch, norm: Clip) -> Tensor:
        """See `Backend.largest_norm`: infinite if a gradient is not finite, 0 for a client without examples."""
        _check_one_view(batch)
        x = _inputs(batch)
        norms, _ = self._gradient_norms(self._deltas(params, x, batch), x, batch, norm)
        norms = norms.nan_to_num(torch.inf, torch.inf).where(batch.mask, 0)
        if norms.numel():
            return norms.amax(1)
        return norms.new_zeros(len(norms))

    def _deltas(self, params: Tensor, x: Tensor, batch: Batch) -> Tensor:
        """Returns the derivative of each example's loss in the model's outputs at `x`, `[k, b, n_outputs]`."""
        n_weights = self._shape.numel()
        bias = params[:, n_weights:]
        weight = params[:, :n_weights].view(-1, *self._shape)
        if is_one_row(params):
            outputs = nn.functional.linear(x, weight[0], bias[0] if self._has_bias else None)
        else:
            outputs = torch.bmm(x, weight.mT)
            if self._has_bias:
                outputs = outputs + bias.unsqueeze(1)
        targets = map_tree(lambda y: y.flatten(0, 1), batch.targets)
        gradients = self._functional.output_gradients(outputs.flatten(0, 1), targets)
        return gradients.unflatten(0, batch.mask.shape).contiguous()

    def _outer_sum(self, deltas: Tensor, weights: Tensor, x: Tensor) -> Tensor:
        """Returns the sum over the examples of `weight delta (x, 1)^T`: `[k, b, n_outputs], [k, b] -> [k, dim]`.

        An example of weight 0 adds nothing, even if its gradient is not finite.
        """
        weights = weights.unsqueeze(2)
        weighted = deltas * weights
        return without_nan(
            lambda: self._products(weighted, x),
            lambda: self._products(weighted.where(weights > 0, 0), x.where(weights > 0, 0)),
            weights,
        )

    def _sum_of_rows(self, deltas: Tensor, mask: Tensor, x: Tensor, clip: RowClip) -> tuple[Tensor, Tensor]:
        """Returns `clipped_sum` for a clip that needs whole rows, some examples at a time."""
        width = self._shape.numel() + self._has_bias * self._shape[0]
        sums = torch.zeros(len(mask), width, dtype=torch.float64, device=x.device)
        broken = torch.zeros(len(mask), dtype=torch.long, device=x.device)
        height = max(_ENTRIES // max(sums.numel(), 1), 1)
        for delta, cells, inputs in zip(*(tensor.split(height, 1) for tensor in (deltas, mask, x)), strict=True):
            rows = (delta.unsqueeze(3) * inputs.unsqueeze(2)).flatten(2)
            if self._has_bias:
                rows = torch.cat([rows, delta], 2)
            added, is_broken = clip.sums(rows, cells)
            sums += added
            broken += is_broken
        return sums, broken

    def _products(self, weighted: Tensor, x: Tensor) -> Tensor:
        if weighted.dtype == torch.float64:
            product = sum_of_products
        else:
            product = torch.bmm
        sums = product(weighted.mT, x).flatten(1)
        return torch.cat([sums, weighted.sum(1)] if self._has_bias else [sums], 1)

    def _gradient_norms(self, deltas: Tensor, x: Tensor, batch: Batch, norm: Clip) -> GradientNorms:
        input_norms = self._input_norms(x, batch, norm)
        if is_on_cpu(deltas):
            # one check of the products, since a check of the norms of deltas takes as long as computing these norms
            norms = norm.unchecked_norms(deltas) * input_norms
            if norms.numel() and bool(norms.max() <= torch.finfo(deltas.dtype).max):
                return GradientNorms(norms, are_finite=True)
        norms = norm.norms(deltas) * input_norms
        long = norms > torch.finfo(deltas.dtype).max
        # a gradient that overflows its type is broken, though the product of its factors' norms may be finite
        if is_on_cpu(long) and not long.any():
            return GradientNorms(norms, are_finite=False)
        return GradientNorms(norms.where(~(long & self._overflows(deltas, batch)), torch.inf), are_finite=False)

    def _input_norms(self, x: Tensor, batch: Batch, norm: Clip) -> Tensor:
        """Returns the norm of each `(x, 1)`, or of `x` without a bias, `[k, b]`; computed once for each batch."""
        norms_by_name = self._norms.setdefault(batch, {})
        if norm.norm not in norms_by_name:
            norms = None
            if is_on_cpu(x):
                norms = norm.unchecked_norms(x)
            if norms is None or not is_finite(norms):
                norms = norm.norms(x)
            if self._has_bias:
                norms = norm.with_one(norms)
            norms_by_name[norm.norm] = norms
        return norms_by_name[norm.norm]

    def _broken(self, deltas: Tensor, batch: Batch, sums: Tensor) -> Tensor:
        """Returns a mask of the examples with gradients that are not finite, `[k, b]`."""
        if is_on_cpu(sums) and is_finite(sums):
            return torch.zeros_like(batch.mask)
        return self._overflows(deltas, batch)

    def _overflows(self, deltas: Tensor, batch: Batch) -> Tensor:
        """Returns a mask of the examples with a gradient entry that overflows its type, `[k, b]`."""
        largest = _inputs(batch).abs().amax(2).clamp_min(1 if self._has_bias else 0)
        return ~torch.isfinite(deltas.abs().amax(2) * largest)


def _check_one_view(batch: Batch) -> None:
    if batch.views > 1:
        fix = f"the mean gradient of {batch.views} views is not a product of two vectors: use auto or ghost"
        raise ConfigError("compute.backend", "linear", fix)


def _inputs(batch: Batch) -> Tensor:
    """Returns the inputs flattened to `[k, b, features]`; a linear layer has one input."""
    return first_leaf(batch.inputs).flatten(2)


def _only_layer(model: nn.Module) -> nn.Linear | None:
    """Returns the linear layer if the model is only this layer, possibly after flattening, and all of it is trained."""
    flags = [parameter.requires_grad for parameter in model.parameters()]
    if len(flags) > 2 or not all(flags):
        return None
    trace = traced_nodes(model)
    if trace is None:
        return None
    traced, nodes = trace
    last = nodes[-2]
    if last.op == "call_module":
        layer = traced.get_submodule(str(last.target))
    else:
        layer = None
    if type(layer) is not nn.Linear or len(flags) != len([*layer.parameters()]):
        return None
    if all(is_flatten(traced, node) for node in nodes[1:-2]):
        return layer
    return None
