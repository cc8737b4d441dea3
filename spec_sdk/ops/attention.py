"""The kernel interface, and its reference implementation in plain torch.

A backend offers an :class:`Ops`; one with faster kernels subclasses it and overrides what it has a kernel for.

Legend: B batch or samplings, N queries, H query heads, G KV heads, D head dim, S keys, T tree slots, Q = N*H/G; C
chunks of keys; K keys that a request sees; g layers of a group, R rows, V vocabulary, M model dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F

from spec_sdk.ops.acceptance import Rule, pending, rule_named
from spec_sdk.ops.attention_mask import AttentionMask
from spec_sdk.ops.cpu_attention import speculative_attention_on_cpu
from spec_sdk.ops.cross_attention import cross_attention
from spec_sdk.ops.decisions import PendingDecision, ScoredTree
from spec_sdk.ops.draws import Drawing
from spec_sdk.ops.gated_delta import gated_delta
from spec_sdk.ops.in_pass import DecisionsInPass, LogitsToCome, UnscoredTree, greedy_in_pass
from spec_sdk.ops.kept_tokens import least_kept
from spec_sdk.ops.linear import Projection, ProjectionStack
from spec_sdk.ops.masked_attention import QUERY_BLOCK, fold_heads, masked_attention
from spec_sdk.ops.pass_cache import PassCache
from spec_sdk.ops.pass_inputs import PassInputs
from spec_sdk.ops.quantized import QuantizedMatrix
from spec_sdk.ops.quantized_linear import QuantizedProjection
from spec_sdk.ops.rows import Shaping
from spec_sdk.ops.top_tokens import top_log_probabilities
from spec_sdk.ops.types import PLAIN, Announce, AttentionSpec, Ends, PartialAttention, SpeculativeAttention
from spec_sdk.ops.vocabulary_row import SomeLogits


class Ops:
    """Reference implementations. Every method is pure: inputs are never written to."""

    cache_forms: ClassVar[frozenset[str]] = frozenset({"exact"})
    """The forms of a KV cache (``model.kv_cache``) that :meth:`cached_attention` reads where they lie."""
    rounds_rows: bool = False
    """Whether rows are rounded to 8 bits before they are multiplied with weights in few bits (:func:`rounded_rows`)."""

    capture: Callable[[Callable[[], Any]], tuple[Callable[[], object], Any]] | None = None
    """What captures the short passes of draft heads that these operations are given to, a
    :data:`~spec_sdk.model.graph_executor.Capture`; None: they are not captured."""

    def before_pass(self) -> None:
        """Called before each pass, in the thread that makes it; does nothing by default.

        What kernels compute with, such as threads, may be looked after here, in a few microseconds.
        """

    def projection(self, weight_OI: torch.Tensor, bias_O: torch.Tensor | None = None) -> Projection:
        """A linear layer, its weights in the layout that this backend multiplies fastest. Asked once, at load."""
        return Projection(weight_OI, bias_O)

    def projections(self, weight_LOI: torch.Tensor, bias_LO: torch.Tensor | None = None) -> ProjectionStack:
        """The same for L layers of one shape, which layer-parallel drafting multiplies at once."""
        return ProjectionStack(weight_LOI, bias_LO)

    def quantized_projection(self, matrix: QuantizedMatrix, bias_O: torch.Tensor | None = None) -> Projection:
        """A linear layer whose weights stay in few bits. Asked once, at load."""
        return QuantizedProjection(matrix, bias_O, self.rounds_rows)

    def with_rows(self, projection: Projection | None, weight_KI: torch.Tensor) -> Projection:
        """A linear layer without a bias that has K more outputs behind those of ``projection``, or only these.

        For an output head's rows of the tokens of a text, which are added while the text is written. ``projection`` is
        one that this gave, and is not added to again; what was begun with it may be finished.
        """
        if projection is not None:
            weight_KI = torch.cat((projection.weight_OI, weight_KI))
        return self.projection(weight_KI)

    def fast_in_bits(self, bits: int, dtype: torch.dtype) -> bool:
        """Whether products of ``dtype`` with weights of so many bits are about as fast as with plain ones.

        ``model.weights=auto`` keeps the bits of a file only then. The reference expands the weights in every call,
        which takes longer than reading them dense.
        """
        return False

    def head_block(self, head: Any) -> Callable[[torch.Tensor, Any], torch.Tensor | None] | None:
        """What runs a draft head's block in one call, ``(h [B, N, M], pass) → h``, or returns None for a pass that it
        leaves to the block's stages. None where nothing is quicker than those. Asked once, at load.
        """
        return None

    def recurrent_mixer(self, mixer: Any) -> Any:
        """What a recurrent layer computes between its projections (a ``RecurrentMixer``), in the form that this backend
        computes fastest. Asked once, at load.
        """
        return mixer

    def whole_pass(self, decoder: Any) -> Callable[..., Any] | None:
        """What runs a decoder's plain passes in one call, ``(inputs, cache, taps, logits) → (what leaves the last block
        [B, N, M], tapped states, layer → [B, N, M], logits [B, n, R])``, or returns None for a pass that it leaves to
        the decoder's stages. None where nothing is quicker than those. Asked once, at the first pass.
        """
        return None

    def path_grower(self, decoder: Any) -> Callable[..., Any] | None:
        """A :data:`~spec_sdk.ops.grown_paths.PathGrower`: what feeds a draft model or head a tree of the most probable
        paths, root and levels, in one call. None where nothing is quicker than a pass for each level. Asked once, when
        a tree is first grown.
        """
        return None

    def rms_norm(self, x: torch.Tensor, gain_M: torch.Tensor, epsilon: float) -> torch.Tensor:
        """x [..., M] over its root mean square, times the gain; computed in the gain's dtype at least."""
        return F.rms_norm(x.to(gain_M.dtype), gain_M.shape, gain_M, epsilon).to(x.dtype)

    def top_log_probabilities(self, logits_NV: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The ``count`` largest of each row of logits [N, V], the largest first, or all V if there are fewer:
        log-probabilities, float32, and places, int64, [N, count] each.

        Launched on the logits' device and not waited for. Which of equal logits come first is the backend's choice. A
        row without a finite logit gets NaN.
        """
        return top_log_probabilities(logits_NV, count)

    def least_kept(self, logits_RV: torch.Tensor, shaping_B4: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Which tokens of rows of logits [R, V] top-k, top-p and min-p keep: the least kept logit [R], float32, and the
        last kept token [R], int32, among those that equal it.

        ``shaping_B4``: :func:`~spec_sdk.ops.kept_tokens.numbers_of` B samplings, float64 where the logits are, among
        which rows are shared out evenly. Launched there and not waited for; an unusable row has any border.
        """
        return least_kept(logits_RV, shaping_B4)

    def drawing(self, logits: torch.Tensor | SomeLogits, shaping: Shaping) -> Drawing | None:
        """What tokens are drawn from by these logits [V], of all tokens or some. None, the default, for
        logits that a sampler draws from in its own way.

        Raises UnusableLogits, row 0, for logits that are NaN, +inf, or -inf throughout; or what it returns does so when
        it first draws.
        """
        return None

    def accept(self, rule: str | Rule, scored: Sequence[ScoredTree]) -> list[PendingDecision]:
        """For each tree the accepted nodes and the token after them, by a rule of that name or a verifier's own.

        Nothing is waited for: :func:`~spec_sdk.ops.read_decisions` reads all that is pending at once. A kernel for a
        rule of that name decides as its function in :mod:`spec_sdk.ops.acceptance` does with the same random numbers,
        and raises what that raises, each tree for itself. Raises ValueError for an unknown name.
        """
        own = rule_named(rule) if isinstance(rule, str) else rule
        return [pending(own, tree) for tree in scored]

    def accept_in_pass(
        self, rule: str | Rule, unscored: Sequence[UnscoredTree], logits: LogitsToCome
    ) -> DecisionsInPass | None:
        """What a pass over these trees is to make of its logits so that it decides on them, as :meth:`accept` would
        after it with the same random numbers; None where it cannot, and then none of these has been taken.

        Asked only where passes are single launches (:attr:`Executor.one_launch
        <spec_sdk.contracts.Executor.one_launch>`), once for each pass, right before it. The reference does it for
        ``greedy``.
        """
        return greedy_in_pass(unscored) if rule == "greedy" else None

    def cached_attention(
        self, q_gBNHD: torch.Tensor, cache: PassCache, first: int, spec: AttentionSpec = PLAIN
    ) -> torch.Tensor:
        """Attention of a pass's rows over the caches of g layers, from layer ``first`` on: [g, B, N, H, D].

        ``spec`` is that of all these layers.
        The pass's own keys must have been written. Rows of padding get 0. One request after the other: what a request
        gets does not depend on those beside it.
        """
        width, end, outputs = q_gBNHD.shape[2], first + q_gBNHD.shape[0], []
        for part in cache.inputs.parts:
            k_gGKD, v_gGKD = cache.keys_values(part.index, first, end)
            o_gNHD = self.tree_attention(q_gBNHD[:, part.index, : part.live], k_gGKD, v_gGKD, part.mask, spec)
            padding = width - part.live
            outputs.append(F.pad(o_gNHD, (0, 0, 0, 0, 0, padding)) if padding else o_gNHD)
        return outputs[0][:, None] if len(outputs) == 1 else torch.stack(outputs, 1)

    def cross_attention(
        self, q_BNHD: torch.Tensor, k_SHFD: torch.Tensor, v_SHFD: torch.Tensor, inputs: PassInputs
    ) -> torch.Tensor:
        """Attention of every row to the states of an encoder, K and V [slots, H, F, D] of its request's slot."""
        return cross_attention(q_BNHD, k_SHFD, v_SHFD, inputs)

    def gated_delta(
        self,
        state_HVD: torch.Tensor,
        state_path_H: torch.Tensor,
        earlier: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        q_GND: torch.Tensor,
        k_GND: torch.Tensor,
        v_HNV: torch.Tensor,
        gain_HN: torch.Tensor,
        log_decay_HN: torch.Tensor,
        visible_NS: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """A recurrent layer's rows behind its state: :func:`~spec_sdk.ops.gated_delta.gated_delta`."""
        return gated_delta(state_HVD, state_path_H, earlier, q_GND, k_GND, v_HNV, gain_HN, log_decay_HN, visible_NS)

    def tree_attention(
        self,
        q_BNHD: torch.Tensor,
        k_BGSD: torch.Tensor,
        v_BGSD: torch.Tensor,
        mask: AttentionMask,
        spec: AttentionSpec = PLAIN,
    ) -> torch.Tensor:
        """Attention of N queries over ``S = mask.keys`` keys, as ``spec`` says. Returns o [B, N, H, D].

        Keys that a window hides from all queries are not read.
        """
        near = mask.within(spec.window)
        if near.first:
            k_BGSD, v_BGSD = k_BGSD[:, :, near.first :], v_BGSD[:, :, near.first :]
        return masked_attention(q_BNHD, k_BGSD, v_BGSD, near, spec)

    def partial_attention(
        self,
        q_BNHD: torch.Tensor,
        k_BGSD: torch.Tensor,
        v_BGSD: torch.Tensor,
        bias_NS: torch.Tensor | None = None,
    ) -> PartialAttention:
        """Attention over the given keys only, with the softmax statistics m and l; computed in float32.

        ``bias_NS`` [N, S] is added to the scores (0 or -inf). A query that sees no key gets o = 0, m = -inf, l = 0.
        """
        B, N, H, D = q_BNHD.shape
        G = k_BGSD.shape[1]
        q_BGQD = fold_heads(q_BNHD, G).float()
        score_BGQS = q_BGQD @ k_BGSD.float().transpose(-1, -2) * D**-0.5
        if bias_NS is not None:
            score_BGQS = score_BGQS + bias_NS.float().repeat(H // G, 1)
        m_BGQ = score_BGQS.amax(-1)
        weight_BGQS = torch.exp(score_BGQS - m_BGQ.masked_fill(m_BGQ == float("-inf"), 0.0)[..., None])
        l_BGQ = weight_BGQS.sum(-1)
        o_BGQD = weight_BGQS @ v_BGSD.float() / l_BGQ.clamp_min(torch.finfo(torch.float32).tiny)[..., None]
        return PartialAttention(
            o_BNHD=o_BGQD.reshape(B, H, N, D).transpose(1, 2),
            m_BNH=m_BGQ.reshape(B, H, N).transpose(1, 2),
            l_BNH=l_BGQ.reshape(B, H, N).transpose(1, 2),
        )

    def combine(self, first: PartialAttention, second: PartialAttention) -> PartialAttention:
        """Attention over the union of two disjoint sets of keys (online softmax)."""
        m_BNH = torch.maximum(first.m_BNH, second.m_BNH)
        safe_m_BNH = m_BNH.masked_fill(m_BNH == float("-inf"), 0.0)
        l1_BNH = first.l_BNH * torch.exp(first.m_BNH - safe_m_BNH)
        l2_BNH = second.l_BNH * torch.exp(second.m_BNH - safe_m_BNH)
        l_BNH = l1_BNH + l2_BNH
        total_BNH1 = l_BNH.clamp_min(torch.finfo(torch.float32).tiny)[..., None]
        o_BNHD = (first.o_BNHD * l1_BNH[..., None] + second.o_BNHD * l2_BNH[..., None]) / total_BNH1
        return PartialAttention(o_BNHD, m_BNH, l_BNH)

    def keys_to_read(self, cache: PassCache, index: int, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V [1, G, S, D] of a layer that request number ``index`` of the pass sees, as quickly as
        :meth:`speculative_attention` takes them: in the pass's dtype, or as the cache has them.
        """
        return cache.keys_values(index, layer, layer + 1)

    def speculative_attention(
        self,
        q_BNHD: torch.Tensor,
        k_BGSD: torch.Tensor,
        v_BGSD: torch.Tensor,
        mask: AttentionMask,
        ends: int | Ends,
        announce: Announce | None = None,
    ) -> SpeculativeAttention:
        """Attention predicted from both ends of the prefix, and the exact one, in one reading of the keys.

        The prediction is attention over the ``ends.first`` first and the ``ends.last`` last committed keys (of a number
        so many each) and a query's own tree ancestors; combined with attention over the keys between them it is the
        exact one (ALSpec, Alg. 3). Up to ``ends.keys`` committed keys nothing lies between, and the two are equal.
        ``chunk_lse_BNHC`` is not filled. ``announce`` gets the prediction, before the keys between are read where an
        implementation can do so.
        """
        announce, ends = announce or _nobody, Ends.of(ends)
        if mask.queries > QUERY_BLOCK:
            blocks = [
                self.speculative_attention(q_BNHD[:, block], k_BGSD, v_BGSD, mask.of_queries(block), ends)
                for block in (slice(at, at + QUERY_BLOCK) for at in range(0, mask.queries, QUERY_BLOCK))
            ]
            names = ("predicted_BNHD", "exact_BNHD", "difference_sq_BN", "norm_sq_BN")
            whole = SpeculativeAttention(*(torch.cat([getattr(block, name) for block in blocks], 1) for name in names))
            announce(whole.predicted_BNHD)
            return whole
        if mask.prefix <= ends.keys:
            exact_BNHD = self.tree_attention(q_BNHD, k_BGSD, v_BGSD, mask)
            announce(exact_BNHD)
            return SpeculativeAttention.measured(exact_BNHD, exact_BNHD, q_BNHD.dtype)
        if q_BNHD.device.type == "cpu" and ends.first:
            q_BGQD = fold_heads(q_BNHD, k_BGSD.shape[1])
            return speculative_attention_on_cpu(q_BGQD, k_BGSD, v_BGSD, mask, ends, announce)
        prediction = self.sink_attention(q_BNHD, k_BGSD, v_BGSD, mask, ends)
        announce(prediction.o_BNHD.to(q_BNHD.dtype))
        middle = slice(ends.first, mask.prefix - ends.last)
        rest = self.partial_attention(q_BNHD, k_BGSD[:, :, middle], v_BGSD[:, :, middle])
        exact = self.combine(prediction, rest)
        return SpeculativeAttention.measured(prediction.o_BNHD, exact.o_BNHD, q_BNHD.dtype)

    def sink_attention(
        self, q_BNHD: torch.Tensor, k_BGSD: torch.Tensor, v_BGSD: torch.Tensor, mask: AttentionMask, ends: int | Ends
    ) -> PartialAttention:
        """Attention over both ends of the committed keys, and a query's own tree ancestors."""
        ends = Ends.of(ends)
        if mask.prefix > ends.keys:
            last = mask.prefix - ends.last
            k_BGSD = torch.cat((k_BGSD[:, :, : ends.first], k_BGSD[:, :, last:]), dim=2)
            v_BGSD = torch.cat((v_BGSD[:, :, : ends.first], v_BGSD[:, :, last:]), dim=2)
        return self.selected_attention(q_BNHD, k_BGSD, v_BGSD, mask)

    def selected_attention(
        self, q_BNHD: torch.Tensor, k_BGSD: torch.Tensor, v_BGSD: torch.Tensor, mask: AttentionMask
    ) -> PartialAttention:
        """Attention over selected keys, the last of which are the tree slots of ``mask``; all others are seen."""
        if mask.sees_everything:
            return self.partial_attention(q_BNHD, k_BGSD, v_BGSD)
        bias_NT = mask.bias_NT(torch.float32)
        bias_NS = F.pad(bias_NT, (k_BGSD.shape[2] - bias_NT.shape[1], 0))
        return self.partial_attention(q_BNHD, k_BGSD, v_BGSD, bias_NS)

    def chunk_lse(self, q_BNHD: torch.Tensor, k_BGSD: torch.Tensor, chunk: int) -> torch.Tensor:
        """Log-sum-exp of the scaled scores over each chunk of ``chunk`` keys, float32 [B, N, H, C].

        All keys are taken as visible. The last chunk may have fewer keys.
        """
        B, N, H, D = q_BNHD.shape
        S = k_BGSD.shape[2]
        q_BGQD = fold_heads(q_BNHD, k_BGSD.shape[1]).float()
        score_BGQS = q_BGQD @ k_BGSD.float().transpose(-1, -2) * D**-0.5
        lse_BGQC: torch.Tensor = score_BGQS
        if chunk > 1:
            padded = F.pad(score_BGQS, (0, -S % chunk), value=float("-inf"))
            lse_BGQC = padded.reshape(*padded.shape[:3], -1, chunk).logsumexp(-1)
        return lse_BGQC.reshape(B, H, N, lse_BGQC.shape[-1]).transpose(1, 2)


def _nobody(predicted_BNHD: torch.Tensor) -> None:
    """Who is announced a prediction to where nobody asked."""
