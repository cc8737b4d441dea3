"""The kernel interface, and its reference implementation in plain torch.

A backend offers an :class:`Ops`; one with faster kernels subclasses it and overrides what it has a kernel for.

Legend: B batch, N queries, H query heads, G KV heads, R = H/G, D head dim, S keys, T tree slots, Q = R*N;
n, t, s queries, slots and keys of one block; C chunks of keys; K keys that a request sees; g layers of a group.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from spec_sdk.ops.acceptance import Rule, pending, rule_named
from spec_sdk.ops.attention_mask import AttentionMask
from spec_sdk.ops.cpu_attention import speculative_attention_on_cpu
from spec_sdk.ops.decisions import PendingDecision, ScoredTree
from spec_sdk.ops.linear import Projection, ProjectionStack
from spec_sdk.ops.pass_cache import PassCache
from spec_sdk.ops.types import Announce, PartialAttention, SpeculativeAttention

# Queries whose dense mask is made at once, in trees of at least two such blocks: memory grows with the nodes, not with
# their square
QUERY_BLOCK = 256
# Where a block sees a smaller share of the slots, its keys are copied together: between them lie the subtrees of others
MOST_SEEN_TO_GATHER = 0.75
# torch's CPU kernel takes 32 queries at a time, from 192 queries on more: a head's queries that fill whole tiles gain
# nothing from those of the heads beside it (measured by benchmarks/tree_attention.py)
CPU_TILE = 32
CPU_WIDE_TILES_FROM = 192
# with fewer float32 keys, moving the queries together costs more than reading K and V once saves
FOLD_FROM_KEYS = 128


class Ops:
    """Reference implementations. Every method is pure: inputs are never written to."""

    def projection(self, weight_OI: torch.Tensor, bias_O: torch.Tensor | None = None) -> Projection:
        """A linear layer, its weights in the layout that this backend multiplies fastest. Asked once, at load."""
        return Projection(weight_OI, bias_O)

    def projections(self, weight_LOI: torch.Tensor, bias_LO: torch.Tensor | None = None) -> ProjectionStack:
        """The same for L layers of one shape, which layer-parallel drafting multiplies at once."""
        return ProjectionStack(weight_LOI, bias_LO)

    def accept(self, rule: str | Rule, scored: Sequence[ScoredTree]) -> list[PendingDecision]:
        """For each tree the accepted nodes and the token after them, by a rule of that name or a verifier's own.

        Nothing is waited for: :func:`~spec_sdk.ops.read_decisions` reads all that is pending at once. A kernel for a
        rule of that name decides as its function in :mod:`spec_sdk.ops.acceptance` does with the same random numbers,
        and raises what that raises, each tree for itself. Raises ValueError for an unknown name.
        """
        own = rule_named(rule) if isinstance(rule, str) else rule
        return [pending(own, tree) for tree in scored]

    def cached_attention(self, q_gBNHD: torch.Tensor, cache: PassCache, first: int) -> torch.Tensor:
        """Attention of a pass's rows over the caches of g layers, from layer ``first`` on: [g, B, N, H, D].

        The pass's own keys must have been written. Rows of padding get 0. One request after the other: what a request
        gets does not depend on those beside it.
        """
        width, end, outputs = q_gBNHD.shape[2], first + q_gBNHD.shape[0], []
        for part in cache.inputs.parts:
            k_gGKD, v_gGKD = cache.keys_values(part.index, first, end)
            o_gNHD = self.tree_attention(q_gBNHD[:, part.index, : part.live], k_gGKD, v_gGKD, part.mask)
            padding = width - part.live
            outputs.append(F.pad(o_gNHD, (0, 0, 0, 0, 0, padding)) if padding else o_gNHD)
        return outputs[0][:, None] if len(outputs) == 1 else torch.stack(outputs, 1)

    def tree_attention(
        self, q_BNHD: torch.Tensor, k_BGSD: torch.Tensor, v_BGSD: torch.Tensor, mask: AttentionMask
    ) -> torch.Tensor:
        """Attention of N queries over ``S = mask.keys`` keys; softmax scale 1/sqrt(D). Returns o [B, N, H, D].

        Where it fills the kernel's tiles better, heads that share a KV head are laid out as further queries of it.
        K and V are never repeated.
        """
        B, N, H, D = q_BNHD.shape
        G = k_BGSD.shape[1]
        R = H // G
        if mask.is_chain and mask.prefix == 0 and N > 1:
            o_BHND = F.scaled_dot_product_attention(
                q_BNHD.transpose(1, 2), k_BGSD, v_BGSD, is_causal=True, enable_gqa=R > 1
            )
            return o_BHND.transpose(1, 2)
        if N >= 2 * QUERY_BLOCK:
            return self._tree_attention_by_blocks(q_BNHD, k_BGSD, v_BGSD, mask)
        filled = N % CPU_TILE == 0 and R * N < CPU_WIDE_TILES_FROM
        if R == 1 or filled or (mask.keys < FOLD_FROM_KEYS and q_BNHD.dtype == torch.float32):
            bias_NS = None if N == 1 and mask.sees_everything else mask.bias_QS(q_BNHD.dtype, 1)
            q_BHND = q_BNHD.transpose(1, 2)
            o_BHND = F.scaled_dot_product_attention(q_BHND, k_BGSD, v_BGSD, attn_mask=bias_NS, enable_gqa=R > 1)
            return o_BHND.transpose(1, 2)
        bias_QS = None if N == 1 and mask.sees_everything else mask.bias_QS(q_BNHD.dtype, R)
        o_BGQD = F.scaled_dot_product_attention(self._fold_heads(q_BNHD, G), k_BGSD, v_BGSD, attn_mask=bias_QS)
        return o_BGQD.reshape(B, H, N, D).transpose(1, 2)

    def _tree_attention_by_blocks(
        self, q_BNHD: torch.Tensor, k_BGSD: torch.Tensor, v_BGSD: torch.Tensor, mask: AttentionMask
    ) -> torch.Tensor:
        """Tree attention of one block of queries after the other, each over the keys that one of its queries sees."""
        o_BNHD = torch.empty_like(q_BNHD)
        for first in range(0, mask.queries, QUERY_BLOCK):
            block = slice(first, first + QUERY_BLOCK)
            query_n = mask.query_start_N[block]
            seen_T = (mask.key_start_T <= query_n.max()) & (mask.key_end_T > query_n.min())
            slot_t = seen_T.nonzero()[:, 0]
            slots = int(slot_t[-1]) + 1 if len(slot_t) else seen_T.shape[0]
            if 0 < len(slot_t) < MOST_SEEN_TO_GATHER * slots:
                part = AttentionMask(mask.prefix, mask.key_start_T[slot_t], mask.key_end_T[slot_t], query_n)
                key_s = torch.cat((torch.arange(mask.prefix, device=slot_t.device), mask.prefix + slot_t))
                k_BGsD, v_BGsD = k_BGSD.index_select(2, key_s), v_BGSD.index_select(2, key_s)
            else:
                part = AttentionMask(mask.prefix, mask.key_start_T[:slots], mask.key_end_T[:slots], query_n)
                k_BGsD, v_BGsD = k_BGSD[:, :, : part.keys], v_BGSD[:, :, : part.keys]
            o_BNHD[:, block] = self.tree_attention(q_BNHD[:, block], k_BGsD, v_BGsD, part)
        return o_BNHD

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
        q_BGQD = self._fold_heads(q_BNHD, G).float()
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

    def speculative_attention(
        self,
        q_BNHD: torch.Tensor,
        k_BGSD: torch.Tensor,
        v_BGSD: torch.Tensor,
        mask: AttentionMask,
        size: int,
        announce: Announce | None = None,
    ) -> SpeculativeAttention:
        """Attention predicted from both ends of the prefix, and the exact one, in one reading of the keys.

        The prediction is attention over the first ``size`` and the last ``size`` committed keys and a query's own tree
        ancestors; combined with attention over the keys between them it is the exact one (ALSpec, Alg. 3). Up to
        ``2 * size`` committed keys nothing lies between, and the two are equal. ``chunk_lse_BNHC`` is not filled.
        ``announce`` gets the prediction, before the keys between are read where an implementation can do so.
        """
        announce = announce or _nobody
        if mask.queries > QUERY_BLOCK:
            blocks = [
                self.speculative_attention(q_BNHD[:, block], k_BGSD, v_BGSD, mask.of_queries(block), size)
                for block in (slice(at, at + QUERY_BLOCK) for at in range(0, mask.queries, QUERY_BLOCK))
            ]
            names = ("predicted_BNHD", "exact_BNHD", "difference_sq_BN", "norm_sq_BN")
            whole = SpeculativeAttention(*(torch.cat([getattr(block, name) for block in blocks], 1) for name in names))
            announce(whole.predicted_BNHD)
            return whole
        if mask.prefix <= 2 * size:
            exact_BNHD = self.tree_attention(q_BNHD, k_BGSD, v_BGSD, mask)
            announce(exact_BNHD)
            return SpeculativeAttention.measured(exact_BNHD, exact_BNHD, q_BNHD.dtype)
        if q_BNHD.device.type == "cpu":
            q_BGQD = self._fold_heads(q_BNHD, k_BGSD.shape[1])
            return speculative_attention_on_cpu(q_BGQD, k_BGSD, v_BGSD, mask, size, announce)
        prediction = self.sink_attention(q_BNHD, k_BGSD, v_BGSD, mask, size)
        announce(prediction.o_BNHD.to(q_BNHD.dtype))
        middle = slice(size, mask.prefix - size)
        rest = self.partial_attention(q_BNHD, k_BGSD[:, :, middle], v_BGSD[:, :, middle])
        exact = self.combine(prediction, rest)
        return SpeculativeAttention.measured(prediction.o_BNHD, exact.o_BNHD, q_BNHD.dtype)

    def sink_attention(
        self, q_BNHD: torch.Tensor, k_BGSD: torch.Tensor, v_BGSD: torch.Tensor, mask: AttentionMask, size: int
    ) -> PartialAttention:
        """Attention over the first and the last ``size`` committed keys and a query's own tree ancestors."""
        if mask.prefix > 2 * size:
            last = mask.prefix - size
            k_BGSD = torch.cat((k_BGSD[:, :, :size], k_BGSD[:, :, last:]), dim=2)
            v_BGSD = torch.cat((v_BGSD[:, :, :size], v_BGSD[:, :, last:]), dim=2)
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
        q_BGQD = self._fold_heads(q_BNHD, k_BGSD.shape[1]).float()
        score_BGQS = q_BGQD @ k_BGSD.float().transpose(-1, -2) * D**-0.5
        lse_BGQC: torch.Tensor = score_BGQS
        if chunk > 1:
            padded = F.pad(score_BGQS, (0, -S % chunk), value=float("-inf"))
            lse_BGQC = padded.reshape(*padded.shape[:3], -1, chunk).logsumexp(-1)
        return lse_BGQC.reshape(B, H, N, lse_BGQC.shape[-1]).transpose(1, 2)

    @staticmethod
    def _fold_heads(q_BNHD: torch.Tensor, G: int) -> torch.Tensor:
        """[B, N, H, D] → [B, G, R*N, D]: head h belongs to KV head h // R; its N queries are contiguous."""
        B, N, H, D = q_BNHD.shape
        return q_BNHD.transpose(1, 2).reshape(B, G, (H // G) * N, D)


def _nobody(predicted_BNHD: torch.Tensor) -> None:
    """Who is announced a prediction to where nobody asked."""
