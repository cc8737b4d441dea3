"""What the host hands to the device in a cycle, without waiting for what runs there."""

from __future__ import annotations

from typing import Any

import torch


def to_device(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """``values`` on a device. To a GPU the host's go from pinned memory: a copy from any other waits for the stream."""
    if device.type != "cuda" or values.device.type != "cpu" or not values.numel():
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


def upload(values: torch.Tensor, place: torch.Tensor) -> None:
    """Write the host's ``values`` to ``place``, as :func:`to_device` brings them there."""
    place.copy_(values.pin_memory() if place.is_cuda else values, non_blocking=True)


def numbers_on(device: torch.device, numbers: Any, dtype: torch.dtype = torch.long) -> torch.Tensor:
    """Numbers of the host, in lists of one length, as a tensor on a device."""
    return to_device(torch.tensor(numbers, dtype=dtype), device)
