"""A decoder spread over ranks (Megatron-LM's tensor parallelism, Shoeybi et al. 2019, §3).

Attention is split by KV heads, with the query heads that share them; the MLP, and every expert, by its rows; the output
head by tokens. Routers are whole on every rank, so that all of them choose the same experts, and so are latents, which
all heads share, and recurrent layers with their states.
A rank reads only its own rows and columns from the checkpoint. What follows a split is summed over the ranks: one
all-reduce after the output projection, one after the MLP, and one all-gather of the logits; one more of two sums of
squares where norms of Q and K are of all heads together. Embedding and norms are on every rank.

Legend: B batch, N tokens, M model dim, I MLP dim, H query heads, G KV heads, D head dim, V vocabulary, S ranks,
W = ceil(V/S), X inputs of a projection.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from spec_sdk.errors import UserError
from spec_sdk.model.architectures import weights_of
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.decoder import Decoder, ForwardPass, Rotations, TensorSource
from spec_sdk.model.executor import Executor
from spec_sdk.model.kv_cache import KVCache
from spec_sdk.model.recurrent.weights import GATED_QUERIES
from spec_sdk.model.rope import Rotation
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.model.weight_table import (
    EXPERT_MLP,
    KEY_ROWS,
    KEYS,
    LATENT_QUERIES,
    MLP,
    QUERIES,
    QUERY_HEADS,
    SHARED_MLP,
    VALUES,
    VOCABULARY,
)
from spec_sdk.ops import Ops
from spec_sdk.ops.linear import Projection
from spec_sdk.ops.quantized import QuantizedMatrix
from spec_sdk.ranks import Ranks

BY_QUERY_HEAD = (QUERIES, QUERY_HEADS, GATED_QUERIES, LATENT_QUERIES, KEY_ROWS, VALUES)
"""Dimensions of which every query head has as many."""


@dataclass(frozen=True)
class Shard:
    """What one rank holds of every block: ranges [first, end) of query heads, KV heads and MLP rows."""

    q_heads: tuple[int, int]
    kv_heads: tuple[int, int]
    mlp_rows: tuple[int, int]


def share(total: int, parts: int, part: int) -> tuple[int, int]:
    """The range [first, end) of part number ``part`` of ``total`` things in ``parts`` parts; the first are larger."""
    small, larger = divmod(total, parts)
    first = part * small + min(part, larger)
    return first, first + small + (part < larger)


def shard_of(config: ModelConfig, rank: int, size: int) -> Shard:
    """Which part of the model ``rank`` of ``size`` holds.

    KV heads are dealt out as evenly as they go. With more ranks than KV heads, the ranks of one KV head each hold a
    copy of it and share its query heads. Raises UserError for more ranks than query heads or rows of an MLP
    or an expert.
    """
    H, G = config.num_heads, config.num_kv_heads
    R = H // G
    mlp_rows = share(config.intermediate_size, size, rank)
    if size <= G:
        kv_heads = share(G, size, rank)
        return Shard((kv_heads[0] * R, kv_heads[1] * R), kv_heads, mlp_rows)
    most = min(H, *(dim.of(config) or H for dim in (MLP, EXPERT_MLP, SHARED_MLP)))
    if size > most:
        raise UserError(f"{size} processes are too many for a model with {H} attention heads; use at most {most}")
    owners = [share(size, G, g) for g in range(G)]
    g = next(g for g, (first, end) in enumerate(owners) if first <= rank < end)
    first, end = share(R, owners[g][1] - owners[g][0], rank - owners[g][0])
    return Shard((g * R + first, g * R + end), (g, g + 1), mlp_rows)


class ShardedSource(TensorSource):
    """One rank's rows and columns of a checkpoint, as a checkpoint of a smaller model.

    The table of weights says along which dimension each is divided. Of the blocks it is the share of a rank of
    ``group``, of the output head that of a rank of all ``ranks``. Biases that are added after a sum over the group are
    its first rank's alone. A head that is the embedding's weights is a matrix of its own here: the embedding is whole
    on every rank, the head is not.
    """

    def __init__(self, source: TensorSource, ranks: Ranks, group: Ranks) -> None:
        self._source = source
        self._is_leader = group.rank == 0
        self._place = (ranks.rank, ranks.size)
        shard = shard_of(source.config, group.rank, group.size)
        parts = {dim: share(dim.of(source.config), group.size, group.rank) for dim in (EXPERT_MLP, SHARED_MLP)}
        each = {dim: dim.of(source.config) // source.config.num_heads for dim in BY_QUERY_HEAD}
        D = source.config.head_dim
        self._ranges = {
            **{dim: (shard.q_heads[0] * each[dim], shard.q_heads[1] * each[dim]) for dim in BY_QUERY_HEAD},
            KEYS: (shard.kv_heads[0] * D, shard.kv_heads[1] * D),
            MLP: shard.mlp_rows,
            **parts,
        }
        experts = source.config.experts
        if experts is not None:
            of_expert, of_shared = (end - first for first, end in parts.values())
            experts = dataclasses.replace(
                experts,
                intermediate_size=of_expert,
                shared_intermediate_size=experts.shared_intermediate_size and of_shared,
            )
        self.config = dataclasses.replace(
            source.config,
            num_heads=shard.q_heads[1] - shard.q_heads[0],
            num_kv_heads=shard.kv_heads[1] - shard.kv_heads[0],
            intermediate_size=shard.mlp_rows[1] - shard.mlp_rows[0],
            experts=experts,
            tie_embeddings=False,
        )
        self._table = weights_of(dataclasses.replace(source.config, tie_embeddings=False))
        there, head, embedding = source.names(), self._table.name("head"), self._table.name("embedding")
        self._theirs = {name: name for name in there & self._table.shapes.keys()}
        if source.config.tie_embeddings:
            self._theirs[head] = embedding

    def names(self) -> frozenset[str]:
        names = self._theirs.keys()
        return frozenset(name for name in names if self._is_leader or not self._table.entry(name).row.after_sum)

    def tensor(self, name: str) -> torch.Tensor:
        row, theirs = self._table.entry(name).row, self._theirs[name]
        if row.split is None:
            return self._source.tensor(theirs)
        if row.split is VOCABULARY:
            first, end, rows = self._head_rows()
            part_xM = self._source.part(theirs, 0, first, end)
            return F.pad(part_xM, (0, 0, 0, rows - (end - first))) if end - first < rows else part_xM
        return self._source.part(theirs, row.shape.index(row.split), *self._ranges[row.split]).contiguous()

    def quantized(self, name: str) -> QuantizedMatrix | None:
        """This rank's part of a matrix in few bits; None also where its columns are not whole groups."""
        row, theirs = self._table.entry(name).row, self._theirs[name]
        if row.split is None:
            return self._source.quantized(theirs)
        if row.split is VOCABULARY:
            first, end, rows = self._head_rows()
            matrix = self._source.quantized_part(theirs, 0, first, end)
            return matrix and matrix.padded(rows)
        return self._source.quantized_part(theirs, row.shape.index(row.split), *self._ranges[row.split])

    def _head_rows(self) -> tuple[int, int, int]:
        return head_range(self.config.vocab_size, *self._place)


def head_range(vocabulary: int, rank: int, size: int) -> tuple[int, int, int]:
    """Which of a head's rows a rank has, first and end, and how many all ranks have: the last ones' zeros included."""
    W = -(-vocabulary // size)
    first = min(rank * W, vocabulary)
    return first, min(first + W, vocabulary), W


def head_rows(head_VM: torch.Tensor, rank: int, size: int) -> torch.Tensor:
    """A rank's rows [W, M] of the output head. All ranks have equally many: the last ones are padded with zeros."""
    first, end, W = head_range(head_VM.shape[0], rank, size)
    rows_WM = head_VM[first:end]
    return rows_WM if rows_WM.shape[0] == W else F.pad(rows_WM, (0, 0, 0, W - rows_WM.shape[0]))


def quantized_head_rows(head: QuantizedMatrix, rank: int, size: int) -> QuantizedMatrix:
    """The same of a head in few bits."""
    first, end, W = head_range(head.outputs, rank, size)
    return head.rows(slice(first, end)).padded(W)


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
