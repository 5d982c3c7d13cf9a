"""Finds models that compute in less than single precision, e.g. because the model's own code uses autocast.

An example's gradient may be rounded differently in a batch of another size. In bfloat16 this can change the gradient of
every other example of the batch by a relative 2**-8. Removing one example could then change a sum by more than the clip
bound. With the privacy unit sample and the neighbouring relation replace_one this cannot happen, because neighbouring
data sets have batches of equal size. Low precision that is used only in a user-defined backward pass is not found.

Torch may also multiply float32 numbers in lower precision while all types are reported as float32: after
`torch.set_float32_matmul_precision("medium")`, with `fp32_precision` of one of `torch.backends`, with oneDNN's variable
`ONEDNN_DEFAULT_FPMATH_MODE`, and in cuDNN's convolutions unless this is disabled. Because there are many such settings,
a run sets all of them and measures the error of products.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv2d
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from fedpriv.clients.population import Population
from fedpriv.distributed import threads
from fedpriv.errors import ConfigError
from fedpriv.models.nested import Nested
from fedpriv.oracle.traced_model import TracedModel
from fedpriv.privacy.settings import Privacy

_LEAST_BITS = 32
_LARGEST_ERROR = 2.0**-14
"""Largest allowed error of a product of float32 numbers, relative to its largest entry. The usual error is 2**-20; with
TensorFloat-32 it is 2**-11.
"""


class LowestPrecision(TorchFunctionMode):
    """Records the floating-point type with the fewest bits among the results of all torch calls in a forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.dtype = torch.float64

    @property
    def is_half(self) -> bool:
        """True if a result had fewer than 32 bits."""
        return self.dtype.itemsize * 8 < _LEAST_BITS

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


def needs_full_precision(privacy: Privacy) -> bool:
    """Returns True if float32 numbers must be multiplied in float32 because neighbours' batch sizes may differ."""
    return privacy.private and (privacy.unit, privacy.relation) != ("sample", "replace_one")


def check_precision(population: Population, privacy: Privacy, row: Tensor, x: Nested, y: Nested) -> None:
    """Raises an error for a model or loss that computes in half precision if neighbours' batch sizes may differ.

    A run sets the precision of products (`fedpriv.distributed.modes`). This check finds cases in which the setting had
    no effect.

    Args:
        population: The clients, with their model and loss.
        privacy: The run's settings.
        row: Parameters, `[dim]`.
        x: Inputs of a few examples for which model and loss can be computed.
        y: Their targets.

    Raises:
        ConfigError: If precision is low; the message names the model and type, or the device with low-precision
            products.
    """
    if not needs_full_precision(privacy):
        return
    lowest = LowestPrecision()
    with lowest:
        TracedModel(population, row).gradient(x, y)
    if lowest.is_half:
        fix = (
            f"the model or its loss computes in {lowest.dtype}, which is supported only for the privacy unit sample "
            "and the relation replace_one, where the batches of neighbouring data sets have the same size. With "
            "another batch size, kernels may round the gradients of the other examples differently, by 2**-8; "
            "compute in float32, without autocast"
        )
        raise ConfigError("model", type(population.model).__name__, fix)
    if row.dtype == torch.float32:
        _check_products(row.device)


def _check_products(device: torch.device) -> None:
    if largest_error(device) > _LARGEST_ERROR:
        fix = (
            "multiplies float32 numbers with lower precision, which is supported only for the privacy unit sample and "
            "the relation replace_one, where the batches of neighbouring data sets have the same size. With another "
            "batch size, kernels may round the gradients of the other examples differently. Call "
            'torch.set_float32_matmul_precision("highest"), set no fp32_precision of torch.backends, and unset '
            "ONEDNN_DEFAULT_FPMATH_MODE"
        )
        raise ConfigError("compute.device", str(device), fix)


def largest_error(device: torch.device) -> float:
    """Returns the larger of the errors of a matrix product and a convolution of float32 numbers, relative to the
    largest entry of the result.
    """
    generator = torch.Generator().manual_seed(0)
    rows, matrix = (torch.randn(size, generator=generator) for size in ((128, 256), (256, 256)))
    images, kernels = (torch.randn(size, generator=generator) for size in ((4, 16, 8, 8), (16, 16, 3, 3)))
    errors = list[float]()
    with torch.no_grad(), threads.single_thread():
        for multiply, left, right in ((torch.matmul, rows, matrix), (conv2d, images, kernels)):
            exact = multiply(left.double(), right.double())
            computed = multiply(left.to(device), right.to(device)).cpu().double()
            errors.append(float((computed - exact).abs().max() / exact.abs().max()))
    return max(errors)
