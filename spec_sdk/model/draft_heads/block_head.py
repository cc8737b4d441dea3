"""Heads that draft a block of tokens in one pass (DFlash, arXiv:2602.06036; DSpark of DeepSpec).

The target's states of the committed positions make a context: brought to the head's width and normalized, they are
given to the K and V projections of every layer as they are, and nothing else of them is computed. A block of rows, the
pending token (the anchor) and mask tokens after it, goes through the layers, each of which sees the context and the
block itself. What a slot of the block predicts is the token at its own position or, where drafts are read off the
anchor too, at the next one.

Legend: B requests, N rows of a request, M model dim, D head dim, G KV heads, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from spec_sdk.model.config import ModelConfig
from spec_sdk.model.decoder import BlockWeights, Decoder, ForwardPass
from spec_sdk.model.draft_heads.markov import ConfidenceHead, MarkovHead
from spec_sdk.model.executor import Cache, PassOutput, PassPlan
from spec_sdk.model.kv_cache import KVCache
from spec_sdk.model.rope import rotate
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.ops.embedding import Embedding
from spec_sdk.ops.linear import Projection
from spec_sdk.ops.pass_cache import PassCache
from spec_sdk.ops.pass_inputs import PassInputs


@dataclass(frozen=True)
class BlockForm:
    """How a block is laid out. ``size``: its rows, the anchor included. ``mask_token``: what all other rows are fed.

    ``from_anchor``: slot k predicts the token after its position, so that the anchor's row gives a draft too; without
    it slot k predicts the token at its position. ``causal``: per layer, whether a row sees no later rows of the block.
    """

    size: int
    mask_token: int
    from_anchor: bool
    causal: tuple[bool, ...]

    @property
    def drafts(self) -> int:
        """Tokens that one pass drafts."""
        return self.size if self.from_anchor else self.size - 1


class ContextProjection(Projection):
    """Q, K and V of a layer: two linear layers, since a context's positions have K and V only."""

    def __init__(self, q: Projection, kv: Projection) -> None:
        self.q, self.kv = q, kv

    @property
    def weight_OI(self) -> torch.Tensor:
        return torch.cat((self.q.weight_OI, self.kv.weight_OI))

    @property
    def inputs(self) -> int:
        return self.q.inputs

    @property
    def outputs(self) -> int:
        return self.q.outputs + self.kv.outputs

    @property
    def nbytes(self) -> int:
        return self.q.nbytes + self.kv.nbytes

    def holds(self, weight_OI: torch.Tensor) -> bool:
        return False

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat((self.q(x), self.kv(x)), dim=-1)


@dataclass(frozen=True)
class BlockHeadParts:
    """What such a head consists of. ``fc``: from all tapped states, one beside the other, to M.

    ``qkv``: of every layer. ``output_head``: over the target's vocabulary, -inf for tokens without a row.
    ``taps``: the target layers that it reads, in the order in which ``fc`` takes them. ``mask_embedding_M``: in the
    place of the mask token's own row. ``logit_scale``: before the logits are capped, if they are.
    """

    config: ModelConfig
    form: BlockForm
    qkv: Sequence[ContextProjection]
    blocks: Sequence[BlockWeights]
    embedding: Embedding
    final_norm_M: torch.Tensor
    output_head: Projection
    fc: Projection
    context_norm_M: torch.Tensor
    taps: tuple[int, ...]
    mask_embedding_M: torch.Tensor | None = None
    logit_scale: float = 1.0
    markov: MarkovHead | None = None
    confidence: ConfidenceHead | None = None


@dataclass
class BlockPass(ForwardPass):
    """A pass over blocks. ``causal_cache``: the cache as layers see it in which rows see no later rows."""

    causal_cache: PassCache | None = None


