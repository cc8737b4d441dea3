"""Random models with recurrent layers, as GGUF files describe them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import gguf
import numpy as np
import numpy.typing as npt

from benchmarks.support.random_gguf import Shape

HEAD = 128
"""Dimensions of a head of Qwen 3.5's gated delta nets."""


@dataclass(frozen=True)
class RecurrentShape(Shape):
    """Every ``interval``-th layer has attention."""

    interval: int = 1

    def attends(self, layer: int) -> bool:
        return (layer + 1) % self.interval == 0

    @abstractmethod
    def recurrent_matrices(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Name and shape of what a layer has in the place of attention."""

    @abstractmethod
    def recurrent_floats(self, rng: np.random.Generator) -> Mapping[str, npt.NDArray[np.float32]]:
        """The same of what is in float32."""

    def tensors(self) -> Iterator[tuple[str, int, tuple[int, ...]]]:
        own = ("attn_q", "attn_k", "attn_v", "attn_output", *self.gains)
        for name, layer, dims in super().tensors():
            if layer < 0 or self.attends(layer) or name not in own:
                yield name, layer, dims
            elif name == "attn_q":
                yield from ((each, layer, shape) for each, shape in self.recurrent_matrices())

    def floats_of(self, layer: int, rng: np.random.Generator) -> Mapping[str, npt.NDArray[np.float32]]:
        return {} if self.attends(layer) else self.recurrent_floats(rng)


@dataclass(frozen=True)
class DeltaShape(RecurrentShape):
    """Qwen 3.5's: as many value heads as key heads."""

    delta_heads: int = 16

    @property
    def rotated(self) -> int:
        return self.head_dim // 4

    def recurrent_matrices(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        width, M = HEAD * self.delta_heads, self.hidden
        yield "attn_qkv", (3 * width, M)
        yield "attn_gate", (width, M)
        yield "ssm_beta", (self.delta_heads, M)
        yield "ssm_alpha", (self.delta_heads, M)
        yield "ssm_out", (M, width)

    def recurrent_floats(self, rng: np.random.Generator) -> Mapping[str, npt.NDArray[np.float32]]:
        H = self.delta_heads
        return {
            "ssm_conv1d.weight": rng.standard_normal((3 * HEAD * H, 4), np.float32) * np.float32(0.5),
            "ssm_dt.bias": rng.standard_normal(H, np.float32),
            "ssm_a": -rng.uniform(0.1, 4.0, H).astype(np.float32),
            "ssm_norm.weight": np.ones(HEAD, np.float32),
        }

    def tensors(self) -> Iterator[tuple[str, int, tuple[int, ...]]]:
        for name, layer, dims in super().tensors():
            # queries come with their gates
            yield name, layer, (2 * dims[0], *dims[1:]) if name == "attn_q" else dims

    def add_metadata(self, writer: gguf.GGUFWriter) -> None:
        writer.add_ssm_conv_kernel(4)
        writer.add_ssm_state_size(HEAD)
        writer.add_ssm_group_count(self.delta_heads)
        writer.add_ssm_time_step_rank(self.delta_heads)
        writer.add_ssm_inner_size(HEAD * self.delta_heads)
        writer.add_full_attention_interval(self.interval)
        writer.add_rope_dimension_sections([11, 11, 10, 0])


@dataclass(frozen=True)
class ConvolutionShape(RecurrentShape):
    """LFM2's."""

    @property
    def kv_heads_of_layers(self) -> int | list[int]:
        return [self.kv_heads if self.attends(layer) else 0 for layer in range(self.layers)]

    def recurrent_matrices(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield "shortconv.in_proj", (3 * self.hidden, self.hidden)
        yield "shortconv.out_proj", (self.hidden, self.hidden)

    def recurrent_floats(self, rng: np.random.Generator) -> Mapping[str, npt.NDArray[np.float32]]:
        return {"shortconv.conv.weight": rng.standard_normal((self.hidden, 3), np.float32)}

    def tensors(self) -> Iterator[tuple[str, int, tuple[int, ...]]]:
        for name, layer, dims in super().tensors():
            yield "token_embd_norm" if name == "output_norm" else name, layer, dims

    def add_metadata(self, writer: gguf.GGUFWriter) -> None:
        writer.add_shortconv_l_cache(3)


@dataclass(frozen=True)
class SideBySideShape(Shape):
    """Falcon H1's: a state space in one group beside the attention of every layer, without a norm."""

    space_heads: int = 24
    space_head: int = 64
    state: int = 128

    @property
    def space(self) -> int:
        """Numbers of all heads of a state space together."""
        return self.space_heads * self.space_head

    def tensors(self) -> Iterator[tuple[str, int, tuple[int, ...]]]:
        channels = self.space + 2 * self.state
        for name, layer, dims in super().tensors():
            if name == self.second_norm:
                continue
            yield name, layer, dims
            if name == "attn_output":
                yield "ssm_in", layer, (self.space + channels + self.space_heads, self.hidden)
                yield "ssm_out", layer, (self.hidden, self.space)

    def floats_of(self, layer: int, rng: np.random.Generator) -> Mapping[str, npt.NDArray[np.float32]]:
        H, channels = self.space_heads, self.space + 2 * self.state
        return {
            # its name has no ending
            "ffn_norm": np.ones(self.hidden, np.float32),
            "ssm_conv1d.weight": rng.standard_normal((channels, 4), np.float32) * np.float32(0.5),
            "ssm_conv1d.bias": np.zeros(channels, np.float32),
            "ssm_dt.bias": rng.standard_normal(H, np.float32),
            "ssm_a": -rng.uniform(0.1, 4.0, (H, 1)).astype(np.float32),
            "ssm_d": np.ones((H, 1), np.float32),
        }

    def add_metadata(self, writer: gguf.GGUFWriter) -> None:
        writer.add_ssm_conv_kernel(4)
        writer.add_ssm_state_size(self.state)
        writer.add_ssm_group_count(1)
        writer.add_ssm_time_step_rank(self.space_heads)
        writer.add_ssm_inner_size(self.space)
