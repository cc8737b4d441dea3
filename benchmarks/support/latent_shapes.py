"""Random models that attend to latents, as GGUF files describe them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import gguf
import numpy as np
import numpy.typing as npt

from benchmarks.support.random_gguf import Shape


@dataclass(frozen=True)
class LatentShape(Shape):
    """``head_dim`` is what the cache has of a token, with ``rotated_dims`` that are a key's; ``inner`` an expert's, or
    an MLP's where there are no experts. ``dense``: the dims of the first layer's MLP, where there are.
    """

    query_rank: int = 0
    plain: int = 0
    value: int = 0
    rotated_dims: int = 64
    dense: int = 0

    @property
    def rank(self) -> int:
        """Dimensions of a latent."""
        return self.head_dim - self.rotated_dims

    @property
    def value_dim(self) -> int:
        return self.rank

    @property
    def mlp(self) -> int:
        return self.dense or self.inner

    @property
    def rotated(self) -> int:
        return self.rotated_dims

    def floats_of(self, layer: int, rng: np.random.Generator) -> Mapping[str, npt.NDArray[np.float32]]:
        return {"exp_probs_b.bias": rng.standard_normal(self.experts, np.float32)} if self.experts and layer else {}

    def tensors(self) -> Iterator[tuple[str, int, tuple[int, ...]]]:
        H, M, P = self.heads, self.hidden, self.plain
        for name, layer, dims in super().tensors():
            if name == "attn_q":
                yield "attn_q_a", layer, (self.query_rank, M)
                yield "attn_q_a_norm", layer, (self.query_rank,)
                yield "attn_q_b", layer, (H * (P + self.rotated), self.query_rank)
                yield "attn_kv_a_mqa", layer, (self.head_dim, M)
                yield "attn_kv_a_norm", layer, (self.rank,)
                yield "attn_k_b", layer, (H, self.rank, P)
                yield "attn_v_b", layer, (H, self.value, self.rank)
            elif name == "attn_output":
                yield name, layer, (M, H * self.value)
            elif self.experts and layer == 0 and name.startswith("ffn_") and name != "ffn_norm":
                yield from self._mlp(name)
            elif name not in ("attn_k", "attn_v"):
                yield name, layer, dims
                if name.endswith("_exps"):
                    yield name.replace("_exps", "_shexp"), layer, dims[1:]

    def _mlp(self, name: str) -> Iterator[tuple[str, int, tuple[int, ...]]]:
        wide = self.dense, self.hidden
        if name.endswith("_exps"):
            yield name.removesuffix("_exps"), 0, wide[::-1] if "down" in name else wide

    def add_metadata(self, writer: gguf.GGUFWriter) -> None:
        writer.add_kv_lora_rank(self.rank)
        writer.add_q_lora_rank(self.query_rank)
        writer.add_key_length_mla(self.plain + self.rotated)
        writer.add_value_length_mla(self.value)
        writer.add_leading_dense_block_count(1 if self.experts else self.layers)
        writer.add_expert_shared_count(1 if self.experts else 0)
        if not self.experts:
            writer.add_expert_feed_forward_length(self.inner)
            return
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_weights_norm(True)
        writer.add_expert_weights_scale(1.8)
