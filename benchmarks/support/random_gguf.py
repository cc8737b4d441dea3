"""GGUF files of random weights, in the mixes of quantisations that llama.cpp makes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

FACTORS = {
    "Q4_0": {0: 0.25},
    "Q8_0": {0: 1 / 74},
    "Q4_K": {0: 1 / 150, 2: 1 / 20},
    "Q5_K": {0: 1 / 300, 2: 1 / 20},
    "Q6_K": {208: 1 / 1400},
    "IQ4_NL": {0: 1 / 70},
    "IQ4_XS": {0: 1 / 1300},
    "MXFP4": {},
}
"""Where a block has float16 factors, and what these are where weights are of size 1."""
SIZE = 0.02


@dataclass(frozen=True)
class Shape:
    """A model as GGUF files describe it. ``gains``: norms beside those before the sub-layers, name → dims;
    ``second_norm``: that before the MLP.

    ``experts``: how many there are in each layer, in the place of an MLP of ``inner`` dims; a token has ``per_token``.
    ``biased``: all matrices of a layer have biases, and query heads have sinks. ``tied``: the embedding is the output
    head.
    """

    title: str
    architecture: str
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    gains: Mapping[str, int] = field(default_factory=dict)
    window: int | None = None
    experts: int = 0
    per_token: int = 0
    second_norm: str = "ffn_norm"
    tied: bool = True
    biased: bool = False

    def has_more_bits(self, layer: int) -> bool:
        """In mixes: the first and the last eighth of the layers, and every third between."""
        eighth = self.layers // 8
        return layer < eighth or layer >= 7 * eighth or (layer - eighth) % 3 == 2

    def floats_of(self, layer: int, rng: np.random.Generator) -> Mapping[str, npt.NDArray[np.float32]]:
        """What a layer has in float32 besides norms and routers, by name."""
        return {name: rng.standard_normal(dims, np.float32) for name, dims in self._biases().items()}

    def add_metadata(self, writer: gguf.GGUFWriter) -> None:
        """What its architecture says besides."""

    @property
    def mlp(self) -> int:
        """Of layers without experts."""
        return self.inner

    @property
    def mlp_widths(self) -> int | list[int]:
        """Of all layers, or of each."""
        return self.mlp

    @property
    def key_dim(self) -> int:
        """As files say it."""
        return self.head_dim

    @property
    def value_dim(self) -> int:
        """As files say it."""
        return self.head_dim

    @property
    def rotated(self) -> int:
        """Dimensions of a head that are rotated."""
        return self.head_dim

    @property
    def kv_heads_of_layers(self) -> int | list[int]:
        """KV heads of all layers, or of each."""
        return self.kv_heads

    def _biases(self) -> Mapping[str, tuple[int, ...]]:
        if not self.biased:
            return {}
        q, kv, experts = self.heads * self.head_dim, self.kv_heads * self.head_dim, self.experts
        of_experts = {f"ffn_{part}_exps.bias": (experts, self.inner) for part in ("gate", "up")}
        of_attention = {f"attn_{part}.bias": (kv,) for part in "kv"}
        return {
            "attn_q.bias": (q,),
            **of_attention,
            "attn_output.bias": (self.hidden,),
            "attn_sinks.weight": (self.heads,),
            "ffn_gate_inp.bias": (experts,),
            **of_experts,
            "ffn_down_exps.bias": (experts, self.hidden),
        }

    def tensors(self) -> Iterator[tuple[str, int, tuple[int, ...]]]:
        """Name without its layer's number, that number or -1, and shape of all."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        yield "token_embd", -1, (self.vocabulary, self.hidden)
        yield "output_norm", -1, (self.hidden,)
        if not self.tied:
            yield "output", -1, (self.vocabulary, self.hidden)
        for layer in range(self.layers):
            yield "attn_norm", layer, (self.hidden,)
            yield self.second_norm, layer, (self.hidden,)
            for name, dims in self.gains.items():
                yield name, layer, (dims,)
            yield "attn_q", layer, (q, self.hidden)
            yield "attn_k", layer, (kv, self.hidden)
            yield "attn_v", layer, (kv, self.hidden)
            yield "attn_output", layer, (self.hidden, q)
            if self.experts:
                yield "ffn_gate_inp", layer, (self.experts, self.hidden)
            suffix, stacked = ("_exps", (self.experts,)) if self.experts else ("", ())
            yield f"ffn_gate{suffix}", layer, (*stacked, self.inner, self.hidden)
            yield f"ffn_up{suffix}", layer, (*stacked, self.inner, self.hidden)
            yield f"ffn_down{suffix}", layer, (*stacked, self.hidden, self.inner)


