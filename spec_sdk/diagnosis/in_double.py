"""The operations in float64, which self-tests go by: the reference's, but for those that it computes in float32.

Legend: B batch, N queries, H query heads, G KV heads, D head dim, S keys, Q = N*H/G, C chunks of keys, K kept, V
vocabulary; of recurrent layers N rows, P earlier rows, H value heads, G key heads, D key dim, V value dim.
"""

from __future__ import annotations

import torch

from spec_sdk.ops import Ops, PartialAttention


class InDouble(Ops):
    """Written for tensors of float64 on the CPU, and in other words than the reference.

    ``rounds_rows``: what the operations beside it say of themselves (:attr:`Ops.rounds_rows`).
    """

    def __init__(self, rounds_rows: bool = False) -> None:
        self.rounds_rows = rounds_rows

    def top_log_probabilities(self, logits_NV: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        logprob_NV, place_NV = logits_NV.log_softmax(-1).sort(dim=-1, descending=True)
        return logprob_NV[:, :count], place_NV[:, :count]

    def partial_attention(
        self,
        q_BNHD: torch.Tensor,
        k_BGSD: torch.Tensor,
        v_BGSD: torch.Tensor,
        bias_NS: torch.Tensor | None = None,
    ) -> PartialAttention:
        score_BHNS = _scores(q_BNHD, k_BGSD)
        if bias_NS is not None:
            score_BHNS = score_BHNS + bias_NS
        value_BHSD = v_BGSD.repeat_interleave(q_BNHD.shape[2] // v_BGSD.shape[1], 1)
        # of queries that see no key all are NaN
        o_BHND = score_BHNS.softmax(-1).nan_to_num(0.0) @ value_BHSD
        m_BHN = score_BHNS.amax(-1)
        l_BHN = torch.exp(score_BHNS.logsumexp(-1) - m_BHN).nan_to_num(0.0)
        return PartialAttention(o_BHND.transpose(1, 2), m_BHN.transpose(1, 2), l_BHN.transpose(1, 2))

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
        """Row by row, each with a state of its own."""
        k_GPD, u_HPV, path_HP = earlier
        (N, P), shared = (q_GND.shape[1], k_GPD.shape[1]), len(state_HVD) // len(q_GND)
        q_HND, k_HND, k_HPD = (part.repeat_interleave(shared, 0) for part in (q_GND, k_GND, k_GPD))
        outputs, added, states_HVD, paths = (list[torch.Tensor]() for _ in range(4))
        for n in range(N):
            before = [m for m in range(n) if visible_NS[n, P + m]]
            if before:
                path_H, before_HVD = paths[before[-1]], states_HVD[before[-1]]
            else:
                seen_P = visible_NS[n, :P].nonzero()[:, 0]
                path_H = path_HP[:, seen_P[-1]] if len(seen_P) else state_path_H
                left_HP = (path_H[:, None] - path_HP[:, seen_P]).exp()
                rows_HVD = torch.einsum("hp,hpv,hpd->hvd", left_HP, u_HPV[:, seen_P], k_HPD[:, seen_P])
                before_HVD = state_HVD * (path_H - state_path_H).exp()[:, None, None] + rows_HVD
            decayed_HVD = before_HVD * log_decay_HN[:, n].exp()[:, None, None]
            u_HV = gain_HN[:, n, None] * (v_HNV[:, n] - (decayed_HVD @ k_HND[:, n, :, None])[..., 0])
            states_HVD.append(decayed_HVD + u_HV[..., None] * k_HND[:, n, None])
            outputs.append((states_HVD[-1] @ q_HND[:, n, :, None])[..., 0])
            added.append(u_HV)
            paths.append(path_H + log_decay_HN[:, n])
        return torch.stack(outputs, 1), torch.stack(added, 1), torch.stack(paths, 1)

    def chunk_lse(self, q_BNHD: torch.Tensor, k_BGSD: torch.Tensor, chunk: int) -> torch.Tensor:
        parts = [part.logsumexp(-1) for part in torch.split(_scores(q_BNHD, k_BGSD), chunk, -1)]
        return torch.stack(parts, -1).transpose(1, 2)


def _scores(q_BNHD: torch.Tensor, k_BGSD: torch.Tensor) -> torch.Tensor:
    """Scaled scores [B, H, N, S]."""
    key_BHSD = k_BGSD.repeat_interleave(q_BNHD.shape[2] // k_BGSD.shape[1], 1)
    score_BHNS: torch.Tensor = torch.einsum("bnhd,bhsd->bhns", q_BNHD, key_BHSD)
    scaled_BHNS: torch.Tensor = score_BHNS * q_BNHD.shape[-1] ** -0.5
    return scaled_BHNS
