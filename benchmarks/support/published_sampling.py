"""Speculative sampling as "Optimized speculative sampling" describes it (§3.2.1, §3.2.2), in torch: rivals.

Both methods work on whole matrices, every step, whatever is accepted: the ratio τ = min(1, p/q), the difference
f = p − q, a = max(0, f) and its row sums b, for all γ drafted positions and the whole vocabulary. ``exact`` takes p and
q from softmaxes made before; ``sigmoid`` makes them itself, as σ((z − α)/(β − α)) of every logit. Then the first token
with r > τ(x) is replaced by one from a/b.

The next token is drawn by our inversion, which saves them torch's multinomial (0.8 ms at V = 49,152 on one core), so
that what is compared is the work on the matrices. Two readings of ours, where the paper is silent: after a wholly
accepted path the next token comes from p of the last row, and so does a replacement where nothing of p exceeds q.
Arithmetic is in float32, since half precision cannot tell sigmoids of this scale apart. The paper's is one CUDA kernel;
:func:`compiled` makes one of ours as well.

Legend: G = γ drafted tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from spec_sdk.ops.inversion import first_beyond

ALPHA, BETA = -1e4, 1e4
"""The paper's scales for summaries."""

Matrices = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
Kernel = Callable[[torch.Tensor, torch.Tensor], Matrices]
Decide = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], list[int]]


def _elementwise(p_GV: torch.Tensor, q_GV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    tau_GV = (p_GV / q_GV).clamp_max(1.0)
    a_GV = (p_GV - q_GV).clamp_min(0.0)
    return tau_GV, a_GV, a_GV.sum(-1)


def softmax_matrices(draft_GV: torch.Tensor, target_GV1: torch.Tensor) -> Matrices:
    """Logits [γ, V] and [γ + 1, V] → τ, a [γ, V], b [γ], and p of the last row, by softmax."""
    q_GV, p_GV1 = (torch.softmax(logits, -1, dtype=torch.float32) for logits in (draft_GV, target_GV1))
    return *_elementwise(p_GV1[:-1], q_GV), p_GV1[-1]


def sigmoid_matrices(draft_GV: torch.Tensor, target_GV1: torch.Tensor) -> Matrices:
    """The same with the sigmoid, which is no distribution."""
    q_GV, p_GV1 = (torch.sigmoid((logits.float() - ALPHA) / (BETA - ALPHA)) for logits in (draft_GV, target_GV1))
    return *_elementwise(p_GV1[:-1], q_GV), p_GV1[-1]


def decider(kernel: Kernel) -> Decide:
    """The whole step: token ids [1, γ] and both models' logits → the tokens to emit."""

    def decide(ids: torch.Tensor, draft_GV: torch.Tensor, target_GV1: torch.Tensor) -> list[int]:
        tau_GV, a_GV, b_G, last_V = kernel(draft_GV, target_GV1)
        tokens = ids[0]
        tau_G = tau_GV.gather(1, tokens[:, None])[:, 0]
        rejected_G = torch.rand_like(tau_G) > tau_G
        accepted = int((rejected_G.cumsum(0) < 1).sum())
        if accepted == len(tokens):
            mass_V = last_V
        elif float(b_G[accepted]) > 0:
            mass_V = a_GV[accepted]
        else:
            mass_V = kernel(draft_GV[:accepted], target_GV1[: accepted + 1])[-1]
        return [*tokens[:accepted].tolist(), first_beyond(mass_V, float(torch.rand((), dtype=torch.float64)))]

    return decide


def compiled(kernel: Kernel, device: torch.device) -> Kernel | None:
    """The kernel through ``torch.compile``, for every γ and V; None where it does not compile (no C++ compiler)."""
    try:
        made: Kernel = torch.compile(kernel, dynamic=True)
        # two shapes: the second one must not compile again
        for gamma in (3, 5):
            made(*(torch.zeros(rows, 4096, device=device) for rows in (gamma, gamma + 1)))
    except Exception:
        return None
    return made