_MORE_BITS = ("attn_v", "ffn_down", "ffn_down_exps")
KindOf = Callable[[Shape, str, int], str]
"""What a tensor is stored as, by its name without its layer's number, and that number."""


def _medium(kind: str) -> KindOf:
    def of(shape: Shape, name: str, layer: int) -> str:
        wide = name == "token_embd" or (name in _MORE_BITS and shape.has_more_bits(layer))
        return "Q6_K" if wide else kind

    return of


MIXES: dict[str, KindOf] = {
    "Q4_0": lambda shape, name, layer: ("Q8_0" if shape.hidden % 256 else "Q6_K") if name == "token_embd" else "Q4_0",
    "Q4_K_M": _medium("Q4_K"),
    "Q5_K_M": _medium("Q5_K"),
    "Q6_K": lambda shape, name, layer: "Q6_K",
    "Q8_0": lambda shape, name, layer: "Q8_0",
    "IQ4_NL": lambda shape, name, layer: "Q8_0" if name == "token_embd" else "IQ4_NL",
    "IQ4_XS": lambda shape, name, layer: "Q6_K" if name == "token_embd" else "IQ4_XS",
    # as gpt-oss is published
    "MXFP4": lambda shape, name, layer: "MXFP4" if name.endswith("_exps") else "Q8_0",
}
"""Those of K-quants, and IQ4_XS, take rows of whole 256."""


def write_random_gguf(path: Path, mix: str, shape: Shape) -> None:
    """A model in one of :data:`MIXES`, whose tokens are bytes and nothing else."""
    writer, rng = gguf.GGUFWriter(path, shape.architecture), np.random.default_rng(0)
    writer.add_context_length(8192)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.mlp_widths)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads_of_layers)
    writer.add_key_length(shape.key_dim)
    writer.add_value_length(shape.value_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500000.0)
    writer.add_rope_dimension_count(shape.rotated)
    writer.add_vocab_size(shape.vocabulary)
    if shape.window is not None:
        writer.add_sliding_window(shape.window)
    if shape.experts:
        writer.add_expert_count(shape.experts)
        writer.add_expert_used_count(shape.per_token)
        writer.add_expert_feed_forward_length(shape.inner)
    shape.add_metadata(writer)
    _add_tokenizer(writer, shape.vocabulary)
    for layer in range(shape.layers):
        for name, values in shape.floats_of(layer, rng).items():
            writer.add_tensor(f"blk.{layer}.{name}", values)
    for name, layer, dims in shape.tensors():
        stored = f"{name}.weight" if layer < 0 else f"blk.{layer}.{name}.weight"
        if len(dims) == 1:
            writer.add_tensor(stored, np.ones(dims, np.float32))
        elif name == "ffn_gate_inp":
            writer.add_tensor(stored, rng.standard_normal(dims, np.float32) * SIZE)
        else:
            # K-quants take rows of whole 256
            kind = "Q8_0" if dims[-1] % 256 else MIXES[mix](shape, name, layer)
            blocks = random_blocks(rng, kind, dims, SIZE)
            writer.add_tensor(stored, blocks, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def random_blocks(rng: np.random.Generator, kind: str, dims: Sequence[int], deviation: float) -> npt.NDArray[np.uint8]:
    """Rows of blocks [..., bytes] of weights [..., columns] of about this size."""
    weights, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    *rows, columns = dims
    blocks = rng.integers(0, 256, (*rows, columns // weights, size), dtype=np.uint8)
    for at, factor in FACTORS[kind].items():
        blocks[..., at : at + 2] = np.array([factor * deviation], "<f2").view(np.uint8)
    if kind == "MXFP4":
        # numbers of 4 bits have a mean square of about 9
        blocks[..., 0] = 127 + round(math.log2(deviation / 3))
    return blocks.reshape(*rows, -1)


def _add_tokenizer(writer: gguf.GGUFWriter, vocabulary: int) -> None:
    bytes_ = [chr(code if 33 <= code < 127 else 256 + code) for code in range(256)]
    tokens = ["<|endoftext|>", *bytes_, "ab"]
    tokens += [f"<unused{i}>" for i in range(vocabulary - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] + [1] * (vocabulary - 1))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
