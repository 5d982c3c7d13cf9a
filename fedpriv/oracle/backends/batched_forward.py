"""Runs forward passes of a batch without vmap, for models in which all operations are known to keep examples apart.

Under vmap each operation takes tens of microseconds longer to start, and for a small model this is most of the time of
a step. Here every operation that a model calls is looked up in a table (`row_layers`) before it runs: for its given
arguments, it must compute each row of the first dimension from the same row alone. The first operation that is not
known to do so raises `MixingRowsError`, and the backend uses vmap for this model from then on.

A model must not depend on the batch size, because the batch size depends on other examples. The first size of a tensor
is therefore a `BatchSize`, which the model can use only to reshape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, cast

from torch import Tensor
from torch.autograd.graph import Node

from fedpriv.oracle.backends.calls import Call
from fedpriv.oracle.backends.recorded import DivergingExamplesError, Recording

Operation = Callable[["BatchedForward", Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Computes a torch function for the given arguments, or raises `MixingRowsError`."""


class MixingRowsError(Exception):
    """Raised when a model calls an operation that is not known to keep the rows of a batch apart."""


class BatchSize(int):
    """Represents the number of examples in a batch. It allows no arithmetic, because a computation with this number
    would have another result for an example alone.

    Its integer value is a constant that is too large for a float or an index, so it cannot reveal the true number.
    """

    def __new__(cls) -> BatchSize:
        """Returns an equal value for every batch."""
        return super().__new__(cls, 2**1100)

    def _refuse(self, *_: object) -> NoReturn:
        raise MixingRowsError("the model uses the batch size in a computation")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = __rfloordiv__ = _refuse
    __truediv__ = __rtruediv__ = __mod__ = __rmod__ = __divmod__ = __pow__ = __rpow__ = __neg__ = __abs__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __float__ = __int__ = __index__ = _refuse
    __hash__ = __repr__ = __str__ = __format__ = __round__ = __trunc__ = __invert__ = _refuse


class BatchedForward(Recording):
    """A context in which a model computes a batch, `[b, ...]`, and its layers are recorded.

    Guarantee: if a model returns a tensor for which `is_rows` is true, each row equals the model's result for that
    example alone; otherwise `MixingRowsError` is raised.

    Args:
        parameters: The trainable parameters, by name, with which the model is called.
        constants: The frozen parameters and buffers with which it is called.
        inputs: The batch.
        count: Number of examples.
        calls: The list to which recorded calls are appended.
        keep: See `Recording`.
        operations: The replacement for each torch function.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        constants: Iterable[Tensor],
        inputs: Iterable[Tensor],
        count: int,
        calls: list[Call],
        keep: Callable[[Tensor], Tensor],
        operations: Mapping[object, Operation],
    ) -> None:
        super().__init__(parameters, parameters, calls, 0, 0, keep)
        self.count = count
        self.size = BatchSize()
        self.copies: dict[str, Tensor] = {}
        """Copies of the parameters that are used outside of recorded layers, one for each example, `[b, *shape]`."""
        self._rows: dict[int, tuple[Tensor, Node | None]] = {id(tensor): (tensor, tensor.grad_fn) for tensor in inputs}
        self._constants = {id(tensor): tensor for tensor in constants}
        self._states: dict[int, Tensor] = {}
        self._looked_up: dict[int, Tensor] = {}
        self._operations = operations

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        """Runs an operation of the table, or raises `MixingRowsError`."""
        operation = self._operations.get(func)
        if operation is None:
            raise MixingRowsError(f"{getattr(func, '__name__', func)} is not known to keep examples apart")
        return operation(self, func, args, kwargs or {})

    def is_rows(self, value: object) -> bool:
        """True if each row of the tensor belongs to one example, and the gradient of a row depends on that row only.

        The result of a user-defined `autograd.Function` is rejected, because its step of the backward pass is not the
        recorded one.
        """
        tensor, step = self._rows.get(id(value), _NOTHING)
        return tensor is not None and tensor.grad_fn is step

    def is_constant(self, value: object) -> bool:
        """True if the value is a tensor that depends on no example and on no trainable parameter."""
        return id(value) in self._constants

    def is_state(self, value: object) -> bool:
        """True if the value is a tensor `[layers, b, width]` of a recurrent layer."""
        return id(value) in self._states

    def is_trained(self, value: object) -> bool:
        """True if the value is a trainable parameter."""
        return id(value) in self._names

    def has_copies(self, value: object) -> bool:
        """True if the value is a parameter or was looked up in one. Such a value is equal for all examples, and each
        example has a copy.
        """
        return self.is_trained(value) or id(value) in self._looked_up

    def rows(self, output: Any) -> Any:  # noqa: ANN401 - whatever torch's function gives
        """Marks a tensor, or each tensor of a tuple or list, as having one example in each row, and returns the tensor,
        tuple or list.
        """
        for tensor in _listed(output):
            if tensor.dim() == 0 or tensor.shape[0] != self.count:
                raise MixingRowsError("an operation does not return one row per example")
            self._rows[id(tensor)] = (tensor, tensor.grad_fn)
        return output

    def constant(self, output: Any) -> Any:  # noqa: ANN401
        """Marks tensors as equal for all examples, and returns them."""
        for tensor in _listed(output):
            if isinstance(tensor, Tensor):
                self._constants[id(tensor)] = tensor
        return output

    def states(self, *states: Tensor) -> None:
        """Marks tensors as states of a recurrent layer."""
        self._states.update((id(state), state) for state in states)

    def looked_up(self, output: Tensor) -> Tensor:
        """Marks a tensor that was looked up in a parameter. It is equal for all examples, and each example has a copy:
        `[b, *shape]`.
        """
        self._looked_up[id(output)] = output
        return output

    def copy(self, value: Tensor) -> Tensor:
        """Returns a copy of a value for each example, `[b, *shape]`, which gets that example's gradient."""
        if id(value) in self._looked_up:
            return value
        name = self._names[id(value)]
        if name not in self.copies:
            shared = self._shared[name].detach()
            self.copies[name] = shared.expand(self.count, *shared.shape).requires_grad_()
        return self.copies[name]

    def recorded(self, func: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        """Returns the output of a recorded layer; None if the layer cannot be recorded."""
        record = self._replacement(func)
        assert record is not None
        return record(*args, **kwargs)

    def decide(self, flags: Tensor) -> bool:
        """Returns the truth value of a condition `[b]` that is the same for all examples.

        Raises:
            DivergingExamplesError: If the condition differs between examples, which are then computed separately.
        """
        if bool(flags.all()):
            return True
        if not bool(flags.any()):
            return False
        raise DivergingExamplesError(flags.detach())


_NOTHING = (None, None)


def _listed(output: Any) -> Sequence[Any]:  # noqa: ANN401 - whatever torch's function gives
    """Returns the values of an output that is a tuple or list, or a list of the output itself."""
    if isinstance(output, (tuple, list)):
        return cast("Sequence[Any]", output)
    return (output,)
