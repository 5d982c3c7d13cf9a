"""A pretend device that counts what a real one would have to do, without one.

Tensors on it say that they are on `meta`, a device that torch knows everywhere, but hold their values in ordinary
memory and compute with them. What a GPU does while the processor goes on is a kernel; what it is handed by the
processor is an upload; what the processor has to wait for is a synchronisation. Tensors of two devices in one operation
are refused as a GPU refuses them; so is a single number on the processor, unless the operation takes one.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("meta")
aten = torch.ops.aten

_MOVES = {aten._to_copy.default, aten.copy_.default}
_MAKES_NOTHING = {aten.empty.memory_format, aten.empty_like.default, aten.empty_strided.default, aten.new_empty.default}
_MAKES_NOTHING |= {
    aten.new_empty_strided.default,
    aten.detach.default,
    aten.lift_fresh.default,
    aten.set_.source_Tensor,
}
# the shape or the value of what these give is known to the processor only once they are done
_WAITED_FOR = {aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default, aten.equal.default}
_WAITED_FOR |= {aten.repeat_interleave.Tensor, aten.unique_dim.default, aten._unique2.default, aten.is_nonzero.default}
_INDEXED = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._unsafe_index.Tensor}
_FILLED = {aten.index_put_.default, aten.index_put.default}
# torch hands these a tensor of one number (no dimensions) from the processor; all others refuse it on a GPU. Those with
# `device_check: NoCheck` in its list of operations (native_functions.yaml); hypot is one since torch 2.11 only
_TAKES_NUMBERS = {
    *(aten.add, aten.add_, aten.sub, aten.sub_, aten.rsub, aten.mul, aten.mul_, aten.div, aten.div_),
    *(aten.floor_divide, aten.fmod, aten.remainder, aten.pow, aten.pow_, aten.atan2, aten.copysign, aten.xlogy),
    *(aten.eq, aten.ne, aten.lt, aten.le, aten.gt, aten.ge, aten.maximum, aten.minimum, aten.fmax, aten.fmin),
    *(aten.logical_and, aten.logical_or, aten.logical_xor, aten.bitwise_and, aten.bitwise_or, aten.bitwise_xor),
    *(aten.where, aten.masked_fill, aten.masked_fill_, aten.fill_, aten.lerp, aten.lerp_, aten.addcmul, aten.addcdiv),
    *(aten.index_put, aten.index_put_, aten.index_fill, aten.index_fill_),
}


class OnDevice(Tensor):
    """A tensor on the pretend device: `values` holds its numbers."""

    values: Tensor

    @staticmethod
    def __new__(cls, values: Tensor) -> OnDevice:
        return Tensor._make_wrapper_subclass(
            cls,
            values.shape,
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=DEVICE,
        )

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def __repr__(self) -> str:
        return f"OnDevice({self.values!r})"

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is Tensor.tolist:
            return args[0].cpu().tolist()
        if func is Tensor.data.__set__ and isinstance(args[1], OnDevice):
            args[0].values = args[1].values  # torch moves its own part, and knows nothing of this one
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        raise RuntimeError(f"{func} on the pretend device, which is gone: compute inside `with CountingDevice()`")


@dataclass
class Counts:
    """What a device had to do."""

    kernels: int = 0
    uploads: int = 0
    synchronisations: int = 0
    where: Counter[str] = field(default_factory=Counter)

    def __sub__(self, before: Counts) -> Counts:
        where = Counter({name: n - before.where[name] for name, n in self.where.items() if n > before.where[name]})
        numbers = zip(self.numbers, before.numbers, strict=True)
        return Counts(*(after - earlier for after, earlier in numbers), where)

    @property
    def numbers(self) -> tuple[int, int, int]:
        """Kernels, uploads and synchronisations."""
        return self.kernels, self.uploads, self.synchronisations

    def copy(self) -> Counts:
        """As they are now."""
        return Counts(*self.numbers, Counter(self.where))


class _FromNumbers(TorchFunctionMode):
    """Numbers become tensors on the processor first: torch itself would leave those on `meta` without their values."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor, torch.asarray) and not isinstance(args[0], Tensor):
            device = kwargs.pop("device", None)
            made = func(*args, **kwargs)
            return made if device is None else made.to(device)
        if func is Tensor.new_tensor and isinstance(args[0], OnDevice):
            return torch.tensor(args[1], **{"dtype": args[0].dtype, **kwargs}).to(DEVICE)
        if func in (Tensor.__getitem__, Tensor.__setitem__) and isinstance(args[0], OnDevice):
            args = args[0], _without_lists(args[1]), *args[2:]
        return func(*args, **kwargs)