class BlockHead(Decoder):
    """Weights and arithmetic of a head that drafts a block. It holds no state of a request."""

    def __init__(self, parts: BlockHeadParts) -> None:
        super().__init__(parts.config, parts.blocks, parts.embedding, parts.final_norm_M, parts.output_head)
        self.form, self.taps = parts.form, parts.taps
        self.markov, self.confidence = parts.markov, parts.confidence
        self._parts = parts

    @property
    def projections(self) -> list[Projection]:
        extra = self.markov.projections if self.markov is not None else []
        return [self._parts.fc, *extra, *super().projections]

    def subset(self, layers: Sequence[int]) -> Decoder:
        raise ValueError("a head that drafts a block is trained as a whole: no layers of it can be left out")

    def embed(self, token_BN: torch.Tensor) -> torch.Tensor:
        h_BNM, mask_M = super().embed(token_BN), self._parts.mask_embedding_M
        if mask_M is None:
            return h_BNM
        masked_BN1 = (token_BN == self.form.mask_token)[..., None]
        return torch.where(masked_BN1, mask_M * self.embedding_scale, h_BNM)

    def features(self, hidden: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """The context features [N, M] of target states, layer → [N, target's model dim]."""
        states = [hidden[layer].to(device=self.device, dtype=self.dtype) for layer in self.taps]
        return self._norm(self._parts.fc(torch.cat(states, dim=-1)), self._parts.context_norm_M)

    def write_context(self, inputs: PassInputs, cache: KVCache) -> None:
        """Store K and V of committed positions, whose features the pass brings."""
        features_BNM, G = inputs.features_BNM, self.config.num_kv_heads
        if features_BNM is None:
            raise ValueError("a context consists of features, and this pass has none")
        rotations = [table.at(inputs.position_BN, cache.capacity) for table in self._rotary]
        stored = cache.of_pass(inputs)
        for layer, (qkv, block) in enumerate(zip(self._parts.qkv, self.blocks, strict=True)):
            kv_BNXD = qkv.kv(features_BNM).view(*features_BNM.shape[:2], 2 * G, self.config.head_dim)
            k_BNGD, v_BNGD = kv_BNXD[:, :, :G], kv_BNXD[:, :, G:]
            if block.k_norm_D is not None:
                k_BNGD = self._norm(k_BNGD, block.k_norm_D)
            k_BNGD = rotate(k_BNGD, *rotations[self.rotation_index(layer)])
            stored.write(layer, k_BNGD[None], v_BNGD[None])

    def forward_pass(
        self, inputs: PassInputs, cache: KVCache, ops: Ops, taps: Collection[int] = ()
    ) -> tuple[torch.Tensor, ForwardPass]:
        """The embeddings [B, N, M] of the blocks, and what the layers work on."""
        h_BNM, work = super().forward_pass(inputs, cache, ops, taps)
        if not any(self.form.causal):
            return h_BNM, work
        # a block's rows are all of its slots: slot s is seen from row s on
        causal = replace(inputs, key_start_BT=inputs.query_start_BN)
        return h_BNM, BlockPass(**vars(work), causal_cache=work.cache.of_pass(causal))

    def attend(self, layer: int, q_BNHD: torch.Tensor, work: ForwardPass) -> torch.Tensor:
        if not self.form.causal[layer]:
            return super().attend(layer, q_BNHD, work)
        assert isinstance(work, BlockPass) and work.causal_cache is not None
        return work.ops.cached_attention(q_BNHD[None], work.causal_cache, layer, self.kinds[layer].attention)[0]

    def normed(self, h_BNM: torch.Tensor) -> torch.Tensor:
        """What left the last layer under the final norm: what logits, Markov and confidence head read."""
        return self._norm(h_BNM, self.final_norm_M)

    def logits_with(self, h_BNM: torch.Tensor, output_head: Projection) -> torch.Tensor:
        return self._scaled(output_head(self.normed(h_BNM)))

    def block_logits(self, normed: torch.Tensor) -> torch.Tensor:
        """[..., M] → [..., V], of what :meth:`normed` gave, without what a Markov head adds.

        A token outside the draft vocabulary has -inf.
        """
        return self._scaled(self.output_head(normed))

    def _scaled(self, logits: torch.Tensor) -> torch.Tensor:
        scale, cap = self._parts.logit_scale, self.config.logit_softcap
        if scale != 1.0:
            logits = logits * scale
        if cap is None:
            return logits
        # a token without a row must keep its -inf, which a cap would lift
        return (torch.tanh(logits / cap) * cap).masked_fill(logits == float("-inf"), float("-inf"))


class BlockExecutor(TorchExecutor):
    """Runs such a head. A pass with features writes context; one without is a pass over blocks."""

    def __init__(self, head: BlockHead, ops: Ops) -> None:
        super().__init__(head, ops)
        self.head = head
        self.feature_width = head.config.hidden_size

    @torch.no_grad()
    def forward(self, inputs: PassInputs, cache: Cache, plan: PassPlan) -> PassOutput:
        if inputs.features_BNM is None:
            return super().forward(inputs, cache, plan)
        assert isinstance(cache, KVCache)
        self.ops.before_pass()
        self.head.write_context(inputs, cache)
        return PassOutput(inputs.features_BNM[..., :0])
