"""Tiny random draft heads in the layouts in which they are published, and a target's ends to go with them.

Legend: V target vocabulary, W draft vocabulary, M model dim of the head, S model dim of the target.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from spec_sdk.model.architectures import read_config
from spec_sdk.model.draft_heads import loading
from spec_sdk.model.draft_heads.head import DraftHeadExecutor
from spec_sdk.model.draft_heads.head_choices import HeadChoices
from spec_sdk.model.draft_heads.opening import open_draft_head
from spec_sdk.model.target_ends import TargetEnds
from spec_sdk.ops import Ops
from spec_sdk.ops.embedding import Embedding
from spec_sdk.ops.linear import Projection

CPU = torch.device("cpu")
EPSILON = 1e-5


@dataclass(frozen=True)
class HeadSizes:
    """Sizes of a head and of its target. ``W``: equal to V where the draft vocabulary is whole."""

    V: int = 96
    W: int = 40
    M: int = 48
    S: int = 48
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 12
    mlp: int = 64
    taps: int = 3

    def config(self, **more: Any) -> dict[str, Any]:
        """config.json of the decoder layer, as all layouts have it."""
        return {
            "model_type": "llama",
            "hidden_size": self.M,
            "intermediate_size": self.mlp,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "num_hidden_layers": 1,
            "vocab_size": self.V,
            "rms_norm_eps": EPSILON,
            "max_position_embeddings": 512,
            "hidden_act": "silu",
            **more,
        }


class _Random:
    """Tensors that make every token's logits depend on all that it sees."""

    def __init__(self, seed: int) -> None:
        self._rng = torch.Generator().manual_seed(seed)

    def matrix(self, outputs: int, inputs: int) -> torch.Tensor:
        return torch.randn(outputs, inputs, generator=self._rng) * 1.5 * inputs**-0.5

    def gain(self, size: int) -> torch.Tensor:
        return 1 + 0.3 * torch.randn(size, generator=self._rng)

    def bias(self, size: int) -> torch.Tensor:
        return 0.3 * torch.randn(size, generator=self._rng)

    def d2t(self, sizes: HeadSizes) -> torch.Tensor:
        chosen = torch.randperm(sizes.V, generator=self._rng)[: sizes.W].sort().values
        return chosen - torch.arange(sizes.W)


def layer_tensors(random: _Random, prefix: str, sizes: HeadSizes, inputs: int) -> dict[str, torch.Tensor]:
    """A Llama layer without an input norm, whose Q, K and V read ``inputs`` numbers."""
    queries, keys, M = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim, sizes.M
    return {
        f"{prefix}.self_attn.q_proj.weight": random.matrix(queries, inputs),
        f"{prefix}.self_attn.k_proj.weight": random.matrix(keys, inputs),
        f"{prefix}.self_attn.v_proj.weight": random.matrix(keys, inputs),
        f"{prefix}.self_attn.o_proj.weight": random.matrix(M, queries),
        f"{prefix}.mlp.gate_proj.weight": random.matrix(sizes.mlp, M),
        f"{prefix}.mlp.up_proj.weight": random.matrix(sizes.mlp, M),
        f"{prefix}.mlp.down_proj.weight": random.matrix(M, sizes.mlp),
        f"{prefix}.post_attention_layernorm.weight": random.gain(M),
    }


def eagle3_tensors(sizes: HeadSizes, seed: int = 0, prefix: str = "midlayer") -> dict[str, torch.Tensor]:
    """As SafeAILab publishes them; with an embedding where the target's has another width."""
    random = _Random(seed)
    tensors = {
        "fc.weight": random.matrix(sizes.M, sizes.taps * sizes.S),
        f"{prefix}.hidden_norm.weight": random.gain(sizes.M),
        f"{prefix}.input_layernorm.weight": random.gain(sizes.M),
        **layer_tensors(random, prefix, sizes, 2 * sizes.M),
        "norm.weight": random.gain(sizes.M),
        "lm_head.weight": random.matrix(sizes.W, sizes.M),
    }
    if sizes.W < sizes.V:
        tensors["d2t"] = random.d2t(sizes)
        tensors["t2d"] = torch.zeros(sizes.V, dtype=torch.bool)
        tensors["t2d"][tensors["d2t"] + torch.arange(sizes.W)] = True
    if sizes.M != sizes.S:
        tensors["embed_tokens.weight"] = random.matrix(sizes.V, sizes.M)
    return tensors


def eagle1_tensors(sizes: HeadSizes, seed: int = 0, bias: bool = True) -> dict[str, torch.Tensor]:
    """As SafeAILab and HASS publish them."""
    random = _Random(seed)
    tensors = {
        "fc.weight": random.matrix(sizes.M, 2 * sizes.M),
        **layer_tensors(random, "layers.0", sizes, sizes.M),
    }
    if bias:
        tensors["fc.bias"] = random.bias(sizes.M)
    return tensors


def write_head(directory: Path, config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Path:
    """config.json and model.safetensors."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / "model.safetensors")
    return directory


def write_eagle3(directory: Path, sizes: HeadSizes, seed: int = 0, **config: Any) -> Path:
    """An EAGLE-3 head in SafeAILab's layout."""
    tensors = eagle3_tensors(sizes, seed)
    more = {"draft_vocab_size": sizes.W, "target_hidden_size": sizes.S, "architectures": ["LlamaForCausalLMEagle3"]}
    return write_head(directory, sizes.config(**more, **config), tensors)


def write_eagle1(directory: Path, sizes: HeadSizes, seed: int = 0, bias: bool = True, **config: Any) -> Path:
    """An EAGLE-1 head in SafeAILab's layout: no word of its bias where it has one."""
    said = {} if bias else {"bias": False}
    return write_head(directory, sizes.config(**said, **config), eagle1_tensors(sizes, seed, bias))


def speculators_config(
    sizes: HeadSizes, kind: str, body: Mapping[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    """config.json of the speculators format."""
    return {
        "speculators_model_type": kind,
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": kind,
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": "org/tiny", "architectures": ["LlamaForCausalLM"]},
        },
        "transformer_layer_config": dict(sizes.config() if body is None else body),
        **more,
    }


def random_ends(sizes: HeadSizes, layers: int = 10, seed: int = 7, dtype: torch.dtype = torch.float64) -> TargetEnds:
    """Embedding, final norm and output head of a target called ``tiny``."""
    random = _Random(seed)
    embedding = Embedding(random.matrix(sizes.V, sizes.S).to(dtype))
    head = Projection(random.matrix(sizes.V, sizes.S).to(dtype))
    norm_S = random.gain(sizes.S).to(dtype)
    config = read_config({**sizes.config(), "hidden_size": sizes.S, "num_hidden_layers": layers}, "tiny")
    return TargetEnds("tiny", layers, sizes.V, embedding, norm_S, head, config)


def load_head(
    directory: Path, ends: TargetEnds, dtype: torch.dtype = torch.float64, **choices: Any
) -> DraftHeadExecutor:
    """The EAGLE head in a directory, beside such a target."""
    return load_kind(loading.EAGLE_HEADS, directory, ends, dtype, **choices)


def load_kind(
    kind: loading.HeadKind[loading.LoadedHead],
    directory: Path,
    ends: TargetEnds,
    dtype: torch.dtype = torch.float64,
    **choices: Any,
) -> loading.LoadedHead:
    """The head of this kind in a directory, beside such a target."""
    return loading.load_head(open_draft_head(str(directory)), kind, ends, HeadChoices(**choices), CPU, dtype, Ops())
