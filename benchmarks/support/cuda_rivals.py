"""Tree attention on an NVIDIA GPU and everything that it is measured against, as calls without arguments.

Legend: B batch, N queries, H query heads, G KV heads, R = H/G, D head dim, S keys.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.support.attention_inputs import DTYPES, Inputs, Shape, nbytes
from benchmarks.support.cuda_timing import median_replays
from benchmarks.support.flex_rival import flex_rival
from benchmarks.support.full_mask_kernel import full_mask_attention
from spec_sdk.bench.memory import peak_bytes
from spec_sdk_backends.tree_attention import tree_attention

Call = Callable[[], torch.Tensor]
BACKENDS = (SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION)
WORST_DIFFERENCE = {"float32": 5e-3, "bfloat16": 5e-2, "float16": 2e-2}
"""Outputs of standard normal inputs may differ by so much; float32 leaves room for rivals that use tf32."""


@dataclass
class Rivals:
    """Calls by name, what else is known of each, and those that did not run with the reason."""

    calls: dict[str, Call] = field(default_factory=dict)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, call: Call, expected: torch.Tensor | None, tolerance: float, **facts: Any) -> None:
        """Takes a rival in if it runs and, where ``expected`` is given, computes that."""
        try:
            out = call()
            torch.cuda.synchronize()
        except Exception as error:  # out of memory or shared memory, or a backend that does not take the shape
            self.left_out[name] = first_line(error)
            free()
            return
        worst = float("nan") if expected is None else float((out.float() - expected.float()).abs().max())
        if expected is not None and not worst <= tolerance:
            self.left_out[name] = f"its result differs by {worst:.3g}"
            return
        self.calls[name] = call
        self.facts[name] = {**facts, "largest_difference": None if expected is None else worst}


def first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:200]


def free() -> None:
    gc.collect()
    torch.cuda.empty_cache()


def in_aligned_rows(mask: torch.Tensor) -> torch.Tensor:
    """The mask with rows that begin at multiples of 16 elements, as fast loads want them."""
    columns = mask.shape[-1]
    padded = mask.new_zeros((*mask.shape[:-1], -(-columns // 16) * 16))
    padded[..., :columns] = mask
    return padded[..., :columns]


def explicit_mask_calls(it: Inputs) -> dict[str, tuple[Call, int]]:
    """Every way to give SDPA the mask, with the mask's bytes: bool or additive, backend by backend.

    The mask is made beforehand, and so are the K and V of every query head where heads share them (efficient attention
    wants them so): both in the rival's favour.
    """
    R = it.q_BNHD.shape[2] // it.k_BGSD.shape[1]
    q_BHND = it.q_BNHD.transpose(1, 2)
    k_BHSD, v_BHSD = (x.repeat_interleave(R, 1) if R > 1 else x for x in (it.k_BGSD, it.v_BGSD))
    visible_B1NS = in_aligned_rows(it.visible_B1NS())
    bias_B1NS = torch.zeros(visible_B1NS.shape, dtype=it.q_BNHD.dtype, device=visible_B1NS.device)
    bias_B1NS = in_aligned_rows(bias_B1NS.masked_fill_(~visible_B1NS, float("-inf")))

    def call(mask: torch.Tensor, backend: SDPBackend | None) -> Call:
        def run() -> torch.Tensor:
            return F.scaled_dot_product_attention(q_BHND, k_BHSD, v_BHSD, attn_mask=mask).transpose(1, 2)

        def run_with() -> torch.Tensor:
            with sdpa_kernel([backend]):
                return run()

        return run if backend is None else run_with

    return {
        f"sdpa {name} mask, {'default' if backend is None else backend.name.split('_')[0].lower()}": (
            call(mask, backend),
            nbytes(mask),
        )
        for name, mask in (("bool", visible_B1NS), ("additive", bias_B1NS))
        for backend in (None, *BACKENDS)
    }


def causal_call(shape: Shape, device: torch.device) -> Call:
    """FlashAttention over a causal square of P + N tokens: the floor. Falls to what SDPA has for float32."""
    q_BHSD, k_BGSD, v_BGSD = (
        torch.randn(shape.batch, heads, shape.keys, shape.head_dim, device=device).to(DTYPES[shape.dtype])
        for heads in (shape.heads, shape.kv_heads, shape.kv_heads)
    )
    R = shape.heads // shape.kv_heads
    k_BHSD, v_BHSD = (x.repeat_interleave(R, 1) if R > 1 else x for x in (k_BGSD, v_BGSD))
    backends = [SDPBackend.FLASH_ATTENTION] if shape.dtype != "float32" else [SDPBackend.EFFICIENT_ATTENTION]

    def call() -> torch.Tensor:
        with sdpa_kernel(backends):
            return F.scaled_dot_product_attention(q_BHSD, k_BHSD, v_BHSD, is_causal=True)

    return call


def our_call(it: Inputs) -> Call:
    return lambda: tree_attention(it.q_BNHD, it.k_BGSD, it.v_BGSD, it.end_BN, it.prefix)


def gather(shape: Shape, device: torch.device, with_flex: bool, seed: int) -> Rivals:
    """Every rival that runs at this shape, each checked against ours."""
    it = Inputs.make(shape, device, seed=seed)
    tolerance, rivals = WORST_DIFFERENCE[shape.dtype], Rivals()
    rivals.add("ours", our_call(it), None, tolerance, mask_bytes=nbytes(it.end_BN))
    if "ours" not in rivals.calls:
        return rivals
    expected = rivals.calls["ours"]()
    try:
        visible_BNN = in_aligned_rows(it.visible_BNN())
        rivals.add(
            "full mask, our kernel",
            lambda: full_mask_attention(it.q_BNHD, it.k_BGSD, it.v_BGSD, visible_BNN, it.prefix),
            expected, tolerance, mask_bytes=nbytes(visible_BNN),
        )  # fmt: skip
    except torch.OutOfMemoryError as error:
        rivals.left_out["full mask, our kernel"] = first_line(error)
        free()
    try:
        for name, (call, mask_bytes) in explicit_mask_calls(it).items():
            rivals.add(name, call, expected, tolerance, mask_bytes=mask_bytes)
    except torch.OutOfMemoryError as error:
        rivals.left_out["sdpa"] = first_line(error)
        free()
    if with_flex:
        try:
            flex = flex_rival(it)
            facts = {"mask_bytes": flex.mask_bytes, "mask_s": flex.mask_s, "compile_s": flex.compile_s}
            rivals.add("flex", flex.call, expected, tolerance, **facts)
        except Exception as error:  # a compiler can fail in any way; the other figures still stand
            rivals.left_out["flex"] = first_line(error)
            free()
    # it computes something else, so there is nothing to compare it with
    rivals.add("causal flash", causal_call(shape, device), None, tolerance, mask_bytes=0)
    return rivals


def measure(shape: Shape, device: torch.device, rounds: int, with_flex: bool, seed: int = 0) -> dict[str, Any]:
    """One case of the report. Of the ways to give SDPA the mask the fastest is also listed as ``sdpa``."""
    rivals = gather(shape, device, with_flex, seed)
    case: dict[str, Any] = {**shape.fields(), "rivals": {}, "left_out": dict(rivals.left_out)}
    if "ours" not in rivals.calls:
        return case
    device_s, plain_s = median_replays(rivals.calls, rounds)
    for name, call in rivals.calls.items():
        case["rivals"][name] = {
            "device_s": device_s.get(name),
            "call_s": plain_s[name],
            "peak_bytes": peak_bytes(call, device),
            **rivals.facts[name],
        }
    ways = {name: entry for name, entry in case["rivals"].items() if name.startswith("sdpa ")}
    if ways:
        best = min(ways, key=lambda name: ways[name]["device_s"] or ways[name]["call_s"])
        case["rivals"]["sdpa"] = {**ways[best], "way": best}
    free()
    return case


def full_mask_no_longer_fits(
    device: torch.device, batch: int = 16, heads: int = 2, head_dim: int = 64
) -> dict[str, Any]:
    """A size whose dense mask is larger than the free memory, tried; and the interval mask at the same size, run."""
    free()
    available = torch.cuda.mem_get_info(device)[0]
    nodes = 1024
    while batch * nodes * nodes <= available:
        nodes *= 2
    shape = Shape(batch, heads, heads, head_dim, nodes, 10, "bfloat16")
    it = Inputs.make(shape, device)
    report: dict[str, Any] = {**shape.fields(), "free_bytes": available, "mask_bytes": nbytes(it.end_BN)}
    report["full_mask_bytes"] = batch * nodes * nodes
    try:
        dense = torch.empty(batch, nodes, nodes, dtype=torch.uint8, device=device)
        report["full_mask"] = "fits"
        del dense
    except torch.OutOfMemoryError as error:
        report["full_mask"] = first_line(error)
    free()
    try:
        out = our_call(it)()
        torch.cuda.synchronize()
        report["intervals"] = "ran" if bool(out.isfinite().all()) else "not finite"
        report["peak_bytes"] = peak_bytes(our_call(it), device)
    except RuntimeError as error:
        report["intervals"] = first_line(error)
    free()
    return report
