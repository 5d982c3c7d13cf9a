"""Where each trainable parameter of a model lies in a row of numbers.

A row holds the trainable parameters (`requires_grad`) in the order of `model.named_parameters()`, each flattened.
Frozen parameters and buffers are constants: they are in no row and do not change.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from fedpriv.errors import ConfigError, in_short


@dataclass(frozen=True)
class Layout:
    """Where the trainable parameters of a model lie in a row `[dim]`.

    Attributes:
        shapes: Name and shape of each, in the row's order.
    """

    shapes: tuple[tuple[str, torch.Size], ...]

    @classmethod
    def of(cls, model: nn.Module) -> Layout:
        """The layout of a model's rows; what is trainable is read off once, here."""
        return cls(tuple((name, p.shape) for name, p in model.named_parameters() if p.requires_grad))

    @property
    def dim(self) -> int:
        """Number of trainable parameters."""
        return sum(self._sizes)

    @cached_property
    def _sizes(self) -> list[int]:
        return [shape.numel() for _, shape in self.shapes]

    def unflatten(self, rows: Tensor) -> dict[str, Tensor]:
        """Trainable parameters by name, as views: `[..., dim] -> {name: [..., *shape]}`."""
        parts = zip(self.shapes, rows.split(self._sizes, dim=-1), strict=True)
        return {name: part.view((*rows.shape[:-1], *shape)) for (name, shape), part in parts}

    def row_of(self, model: nn.Module) -> Tensor:
        """The trainable parameters of a model of this layout, copied, `[dim]`."""
        parameters = dict(model.named_parameters())
        return torch.cat([parameters[name].detach().flatten() for name, _ in self.shapes])

    def bind(self, row: Tensor, model: nn.Module) -> None:
        """Copy the model's trainable parameters into `row [dim]` and make them views of it."""
        row.copy_(self.row_of(model))
        parameters = dict(model.named_parameters())
        for name, view in self.unflatten(row).items():
            parameters[name].data = view

    @torch.no_grad()
    def write(self, row: Tensor, model: nn.Module) -> None:
        """Copy `row [dim]` into the model's trainable parameters."""
        parameters = dict(model.named_parameters())
        for name, value in self.unflatten(row).items():
            parameters[name].copy_(value)


def frozen(model: nn.Module) -> int:
    """Number of parameters that are in no row."""
    return sum(p.numel() for p in model.parameters() if not p.requires_grad)


def constants(model: nn.Module) -> dict[str, Tensor]:
    """Frozen parameters and buffers by name."""
    parameters = {name: p.detach() for name, p in model.named_parameters() if not p.requires_grad}
    return {**parameters, **dict(model.named_buffers())}


def constant_totals(model: nn.Module) -> Tensor:
    """The bits of each constant, added up, by which a change of one shows: `[constants]` int64."""
    found = [_words(value).sum(dtype=torch.int64) for value in constants(model).values()]
    if found:
        return torch.stack(found)
    return torch.zeros(0, dtype=torch.int64)


def changed_constants(model: nn.Module, before: Tensor) -> list[str]:
    """Names of constants whose `constant_totals` are not those from before."""
    now, names = constant_totals(model), [*constants(model)]
    if now.shape != before.shape or torch.equal(now, before):
        if now.shape == before.shape:
            return []
        return names
    return [name for name, same in zip(names, (now == before).tolist(), strict=True) if not same]


def _words(value: Tensor) -> Tensor:
    """The bits of a tensor as whole numbers, of 8 bytes where that is possible: these are added fastest."""
    flat = value.contiguous().view(-1).view(torch.uint8)
    whole = flat.numel() % 8 == 0 and int(flat.storage_offset()) % 8 == 0
    if whole:
        return flat.view(torch.int64)
    return flat


def copy_model(model: nn.Module) -> nn.Module:
    """A copy with everything of its own.

    Raises:
        ConfigError: torch cannot copy it.
    """
    try:
        return copy.deepcopy(model)
    except RuntimeError as error:
        fix = (
            f"cannot be copied ({in_short(error)}). Where nn.utils.weight_norm is the reason, call "
            "nn.utils.remove_weight_norm and then nn.utils.parametrizations.weight_norm, which keeps the weights"
        )
        raise ConfigError("model", type(model).__name__, fix) from error


def copy_trainable(model: nn.Module) -> nn.Module:
    """A copy with trainable parameters of its own; frozen parameters and buffers lie where the model's lie."""
    # parameters of its own all the same: whether it is frozen is said of each model
    fixed = (p for p in model.parameters() if not p.requires_grad and type(p) is nn.Parameter)
    known: dict[int, object] = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in fixed}
    return copy.deepcopy(model, known | {id(buffer): buffer for buffer in model.buffers()})


def share(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Have frozen parameters and buffers lie where those of another model, by name, lie; their own memory is freed."""
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            parameter.data = tensors[name]
    for name, _ in list(model.named_buffers()):
        owner, _, own = name.rpartition(".")
        setattr(model.get_submodule(owner), own, tensors[name])


def fingerprint(model: nn.Module) -> str:
    """Hash of a model's layout and constants: all that its rows do not hold.

    Two models with one fingerprint are the same function of a row, as far as tensors tell.
    """
    found = hashlib.blake2b(repr(Layout.of(model).shapes).encode(), digest_size=16)
    for name, value in constants(model).items():
        found.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        found.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
