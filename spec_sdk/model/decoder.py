"""A lean decoder of the Llama kind (Llama, SmolLM, Mistral, Qwen, Gemma), dense or with a mixture of experts: inference
only, weights fused once at load.

A block has four stages, which are the seams that block runners use:
``pre_attention(h) → q, k, v``, ``attend(q) → o``, ``project(o) → a``, ``post_attention(h, a) → h``. What layers of one
model differ in beside their weights is their kind, known before any pass.

Legend: B batch, N tokens, M model dim, I MLP dim, H query heads, G KV heads, D head dim, V vocabulary,
R tokens that logits are of.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, Self, TypeVar

import torch

from spec_sdk.model.attention_stack import AttentionStack, runs
from spec_sdk.model.config import LayerKind, ModelConfig
from spec_sdk.model.encoder_input import EncoderInput
from spec_sdk.model.kv_cache import KVCache, is_exact
from spec_sdk.model.latent_projections import LatentProjections
from spec_sdk.model.quantized_kv_cache import QuantizedKVCache
from spec_sdk.model.recurrent.layers import RecurrentMixer
from spec_sdk.model.rope import RotaryTable, Rotation, RotationsAt, rotate
from spec_sdk.model.rounded_kv_cache import RoundedKVCache
from spec_sdk.model.varied_parts import VariedParts
from spec_sdk.ops import Ops
from spec_sdk.ops.embedding import Embedding
from spec_sdk.ops.feed_forward import FeedForward
from spec_sdk.ops.linear import Projection
from spec_sdk.ops.pass_cache import PassCache
from spec_sdk.ops.pass_inputs import PassInputs
from spec_sdk.ops.quantized import GROUP, QuantizedMatrix
from spec_sdk.ops.reduced_vocabulary import rows_and_tokens
from spec_sdk.ranks import Ranks


class TensorSource(Protocol):
    """Where weights come from: a checkpoint, by Hugging Face tensor name."""

    config: ModelConfig

    def tensor(self, name: str) -> torch.Tensor:
        """In floating point: do not write to it."""

    def names(self) -> frozenset[str]: ...

    def part(self, name: str, axis: int, first: int, end: int) -> torch.Tensor:
        """``first`` … ``end - 1`` of a vector, or of a matrix's rows (``axis`` 0) or columns (1): do not write to it.

        What a rank has of a tensor that others have the rest of. A source of large files reads nothing else.
        """
        return self.tensor(name).narrow(axis, first, end - first)

    def quantized(self, name: str) -> QuantizedMatrix | None:
        """The matrix of a linear layer or an embedding in the few bits that it shall have in memory.

        None for one that shall be in floating point. For a source that says nothing else, that is all of them.
        """
        return None

    def quantized_part(self, name: str, axis: int, first: int, end: int) -> QuantizedMatrix | None:
        """Some rows or columns of the same. None also for columns that are not whole groups."""
        matrix = self.quantized(name)
        if matrix is None or axis == 0:
            return matrix and matrix.rows(slice(first, end))
        return None if first % GROUP or end % GROUP else matrix.columns(first, end)


@dataclass(frozen=True)
class BlockWeights:
    """One decoder block. ``qkv`` is M → (H + 2G)·D; norms may be absent.

    ``post_norm_M`` is the norm before the MLP, ``sinks_H`` are attention sinks, in float32. Gains may be wider than the
    other weights. Those of Q and K are [D], or [H·D] and [G·D] of norms of all heads together. ``mixer``: what a
    recurrent layer has between ``qkv`` and ``output``, in the place of attention, or beside it where the block
    ``attends``: then both are of two parts, the mixer's first. A block with neither has an MLP alone, and projections
    of no parts; ``mlp`` is None of one with one of them alone. ``latents``: of attention to latents, where
    ``qkv`` gives Q or its latent. ``of_varied``: what a block of a model with heads of different shapes has besides.
    """

    input_norm_M: torch.Tensor | None
    qkv: Projection
    q_norm_D: torch.Tensor | None
    k_norm_D: torch.Tensor | None
    output: Projection
    post_norm_M: torch.Tensor | None
    mlp: FeedForward | None
    attention_output_norm_M: torch.Tensor | None = None
    mlp_output_norm_M: torch.Tensor | None = None
    sinks_H: torch.Tensor | None = None
    mixer: RecurrentMixer | None = None
    latents: LatentProjections | None = None
    attends: bool = True
    of_varied: VariedParts | None = None

    @property
    def projections(self) -> list[Projection]:
        """Its linear layers."""
        others = [part for part in (self.mlp, self.of_varied) if part is not None]
        return [self.qkv, self.output, *(projection for part in others for projection in part.projections)]

    def kind(self, kind: LayerKind) -> LayerKind:
        """The same with this block's attention sinks, if it has any."""
        if self.sinks_H is None:
            return kind
        return replace(kind, attention=replace(kind.attention, sinks=tuple(self.sinks_H.tolist())))


