"""Whisper's decoder: learned positions, layer norms, and in every block a cross-attention to the encoder's states.

The four stages that runners call are :class:`~spec_sdk.model.decoder.Decoder`'s. Cross-attention is the first part of
``post_attention``: it is a row's own business, and no token sees another's through it.

Legend: B requests, N rows of a request, M model dim, H heads, D head dim, F states of the encoder, V vocabulary.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from spec_sdk.errors import UserError
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.cross_cache import CrossCache, CrossPassCache
from spec_sdk.model.decoder import Decoder, ForwardPass, Rotations
from spec_sdk.model.encoder_input import EncoderInput
from spec_sdk.model.kv_cache import KVCache, is_exact
from spec_sdk.model.whisper_encoder import GeluMlp, LayerNorm, WhisperEncoder
from spec_sdk.ops import Ops
from spec_sdk.ops.embedding import Embedding
from spec_sdk.ops.linear import Projection
from spec_sdk.ops.pass_inputs import PassInputs


@dataclass(frozen=True)
class CrossAttention:
    """A block's attention to the encoder: ``query`` M → H·D of a row, ``kv`` M → 2·H·D of a state, once per request."""

    norm: LayerNorm
    query: Projection
    kv: Projection
    output: Projection


@dataclass(frozen=True)
class WhisperBlock:
    """One block of the decoder; ``qkv`` is M → 3·H·D."""

    norm: LayerNorm
    qkv: Projection
    output: Projection
    cross: CrossAttention
    mlp: GeluMlp


class WhisperDecoder(Decoder):
    """Weights and stages of the decoder, and the encoder that it attends to.

    Its blocks are not stacked, so that a group of layers runs one after the other.
    """

    def __init__(
        self,
        config: ModelConfig,
        blocks: Sequence[WhisperBlock],
        embedding: Embedding,
        positions_CM: torch.Tensor,
        final_norm: LayerNorm,
        output_head: Projection,
        encoder: WhisperEncoder,
    ) -> None:
        super().__init__(config, (), embedding, final_norm.gain_M, output_head, sources=range(len(blocks)))
        self.whisper_blocks = tuple(blocks)
        self.positions_CM = positions_CM
        self.final_norm = final_norm
        self.encoder = encoder
        self._work: ForwardPass | None = None

    @property
    def layers(self) -> int:
        return len(self.whisper_blocks)

    @property
    def projections(self) -> list[Projection]:
        """All linear layers of encoder and decoder, the output head last."""
        encoding = [[block.qkv, block.output, block.mlp.up, block.mlp.down] for block in self.encoder.blocks]
        decoding = [
            [block.qkv, block.output, cross.query, cross.kv, cross.output, block.mlp.up, block.mlp.down]
            for block in self.whisper_blocks
            for cross in (block.cross,)
        ]
        return [*itertools.chain.from_iterable(encoding + decoding), self.output_head]

    def subset(self, layers: Sequence[int]) -> WhisperDecoder:
        """The decoder made of only these blocks, in this order, and the whole encoder; weights are shared."""
        return WhisperDecoder(
            self.config,
            [self.whisper_blocks[i] for i in layers],
            self.embedding,
            self.positions_CM,
            self.final_norm,
            self.output_head,
            self.encoder,
        )

    def new_cache(self, form: str = "exact") -> CrossCache:
        if not is_exact(form, self.dtype):
            raise UserError("model.kv_cache: the cache of an encoder-decoder model is in model.dtype; use auto")
        c = self.config
        assert c.encoder is not None
        return CrossCache(self.layers, c.num_heads, c.head_dim, c.encoder.frames, self.device, self.dtype)

    def encode(self, encoder_input: EncoderInput, cache: KVCache, slot: int) -> None:
        """Store what every block's cross-attention sees of a request."""
        assert isinstance(cache, CrossCache)
        state_FM = encoder_input.states(self.encoder)
        H, D = self.config.num_heads, self.config.head_dim
        for layer, block in enumerate(self.whisper_blocks):
            k_HFD, v_HFD = block.cross.kv(state_FM).view(-1, 2, H, D).permute(1, 2, 0, 3)
            cache.write_encoded(slot, layer, k_HFD, v_HFD)

    def forward_pass(
        self, inputs: PassInputs, cache: KVCache, ops: Ops, taps: Collection[int] = ()
    ) -> tuple[torch.Tensor, ForwardPass]:
        work = ForwardPass((), inputs, cache.of_pass(inputs), ops, frozenset(taps))
        h_BNM = self.embedding(inputs.token_BN) + F.embedding(inputs.position_BN, self.positions_CM)
        work.record(0, h_BNM)
        return h_BNM, work

    def of_pass(self, work: ForwardPass) -> WhisperDecoder:
        """The decoder as it runs one pass: its blocks attend to what the encoder said of the pass's requests."""
        running = copy.copy(self)
        running._work = work
        return running

    def pre_attention(
        self, layer: int, h_BNM: torch.Tensor, work: Rotations
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Norm and QKV projection: q, k and v [B, N, H, D]."""
        block, (B, N, _) = self.whisper_blocks[layer], h_BNM.shape
        qkv_BN3HD = block.qkv(block.norm(h_BNM)).view(B, N, 3, self.config.num_heads, self.config.head_dim)
        return qkv_BN3HD[:, :, 0], qkv_BN3HD[:, :, 1], qkv_BN3HD[:, :, 2]

    def project(self, layer: int, o_BNHD: torch.Tensor) -> torch.Tensor:
        return self.whisper_blocks[layer].output(o_BNHD.flatten(2).to(self.dtype))

    def post_attention(self, layer: int, h_BNM: torch.Tensor, a_BNM: torch.Tensor) -> torch.Tensor:
        """Add the attention output, then the sub-layers of cross-attention and MLP, with norms and residuals.

        ``h_BNM`` holds the rows of the pass (:meth:`of_pass`). Raises ValueError outside one.
        """
        h_BNM = h_BNM + a_BNM
        h_BNM = h_BNM + self._cross_attention(layer, h_BNM)
        return h_BNM + self.mlp(layer, h_BNM)

    def mlp(self, layer: int, h_BNM: torch.Tensor) -> torch.Tensor:
        return self.whisper_blocks[layer].mlp(h_BNM)

    def logits_with(self, h_BNM: torch.Tensor, output_head: Projection) -> torch.Tensor:
        return output_head(self.final_norm(h_BNM))

    def _cross_attention(self, layer: int, h_BNM: torch.Tensor) -> torch.Tensor:
        work = self._work
        if work is None:
            raise ValueError("cross-attention needs to know the pass: take the decoder's of_pass")
        assert isinstance(work.cache, CrossPassCache)
        cross, (B, N, _) = self.whisper_blocks[layer].cross, h_BNM.shape
        q_BNHD = cross.query(cross.norm(h_BNM)).view(B, N, self.config.num_heads, self.config.head_dim)
        o_BNHD = work.ops.cross_attention(q_BNHD, *work.cache.encoded(layer), work.inputs)
        return cross.output(o_BNHD.flatten(2))
