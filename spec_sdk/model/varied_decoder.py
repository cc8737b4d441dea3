"""A decoder whose layers have heads of different shapes, some of them no K and V of their own, and some an input beside
the hidden state (Gemma 4).

Legend: B requests, N rows of a request, M model dim, H query heads, G KV heads, D head dim, P numbers of a layer's
input, L layers that are embedded.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch

from spec_sdk.model.config import ModelConfig
from spec_sdk.model.decoder import BlockWeights, Decoder, ForwardPass, Rotations
from spec_sdk.model.kv_cache import KVCache
from spec_sdk.model.rope import rotate
from spec_sdk.model.shaped_kv_cache import CachePlace, ShapedKVCache, ShapedPassCache
from spec_sdk.model.varied_parts import VariedParts
from spec_sdk.ops import Ops
from spec_sdk.ops.embedding import Embedding
from spec_sdk.ops.linear import Projection
from spec_sdk.ops.pass_inputs import PassInputs


@dataclass(frozen=True)
class LayerInputEmbedding:
    """What all layers' inputs are made of: an embedding of their own, and a projection of the usual one (M → L·P) under
    a norm over P; both are averaged, times √2.
    """

    embedding: Embedding
    projection: Projection
    norm_P: torch.Tensor


@dataclass
class InformedPass(ForwardPass):
    """A pass with the layers' inputs [B, N, L, P]."""

    layer_input_BNLP: torch.Tensor | None = None

    def of_rows(self, requests: slice, rows: slice, inputs: PassInputs) -> InformedPass:
        made = super().of_rows(requests, rows, inputs)
        assert self.layer_input_BNLP is not None
        return replace(made, layer_input_BNLP=self.layer_input_BNLP[requests, rows])