@dataclass
class Rotations:
    """The rotations of a pass's rows: one for each of the decoder's ``ropes``."""

    rotations: Sequence[Rotation]


@dataclass
class ForwardPass(Rotations):
    """What one forward pass works on: rotations, its inputs, the cache it writes to, and what to record.

    ``hidden`` collects the hidden states [B, N, M] of the layers ``taps``: 0 is the embedding, i the output of block i
    (counted from 1).
    """

    inputs: PassInputs
    cache: PassCache
    ops: Ops
    taps: frozenset[int] = frozenset()
    hidden: dict[int, torch.Tensor] = field(default_factory=dict)

    def record(self, layer: int, h_BNM: torch.Tensor) -> None:
        """Keep ``h_BNM`` if its layer was asked for."""
        if layer in self.taps:
            self.hidden[layer] = h_BNM

    def of_rows(self, requests: slice, rows: slice, inputs: PassInputs) -> Self:
        """The pass ``inputs`` of some rows of some requests of this one; it records what it is asked for anew."""
        return replace(
            self,
            rotations=self.rotations_of(requests, rows),
            inputs=inputs,
            cache=self.cache.of_pass(inputs),
            hidden={},
        )

    def rotations_of(self, requests: slice, rows: slice) -> Sequence[Rotation]:
        """The rotations of some rows of some requests."""
        if isinstance(self.rotations, RotationsAt):
            return self.rotations.of_rows(requests, rows)
        return [(cos_BN1D[requests, rows], sin_BN1D[requests, rows]) for cos_BN1D, sin_BN1D in self.rotations]


AnyDecoder = TypeVar("AnyDecoder", bound="Decoder")


