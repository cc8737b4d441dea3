"""Attention of a head that is trained on chains: what a row sees is not one text, but a prefix and a chain of its own.

Row i of step k belongs to an anchor. It sees the anchor's sample up to the anchor, with the target's own states, and of
the later tokens what steps 1 … k of the same chain made of them, itself included (EAGLE-3, Li et al. 2025, §3.2, where
these rows stand on shifted diagonals of a mask). So the keys of the prefix are the same for all steps, and every row
has k of its own beside them.

Legend: T pairs, R rows of a step, S chain rows that each of them sees, H query heads, G KV heads, X query heads of a KV
head, D head dim, a rows of a sample, n keys of its prefix.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spec_sdk.training.chain_batch import Span


def chain_attention(
    q_RHD: torch.Tensor,
    prefix_k_TGD: torch.Tensor,
    prefix_v_TGD: torch.Tensor,
    chain_k_RSGD: torch.Tensor,
    chain_v_RSGD: torch.Tensor,
    spans: Sequence[Span],
    step: int,
    scale: float,
) -> torch.Tensor:
    """Attention [R, H, D] of the rows of ``step``, sample after sample. At step 0 the chains have no rows (S = 0)."""
    R, H, D = q_RHD.shape
    if not R:
        # all answers are shorter than the chains
        return q_RHD
    G = prefix_k_TGD.shape[1]
    q_RGXD = (q_RHD * scale).view(R, G, H // G, D)
    chain_score_RGXS = torch.einsum("rgxd,rsgd->rgxs", q_RGXD, chain_k_RSGD)
    out, of_chain, first = [], [], 0
    for span in spans:
        a = span.rows(step)
        if not a:
            continue
        before = span.pairs - span.anchors
        rows, keys = slice(first, first + a), slice(span.first, span.first + before + a)
        q_GaXD = q_RGXD[rows].transpose(0, 1)
        score_Gan = torch.bmm(q_GaXD.flatten(1, 2), prefix_k_TGD[keys].permute(1, 2, 0))
        score_GaXn = score_Gan.view(G, a, H // G, before + a)
        hidden_an = torch.ones(a, before + a, dtype=torch.bool, device=q_RHD.device).triu(before + 1)
        score_GaXn = score_GaXn.masked_fill(hidden_an[:, None], float("-inf"))
        both = torch.cat((score_GaXn, chain_score_RGXS[rows].transpose(0, 1)), dim=-1)
        p_GaXm = both.softmax(-1, dtype=torch.float32).to(prefix_v_TGD.dtype)
        p_Gan = p_GaXm[..., : before + a].flatten(1, 2)
        out.append(torch.bmm(p_Gan, prefix_v_TGD[keys].transpose(0, 1)).view(G, a, H // G, D).transpose(0, 1))
        of_chain.append(p_GaXm[..., before + a :].transpose(0, 1))
        first += a
    o_RGXD = torch.cat(out)
    if step:
        o_RGXD = o_RGXD + torch.einsum("rgxs,rsgd->rgxd", torch.cat(of_chain), chain_v_RSGD)
    return o_RGXD.reshape(R, H, D)
