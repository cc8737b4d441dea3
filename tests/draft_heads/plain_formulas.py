"""The formulas of EAGLE heads written down once more, in float64, for one path at a time.

No tree, no cache, no batch: the whole text is computed anew for every node. Nothing of the package is used.

Legend: N pairs, M model dim of the head, S model dim of the target, D head dim.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch


def rms_norm(x: torch.Tensor, gain: torch.Tensor, epsilon: float) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt() * gain


def frequencies(config: Mapping[str, Any]) -> torch.Tensor:
    dim, rope = config["head_dim"], config.get("rope_scaling") or {}
    frequency = float(config.get("rope_theta", 10000.0)) ** (-torch.arange(0, dim, 2).double() / dim)
    kind = rope.get("rope_type", rope.get("type"))
    if kind == "linear":
        return frequency / rope["factor"]
    if kind == "llama3":
        original, low, high = (
            rope[key] for key in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
        )
        scaled = []
        for f in frequency.tolist():
            turns = original * f / (2 * math.pi)
            smooth = min(1.0, max(0.0, (turns - low) / (high - low)))
            scaled.append((1 - smooth) * f / rope["factor"] + smooth * f)
        return torch.tensor(scaled, dtype=torch.float64)
    return frequency


def rotated(x_NHD: torch.Tensor, frequency: torch.Tensor) -> torch.Tensor:
    """Pairs of dimensions (i, i + D/2) turned by position times frequency."""
    angle_N1F = torch.arange(x_NHD.shape[0]).double()[:, None, None] * frequency
    first, second = x_NHD.chunk(2, -1)
    return torch.cat(
        (first * angle_N1F.cos() - second * angle_N1F.sin(), second * angle_N1F.cos() + first * angle_N1F.sin()), -1
    )


class PlainHead:
    """Weights by the names they are published under, and the ends of the target.

    ``target_epsilon``: of the target's norms, where the head has another.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        tensors: Mapping[str, torch.Tensor],
        embedding_VM: torch.Tensor,
        target_head_VM: torch.Tensor,
        target_norm_M: torch.Tensor,
        prefix: str,
        target_epsilon: float | None = None,
    ) -> None:
        self.config, self.prefix = config, prefix
        self.w = {name: t.double() if t.is_floating_point() else t for name, t in tensors.items()}
        self.embedding_VM = self.w.get("embed_tokens.weight", embedding_VM.double())
        self.target_head_VM, self.target_norm_M = target_head_VM.double(), target_norm_M.double()
        self.epsilon = config["rms_norm_eps"]
        self.target_epsilon = self.epsilon if target_epsilon is None else target_epsilon

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return rms_norm(x, self.w[f"{name}.weight"], self.epsilon)

    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        y = x @ self.w[f"{name}.weight"].T
        return y + self.w[f"{name}.bias"] if f"{name}.bias" in self.w else y

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        p, dim = f"{self.prefix}.self_attn", self.config["head_dim"]
        q, k, v = (self.linear(x, f"{p}.{part}_proj").unflatten(-1, (-1, dim)) for part in "qkv")
        if f"{p}.q_norm.weight" in self.w:
            q, k = self.norm(q, f"{p}.q_norm"), self.norm(k, f"{p}.k_norm")
        frequency, groups = frequencies(self.config), q.shape[1] // k.shape[1]
        q, k = rotated(q, frequency), rotated(k, frequency)
        heads = []
        for head in range(q.shape[1]):
            score_NN = q[:, head] @ k[:, head // groups].T / dim**0.5
            score_NN = score_NN.masked_fill(torch.ones_like(score_NN).triu(1).bool(), -math.inf)
            heads.append(score_NN.softmax(-1) @ v[:, head // groups])
        return self.linear(torch.cat(heads, -1), f"{p}.o_proj")

    def mlp(self, x: torch.Tensor) -> torch.Tensor:
        p = f"{self.prefix}.mlp"
        gate = self.linear(x, f"{p}.gate_proj")
        return self.linear(gate * torch.sigmoid(gate) * self.linear(x, f"{p}.up_proj"), f"{p}.down_proj")

    def after_attention(self, residual: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        x = residual + a
        return x + self.mlp(self.norm(x, f"{self.prefix}.post_attention_layernorm"))

    def features(self, states: Sequence[torch.Tensor]) -> torch.Tensor:
        raise NotImplementedError

    def layer(self, tokens: Sequence[int], features_NM: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def logits(self, x_NM: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def fed_to_children(self, x_NM: torch.Tensor) -> torch.Tensor:
        return x_NM

    def after_path(self, tokens: Sequence[int], states: Sequence[torch.Tensor], path: Sequence[int]) -> torch.Tensor:
        """Logits [V] after ``tokens`` and then ``path``. ``states`` [N, S]: of all tokens but the last."""
        features, text = self.features(states), list(tokens[1:])
        for token in path:
            last = self.fed_to_children(self.layer(text, features)[-1:])
            features, text = torch.cat((features, last)), [*text, token]
        return self.logits(self.layer(text, features)[-1:])[0]


class PlainEagle1(PlainHead):
    def features(self, states: Sequence[torch.Tensor]) -> torch.Tensor:
        (last,) = states
        return rms_norm(last.double(), self.target_norm_M, self.target_epsilon)

    def layer(self, tokens: Sequence[int], features_NM: torch.Tensor) -> torch.Tensor:
        x = self.linear(torch.cat((self.embedding_VM[list(tokens)], features_NM), -1), "fc")
        return self.after_attention(x, self.attention(x))

    def logits(self, x_NM: torch.Tensor) -> torch.Tensor:
        return x_NM @ self.w.get("lm_head.weight", self.target_head_VM).T


class PlainEagle3(PlainHead):
    def features(self, states: Sequence[torch.Tensor]) -> torch.Tensor:
        states = [state.double() for state in states]
        if self.config.get("fc_norm"):
            states = [self.norm(state, f"fc_norm.{i}") for i, state in enumerate(states)]
        joined = torch.cat(states, -1)
        return self.linear(self.norm(joined, "input_norm") if self.config.get("norm_before_fc") else joined, "fc")

    def layer(self, tokens: Sequence[int], features_NM: torch.Tensor) -> torch.Tensor:
        embedded = self.norm(self.embedding_VM[list(tokens)], f"{self.prefix}.input_layernorm")
        normed = self.norm(features_NM, f"{self.prefix}.hidden_norm")
        residual = normed if self.config.get("norm_before_residual") else features_NM
        return self.after_attention(residual, self.attention(torch.cat((embedded, normed), -1)))

    def fed_to_children(self, x_NM: torch.Tensor) -> torch.Tensor:
        return self.norm(x_NM, "norm") if self.config.get("norm_output") else x_NM

    def logits(self, x_NM: torch.Tensor) -> torch.Tensor:
        head = self.w.get("lm_head.weight", self.target_head_VM)
        own = self.norm(x_NM, "norm") @ head.T * self.config.get("logit_scale", 1.0)
        if "d2t" not in self.w:
            return own
        full = torch.full((x_NM.shape[0], self.config["vocab_size"]), -math.inf, dtype=torch.float64)
        for row, offset in enumerate(self.w["d2t"].tolist()):
            full[:, row + offset] = own[:, row]
        return full
