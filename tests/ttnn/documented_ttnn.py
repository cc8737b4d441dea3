"""A stand-in for ``ttnn``: what its documentation says of the operations that the adapter calls, in torch.

It is as strict as tiles are: four dimensions, slices and rows in whole tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F

TILE = 32


class Tensor:
    """Of four dimensions, in tiles."""

    def __init__(self, x: torch.Tensor) -> None:
        assert x.ndim == 4, f"{x.ndim} dimensions"
        self.x = x

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.x.shape)


def from_torch(x: torch.Tensor, dtype: torch.dtype, layout: str, device: Any) -> Tensor:
    assert x.dtype == dtype and layout == "tiles" and device.is_open
    return Tensor(x.clone())


def to_torch(tensor: Tensor) -> torch.Tensor:
    return tensor.x.clone()


def rms_norm(x: Tensor, *, epsilon: float, weight: Tensor) -> Tensor:
    assert weight.shape == (1, 1, 1, x.shape[-1])
    return Tensor(x.x * torch.rsqrt(x.x.square().mean(-1, keepdim=True) + epsilon) * weight.x)


def linear(x: Tensor, weight: Tensor, *, bias: Tensor | None = None, activation: str | None = None) -> Tensor:
    assert activation in (None, "silu") and weight.shape[:2] == (1, 1)
    y = x.x @ weight.x if bias is None else x.x @ weight.x + bias.x
    return Tensor(F.silu(y) if activation else y)


def multiply(a: Tensor, b: Tensor | float) -> Tensor:
    return Tensor(a.x * (b.x if isinstance(b, Tensor) else b))


def add(a: Tensor, b: Tensor) -> Tensor:
    assert a.shape == b.shape
    return Tensor(a.x + b.x)


def slice_(x: Tensor, start: Sequence[int], end: Sequence[int]) -> Tensor:
    assert not any(value % TILE for value in (*start[2:], *end[2:])), "slices of whole tiles only"
    assert all(e <= size for e, size in zip(end, x.shape, strict=True)), (end, x.shape)
    return Tensor(x.x[tuple(slice(s, e) for s, e in zip(start, end, strict=True))].clone())


def reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
    return Tensor(x.x.reshape(tuple(shape)))


def permute(x: Tensor, dims: Sequence[int]) -> Tensor:
    return Tensor(x.x.permute(tuple(dims)))


def concat(tensors: Sequence[Tensor], dim: int) -> Tensor:
    return Tensor(torch.cat([tensor.x for tensor in tensors], dim))


def update_cache(cache: Tensor, x: Tensor, update_index: int, *, batch_offset: int = 0) -> None:
    """A row for each request of the cache, taken from dimension -2 of ``x``, which is padded to 32."""
    assert cache.shape[0] == 1 and x.shape == (1, cache.shape[1], TILE, cache.shape[3])
    cache.x[0, :, update_index] = x.x[0, :, batch_offset]


def fill_cache(cache: Tensor, x: Tensor, batch_index: int) -> None:
    assert x.shape[2] % TILE == 0
    cache.x[batch_index, :, : x.shape[2]] = x.x[0]


def rotary_embedding(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    assert cos.shape == (1, 1, *x.shape[2:]) and x.shape[3] % (2 * TILE) == 0
    first, second = x.x.chunk(2, -1)
    return Tensor(x.x * cos.x + torch.cat((-second, first), -1) * sin.x)


def scaled_dot_product_attention(
    q: Tensor, k: Tensor, v: Tensor, *, attn_mask: Tensor, is_causal: bool = True, scale: float | None = None
) -> Tensor:
    assert not is_causal, "attn_mask is not used by a causal call"
    assert attn_mask.shape == (1, 1, q.shape[2], k.shape[2])
    shared = q.shape[1] // k.shape[1]
    key, value = (x.x.repeat_interleave(shared, 1) for x in (k, v))
    return Tensor(F.scaled_dot_product_attention(q.x, key, value, attn_mask=attn_mask.x, scale=scale))


def documented_ttnn() -> ModuleType:
    """A module ``ttnn`` with one device, number 0."""
    module: Any = ModuleType("ttnn")
    device = SimpleNamespace(is_open=False)

    def open_device(device_id: int) -> Any:
        if device_id:
            raise RuntimeError(f"no device {device_id}\nsome backtrace")
        device.is_open = True
        return device

    def close_device(opened: Any) -> None:
        opened.is_open = False

    for function in (
        *(from_torch, to_torch, rms_norm, linear, multiply, add, reshape, permute, concat, update_cache, fill_cache),
        *(open_device, close_device),
    ):
        setattr(module, function.__name__, function)
    module.slice = slice_
    module.bfloat16, module.float32, module.TILE_LAYOUT = torch.bfloat16, torch.float32, "tiles"
    module.experimental = SimpleNamespace(rotary_embedding=rotary_embedding)
    module.transformer = SimpleNamespace(scaled_dot_product_attention=scaled_dot_product_attention)
    named: ModuleType = module
    return named
