"""Which part of a checkpoint each rank of a tensor-parallel decoder holds (Megatron-LM: Shoeybi et al. 2019, §3).

Attention is split by KV heads, with the query heads that share them; the MLP, and every expert, by its rows; the output
head by tokens. Routers are whole on every rank, so that all of them choose the same experts, and so are latents, which
all heads share, recurrent layers with their states, the embedding, and norms but for those of all heads together.
A rank reads only its own rows and columns.

Legend: M model dim, H query heads, G KV heads, D head dim, V vocabulary, S ranks, W = ceil(V/S).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from spec_sdk.errors import UserError
from spec_sdk.model.architectures import weights_of
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.decoder import TensorSource
from spec_sdk.model.recurrent.weights import GATED_QUERIES
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
    or an expert, and for heads of different shapes.
    """
    if size > 1 and config.global_heads is not None:
        raise UserError(
            f"model: {config.architecture} has {config.uncommon_blocks}, which are not divided among processes; use one"
        )
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
        first, end, self._head_height = head_range(source.config.vocab_size, ranks.rank, ranks.size)
        shard = shard_of(source.config, group.rank, group.size)
        parts = {dim: share(dim.of(source.config), group.size, group.rank) for dim in (EXPERT_MLP, SHARED_MLP)}
        each = {dim: dim.of(source.config) // source.config.num_heads for dim in BY_QUERY_HEAD}
        D = source.config.head_dim
        self._ranges = {
            **{dim: (shard.q_heads[0] * each[dim], shard.q_heads[1] * each[dim]) for dim in BY_QUERY_HEAD},
            KEYS: (shard.kv_heads[0] * D, shard.kv_heads[1] * D),
            MLP: shard.mlp_rows,
            VOCABULARY: (first, end),
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
        part = self._source.part(theirs, row.shape.index(row.split), *self._ranges[row.split]).contiguous()
        missing = self._head_height - part.shape[0] if row.split is VOCABULARY else 0
        return F.pad(part, (0, 0, 0, missing)) if missing else part

    def quantized(self, name: str) -> QuantizedMatrix | None:
        """This rank's part of a matrix in few bits; None also where its columns are not whole groups."""
        row, theirs = self._table.entry(name).row, self._theirs[name]
        if row.split is None:
            return self._source.quantized(theirs)
        matrix = self._source.quantized_part(theirs, row.shape.index(row.split), *self._ranges[row.split])
        return matrix.padded(self._head_height) if matrix is not None and row.split is VOCABULARY else matrix


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
