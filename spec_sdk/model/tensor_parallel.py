"""A decoder spread over ranks (Megatron-LM's tensor parallelism, Shoeybi et al. 2019, §3), of which each holds its
share (:mod:`spec_sdk.model.shards`).

What follows a split is summed over the ranks: one all-reduce after the output projection, one after the MLP, and one
all-gather of the logits; one more of two sums of squares where norms of Q and K are of all heads together.

Legend: B batch, N tokens, M model dim, H query heads, G KV heads, D head dim, V vocabulary, S ranks, W = ceil(V/S),
X inputs of a projection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from spec_sdk.model.config import ModelConfig
from spec_sdk.model.decoder import Decoder, ForwardPass, Rotations, TensorSource
from spec_sdk.model.executor import Executor
from spec_sdk.model.kv_cache import KVCache
from spec_sdk.model.rope import Rotation
from spec_sdk.model.shards import ShardedSource, head_rows, quantized_head_rows, shard_of
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.ops.linear import Projection
from spec_sdk.ranks import Ranks


class TensorParallelDecoder(Decoder):
    """One rank's shard of a decoder; hidden states and logits are whole on every rank.

    ``shard``: this rank's blocks, and the whole output head or the rows of it that are this rank's. The blocks are
    spread over the ranks ``group``; the head over all ``ranks``, also where those are several groups. Stages are the
    shard's own, with sums where the group has several ranks.

    ``whole``: the configuration of the decoder. ``own``: the shard with this rank's rows of the head; its stages sum
    nothing.
    """

    head_is_collective = True

    def __init__(self, shard: Decoder, whole: ModelConfig, ranks: Ranks, group: Ranks, ops: Ops) -> None:
        head, vocabulary = shard.output_head, whole.vocab_size
        if head.outputs == vocabulary and head.quantized is not None:
            head = ops.quantized_projection(quantized_head_rows(head.quantized.plain(), ranks.rank, ranks.size))
        elif head.outputs == vocabulary:
            head = ops.projection(head_rows(head.weight_OI, ranks.rank, ranks.size))
        super().__init__(shard.config, shard.blocks, shard.embedding, shard.final_norm_M, head)
        self._vocabulary = vocabulary
        self.ranks = ranks
        self.group = group
        self.own = shard.with_head(head)
        self.deepest_tree = shard.deepest_tree
        self.fuses_groups = shard.fuses_groups
        kv_heads = [shard_of(whole, rank, group.size).kv_heads for rank in range(group.size)]
        # of each head of Q and K that this rank has, and how many numbers all heads have
        self._copies = 1, kv_heads.count(kv_heads[group.rank]) if group.size > whole.num_kv_heads else 1
        self._widths = whole.num_heads * whole.head_dim, whole.num_kv_heads * whole.head_dim

    @property
    def vocabulary(self) -> int:
        return self._vocabulary

    @property
    def projections(self) -> list[Projection]:
        return self.own.projections

    @property
    def data_dependent(self) -> str | None:
        return self.own.data_dependent

    def new_cache(self, form: str = "exact") -> KVCache:
        return self.own.new_cache(form)

    def subset(self, layers: Sequence[int]) -> Decoder:
        """Not to be had from a shard: a draft model cut out of the target is loaded whole (:class:`LayersOf`)."""
        raise ValueError("a shard of a decoder cannot be cut")

    def rotations_at(self, position_BN: torch.Tensor, positions: int) -> Sequence[Rotation]:
        return self.own.rotations_at(position_BN, positions)

    def head(self, h_BNM: torch.Tensor) -> torch.Tensor:
        """Logits [B, N, V]: every rank computes its tokens', and all get all."""
        return self.gathered(self.own.head(h_BNM))

    def gathered(self, logits_BNW: torch.Tensor) -> torch.Tensor:
        """Logits [B, N, V] of all ranks' logits [B, N, W]; every rank calls it with its own."""
        logits_SBNW = self.ranks.all_gather(logits_BNW)
        return logits_SBNW.permute(1, 2, 0, 3).flatten(2)[..., : self._vocabulary]

    def blocks_at_once(self, h_BNM: torch.Tensor, work: ForwardPass, first: int, end: int) -> torch.Tensor | None:
        if self.group.size == 1:
            return self.own.blocks_at_once(h_BNM, work, first, end)
        return self.own.blocks_of_ranks(h_BNM, work, first, end, self.group)

    def pre_attention(
        self, layer: int, h_BNM: torch.Tensor, work: Rotations
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        if self.group.size > 1 and self.config.wide_qk_norm:
            return super().pre_attention(layer, h_BNM, work)
        return self.own.pre_attention(layer, h_BNM, work)

    def _heads_normed(self, qk: Sequence[torch.Tensor], gains: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The norms of all heads of Q and K together, those of other ranks among them."""
        wide = [x.to(torch.promote_types(gain.dtype, torch.float32)) for x, gain in zip(qk, gains, strict=True)]
        own = [x.square().sum((2, 3)) / copies for x, copies in zip(wide, self._copies, strict=True)]
        squares_BN2 = self.group.all_reduce(torch.stack(own, -1))
        normed = []
        for x, gain, square_BN, width in zip(wide, gains, squares_BN2.unbind(-1), self._widths, strict=True):
            factor_BN11 = torch.rsqrt(square_BN / width + self.config.rms_norm_eps)[..., None, None]
            normed.append((x * factor_BN11 * gain.view(x.shape[2:])).to(self.dtype))
        return normed

    def write_kv(self, layer: int, k_BNGD: torch.Tensor, v_BNGD: torch.Tensor, work: ForwardPass) -> None:
        self.own.write_kv(layer, k_BNGD, v_BNGD, work)

    def attend(self, layer: int, q_BNHD: torch.Tensor, work: ForwardPass) -> torch.Tensor:
        return self.own.attend(layer, q_BNHD, work)

    def project(self, layer: int, o_BNHD: torch.Tensor) -> torch.Tensor:
        """The output projection of the heads of all ranks of the group, summed; what a state gives is whole on each."""
        block = self.own.blocks[layer]
        if not block.attends:
            return self.own.project(layer, o_BNHD)
        if block.mixer is None:
            return self.group.all_reduce(self.own.project(layer, o_BNHD))
        of_state, of_heads = block.output.parts
        mixed_BNX, attended_BNX = o_BNHD.flatten(2).to(self.dtype).tensor_split((of_state.inputs,), -1)
        return of_state(mixed_BNX) + self.group.all_reduce(of_heads(attended_BNX))

    def post_attention(self, layer: int, h_BNM: torch.Tensor, a_BNM: torch.Tensor) -> torch.Tensor:
        if self.group.size == 1:
            return self.own.post_attention(layer, h_BNM, a_BNM)
        return super().post_attention(layer, h_BNM, a_BNM)

    def summed(self, m_BNM: torch.Tensor) -> torch.Tensor:
        return self.group.all_reduce(m_BNM)


def load_shard(
    source: TensorSource,
    ranks: Ranks,
    group: Ranks,
    load: Callable[[TensorSource, torch.dtype], Executor],
    dtype: torch.dtype,
) -> TorchExecutor:
    """Read this rank's part of a checkpoint: of the blocks its share in ``group``, of the head that in ``ranks``.

    ``load``: makes a checkpoint ready to run, here one that has only this part. Raises UserError for more ranks than
    attention heads.
    """
    return divided(load(ShardedSource(source, ranks, group), dtype), source.config, ranks, group)


def divided(executor: Executor, whole: ModelConfig, ranks: Ranks, group: Ranks) -> TorchExecutor:
    """What runs the decoder of ``executor`` as this rank's part among others of one of this configuration, with caches
    as its are.
    """
    assert isinstance(executor, TorchExecutor)
    return executor.of_decoder(TensorParallelDecoder(executor.decoder, whole, ranks, group, executor.ops))