class VariedDecoder(Decoder):
    """Its blocks are not stacked, so that a group of layers runs one after the other."""

    fuses_groups = False

    def __init__(
        self,
        config: ModelConfig,
        blocks: Sequence[BlockWeights],
        embedding: Embedding,
        final_norm_M: torch.Tensor,
        output_head: Projection,
        layer_inputs: LayerInputEmbedding | None = None,
        sources: Sequence[int] | None = None,
    ) -> None:
        super().__init__(config, blocks, embedding, final_norm_M, output_head, sources=sources)
        self.layer_inputs = layer_inputs
        self._own = config if sources is None else config.of_layers(self.sources)
        self._shapes, self.places = _cache_places(self._own)
        self._layer_input_BNLP: torch.Tensor | None = None

    @property
    def projections(self) -> list[Projection]:
        of_inputs = [] if self.layer_inputs is None else [self.layer_inputs.projection]
        return [*of_inputs, *super().projections]

    @property
    def nbytes(self) -> int:
        return super().nbytes + (0 if self.layer_inputs is None else self.layer_inputs.embedding.nbytes)

    @property
    def blocks_with_kv(self) -> int:
        return 1 + max(layer for layer in range(self.layers) if self.makes_kv(layer))

    @property
    def kv_sources(self) -> Sequence[int]:
        return self._own.kv_sources

    @property
    def data_dependent(self) -> str | None:
        beside = any(self.parts_of(layer).experts is not None for layer in range(self.layers))
        return "mixture of experts" if beside else super().data_dependent

    def parts_of(self, layer: int) -> VariedParts:
        """What a block has besides."""
        found = self.blocks[layer].of_varied
        assert found is not None
        return found

    def heads_of(self, layer: int) -> tuple[int, int]:
        """KV heads of a block, and dims of a head."""
        return self.config.heads_of(self.sources[layer])

    def makes_kv(self, layer: int) -> bool:
        """Whether a block has K and V of its own."""
        return self._own.kv_layer(layer) == layer

    def place_of_input(self, layer: int) -> int:
        """Which of the layers that are embedded a block is."""
        assert self._own.layer_inputs is not None
        return self._own.layer_inputs.places[layer]

    def subset(self, layers: Sequence[int]) -> VariedDecoder:
        """Raises UserError for a layer whose K and V are those of one that is left out, with none like it before."""
        return VariedDecoder(
            self.config,
            [self.blocks[i] for i in layers],
            self.embedding,
            self.final_norm_M,
            self.output_head,
            self.layer_inputs,
            [self.sources[i] for i in layers],
        )

    def new_cache(self, form: str = "exact") -> ShapedKVCache:
        kind = self.kind_of_cache(form)
        parts = [kind(layers, *shape, self.device, self.dtype) for shape, layers in self._shapes.items()]
        return ShapedKVCache(parts, self.places)

    def forward_pass(
        self, inputs: PassInputs, cache: KVCache, ops: Ops, taps: Collection[int] = ()
    ) -> tuple[torch.Tensor, ForwardPass]:
        h_BNM, work = super().forward_pass(inputs, cache, ops, taps)
        if self.layer_inputs is None:
            return h_BNM, work
        return h_BNM, InformedPass(**vars(work), layer_input_BNLP=self.inputs_of(inputs.token_BN, h_BNM))

    def of_pass(self, work: ForwardPass) -> Self:
        """The decoder as it runs one pass: its layers have the inputs of the pass's rows."""
        if self.layer_inputs is None:
            return self
        assert isinstance(work, InformedPass)
        running = copy.copy(self)
        running._layer_input_BNLP = work.layer_input_BNLP
        return running

    def heads(self, layer: int, qkv: torch.Tensor, work: Rotations) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q [B, N, H, D], k and v [B, N, G, D], of no heads where the layer attends to another's."""
        w, H, source = self.blocks[layer], self.config.num_heads, self.sources[layer]
        G, D = self.heads_of(layer)
        x_BNXD = qkv.view(*qkv.shape[:2], -1, D)
        cos_BN1D, sin_BN1D = self.rotation(layer, work)
        q_BNHD = rotate(self._normed(x_BNXD[:, :, :H], w.q_norm_D), cos_BN1D, sin_BN1D)
        if not self.makes_kv(layer):
            return q_BNHD, x_BNXD[:, :, :0], x_BNXD[:, :, :0]
        k_BNGD = x_BNXD[:, :, H : H + G]
        v_BNGD = k_BNGD if self.config.values_are_keys(source) else x_BNXD[:, :, H + G :]
        v_BNGD = self._norm(v_BNGD, self.parts_of(layer).value_norm_D)
        return q_BNHD, rotate(self._normed(k_BNGD, w.k_norm_D), cos_BN1D, sin_BN1D), v_BNGD

    def write_kv(self, layer: int, k_BNGD: torch.Tensor, v_BNGD: torch.Tensor, work: ForwardPass) -> None:
        if self.makes_kv(layer):
            super().write_kv(layer, k_BNGD, v_BNGD, work)

    def attend(self, layer: int, q_BNHD: torch.Tensor, work: ForwardPass) -> torch.Tensor:
        assert isinstance(work.cache, ShapedPassCache)
        cache, place = work.cache.of_layer(layer)
        return work.ops.cached_attention(q_BNHD[None], cache, place, self.kinds[layer].attention)[0]

    def post_attention(self, layer: int, h_BNM: torch.Tensor, a_BNM: torch.Tensor) -> torch.Tensor:
        """Add the attention output, then what the MLP and experts give, then what the layer makes of its own input, and
        scale the sum. ``h_BNM`` holds the rows of the pass (:meth:`of_pass`). Raises ValueError outside one.
        """
        w, parts = self.blocks[layer], self.parts_of(layer)
        assert w.mlp is not None
        h_BNM = h_BNM + self._normed(a_BNM, w.attention_output_norm_M)
        m_BNM = w.mlp(self._normed(h_BNM, w.post_norm_M))
        if (beside := parts.experts) is not None:
            routed_BNM = self._norm(h_BNM, beside.router_gain_M)
            e_BNM = beside.mixture(self._norm(h_BNM, beside.input_norm_M), routed_BNM)
            m_BNM = self._norm(m_BNM, beside.mlp_norm_M) + self._norm(e_BNM, beside.output_norm_M)
        h_BNM = h_BNM + self._normed(m_BNM, w.mlp_output_norm_M)
        if (of := parts.layer_input) is not None:
            if self._layer_input_BNLP is None:
                raise ValueError("layers' inputs are those of a pass: take the decoder's of_pass")
            input_BNP = self._layer_input_BNLP[:, :, self.place_of_input(layer)]
            h_BNM = h_BNM + self._norm(of.gated(h_BNM, input_BNP), of.norm_M)
        return h_BNM * parts.scale

    def inputs_of(self, token_BN: torch.Tensor, h_BNM: torch.Tensor) -> torch.Tensor:
        """The layers' inputs [B, N, L, P] of a pass's tokens [B, N], whose embeddings are ``h_BNM``."""
        of, sizes = self.layer_inputs, self.config.layer_inputs
        assert of is not None and sizes is not None
        shape = *token_BN.shape, sizes.embedded, sizes.size
        scale = float(torch.tensor(sizes.size**0.5, dtype=self.dtype))
        embedded_BNLP = of.embedding(token_BN).view(shape) * scale
        projected_BNLP = (of.projection(h_BNM) * self.config.hidden_size**-0.5).view(shape)
        return (self._norm(projected_BNLP, of.norm_P) + embedded_BNLP) * 2**-0.5


def _cache_places(config: ModelConfig) -> tuple[dict[tuple[int, int], int], list[CachePlace]]:
    """KV heads and head dim → how many layers have K and V of that shape; and where each layer finds its own."""
    shapes: dict[tuple[int, int], int] = {}
    made: dict[int, CachePlace] = {}
    for layer in range(config.num_layers):
        if config.kv_layer(layer) == layer:
            shape = config.heads_of(layer)
            shapes.setdefault(shape, 0)
            made[layer] = CachePlace(list(shapes).index(shape), shapes[shape])
            shapes[shape] += 1
    return shapes, [made[config.kv_layer(layer)] for layer in range(config.num_layers)]
