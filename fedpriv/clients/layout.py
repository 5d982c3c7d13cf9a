"""Positions of a model's trainable parameters in a flat row of numbers.

A row holds the trainable parameters (`requires_grad`) in the order of `model.named_parameters()`, each flattened.
Frozen parameters and buffers are constants, which are not in the row and do not change.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from fedpriv.errors import ConfigError, summarize_error
from fedpriv.models.copies import copy_module


@dataclass(frozen=True)
class Layout:
    """The order and shapes of a model's trainable parameters in a row `[dim]`.

    Attributes:
        shapes: Name and shape of each parameter, in the row's order.
    """

    shapes: tuple[tuple[str, torch.Size], ...]

    @classmethod
    def of(cls, model: nn.Module) -> Layout:
        """Returns the layout of a model's rows; a later change of `requires_grad` does not change it."""
        return cls(tuple((name, p.shape) for name, p in model.named_parameters() if p.requires_grad))

    @property
    def dim(self) -> int:
        """Number of trainable parameters."""
        return sum(self._sizes)

    @cached_property
    def _sizes(self) -> list[int]:
        return [shape.numel() for _, shape in self.shapes]

    def unflatten(self, rows: Tensor) -> dict[str, Tensor]:
        """Returns trainable parameters by name, as views: `[..., dim] -> {name: [..., *shape]}`."""
        pieces = zip(self.shapes, rows.split(self._sizes, dim=-1), strict=True)
        return {name: piece.view((*rows.shape[:-1], *shape)) for (name, shape), piece in pieces}

    def row_of(self, model: nn.Module) -> Tensor:
        """Returns a copy of the trainable parameters of a model of this layout, `[dim]`."""
        if not self.shapes:
            return torch.zeros(0)
        parameters = dict(model.named_parameters())
        return torch.cat([parameters[name].detach().flatten() for name, _ in self.shapes])

    def bind(self, row: Tensor, model: nn.Module) -> None:
        """Copies the model's trainable parameters into `row [dim]`, and makes the parameters views of it."""
        row.copy_(self.row_of(model))
        parameters = dict(model.named_parameters())
        for name, view in self.unflatten(row).items():
            parameters[name].data = view

    @torch.no_grad()
    def write(self, row: Tensor, model: nn.Module) -> None:
        """Copies `row [dim]` into the model's trainable parameters."""
        parameters = dict(model.named_parameters())
        for name, value in self.unflatten(row).items():
            parameters[name].copy_(value)


def count_frozen_parameters(model: nn.Module) -> int:
    """Returns the number of frozen parameters, which are not in the row."""
    return sum(p.numel() for p in model.parameters() if not p.requires_grad)


def collect_constants(model: nn.Module) -> dict[str, Tensor]:
    """Returns frozen parameters and buffers by name."""
    parameters = {name: p.detach() for name, p in model.named_parameters() if not p.requires_grad}
    return {**parameters, **dict(model.named_buffers())}


def checksum_constants(model: nn.Module) -> Tensor:
    """Returns a checksum of each frozen parameter and buffer, which is the sum of its bits as integers: `[constants]`
    int64.
    """
    return _totals(collect_constants(model))


def find_changed_constants(model: nn.Module, before: Tensor) -> list[str]:
    """Returns the names of the constants with checksums that differ from `before`; all names if the number of constants
    changed.
    """
    if before.shape[0] == 0 and not _has_constants(model):
        return []
    values = collect_constants(model)
    after = _totals(values)
    names = [*values]
    if after.shape != before.shape:
        return names
    return [name for name, same in zip(names, (after == before).tolist(), strict=True) if not same]


def _has_constants(model: nn.Module) -> bool:
    """Returns True if a model has a frozen parameter or a buffer.

    This is called in every round. Torch's iterators over parameters and over buffers each visit all modules, with about
    forty function calls for a model with three modules. This loop needs none of these calls.
    """
    modules: list[nn.Module | None] = [model]
    while modules:
        module = modules.pop()
        if module is None:
            continue
        for buffer in module._buffers.values():  # noqa: SLF001
            if buffer is not None:
                return True
        for parameter in module._parameters.values():  # noqa: SLF001
            if parameter is not None and not parameter.requires_grad:
                return True
        modules += module._modules.values()  # noqa: SLF001
    return False


def _totals(values: Mapping[str, Tensor]) -> Tensor:
    totals = [_words(value).sum(dtype=torch.int64) for value in values.values()]
    if totals:
        return torch.stack(totals)
    return torch.zeros(0, dtype=torch.int64)


def _words(value: Tensor) -> Tensor:
    """Returns the bits of a tensor as integers of 8 bytes, which are added fastest, or of 1 byte if 8 bytes are
    impossible.
    """
    flat = value.contiguous().view(-1).view(torch.uint8)
    whole = flat.numel() % 8 == 0 and int(flat.storage_offset()) % 8 == 0
    if whole:
        return flat.view(torch.int64)
    return flat


def copy_model(model: nn.Module) -> nn.Module:
    """Returns a deep copy.

    Raises:
        ConfigError: If torch cannot copy it.
    """
    try:
        return copy_module(model)
    except Exception as error:  # an attribute of a user's module can raise anything
        path, layer = next(((p, m) for p, m in model.named_modules() if not _can_be_copied(m)), ("", model))
        name = f"model.{path}" if path else "model"
        fix = (
            f"cannot be copied with copy.deepcopy ({summarize_error(error)}): remove the attribute of the module that "
            "cannot be copied"
        )
        raise ConfigError(name, type(layer).__name__, fix) from error


def _can_be_copied(layer: nn.Module) -> bool:
    """Returns True if the attributes of a module itself can be copied."""
    try:
        copy.deepcopy({name: value for name, value in vars(layer).items() if name != "_modules"})
    except Exception:  # such an attribute can raise anything
        return False
    return True


def copy_trainable(model: nn.Module) -> nn.Module:
    """Returns a copy with its own trainable parameters, which shares memory of frozen parameters and buffers."""
    # frozen parameters are new objects over the same memory: each model has a separate `requires_grad`
    fixed = (p for p in model.parameters() if not p.requires_grad and type(p) is nn.Parameter)
    memo: dict[int, object] = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in fixed}
    return copy_module(model, memo | {id(buffer): buffer for buffer in model.buffers()})


def share_constants(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Replaces frozen parameters and buffers with another model's, by name, so that both models share their
    memory.
    """
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            parameter.data = tensors[name]
    for name, _ in list(model.named_buffers()):
        owner, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(owner), attribute, tensors[name])


def fingerprint(model: nn.Module) -> str:
    """Returns a hash of a model's layout and constants, which its rows do not contain.

    Two models with the same fingerprint have the same tensors. Differences in their code are not detected.
    """
    digest = hashlib.blake2b(repr(Layout.of(model).shapes).encode(), digest_size=16)
    for name, value in collect_constants(model).items():
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
