"""Forward passes of a batch without vmap, for models whose operations are all known to keep examples apart.

Under vmap each operation takes tens of microseconds more to start, which is most of a small model's step. Here every
operation that a model calls is looked up in a table (`row_layers`) before it runs: with the arguments that it has it
must compute each row of the first dimension from the same row alone. At the first that is not known to do so
`MixingRowsError` is raised, and the backend takes vmap for this model from then on.

A model must not see the batch size, which other examples decide: in the place of a tensor's first size it gets
`BatchSize`, with which it can reshape and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, cast

from torch import Tensor
from torch.autograd.graph import Node

from fedpriv.oracle.backends.calls import Call
from fedpriv.oracle.backends.recorded import DivergingExamplesError, Recording

Operation = Callable[["BatchedForward", Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Does what a function of torch does with these arguments, or raises `MixingRowsError`."""


class MixingRowsError(Exception):
    """A model calls something that is not known to keep the rows of a batch apart."""


class BatchSize(int):
    """Stands for a number of examples, with which nothing can be computed: an example alone would see 1.

    Its value is another number, too large for a float or for an index, so that nothing can learn the true one.
    """

    def __new__(cls) -> BatchSize:
        """Returns the same for every batch."""
        return super().__new__(cls, 2**1100)

    def _refuse(self, *_: object) -> NoReturn:
        raise MixingRowsError("the model uses the batch size in a computation")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = __rfloordiv__ = _refuse
    __truediv__ = __rtruediv__ = __mod__ = __rmod__ = __divmod__ = __pow__ = __rpow__ = __neg__ = __abs__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __float__ = __int__ = __index__ = _refuse
    __hash__ = __repr__ = __str__ = __format__ = __round__ = __trunc__ = __invert__ = _refuse


class BatchedForward(Recording):
    """A context in which a model computes a batch, `[b, ...]`, and its layers are recorded.

    Guarantee: what a model returns as a tensor of `is_rows` has, in each row, what the model gives for that example
    alone, or `MixingRowsError` is raised.

    Args:
        parameters: The trainable parameters that the model is called with, by name.
        constants: Frozen parameters and buffers that it is called with.
        inputs: The batch.
        count: Number of examples.
        calls: The list to which recorded calls are appended.
        keep: See `Recording`.
        operations: What is done for each function of torch.
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
        """One copy for each example of the parameters that are used outside of recorded layers, `[b, *shape]`."""
        self._rows: dict[int, tuple[Tensor, Node | None]] = {id(tensor): (tensor, tensor.grad_fn) for tensor in inputs}
        self._constants = {id(tensor): tensor for tensor in constants}
        self._states: dict[int, Tensor] = {}
        self._looked_up: dict[int, Tensor] = {}
        self._operations = operations

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        """Runs an operation of the table; else raises `MixingRowsError`."""
        operation = self._operations.get(func)
        if operation is None:
            raise MixingRowsError(f"{getattr(func, '__name__', func)} is not known to keep examples apart")
        return operation(self, func, args, kwargs or {})

    def is_rows(self, value: object) -> bool:
        """Whether the value is a tensor of which each row is an example's, and its gradient follows from that row's.

        An `autograd.Function` of a user's own gives its results another step of the backward pass.
        """
        tensor, step = self._rows.get(id(value), _NOTHING)
        return tensor is not None and tensor.grad_fn is step

    def is_constant(self, value: object) -> bool:
        """Whether the value is a tensor that depends on no example and on no trainable parameter."""
        return id(value) in self._constants

    def is_state(self, value: object) -> bool:
        """Whether the value is a tensor `[layers, b, width]` of a recurrent layer."""
        return id(value) in self._states

    def is_trained(self, value: object) -> bool:
        """Whether the value is a trainable parameter."""
        return id(value) in self._names

    def has_copies(self, value: object) -> bool:
        """Whether the value is a parameter, or what was looked up in one: not a row for each example, but a copy."""
        return self.is_trained(value) or id(value) in self._looked_up

    def rows(self, output: Any) -> Any:  # noqa: ANN401 - whatever torch's function gives
        """Notes that a tensor, or each tensor of a tuple or list, has an example in each row; returns it."""
        for tensor in _listed(output):
            if tensor.dim() == 0 or tensor.shape[0] != self.count:
                raise MixingRowsError("an operation does not return one row per example")
            self._rows[id(tensor)] = (tensor, tensor.grad_fn)
        return output

    def constant(self, output: Any) -> Any:  # noqa: ANN401
        """Notes that tensors are the same whatever the examples; returns them."""
        for tensor in _listed(output):
            if isinstance(tensor, Tensor):
                self._constants[id(tensor)] = tensor
        return output

    def states(self, *states: Tensor) -> None:
        """Notes states of a recurrent layer."""
        self._states.update((id(state), state) for state in states)

    def looked_up(self, output: Tensor) -> Tensor:
        """Notes what was looked up in a parameter, the same for all examples, with a copy for each, `[b, *shape]`."""
        self._looked_up[id(output)] = output
        return output

    def copy(self, value: Tensor) -> Tensor:
        """Returns the copies of what `has_copies`, `[b, *shape]`, of which each gets its example's gradient."""
        if id(value) in self._looked_up:
            return value
        name = self._names[id(value)]
        if name not in self.copies:
            shared = self._shared[name].detach()
            self.copies[name] = shared.expand(self.count, *shared.shape).requires_grad_()
        return self.copies[name]

    def recorded(self, func: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        """Returns what a recorded layer gives; None if it cannot be recorded."""
        record = self._replacement(func)
        assert record is not None
        return record(*args, **kwargs)

    def decide(self, flags: Tensor) -> bool:
        """Returns the truth of a condition `[b]` that is the same for all examples.

        Raises:
            DivergingExamplesError: it is not: examples are computed apart.
        """
        if bool(flags.all()):
            return True
        if not bool(flags.any()):
            return False
        raise DivergingExamplesError(flags.detach())


_NOTHING = (None, None)


def _listed(output: Any) -> Sequence[Any]:  # noqa: ANN401 - whatever torch's function gives
    """Returns the values of an output that is a tuple or list; one that is neither is the only value."""
    if isinstance(output, (tuple, list)):
        return cast("Sequence[Any]", output)
    return (output,)
