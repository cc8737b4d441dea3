"""A decoder whose small operations are the kernels of :mod:`spec_sdk_backends.fused_block_kernels`.

A block is four products, attention and four other launches; the residual of one sub-layer is added where the next one
normalises. Of a pass over one token a block is five launches beside attention, which have norms, gate and residuals in
the products, and of one over few rows four, which have the rotation in them, too. Runners that need the stages get them
from the kernels of several rows and the library's products; the values differ by rounding. What takes derivatives, and
a cache that attention cannot read in place, goes through torch.

Legend: B requests, N rows of a request, M model dim, I MLP dim, H query heads, G KV heads, D head dim, S cache slots,
C capacity of a slot, P parts of a product, whose sum it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
import triton  # type: ignore[import-untyped]

from spec_sdk.model.decoder import Decoder, ForwardPass, Rotations
from spec_sdk.model.restaged_decoder import RestagedDecoder
from spec_sdk.model.rope import Rotation, RotationsAt
from spec_sdk.ops.feed_forward import GatedMLP
from spec_sdk.ops.pass_inputs import PassInputs
from spec_sdk_backends.dependent_launches import APART, overlapped
from spec_sdk_backends.few_rows import (
    ROWS,
    FewRows,
    gated_product_of_few_rows,
    product_of_few_rows,
    rotated_product_of_few_rows,
    summed_product_of_few_rows,
    takes_few_rows,
)
from spec_sdk_backends.fused_block_kernels import (
    add_rms_norm_kernel,
    gated_activation_kernel,
    rotate_and_store_kernel,
)
from spec_sdk_backends.matrix_vector import matrix_vector, takes_one_row

MOST_DIMS = 16384
"""Elements of a hidden state that one program normalises in registers."""
BLOCK_I = 1024
HEADS_AT_ONCE, ROTATION_WARPS = 4, 2
"""Of a program that rotates; off the GPU it takes all heads of a row, since interpreting takes a time per program."""


def unknown_rest(decoder: Decoder) -> str | None:
    """Why no kernels here do what follows attention in a decoder's blocks; None if they do."""
    if decoder.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"{decoder.dtype} has no kernels"
    if decoder.config.hidden_size > MOST_DIMS:
        return f"a hidden state has more than {MOST_DIMS} dims"
    for layer, block in enumerate(decoder.blocks):
        if not isinstance(block.mlp, GatedMLP):
            return f"layer {layer} has no gated MLP"
        if block.mlp.activation not in ("silu", "gelu_tanh"):
            return f"layer {layer} has a {block.mlp.activation}"
        if block.attention_output_norm_M is not None or block.mlp_output_norm_M is not None:
            return f"layer {layer} has norms of its outputs"
        if block.post_norm_M is None:
            return f"layer {layer} has no norm before its MLP"
    return None


def unfused_because(decoder: Decoder) -> str | None:
    """Why the kernels do not run a decoder's blocks; None if they do."""
    if type(decoder) is not Decoder:
        return f"a {type(decoder).__name__} has stages of its own"
    if unknown := unknown_rest(decoder):
        return unknown
    for layer, block in enumerate(decoder.blocks):
        if block.input_norm_M is None or (block.q_norm_D is None) != (block.k_norm_D is None):
            return f"layer {layer} lacks a norm"
        gains = (block.q_norm_D, block.k_norm_D)
        if any(gain is not None and gain.numel() != decoder.config.head_dim for gain in gains):
            return f"layer {layer} normalises all heads together"
    return None


