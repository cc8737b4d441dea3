"""Launches attention and products of passes of many lengths without a GPU; prints every launch's kernel, and the key
that triton would look its compiled form up by.

Legend: L layers, B requests, N rows, H query heads, G KV heads, D head dim, S cache slots, C capacity.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from triton.backends.compiler import GPUTarget  # type: ignore[import-untyped]
from triton.compiler import make_backend  # type: ignore[import-untyped]
from triton.runtime.jit import create_function_from_signature  # type: ignore[import-untyped]

from spec_sdk.contracts import PassInputs
from spec_sdk.ops.pass_cache import PassCache
from spec_sdk.ops.pass_inputs import RequestRows
from spec_sdk_backends import aligned_attention, fixed_tile_products, speculative_attention, tree_attention

L, S, G, R, C, D = 2, 4, 2, 2, 8192, 64


class Printing:
    """Stands for a kernel."""

    def __init__(self, kernel: Any) -> None:
        backend = make_backend(GPUTarget("cuda", 90, 32))
        self.name = kernel.__name__
        self.bind = create_function_from_signature(inspect.signature(kernel.fn), kernel.params, backend)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*arguments: Any, **named: Any) -> None:
            _, specialization, options = self.bind(*arguments, **named)
            print(self.name, specialization, options)

        return launch


def one_pass(prefixes: list[int], rows: int, splits: int) -> None:
    requests = [RequestRows.chain(slot, prefix, [1] * rows) for slot, prefix in enumerate(prefixes)]
    inputs = PassInputs.of("tree", requests, torch.device("cpu"))
    q_LBNHD = torch.empty((L, len(requests), rows, G * R, D), dtype=torch.bfloat16)
    k_LSGCD = torch.empty((L, S, G, C, D), dtype=torch.bfloat16)
    tiling = tree_attention.Tiling.choose(rows * R, D, q_LBNHD.dtype)
    visible = tree_attention.visible_blocks(inputs, tiling, R)
    for shared in (None, visible):
        tree_attention.cached_tree_attention(q_LBNHD, k_LSGCD, k_LSGCD, inputs, splits, visible=shared)
    for kind in ("tree", "chain"):
        own = PassInputs.of(kind, requests, torch.device("cpu"))
        aligned_attention.aligned_attention(q_LBNHD, PassCache(k_LSGCD, k_LSGCD, own), 0)
    weight_OI = torch.empty((256, G * R * D), dtype=torch.bfloat16)
    fixed_tile_products.FixedTileProjection(weight_OI)(torch.empty((8 * rows, G * R * D), dtype=torch.bfloat16))
    held = q_LBNHD[0], k_LSGCD[0], k_LSGCD[0]
    in_slots: dict[str, Any] = {"prefix": inputs.prefix_B, "ends": 16, "splits": splits, "slot_B": inputs.slot_B}
    prediction = speculative_attention.predict_part(*held, inputs.key_end_BT, **in_slots)
    speculative_attention.finish(prediction, *held, **in_slots)
    for part in inputs.parts:
        q_1NHD, k_1GCD = q_LBNHD[0, part.index, None], k_LSGCD[0, part.slot, None, :, : part.mask.keys]
        mask = (part.mask.key_end_T, part.mask.prefix)
        speculative_attention.speculative_attention(q_1NHD, k_1GCD, k_1GCD, *mask, 16, splits=splits)


def main() -> None:
    for module, names in (
        (aligned_attention, ("key_numbers_kernel", "aligned_attention_kernel", "join_spans_kernel")),
        (fixed_tile_products, ("fixed_tile_product_kernel",)),
        (tree_attention, ("tree_attention_kernel", "visible_blocks_kernel", "combine_splits_kernel")),
        (speculative_attention, ("speculative_split_kernel", "combine_speculation_kernel")),
    ):
        for name in names:
            setattr(module, name, Printing(getattr(module, name)))
    for prefixes, rows, splits in (
        ([100], 1, 1),
        ([1023], 2, 3),
        ([1024], 3, 4),
        ([4096, 1], 5, 16),
        ([4097, 500], 8, 17),
        ([8000, 64, 63, 700], 7, 64),
    ):
        one_pass(prefixes, rows, splits)


if __name__ == "__main__":
    main()
