"""Random Gemma 4s, as GGUF files describe them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import gguf
import numpy as np
import numpy.typing as npt

from benchmarks.support.random_gguf import Shape


@dataclass(frozen=True)
class Gemma4Shape(Shape):
    """``head_dim`` and ``kv_heads`` are those of layers with a window; every ``interval``-th layer has none, and heads
    of ``global_dim``. The last ``shared`` layers attend to K and V of others, under MLPs of twice the width; layers are
    given ``given`` numbers each.
    """

    interval: int = 5
    global_dim: int = 512
    shared: int = 0
    given: int = 0

    def is_global(self, layer: int) -> bool:
        return (layer + 1) % self.interval == 0

    def _width(self, layer: int) -> int:
        return self.inner * (2 if self.shared and layer >= self.layers - self.shared else 1)

    def floats_of(self, layer: int, rng: np.random.Generator) -> Mapping[str, npt.NDArray[np.float32]]:
        return {"layer_output_scale.weight": np.ones(1, np.float32)}

    def tensors(self) -> Iterator[tuple[str, int, tuple[int, ...]]]:
        if self.given:
            yield "per_layer_token_embd", -1, (self.vocabulary, self.given * self.layers)
            yield "per_layer_model_proj", -1, (self.given * self.layers, self.hidden)
            yield "per_layer_proj_norm", -1, (self.given,)
        for name, layer, dims in super().tensors():
            dim = self.global_dim if self.is_global(layer) else self.head_dim
            q, kv = self.heads * dim, self.kv_heads * dim
            if layer >= 0 and name in ("attn_k", "attn_v"):
                if layer < self.layers - self.shared:
                    yield name, layer, (kv, self.hidden)
            elif layer >= 0 and name == "attn_q":
                yield name, layer, (q, self.hidden)
                yield "attn_q_norm", layer, (dim,)
                if layer < self.layers - self.shared:
                    yield "attn_k_norm", layer, (dim,)
            elif layer >= 0 and name == "attn_output":
                yield name, layer, (self.hidden, q)
            elif name in ("ffn_gate", "ffn_up"):
                yield name, layer, (self._width(layer), self.hidden)
            elif name == "ffn_down":
                yield name, layer, (self.hidden, self._width(layer))
                if self.given:
                    yield "inp_gate", layer, (self.given, self.hidden)
                    yield "proj", layer, (self.hidden, self.given)
                    yield "post_norm", layer, (self.hidden,)
            else:
                yield name, layer, dims

    @property
    def value_dim(self) -> int:
        return self.global_dim

    @property
    def rotated(self) -> int:
        return self.global_dim

    @property
    def key_dim(self) -> int:
        return self.global_dim

    @property
    def mlp_widths(self) -> int | list[int]:
        return [self._width(layer) for layer in range(self.layers)]

    def add_metadata(self, writer: gguf.GGUFWriter) -> None:
        writer.add_key_length_swa(self.head_dim)
        writer.add_value_length_swa(self.head_dim)
        writer.add_rope_dimension_count_swa(self.head_dim)
        writer.add_rope_freq_base_swa(1e4)
        writer.add_shared_kv_layers(self.shared)
        writer.add_embedding_length_per_layer_input(self.given)
        writer.add_sliding_window_pattern([not self.is_global(layer) for layer in range(self.layers)])
        writer.add_final_logit_softcapping(30.0)
        turning = self.global_dim // 8
        divisors = [1.0] * turning + [1e30] * (self.global_dim // 2 - turning)
        writer.add_tensor("rope_freqs.weight", np.array(divisors, np.float32))