def _without_lists(index: Any) -> Any:
    if isinstance(index, tuple):
        return tuple(map(_without_lists, index))
    return torch.tensor(index) if isinstance(index, list) else index


_torch_is_autocast_enabled, _torch_autocast = torch.is_autocast_enabled, torch.autocast


def _is_autocast_enabled(*device_type: str) -> bool:
    """As torch's, which raises for `meta`."""
    return device_type != (DEVICE.type,) and _torch_is_autocast_enabled(*device_type)


def _autocast(device_type: str, *args: Any, **kwargs: Any) -> Any:
    """As torch's, which raises for `meta`."""
    return nullcontext() if device_type == DEVICE.type else _torch_autocast(device_type, *args, **kwargs)


class CountingDevice(TorchDispatchMode):
    """Inside `with CountingDevice() as device`, tensors may be on `DEVICE`, and `device.counts` says what it does."""

    def __init__(self) -> None:
        super().__init__()
        self.counts, self._numbers = Counts(), _FromNumbers()

    def __enter__(self) -> CountingDevice:
        self._open = ExitStack()
        self._open.enter_context(self._numbers)
        self._open.enter_context(patch("torch.is_autocast_enabled", _is_autocast_enabled))
        self._open.enter_context(patch("torch.autocast", _autocast))
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._open.__exit__(*error)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        given = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
        there = [leaf for leaf in given if isinstance(leaf, OnDevice)]
        wanted = torch.device(kwargs["device"]) if kwargs.get("device") is not None else None
        on_device = wanted == DEVICE if wanted is not None else bool(there)
        if not there and not on_device:
            return func(*args, **kwargs)
        if wanted is not None:
            kwargs["device"] = torch.device("cpu")
        kwargs.pop("pin_memory", None)
        self._count(func, args, given, there, on_device)
        values = tree_map(_values, (args, kwargs))
        found = func(*values[0], **values[1])
        if not on_device:
            return found
        wrapped = tree_map(lambda leaf: OnDevice(leaf) if isinstance(leaf, Tensor) else leaf, found)
        return return_and_correct_aliasing(func, args, kwargs, wrapped) if there else wrapped

    def _count(self, func: Any, args: tuple[Any, ...], given: list[Tensor], there: list[Tensor], to: bool) -> None:
        elsewhere = [tensor for tensor in given if not isinstance(tensor, OnDevice)]
        if func in _MOVES and elsewhere:
            # the target of `copy_` comes first
            up = isinstance(args[0], OnDevice) if func is aten.copy_.default else to
            return self._add("uploads" if up else "synchronisations", func)
        if func in _MOVES and not to:
            return self._add("synchronisations", func)
        if func in _INDEXED:
            indices = [index for index in args[1] if index is not None]
            elsewhere = [tensor for tensor in elsewhere if all(tensor is not index for index in indices)]
            if any(not isinstance(index, OnDevice) for index in indices):
                self._add("uploads", func)
            flags = [index for index in indices if isinstance(index, OnDevice) and index.dtype == torch.bool]
            if flags and not (func in _FILLED and args[2].numel() == 1):
                self._add("synchronisations", func)
        if any(tensor.dim() or func.overloadpacket not in _TAKES_NUMBERS for tensor in elsewhere):
            raise RuntimeError(f"{func}: tensors on two devices, the pretend one and the processor")
        if func in _WAITED_FOR:
            self._add("synchronisations", func)
        if func not in _MAKES_NOTHING and func is not aten._local_scalar_dense.default and not _is_view(func):
            self._add("kernels", func)

    def _add(self, what: str, func: Any) -> None:
        setattr(self.counts, what, getattr(self.counts, what) + 1)
        self.counts.where[f"{what}: {func}"] += 1


def _values(leaf: Any) -> Any:
    return leaf.values if isinstance(leaf, OnDevice) else leaf


def _is_view(func: Any) -> bool:
    """Whether what it gives lies where its argument lies, and is not written."""
    returns = func._schema.returns
    return bool(returns) and returns[0].alias_info is not None and not returns[0].alias_info.is_write
