"""A draft model without K and V of its own: its layers attend to what the target has of the text so far (Gemma 4).

It is given a token's embedding in the target and a hidden state, the target's or its own of the token before. All
tokens of a draft stand at one position, that of the pending token, and none sees another.

Legend: K rows, M model dim, W the target's model dim, H query heads, G KV heads, D head dim, P keys in sight,
V vocabulary, C clusters, X tokens of a cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from spec_sdk.model.config import ModelConfig
from spec_sdk.model.decoder import BlockWeights
from spec_sdk.model.rope import RotaryTable, rotate
from spec_sdk.model.target_ends import TargetEnds
from spec_sdk.ops import Ops
from spec_sdk.ops.embedding import Embedding
from spec_sdk.ops.linear import Projection
from spec_sdk.ops.uploads import numbers_on

KeysValues = tuple[torch.Tensor, torch.Tensor]
"""K and V [G, P, D]."""


@dataclass(frozen=True)
class TextInSight:
    """What rows of one request attend to. ``position``: that of the pending token. ``windowed``, ``whole``: K and V of
    the target for layers with a window and without one; None where there are no such layers.
    """

    position: int
    windowed: KeysValues | None
    whole: KeysValues | None


@dataclass(frozen=True)
class ClusteredHead:
    """Logits of the tokens in the ``chosen`` clusters whose centroids, ``centroids`` M → C, say the most; those of
    others are −∞. ``token_CX``: the tokens of each.
    """

    centroids: Projection
    token_CX: torch.Tensor
    chosen: int

    def logits(self, h_KM: torch.Tensor, embedding: Embedding) -> torch.Tensor:
        """[K, V], of the output head's rows, which are those of the ``embedding``."""
        best_KA = self.centroids(h_KM).topk(self.chosen, dim=-1).indices
        token_KY = self.token_CX[best_KA].flatten(1)
        logit_KY = torch.einsum("km,kym->ky", h_KM, embedding(token_KY))
        vocabulary = self.token_CX.numel()
        return h_KM.new_full((len(h_KM), vocabulary), -torch.inf).scatter_(1, token_KY, logit_KY)


class Assistant:
    """``ends``: its own embedding, final norm and output head. ``entering`` is 2W → M, ``leaving`` M → W.

    ``taps``: the target layers whose states it reads. ``sources``: by whether layers have no window, which layer of the
    target has the K and V that they attend to.
    """

    def __init__(
        self,
        config: ModelConfig,
        blocks: Sequence[BlockWeights],
        ends: TargetEnds,
        entering: Projection,
        leaving: Projection,
        clusters: ClusteredHead | None,
        target: TargetEnds,
        sources: Mapping[bool, int],
        ops: Ops,
    ) -> None:
        self.config = config
        self.taps = (target.layers,)
        self.sources = sources
        self.ops = ops
        self._blocks, self._ends = tuple(blocks), ends
        self._entering, self._leaving, self._clusters = entering, leaving, clusters
        self._target = target
        self.device, self.dtype = ends.embedding.device, ends.embedding.dtype
        scale = target.config.embedding_scale
        rounds = target.config.rounds_embedding_scale
        self._scale = float(torch.tensor(scale, dtype=target.embedding.dtype)) if rounds else scale
        self._rotary = {
            is_global: RotaryTable(config.heads_of(layer)[1], config.layer_kind(layer).rope, self.device, self.dtype)
            for layer in range(config.num_layers)
            for is_global in (config.is_global(layer),)
        }

    @property
    def vocabulary(self) -> int:
        """V."""
        return self._ends.output_head.outputs

    def first_state(self, last_NW: torch.Tensor) -> torch.Tensor:
        """The state [N, W] that it is given with a token, of the target's last hidden state at the one before."""
        return self._target.final_norm(last_NW.to(self.device)).to(self.dtype)

    def step(
        self, token_K: torch.Tensor, state_KW: torch.Tensor, texts: Sequence[tuple[int, TextInSight]]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [K, V] after each of these tokens, and states [K, W] to go on from. ``texts``: what the rows attend
        to, so many rows to each, in order.
        """
        embedded_KW = self._target.embedding(token_K[None])[0].to(self.dtype) * self._scale
        x_KM = self._entering(torch.cat((embedded_KW, state_KW), -1))
        position_1K = numbers_on(self.device, [[text.position for count, text in texts for _ in range(count)]])
        longest = 1 + max(text.position for _, text in texts)
        turns = {key: table.at(position_1K, longest) for key, table in self._rotary.items()}
        for layer, block in enumerate(self._blocks):
            x_KM = self._through(layer, block, x_KM, turns, texts)
        h_KM = self._norm(x_KM, self._ends.final_norm_M)
        if self._clusters is None:
            logits_KV = self._ends.output_head(h_KM)
        else:
            logits_KV = self._clusters.logits(h_KM, self._ends.embedding)
        return logits_KV, self._leaving(h_KM)

    def _through(
        self,
        layer: int,
        block: BlockWeights,
        x_KM: torch.Tensor,
        turns: Mapping[bool, tuple[torch.Tensor, torch.Tensor]],
        texts: Sequence[tuple[int, TextInSight]],
    ) -> torch.Tensor:
        is_global, parts = self.config.is_global(layer), block.of_varied
        assert parts is not None and block.mlp is not None
        q_KHD = block.qkv(self._norm(x_KM, block.input_norm_M)).view(len(x_KM), self.config.num_heads, -1)
        q_KHD = rotate(self._norm(q_KHD, block.q_norm_D)[None], *turns[is_global])[0]
        of_texts = torch.split(q_KHD, [count for count, _ in texts])
        attended = [
            _attended(q_nHD, text.whole if is_global else text.windowed)
            for q_nHD, (_, text) in zip(of_texts, texts, strict=True)
        ]
        a_KM = block.output(torch.cat(attended).flatten(1))
        x_KM = x_KM + self._norm(a_KM, block.attention_output_norm_M)
        m_KM = block.mlp(self._norm(x_KM, block.post_norm_M))
        return (x_KM + self._norm(m_KM, block.mlp_output_norm_M)) * parts.scale

    def _norm(self, x: torch.Tensor, gain: torch.Tensor | None) -> torch.Tensor:
        return x if gain is None else self.ops.rms_norm(x, gain, self.config.rms_norm_eps)


def _attended(q_nHD: torch.Tensor, keys_values: KeysValues | None) -> torch.Tensor:
    """Attention [n, H, D] of rows that see the same keys, all of them, scaled by 1."""
    assert keys_values is not None
    k_GPD, v_GPD = (x.to(q_nHD) for x in keys_values)
    n, H, D = q_nHD.shape
    q_GRD = q_nHD.transpose(0, 1).reshape(k_GPD.shape[0], -1, D)
    o_GRD = F.scaled_dot_product_attention(q_GRD, k_GPD, v_GPD, scale=1.0)
    return o_GRD.reshape(H, n, D).transpose(0, 1)
