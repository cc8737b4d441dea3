"""The formulas of DFlash and DSpark written down once more, in float64, for one path at a time.

No cache, no batch, no tree: context and block are computed anew for every path. Nothing of the package is used.

Legend: N positions of the context, B rows of a block, M model dim of the head, D head dim.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tests.draft_heads.plain_formulas import PlainHead, frequencies


def turned(x_ND: torch.Tensor, position_N: torch.Tensor, frequency: torch.Tensor) -> torch.Tensor:
    angle = position_N.double()[:, None] * frequency
    first, second = x_ND.chunk(2, -1)
    return torch.cat((first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()), -1)


class PlainBlock(PlainHead):
    """``causal`` and ``windows``: per layer. ``cap``, ``logit_factor``, ``input_factor``: of z-lab's options."""

    def __init__(
        self,
        config: Mapping[str, Any],
        tensors: Mapping[str, torch.Tensor],
        ends: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        *,
        block: int,
        mask: int,
        from_anchor: bool,
        causal: Sequence[bool],
        windows: Sequence[int | None],
        input_factor: float = 1.0,
        logit_factor: float = 1.0,
        cap: float | None = None,
    ) -> None:
        super().__init__(config, tensors, *ends, prefix="layers.0")
        self.block, self.mask, self.from_anchor = block, mask, from_anchor
        self.causal, self.windows = causal, windows
        self.input_factor, self.logit_factor, self.cap = input_factor, logit_factor, cap

    def returned(self, tokens: Sequence[int], states: Sequence[torch.Tensor]) -> torch.Tensor:
        """What the block returns, under the final norm [B, M]. ``states`` [N, S]: of all tokens but the last."""
        context = self.norm(self.linear(torch.cat([state.double() for state in states], -1), "fc"), "hidden_norm")
        x = self.embedding_VM[[tokens[-1], *[self.mask] * (self.block - 1)]]
        if "mask_embedding" in self.w:
            x = torch.cat((x[:1], self.w["mask_embedding"].expand(self.block - 1, -1)))
        x = x * self.input_factor
        for layer in range(self.config["num_hidden_layers"]):
            self.prefix = f"layers.{layer}"
            x = self.after_attention(x, self.block_attention(layer, context, x))
        return self.norm(x, "norm")

    def block_attention(self, layer: int, context: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        p, dim, n = f"layers.{layer}.self_attn", self.config["head_dim"], len(context)
        normed, frequency = self.norm(x, f"layers.{layer}.input_layernorm"), frequencies(self.config)
        q = self.linear(normed, f"{p}.q_proj").unflatten(-1, (-1, dim))
        k, v = (
            torch.cat((self.linear(context, f"{p}.{part}_proj"), self.linear(normed, f"{p}.{part}_proj"))).unflatten(
                -1, (-1, dim)
            )
            for part in "kv"
        )
        if f"{p}.q_norm.weight" in self.w:
            q, k = self.norm(q, f"{p}.q_norm"), self.norm(k, f"{p}.k_norm")
        query_at, key_at = torch.arange(n, n + self.block), torch.arange(n + self.block)
        hidden = torch.zeros(self.block, n + self.block, dtype=torch.bool)
        if self.causal[layer]:
            hidden |= key_at > query_at[:, None]
        if (window := self.windows[layer]) is not None:
            hidden |= query_at[:, None] - key_at >= window
        heads, groups = [], q.shape[1] // k.shape[1]
        for head in range(q.shape[1]):
            turned_q = turned(q[:, head], query_at, frequency)
            turned_k = turned(k[:, head // groups], key_at, frequency)
            score = (turned_q @ turned_k.T / dim**0.5).masked_fill(hidden, -math.inf)
            heads.append(score.softmax(-1) @ v[:, head // groups])
        return self.linear(torch.cat(heads, -1), f"{p}.o_proj")

    def after_path(self, tokens: Sequence[int], states: Sequence[torch.Tensor], path: Sequence[int]) -> torch.Tensor:
        """Logits [V] after ``tokens`` and then ``path``."""
        return self.after_known(self.returned(tokens, states), [tokens[-1], *path])

    def after_known(self, returned: torch.Tensor, known: Sequence[int]) -> torch.Tensor:
        """Logits [V] after the anchor and the tokens drafted behind it, of what the block returned."""
        slot = len(known) - (1 if self.from_anchor else 0)
        logits = returned[slot] @ self.w.get("lm_head.weight", self.target_head_VM).T * self.logit_factor
        if self.cap is not None:
            logits = torch.tanh(logits / self.cap) * self.cap
        if "markov_head.markov_w1.weight" in self.w:
            logits = logits + self.bias(returned, known, slot)
        if "d2t" not in self.w:
            return logits
        full = torch.full((self.config["vocab_size"],), -math.inf, dtype=torch.float64)
        for row, offset in enumerate(self.w["d2t"].tolist()):
            full[row + offset] = logits[row]
        return full

    def bias(self, returned: torch.Tensor, known: Sequence[int], slot: int) -> torch.Tensor:
        """What the Markov head adds in a slot. ``known``: the anchor, and the tokens drafted after it."""
        w1, w2 = self.w["markov_head.markov_w1.weight"], self.w["markov_head.markov_w2.weight"]
        if "markov_head.gate_proj.weight" in self.w:
            gate = torch.sigmoid(self.linear(torch.cat((returned[slot], w1[known[-1]])), "markov_head.gate_proj"))
            return (gate * w1[known[-1]]) @ w2.T
        if "markov_head.joint_proj.weight" not in self.w:
            return w1[known[-1]] @ w2.T
        before = known if self.from_anchor else [known[0], *known]
        state, read = torch.zeros(w1.shape[1], dtype=torch.float64), torch.empty(0)
        for k, token in enumerate(before):
            gate, candidate, read = self.linear(
                torch.cat((state, w1[token], returned[k])), "markov_head.joint_proj"
            ).chunk(3)
            state = torch.sigmoid(gate) * state + (1 - torch.sigmoid(gate)) * torch.tanh(candidate)
        return torch.tanh(read) @ w2.T

    def confidence(self, returned: torch.Tensor, token: int, slot: int) -> torch.Tensor:
        """How sure the slot's draft is, after ``token``."""
        read = returned[slot]
        if "markov_head.markov_w1.weight" in self.w:
            read = torch.cat((read, self.w["markov_head.markov_w1.weight"][token]))
        return torch.sigmoid(self.linear(read, "confidence_head.proj"))[0]