class Decoder:
    """Weights and the arithmetic of their stages. It holds no state of a request: caches live in sessions.

    ``stack``: the tensors that the blocks' attention weights are views into, for runners that compute several layers at
    once. A decoder of separate blocks has none. ``sources[i]``: block i's layer in it, and in ``config``.

    ``kinds``: what each block does its own way, and ``ropes`` the different rotary positions among them.
    """

    head_is_collective: bool = False
    """Whether several processes compute the logits together."""
    deepest_tree: int | None = None
    """The most tokens behind a root that a tree may be deep, so that its rows get what plain decoding gives them; None:
    any number."""
    fuses_groups: bool = True
    """Whether the attention of several layers at once is quicker than that of one after the other."""
    norm_ops: Ops = Ops()
    """What computes norms outside a block's stages; by default the reference."""

    def __init__(
        self,
        config: ModelConfig,
        blocks: Sequence[BlockWeights],
        embedding: Embedding,
        final_norm_M: torch.Tensor,
        output_head: Projection,
        stack: AttentionStack | None = None,
        sources: Sequence[int] | None = None,
    ) -> None:
        self.config = config
        self.blocks = tuple(blocks)
        self.embedding = embedding
        self.final_norm_M = final_norm_M
        self.output_head = output_head
        self.stack = stack
        self.sources = tuple(range(len(self.blocks)) if sources is None else sources)
        self.kinds = tuple(config.layer_kind(source) for source in self.sources)
        if self.blocks:
            # a subclass may have blocks of its own
            self.kinds = tuple(block.kind(kind) for block, kind in zip(self.blocks, self.kinds, strict=True))
        self.ropes = tuple(dict.fromkeys(kind.rope for kind in self.kinds))
        if config.wide_qk_norm:
            # a group's attention is one computation only where norms are of single heads
            self.fuses_groups = False
        self._rotation_of = tuple(self.ropes.index(kind.rope) for kind in self.kinds)
        self._rotary = [
            RotaryTable(rope.head_dim or config.rotary_head_dim, rope, self.device, self.dtype) for rope in self.ropes
        ]
        self.embedding_scale = config.embedding_scale
        if config.rounds_embedding_scale:
            self.embedding_scale = float(torch.tensor(config.embedding_scale, dtype=self.dtype))
        self._stacks: dict[tuple[int, int], list[AttentionStack]] = {}

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @property
    def layers(self) -> int:
        """Number of blocks."""
        return len(self.blocks)

    @property
    def kv_sources(self) -> Sequence[int]:
        """Of each layer, which layer's K and V it attends to; empty where each has its own."""
        return ()

    @property
    def vocabulary(self) -> int:
        """Tokens of the vocabulary: output rows, which a checkpoint may have padded."""
        return self.output_head.outputs

    @property
    def projections(self) -> list[Projection]:
        """All linear layers, the output head last."""
        of_blocks = (block.projections for block in self.blocks)
        return [*itertools.chain.from_iterable(of_blocks), self.output_head]

    @property
    def nbytes(self) -> int:
        """Bytes of the matrices in memory: linear layers and embedding, a tied head once if its memory is shared."""
        shared = self.output_head.nbytes if self.embedding.shared_by(self.output_head) else 0
        return self.embedding.nbytes + sum(projection.nbytes for projection in self.projections) - shared

    @property
    def blocks_with_kv(self) -> int:
        """How many blocks a row must pass through for others to see it: no block behind them makes K, V or a state."""
        return self.layers

    @property
    def data_dependent(self) -> str | None:
        """What makes the shapes of a pass depend on the values in it, so that it cannot be captured or compiled."""
        return next((block.mlp.data_dependent for block in self.blocks if block.mlp and block.mlp.data_dependent), None)

    def subset(self, layers: Sequence[int]) -> Decoder:
        """The decoder made of only these blocks, in this order; weights are shared, not copied."""
        return self._subset_as(Decoder, layers)

    def _subset_as(self, kind: type[AnyDecoder], layers: Sequence[int]) -> AnyDecoder:
        return kind(
            self.config,
            [self.blocks[i] for i in layers],
            self.embedding,
            self.final_norm_M,
            self.output_head,
            stack=self.stack,
            sources=[self.sources[i] for i in layers],
        )

    def with_head(self, output_head: Projection) -> Self:
        """The same decoder with another output head; all other weights are shared."""
        made = copy.copy(self)
        made.output_head = output_head
        return made

    def stacks(self, first: int, end: int) -> list[AttentionStack]:
        """The stacked attention weights of blocks ``first`` … ``end - 1``, in order: views, no copies.

        One stack, or more if the decoder was cut out of another and skips layers of it there. Raises ValueError for a
        decoder whose blocks are not stacked.
        """
        found = self._stacks.get((first, end))
        if found is None:
            if self.stack is None:
                raise ValueError("this decoder's blocks were not loaded into stacked weights")
            found = [self.stack.layers(*run) for run in runs(self.sources[first:end])]
            self._stacks[first, end] = found
        return found

    def new_cache(self, form: str = "exact") -> KVCache:
        """An empty cache of this decoder's shape: ``exact``, in its dtype; ``bfloat16``; or ``int8``.

        Raises UserError for a decoder whose cache cannot be in that form.
        """
        c = self.config
        return self.kind_of_cache(form)(self.layers, c.num_kv_heads, c.head_dim, self.device, self.dtype)

    def kind_of_cache(self, form: str) -> type[KVCache]:
        """What stores K and V of one shape in one of :meth:`new_cache`'s forms."""
        rounded: dict[str, type[KVCache]] = {"bfloat16": RoundedKVCache, "int8": QuantizedKVCache}
        return KVCache if is_exact(form, self.dtype) else rounded[form]

    def encode(self, encoder_input: EncoderInput, cache: KVCache, slot: int) -> None:
        """Run the encoder of an encoder–decoder, and store what its blocks see of it in the request's slot.

        Raises ValueError for a decoder without an encoder.
        """
        raise ValueError("this decoder has no encoder")

    def forward_pass(
        self, inputs: PassInputs, cache: KVCache, ops: Ops, taps: Collection[int] = ()
    ) -> tuple[torch.Tensor, ForwardPass]:
        """The embeddings [B, N, M] of a pass's tokens, and what its blocks work on."""
        rotations = self.rotations_at(inputs.position_BN, cache.capacity)
        work = ForwardPass(rotations, inputs, cache.of_pass(inputs), ops, frozenset(taps))
        h_BNM = self.embed(inputs.token_BN)
        work.record(0, h_BNM)
        return h_BNM, work

    def rotations_at(self, position_BN: torch.Tensor, positions: int) -> Sequence[Rotation]:
        """The rotations of rows at ``position_BN``, all less than ``positions``: one for each of ``ropes``."""
        return [table.at(position_BN, positions) for table in self._rotary]

    def rotary_tables(self, positions: int) -> list[Rotation]:
        """Cosines and sines [C, D] of so many positions or more, of each of ``ropes``."""
        return [table.of(positions) for table in self._rotary]

    def reserve_rotations(self, positions: int) -> tuple[int, ...]:
        """Have the rotations of so many positions; how many there are of each kind, by which a table that took the
        place of a smaller one is known.
        """
        return tuple(table.reserve(positions) for table in self._rotary)

    def of_pass(self, work: ForwardPass) -> Decoder:
        """The decoder whose stages a runner calls in one pass.

        Itself, unless a stage needs to know more of the pass than its arguments say.
        """
        return self

    def embed(self, token_BN: torch.Tensor) -> torch.Tensor:
        """What enters the first block [B, N, M]."""
        h_BNM = self.embedding(token_BN)
        return h_BNM if self.embedding_scale == 1.0 else h_BNM * self.embedding_scale

    def published(self, state: torch.Tensor) -> torch.Tensor:
        """Hidden states as the checkpoint's authors count them, of those that the decoder computes with."""
        scale = self.config.state_scale
        return state if scale == 1.0 else state * scale

    def unpublished(self, hidden: torch.Tensor) -> torch.Tensor:
        """The inverse of :meth:`published`."""
        scale = self.config.state_scale
        return hidden if scale == 1.0 else hidden / scale

    @property
    def token_R(self) -> torch.Tensor | None:
        """The tokens that :meth:`head` gives logits of; None: all."""
        return rows_and_tokens(self.output_head)[1]

    def head(self, h_BNM: torch.Tensor) -> torch.Tensor:
        """Logits [B, N, R] in the model's dtype, of the tokens that the output head has rows of."""
        return self.logits_with(h_BNM, rows_and_tokens(self.output_head)[0])

    def logits_with(self, h_BNM: torch.Tensor, output_head: Projection) -> torch.Tensor:
        """Final norm and this output projection, soft-capped if the model is: a logit for each of its rows."""
        return self.capped(output_head(self._norm(h_BNM, self.final_norm_M)))

    def capped(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits of the output head, soft-capped if the model's are."""
        cap = self.config.logit_softcap
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def blocks_at_once(self, h_BNM: torch.Tensor, work: ForwardPass, first: int, end: int) -> torch.Tensor | None:
        """Blocks ``first`` … ``end - 1``: hidden states [B, N, M] into the first → out of the last one, recorded where
        asked for.

        None, and nothing done, where a decoder has no quicker way than its stages one after the other.
        """
        return None

    def blocks_of_ranks(
        self, h_BNM: torch.Tensor, work: ForwardPass, first: int, end: int, ranks: Ranks
    ) -> torch.Tensor | None:
        """The same of a decoder that has one rank's part of every block; all ``ranks`` call it, and those of which it
        is None sum what their stages give.
        """
        return None

    def pre_attention(
        self, layer: int, h_BNM: torch.Tensor, work: Rotations
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Input norm, QKV projection, QK norm, rotation: q [B, N, H, D], k and v [B, N, G, D]."""
        qkv = self.blocks[layer].qkv(self.attention_input(layer, h_BNM, work))
        return self.heads(layer, qkv, work)

    def heads(self, layer: int, qkv: torch.Tensor, work: Rotations) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """What :meth:`pre_attention` makes of what the QKV projection gives [B, N, (H + 2G)·D]."""
        w, c = self.blocks[layer], self.config
        H, G = c.num_heads, c.num_kv_heads
        qkv_BNXD = qkv.view(*qkv.shape[:2], qkv.shape[2] // c.head_dim, c.head_dim)
        qk_BNXD, v_BNGD = qkv_BNXD[:, :, : H + G], qkv_BNXD[:, :, H + G :]
        if w.q_norm_D is not None and w.k_norm_D is not None:
            qk = qk_BNXD[:, :, :H], qk_BNXD[:, :, H:]
            qk_BNXD = torch.cat(self._heads_normed(qk, (w.q_norm_D, w.k_norm_D)), dim=2)
        qk_BNXD = rotate(qk_BNXD, *self.rotation(layer, work))
        return qk_BNXD[:, :, :H], qk_BNXD[:, :, H:], v_BNGD

    def attention_input(self, layer: int, h_BNM: torch.Tensor, work: Rotations) -> torch.Tensor:
        """What the QKV projection is given: the hidden state under the block's input norm."""
        return self._normed(h_BNM, self.blocks[layer].input_norm_M)

    def rotation(self, layer: int, work: Rotations) -> Rotation:
        """The cosines and sines of this layer's rotary positions."""
        return work.rotations[self.rotation_index(layer)]

    def rotation_index(self, layer: int) -> int:
        """Which of a pass's rotations is this layer's."""
        return self._rotation_of[layer]

    def write_kv(self, layer: int, k_BNGD: torch.Tensor, v_BNGD: torch.Tensor, work: ForwardPass) -> None:
        """Store this pass's K and V of one layer."""
        work.cache.write(layer, k_BNGD[None], v_BNGD[None])

    def attend(self, layer: int, q_BNHD: torch.Tensor, work: ForwardPass) -> torch.Tensor:
        """Exact attention over the cache [B, N, H, D]; this pass's K and V must have been written."""
        return work.ops.cached_attention(q_BNHD[None], work.cache, layer, self.kinds[layer].attention)[0]

    def project(self, layer: int, o_BNHD: torch.Tensor) -> torch.Tensor:
        """Output projection of the attention sub-layer [B, N, M]."""
        return self.blocks[layer].output(o_BNHD.flatten(2).to(self.dtype))

    def post_attention(self, layer: int, h_BNM: torch.Tensor, a_BNM: torch.Tensor) -> torch.Tensor:
        """Add the attention output, then the MLP or mixture, if any, with its norms and residual [B, N, M]."""
        w = self.blocks[layer]
        h_BNM = h_BNM + self._normed(a_BNM, w.attention_output_norm_M)
        if w.mlp is None:
            return h_BNM
        m_BNM = self.summed(w.mlp(self._normed(h_BNM, w.post_norm_M)))
        return h_BNM + self._normed(m_BNM, w.mlp_output_norm_M)

    def summed(self, m_BNM: torch.Tensor) -> torch.Tensor:
        """What this decoder's part of an MLP gives, with that of other processes that have a part."""
        return m_BNM

    def _normed(self, x_BNM: torch.Tensor, gain_M: torch.Tensor | None) -> torch.Tensor:
        return x_BNM if gain_M is None else self._norm(x_BNM, gain_M)

    def _heads_normed(self, qk: Sequence[torch.Tensor], gains: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Heads of Q [B, N, H, D] and of K [B, N, G, D] under a norm of each, or of all together."""
        if self.config.wide_qk_norm:
            return [self._norm(x.flatten(2), gain).view(x.shape) for x, gain in zip(qk, gains, strict=True)]
        return [self._norm(x, gain) for x, gain in zip(qk, gains, strict=True)]

    def _norm(self, x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
        return self.norm_ops.rms_norm(x, gain, self.config.rms_norm_eps)
