"""Copies several tensors between the CPU and a device in one copy, because both wait for each copy."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_ALIGNED = 8  # bytes: numbers of every type may begin there


def move_to_device(device: torch.device, *tensors: Tensor) -> list[Tensor]:
    """Moves tensors from the CPU to a device, in one copy; if the device is the CPU, returns them unchanged."""
    if device.type == "cpu" or not tensors:
        return list(tensors)
    byte_views = [tensor.contiguous().view(-1).view(torch.uint8) for tensor in tensors]
    padded = [torch.nn.functional.pad(view, (0, -len(view) % _ALIGNED)) for view in byte_views]
    buffer = torch.cat(padded)
    if device.type == "cuda":
        buffer = buffer.pin_memory()  # otherwise the copy waits until the device has done all its work
    chunks = buffer.to(device, non_blocking=True).split([len(view) for view in padded])
    triples = zip(tensors, byte_views, chunks, strict=True)
    return [chunk[: len(view)].view(tensor.dtype).view(tensor.shape) for tensor, view, chunk in triples]


def fetch_to_cpu(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Moves tensors of one type to the CPU, in one copy."""
    if all(tensor.device.type == "cpu" for tensor in tensors):
        return list(tensors)
    buffer = torch.cat([tensor.flatten() for tensor in tensors]).cpu()
    chunks = buffer.split([tensor.numel() for tensor in tensors])
    return [chunk.view(tensor.shape) for tensor, chunk in zip(tensors, chunks, strict=True)]
