"""Finds models that compute in less than single precision by themselves, e.g. under an autocast of their own.

An example's gradient may be rounded otherwise where its batch has another size. In bfloat16 that is 2**-8 of it, for
every other example of the batch: a removed example could then change a sum by more than its clip bound. Neighbours of
relation replace_one and unit sample have batches of one size. A backward pass of a user's own, which alone computes so,
is not found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from fedpriv.clients.population import Population
from fedpriv.data.nested import Nested
from fedpriv.errors import ConfigError
from fedpriv.oracle.traced_model import TracedModel
from fedpriv.privacy.settings import Privacy

_LEAST_BITS = 32


class _LowestPrecision(TorchFunctionMode):
    """Notes the floating-point type of fewest bits among the results of all calls of torch in a forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.dtype = torch.float64

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever a call gives
        results = func(*args, **(kwargs or {}))
        for value in tree_leaves(results):
            if isinstance(value, Tensor) and value.is_floating_point() and value.dtype.itemsize < self.dtype.itemsize:
                self.dtype = value.dtype
        return results


def check_precision(population: Population, privacy: Privacy, row: Tensor, x: Nested, y: Nested) -> None:
    """Refuses a model or a loss that computes in half precision where neighbours may have batches of other sizes.

    Args:
        population: The clients, with their model and loss.
        privacy: The run's settings.
        row: Parameters, `[dim]`.
        x: Inputs of a few examples for which model and loss can be computed.
        y: Their targets.

    Raises:
        ConfigError: names the model and the type.
    """
    if not privacy.private or (privacy.unit, privacy.relation) == ("sample", "replace_one"):
        return
    lowest = _LowestPrecision()
    with lowest:
        TracedModel(population, row).gradient(x, y)
    if lowest.dtype.itemsize * 8 < _LEAST_BITS:
        fix = (
            f"it or its loss computes in {lowest.dtype}, which is shown for unit sample and relation replace_one only, "
            "where neighbours have batches of one size: with another size kernels may round other examples' gradients "
            "otherwise, by 2**-8; compute in float32, without autocast"
        )
        raise ConfigError("model", type(population.model).__name__, fix)
