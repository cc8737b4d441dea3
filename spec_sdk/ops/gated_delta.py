"""The gated delta rule (Yang et al. 2024, arXiv:2412.06464) over the rows of a token tree.

A head's state is a matrix S. The row t after row s makes of it ``S_t = a_t S_s + u_t k_tᵀ`` with what its value adds to
the state's own guess of it, ``u_t = b_t (v_t − a_t S_s k_t)``, and gets ``o_t = S_t q_t``. With Γ, the sum of log a
along a row's path, all that rows kept is in their k, u and Γ:

    ``S_t = e^Γ_t S_0 + Σ e^(Γ_t − Γ_i) u_i k_iᵀ`` over the rows i of t's path, itself among them.

So the u of a pass's rows are the solution of one triangular system (the paper's UT transform, §3.2, whose causal mask
is the tree's here), rows of rejected nodes need not be undone, and a path's state is a sum.

Legend: G key heads, H value heads (H/G neighbours share a key head), D key dim, V value dim, N new rows, P earlier
rows, S = P + N.
"""

from __future__ import annotations

import torch


def gated_delta(
    state_HVD: torch.Tensor,
    state_path_H: torch.Tensor,
    earlier: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    q_GND: torch.Tensor,
    k_GND: torch.Tensor,
    v_HNV: torch.Tensor,
    gain_HN: torch.Tensor,
    log_decay_HN: torch.Tensor,
    visible_NS: torch.Tensor,
    *,
    corrects: bool = True,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """New rows behind a state and earlier rows: o and u [H, N, V], in float32, and Γ [H, N], in float64: from a text's
    beginning on, of which only differences count.

    ``state_path_H``: Γ of the state. ``earlier``: k [G, P, D], u [H, P, V] and Γ [H, P] of earlier rows. ``gain_HN`` is
    b, ``log_decay_HN`` is log a. ``visible_NS``: which rows are on a new row's path, itself among them; earlier rows
    come first, and no row's path leads over one after it. Without ``corrects`` u is b v: what a linear attention with
    decay adds to its state (Mamba-2).
    """
    k_GPD, u_HPV, path_HP = earlier
    (G, N, D), (H, P, V) = k_GND.shape, u_HPV.shape
    visible_NP, visible_NN = visible_NS.tensor_split((P,), 1)
    path_HN = log_decay_HN.to(path_HP.dtype) @ visible_NN.to(path_HP.dtype).T
    # it falls along a path, so the last row of it has the least
    before_HN = path_HP[:, None].masked_fill(~visible_NP, 0.0).amin(-1) if P else torch.zeros_like(path_HN)
    path_HN = path_HN + torch.minimum(before_HN, state_path_H[:, None])
    both_GXD = torch.cat((k_GND, q_GND), 1)
    from_state_GXY = both_GXD @ state_HVD.view(G, -1, D).mT
    from_state_HXV = from_state_GXY.view(G, 2 * N, -1, V).transpose(1, 2).reshape(H, 2 * N, V)
    left_HN = (path_HN - state_path_H[:, None]).to(state_HVD.dtype).exp()
    from_state_HXV = from_state_HXV * left_HN.repeat(1, 2)[..., None]
    score_GXS = both_GXD @ torch.cat((k_GPD, k_GND), 1).mT
    path_HS = torch.cat((path_HP, path_HN), 1)
    decay_HNS = (path_HN[..., None] - path_HS[:, None]).to(state_HVD.dtype)
    weight_HNS = decay_HNS.masked_fill(~visible_NS, float("-inf")).exp()
    score_HXS = score_GXS.repeat_interleave(H // G, 0) * weight_HNS.repeat(1, 2, 1)
    among_keys_HNS, among_queries_HNS = score_HXS.tensor_split((N,), 1)
    u_HNV = v_HNV
    if corrects:
        u_HNV = u_HNV - from_state_HXV[:, :N] - among_keys_HNS[..., :P] @ u_HPV
    u_HNV = gain_HN[..., None] * u_HNV
    if corrects and N > 1:
        system_HNN = gain_HN[..., None] * among_keys_HNS[..., P:]
        # of the diagonal, which is one, nothing is read
        u_HNV = torch.linalg.solve_triangular(system_HNN, u_HNV, upper=False, unitriangular=True)
    o_HNV = from_state_HXV[:, N:] + among_queries_HNS @ torch.cat((u_HPV, u_HNV), 1)
    return o_HNV, u_HNV, path_HN


def folded_state(
    state_HVD: torch.Tensor,
    state_path_H: torch.Tensor,
    k_GPD: torch.Tensor,
    u_HPV: torch.Tensor,
    path_HP: torch.Tensor,
) -> torch.Tensor:
    """The state [H, V, D] behind a chain of P rows, which come after ``state_HVD``."""
    H, P, V = u_HPV.shape
    end_H1 = path_HP[:, -1:]
    weighted_HPV = u_HPV * (end_H1 - path_HP).to(u_HPV.dtype).exp()[..., None]
    added_HVD = weighted_HPV.mT @ k_GPD.repeat_interleave(H // k_GPD.shape[0], 0)
    left_H1 = (end_H1 - state_path_H[:, None]).to(state_HVD.dtype).exp()
    return state_HVD * left_H1[..., None] + added_HVD
