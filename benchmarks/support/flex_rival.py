"""FlexAttention with a BlockMask of the same intervals.

Legend: B batch, N queries, H query heads, D head dim, S keys.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.support.attention_inputs import Inputs


@dataclass(frozen=True)
class Flex:
    """``call`` is compiled and ready; ``mask_s`` is what a further BlockMask of this shape takes to make."""

    call: Callable[[], torch.Tensor]
    mask_s: float
    mask_bytes: int
    compile_s: float


def flex_rival(it: Inputs) -> Flex:
    """Compiles FlexAttention for these inputs. Raises whatever the compiler raises where it cannot run."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    B, N, H, _ = it.q_BNHD.shape
    S = it.k_BGSD.shape[2]
    device = it.q_BNHD.device
    # the prefix as slots that every query sees: the mask function then has no case of its own for it
    slot_N = torch.arange(N, dtype=torch.int32, device=device).expand(B, N)
    start_BS = torch.nn.functional.pad(slot_N, (it.prefix, 0), value=0).contiguous()
    end_BS = torch.nn.functional.pad(it.end_BN, (it.prefix, 0), value=N).contiguous()

    def visible(b: Any, h: Any, query: Any, key: Any) -> Any:
        return (start_BS[b, key] <= query) & (query < end_BS[b, key])

    def make_mask(make: Callable[..., Any]) -> Any:
        return make(visible, B, None, N, S, device=device)

    torch.compiler.reset()
    began = time.perf_counter()
    attend = torch.compile(flex_attention, dynamic=False)
    make: Callable[..., Any] = create_block_mask
    if device.type == "cuda":
        # in eager mode the mask of all N x S positions is made on the way
        make = torch.compile(create_block_mask, dynamic=False)
        try:
            make_mask(make)
        except Exception:
            make = create_block_mask
    block_mask = make_mask(make)
    q_BHND, grouped = it.q_BNHD.transpose(1, 2), it.k_BGSD.shape[1] != H

    def call() -> torch.Tensor:
        out_BHND: torch.Tensor = attend(q_BHND, it.k_BGSD, it.v_BGSD, block_mask=block_mask, enable_gqa=grouped)
        return out_BHND.transpose(1, 2)

    call()
    _wait(device)
    compiled = time.perf_counter()
    make_mask(make)
    _wait(device)
    mask_s = time.perf_counter() - compiled
    parts = [value for value in vars(block_mask).values() if isinstance(value, torch.Tensor)]
    mask_bytes = sum(part.numel() * part.element_size() for part in [*parts, start_BS, end_BS])
    return Flex(call, mask_s, mask_bytes, compiled - began)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
