"""The reference op and explicit-mask attention on the CPU, as calls without arguments.

Legend: B batch, N queries, H query heads, G KV heads, D head dim, S keys.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.support.attention_inputs import Inputs, Shape, nbytes
from benchmarks.support.flex_rival import flex_rival
from spec_sdk.bench.timing import median_seconds
from spec_sdk.ops import Ops
from spec_sdk.ops.attention_mask import AttentionMask

Call = Callable[[], torch.Tensor]


def our_mask(it: Inputs) -> AttentionMask:
    """The pass's mask; the reference op takes one tree for all sequences."""
    return AttentionMask.tree(it.prefix, it.end_BN[0].tolist(), it.end_BN.device)


def our_rival(it: Inputs, mask: AttentionMask) -> Call:
    """As a layer of a pass calls it: what the mask keeps from the first layer is there."""
    ops = Ops()
    return lambda: ops.tree_attention(it.q_BNHD, it.k_BGSD, it.v_BGSD, mask)


def our_first_layer(it: Inputs, mask: AttentionMask) -> Call:
    """As the first layer of a pass calls it: nothing of the mask is made yet but its integers."""
    ops = Ops()

    def call() -> torch.Tensor:
        fresh = dataclasses.replace(mask, _bias={})
        return ops.tree_attention(it.q_BNHD, it.k_BGSD, it.v_BGSD, fresh)

    return call


def explicit_mask_rival(it: Inputs, visible_B1NS: torch.Tensor) -> Call:
    """``scaled_dot_product_attention`` with a bool mask made beforehand."""
    grouped = it.k_BGSD.shape[1] != it.q_BNHD.shape[2]

    def call() -> torch.Tensor:
        q_BHND = it.q_BNHD.transpose(1, 2)
        out_BHND = F.scaled_dot_product_attention(
            q_BHND, it.k_BGSD, it.v_BGSD, attn_mask=visible_B1NS, enable_gqa=grouped
        )
        return out_BHND.transpose(1, 2)

    return call


def measure(shape: Shape, seconds: float, with_flex: bool) -> dict[str, Any]:
    """One case of the report. ``sdpa again`` is the same call once more: how far it differs is what noise makes."""
    it = Inputs.make(shape, torch.device("cpu"), one_tree=True)
    mask, visible_B1NS = our_mask(it), it.visible_B1NS()[:1]
    calls = {"ours": our_rival(it, mask), "sdpa": explicit_mask_rival(it, visible_B1NS)}
    facts: dict[str, dict[str, Any]] = {
        "ours": {"mask_bytes": nbytes(mask.key_end_T)},
        "sdpa": {"mask_bytes": nbytes(visible_B1NS)},
    }
    case: dict[str, Any] = {**shape.fields(), "masks": 1, "rivals": {}, "left_out": {}}
    if shape.nodes <= 64:
        calls["sdpa again"] = explicit_mask_rival(it, visible_B1NS)
        calls["ours, first layer"] = our_first_layer(it, mask)
    if with_flex:
        try:
            flex = flex_rival(it)
            calls["flex"] = flex.call
            facts["flex"] = {"mask_bytes": flex.mask_bytes, "mask_s": flex.mask_s, "compile_s": flex.compile_s}
        except Exception as error:  # without a C++ compiler, say; the other figures still stand
            case["left_out"]["flex"] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    expected = calls["ours"]()
    tolerance = 1e-4 if shape.dtype == "float32" else 5e-2
    for name, call in list(calls.items()):
        worst = float((call().float() - expected.float()).abs().max())
        if not worst <= tolerance:
            case["left_out"][name] = f"its result differs by {worst:.3g}"
            del calls[name]
    for name, median in median_seconds(calls, seconds).items():
        case["rivals"][name] = {"call_s": median, **facts.get(name, {})}
    return case