class FusedDecoder(RestagedDecoder):
    """A decoder of blocks that :func:`unfused_because` has nothing against. ``few_rows``: the numbers of rows of which
    passes use the products of few rows, where the device takes them.
    """

    few_rows = ROWS

    def subset(self, layers: Sequence[int]) -> Decoder:
        return FusedDecoder(super().subset(layers))

    def rotations_at(self, position_BN: torch.Tensor, positions: int) -> Sequence[Rotation]:
        # the kernels look them up themselves, some of them before the launch before has ended
        self.reserve_rotations(positions)
        return RotationsAt(self._rotary, position_BN, positions)

    def blocks_at_once(self, h_BNM: torch.Tensor, work: ForwardPass, first: int, end: int) -> torch.Tensor | None:
        if torch.is_grad_enabled() or not work.cache.in_place:
            return None
        if h_BNM.shape[:2] == (1, 1) and self.takes_one_row:
            for layer in range(first, end):
                h_BNM = self._block_of_one_row(layer, h_BNM, work)
                work.record(layer + 1, h_BNM)
            return h_BNM
        if self.multiplies_few(h_BNM[..., 0].numel()):
            return self._blocks_of_few_rows(h_BNM, work, first, end)
        # what the sub-layer before has still to add
        added_BNM: torch.Tensor | None = None
        for layer in range(first, end):
            w = self.blocks[layer]
            assert w.input_norm_M is not None and w.post_norm_M is not None
            h_BNM, x_BNM = add_rms_norm(h_BNM, added_BNM, w.input_norm_M, self.config.rms_norm_eps)
            if layer > first:
                work.record(layer, h_BNM)
            q_BNHD = self.rotated(layer, w.qkv(x_BNM)[None], work, in_cache(layer, work))
            a_BNM = self.project(layer, self.attend(layer, q_BNHD, work))
            h_BNM, x_BNM = add_rms_norm(h_BNM, a_BNM, w.post_norm_M, self.config.rms_norm_eps)
            added_BNM = gated_mlp(w.mlp, x_BNM)
        if added_BNM is not None:
            h_BNM = h_BNM + added_BNM
            work.record(end, h_BNM)
        return h_BNM

    @cached_property
    def takes_one_row(self) -> bool:
        """Whether blocks of one row are made of the products of :mod:`spec_sdk_backends.matrix_vector`."""
        return all(map(takes_one_row, self.blocks))

    @cached_property
    def takes_few_rows(self) -> bool:
        """The same of :mod:`spec_sdk_backends.few_rows`."""
        return all(takes_few_rows(block, self.device, self.dtype) for block in self.blocks)

    def multiplies_few(self, rows: int) -> bool:
        """Whether a pass of so many rows uses them: one, too, of which the products of one row are not made."""
        return (rows == 1 or rows in self.few_rows) and self.takes_few_rows

    def _block_of_one_row(self, layer: int, h_11M: torch.Tensor, work: ForwardPass) -> torch.Tensor:
        """The block's output, with norms, gate and residuals in the products."""
        w = self.blocks[layer]
        qkv_11X = matrix_vector(h_11M, w.qkv, gain_I=w.input_norm_M, epsilon=self.config.rms_norm_eps)
        o_11HD = self.attend(layer, self.rotated(layer, qkv_11X[None], work, in_cache(layer, work)), work)
        return self.rest_of_one_row(layer, o_11HD, h_11M)

    def rest_of_one_row(self, layer: int, o_11HD: torch.Tensor, h_11M: torch.Tensor) -> torch.Tensor:
        """What leaves a block, of its attention and of what entered it."""
        w, epsilon = self.blocks[layer], self.config.rms_norm_eps
        assert isinstance(w.mlp, GatedMLP)
        h_11M = matrix_vector(o_11HD.flatten(2), w.output, added_11O=h_11M)
        up, down, activation = w.mlp.gate_up, w.mlp.down, w.mlp.activation
        active_11I = matrix_vector(h_11M, up, gain_I=w.post_norm_M, epsilon=epsilon, activation=activation)
        return matrix_vector(active_11I, down, added_11O=h_11M)

    def _blocks_of_few_rows(self, h_BNM: torch.Tensor, work: ForwardPass, first: int, end: int) -> torch.Tensor:
        """The blocks' output, with norms, rotation, gate and residuals in the products."""
        epsilon = self.config.rms_norm_eps
        rows: FewRows | None = None
        for layer in range(first, end):
            w = self.blocks[layer]
            assert w.input_norm_M is not None
            if rows is None:
                rows = FewRows(add_rms_norm(h_BNM, None, w.input_norm_M, epsilon)[1])
            o_BNHD = self.attend(layer, self.rotated_few(layer, rows, work), work)
            gain_M = self.blocks[layer + 1].input_norm_M if layer + 1 < end else None
            h_BNM, rows = self.rest_of_few_rows(layer, o_BNHD, h_BNM, gain_M)
            work.record(layer + 1, h_BNM)
        return h_BNM

    def rest_of_few_rows(
        self, layer: int, o_BNHD: torch.Tensor, h_BNM: torch.Tensor, gain_M: torch.Tensor | None
    ) -> tuple[torch.Tensor, FewRows | None]:
        """What leaves a block, of its attention and of what entered it; and what a product with its norm by ``gain_M``
        reads, if there is one.
        """
        w, epsilon = self.blocks[layer], self.config.rms_norm_eps
        assert isinstance(w.mlp, GatedMLP)
        h_BNM, rows = summed_product_of_few_rows(
            o_BNHD.flatten(2), w.output, h_BNM, self._arrived, w.post_norm_M, epsilon
        )
        assert rows is not None
        active = gated_product_of_few_rows(rows, w.mlp.gate_up, w.mlp.activation)
        if active is None:
            active = gated_activation(product_of_few_rows(rows, w.mlp.gate_up), h_BNM.dtype, w.mlp.activation)
        return summed_product_of_few_rows(active, w.mlp.down, h_BNM, self._arrived, gain_M, epsilon)

    @cached_property
    def _arrived(self) -> torch.Tensor:
        """Zeros, in which programs of a product count who is there. So passes of one decoder, and of its copies with
        other heads, run on one stream.
        """
        return torch.zeros(self.config.hidden_size, dtype=torch.int32, device=self.device)

    def pre_attention(
        self, layer: int, h_BNM: torch.Tensor, work: Rotations
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        if torch.is_grad_enabled():
            return super().pre_attention(layer, h_BNM, work)
        B, N = h_BNM.shape[:2]
        k_BNGD, v_BNGD = h_BNM.new_empty((2, B, N, self.config.num_kv_heads, self.config.head_dim)).unbind(0)
        stored = (k_BNGD.transpose(1, 2), v_BNGD.transpose(1, 2), None)
        qkv_BNX = self.blocks[layer].qkv(self.attention_input(layer, h_BNM, work))
        q_BNHD = self.rotated(layer, qkv_BNX[None], work, stored)
        return q_BNHD, k_BNGD, v_BNGD

    def post_attention(self, layer: int, h_BNM: torch.Tensor, a_BNM: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            return super().post_attention(layer, h_BNM, a_BNM)
        w = self.blocks[layer]
        assert w.post_norm_M is not None
        h_BNM, x_BNM = add_rms_norm(h_BNM, a_BNM, w.post_norm_M, self.config.rms_norm_eps)
        return h_BNM + gated_mlp(w.mlp, x_BNM)

    def rotated(
        self,
        layer: int,
        qkv_PBNX: torch.Tensor,
        work: Rotations,
        stored: tuple[torch.Tensor, torch.Tensor, PassInputs | None],
    ) -> torch.Tensor:
        """Q [B, N, H, D], rotated, of the parts of qkv [P, B, N, (H + 2G)·D]. ``stored``: where K and V [S, G, C, D]
        go, with the inputs that say at which slots and columns; without inputs, to [B, G, N, D].
        """
        w, c = self.blocks[layer], self.config
        k_SGCD, v_SGCD, inputs = stored
        B, N = qkv_PBNX.shape[1:3]
        H, G, D = c.num_heads, c.num_kv_heads, c.head_dim
        qkv = qkv_PBNX.contiguous()
        q_BNHD = qkv.new_empty((B, N, H, D), dtype=self.dtype)
        rotations, index = work.rotations, self.rotation_index(layer)
        # copies may still be on their way where the kernel reads ahead
        early = False
        if tabled := isinstance(rotations, RotationsAt):
            (cos, sin), position = rotations.tables[index], rotations.position_BN.contiguous()
            early = rotations.position_BN.is_contiguous()
        else:
            (cos, sin), position = (turned.contiguous() for turned in rotations[index]), qkv
        # tensors that are not read stand for those that there are none of
        gains = (cos, cos) if w.q_norm_D is None else (w.q_norm_D, w.k_norm_D)
        places = (qkv,) * 3 if inputs is None else (inputs.slot_B, inputs.write_at_B, inputs.live_B)
        heads = HEADS_AT_ONCE if qkv.is_cuda else triton.next_power_of_2(H + 2 * G)
        rotate_and_store_kernel[(B * N, triton.cdiv(H + 2 * G, heads))](
            qkv,
            *gains,
            cos,
            sin,
            position,
            *places,
            q_BNHD,
            k_SGCD,
            v_SGCD,
            *k_SGCD.stride()[:3],
            *v_SGCD.stride()[:3],
            N,
            c.rms_norm_eps,
            H=H,
            G=G,
            D=D,
            NORMED=w.q_norm_D is not None,
            CACHED=inputs is not None,
            TABLED=tabled,
            BLOCK_X=heads,
            HALF_D=triton.next_power_of_2(D // 2),
            PARTS=len(qkv),
            num_warps=ROTATION_WARPS,
            **(overlapped(qkv.device) if early else APART),
        )
        return q_BNHD

    def rotated_few(self, layer: int, rows: FewRows, work: ForwardPass) -> torch.Tensor:
        """Q [B, N, H, D] of few rows, rotated, with K and V in the cache: by the product with qkv itself, unless its
        inputs are divided, or heads are normalised first.
        """
        w, rotations, stored = self.blocks[layer], work.rotations, in_cache(layer, work)
        q_BNHD: torch.Tensor | None = None
        if w.q_norm_D is None and isinstance(rotations, RotationsAt):
            rotation = rotations.tables[self.rotation_index(layer)]
            q_BNHD = rotated_product_of_few_rows(rows, w.qkv, rotation, rotations.position_BN, stored)
        if q_BNHD is None:
            q_BNHD = self.rotated(layer, product_of_few_rows(rows, w.qkv), work, stored)
        return q_BNHD

    def _norm(self, x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            return super()._norm(x, gain)
        return add_rms_norm(x, None, gain, self.config.rms_norm_eps)[1]


def in_cache(layer: int, work: ForwardPass) -> tuple[torch.Tensor, torch.Tensor, PassInputs]:
    """Where a layer's K and V of a pass go."""
    k_1SGCD, v_1SGCD = work.cache.layers(layer, layer + 1)
    return k_1SGCD[0], v_1SGCD[0], work.inputs


def add_rms_norm(
    h: torch.Tensor, added: torch.Tensor | None, gain_M: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """h + ``added``, or h itself without any, and its norm times the gain: all […, M], in h's dtype."""
    M = h.shape[-1]
    h = h.contiguous()
    normed, total = torch.empty_like(h), h if added is None else torch.empty_like(h)
    if h.numel():
        block = triton.next_power_of_2(M)
        add_rms_norm_kernel[(h.numel() // M,)](
            h,
            h if added is None else added.contiguous(),
            gain_M,
            total,
            normed,
            epsilon,
            M=M,
            ADD=added is not None,
            BLOCK_M=block,
            num_warps=norm_warps(block),
            **overlapped(h.device),
        )
    return total, normed


def norm_warps(block: int) -> int:
    """Of a program that normalises a row of so many elements: eight of them to a thread, where there are enough."""
    return min(32, max(1, block // 256))


def gated_mlp(mlp: object, x_BNM: torch.Tensor) -> torch.Tensor:
    """The MLP of normalised rows [B, N, M]."""
    assert isinstance(mlp, GatedMLP)
    return mlp.down(gated_activation(mlp.gate_up(x_BNM)[None], x_BNM.dtype, mlp.activation))


def gated_activation(gate_up_PBNX: torch.Tensor, dtype: torch.dtype, activation: str) -> torch.Tensor:
    """activation(gate) * up [B, N, X / 2] of the sum of the parts."""
    gate_up, width = gate_up_PBNX.contiguous(), gate_up_PBNX.shape[-1] // 2
    active = gate_up.new_empty((*gate_up.shape[1:-1], width), dtype=dtype)
    if active.numel():
        gated_activation_kernel[(active.numel() // width, triton.cdiv(width, BLOCK_I))](
            gate_up,
            active,
            WIDTH=width,
            GELU=activation != "silu",
            BLOCK_I=BLOCK_I,
            PARTS=len(gate_up),
            num_warps=4,
            **overlapped(active.device),
        )
    return active
