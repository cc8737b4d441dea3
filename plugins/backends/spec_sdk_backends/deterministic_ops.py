"""The operations of the CUDA backend under ``deterministic=true``: no sum hangs on how many rows a pass has, nor on
which of a row's keys are committed.

Legend: B requests, N rows, H query heads, D head dim, L layers of a stack, O outputs, I inputs, g layers of a group.
"""

from __future__ import annotations

import torch

from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import PLAIN, AttentionSpec
from spec_sdk.ops.linear import Projection, ProjectionStack, SeparateProjections
from spec_sdk.ops.pass_cache import PassCache
from spec_sdk.ops.quantized import QuantizedMatrix
from spec_sdk_backends.aligned_attention import Spans, aligned_attention
from spec_sdk_backends.fixed_tile_products import FixedTileProjection, FixedTileQuantizedProjection
from spec_sdk_backends.tree_attention import MAX_HEAD_DIM
from spec_sdk_backends.triton_ops import TritonOps


class DeterministicOps(TritonOps):
    """Linear layers in tiles of a fixed size, and attention in the order of positions.

    ``spans``: sizes of its spans and blocks other than those that suit a head.
    """

    def __init__(
        self, spans: Spans | None = None, decides_in_pass: bool = False, device: torch.device | None = None
    ) -> None:
        super().__init__(decides_in_pass=decides_in_pass, device=device)
        self._spans = spans

    def projection(self, weight_OI: torch.Tensor, bias_O: torch.Tensor | None = None) -> Projection:
        return FixedTileProjection(weight_OI, bias_O)

    def projections(self, weight_LOI: torch.Tensor, bias_LO: torch.Tensor | None = None) -> ProjectionStack:
        biases = [None] * len(weight_LOI) if bias_LO is None else list(bias_LO)
        return SeparateProjections([FixedTileProjection(w, b) for w, b in zip(weight_LOI, biases, strict=True)])

    def quantized_projection(self, matrix: QuantizedMatrix, bias_O: torch.Tensor | None = None) -> Projection:
        return FixedTileQuantizedProjection(matrix, bias_O)

    def fast_in_bits(self, bits: int, dtype: torch.dtype) -> bool:
        # a tile of rows reads them again
        return False

    def cached_attention(
        self, q_gBNHD: torch.Tensor, cache: PassCache, first: int, spec: AttentionSpec = PLAIN
    ) -> torch.Tensor:
        """As the reference's, for all requests and layers in two launches, and without waiting for the device.

        Raises :class:`~spec_sdk.errors.UserError` for float64.
        """
        # a draft model's layers may cap their scores, have sinks or attend to latents: their bits are not asked for
        unaligned = spec.softcap is not None or spec.sinks is not None or q_gBNHD.shape[-1] > MAX_HEAD_DIM
        if not cache.in_place or unaligned:
            return super().cached_attention(q_gBNHD, cache, first, spec)
        return aligned_attention(q_gBNHD, cache, first, spec, self._spans)


def bits_vary_of(executor: TorchExecutor, unfused_because: str) -> str | None:
    """Why the bits of a model's rows may vary under these operations; None if they do not. ``unfused_because``: why the
    fused kernels do not run its blocks; empty if they do.

    On a GPU the model is tried: that a row's products do not hang on the rows beside it is a property of the hardware
    and of what the compiler made for it.
    """
    if unfused_because:
        return f"the fused kernels do not run its blocks: {unfused_because}"
    attention = [kind.attention for kind in executor.decoder.kinds]
    if any(spec.softcap is not None for spec in attention):
        return "its layers cap their scores"
    if any(spec.sinks is not None for spec in attention):
        return "its layers have attention sinks"
    return tried(executor) if executor.device.type == "cuda" else None


def tried(executor: TorchExecutor) -> str | None:
    """What a few random trees on a model show; None if they have plain decoding's bits.

    Short texts on the whole model, and texts of several spans on a layer of each kind, since plain decoding is slow.
    """
    from spec_sdk.testing import check_same_bits

    kinds = executor.decoder.kinds
    one_of_each = executor.cut(sorted({kinds.index(kind) for kind in kinds}))
    try:
        check_same_bits(executor, 0, rounds=1, most_requests=2, most_nodes=24, longest_prompt=40)
        check_same_bits(one_of_each, 1, rounds=1, most_requests=2, most_nodes=24, longest_prompt=600)
    except AssertionError as error:
        return f"on this machine they depend on the pass: {error}"
    return None
