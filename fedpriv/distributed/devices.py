"""What the processor hands to a device and gets back, in one piece: every single copy makes both wait."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_ALIGNED = 8  # bytes: numbers of every type may begin there


def moved(device: torch.device, *tensors: Tensor) -> list[Tensor]:
    """Tensors of the processor on a device, in one copy; on the processor they stay as they are."""
    if device.type == "cpu" or not tensors:
        return list(tensors)
    parts = [tensor.contiguous().view(-1).view(torch.uint8) for tensor in tensors]
    padded = [torch.nn.functional.pad(part, (0, -len(part) % _ALIGNED)) for part in parts]
    whole = torch.cat(padded)
    if device.type == "cuda":
        whole = whole.pin_memory()  # else the copy waits for all that the device has still to do
    pieces = whole.to(device, non_blocking=True).split([len(part) for part in padded])
    same = zip(tensors, parts, pieces, strict=True)
    return [piece[: len(part)].view(tensor.dtype).view(tensor.shape) for tensor, part, piece in same]


def fetched(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors of one type on the processor, in one copy."""
    if all(tensor.device.type == "cpu" for tensor in tensors):
        return list(tensors)
    whole = torch.cat([tensor.flatten() for tensor in tensors]).cpu()
    pieces = whole.split([tensor.numel() for tensor in tensors])
    return [piece.view(tensor.shape) for tensor, piece in zip(tensors, pieces, strict=True)]
