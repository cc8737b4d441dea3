"""GGUF files of random weights, in the mixes of quantisations that llama.cpp makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

FACTORS = {"Q4_0": {0: 0.25}, "Q4_K": {0: 1 / 150, 2: 1 / 20}, "Q5_K": {0: 1 / 300, 2: 1 / 20}, "Q6_K": {208: 1 / 1400}}
"""Where a block has float16 factors, and what these are where weights are of size 1."""
SIZE = 0.02
HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 2048, 8192, 16, 32, 8, 64, 32000
"""A Llama of 1B, with a smaller vocabulary than the real one's."""

KindOf = Callable[[str, int], str]
"""What a tensor is stored as, by its name without its layer's number, and that number."""


def _more_bits(layer: int) -> bool:
    # the first and the last eighth of the layers, and every third between
    eighth = LAYERS // 8
    return layer < eighth or layer >= 7 * eighth or (layer - eighth) % 3 == 2


def _medium(kind: str) -> KindOf:
    def of(name: str, layer: int) -> str:
        wide = name == "token_embd" or (name in ("attn_v", "ffn_down") and _more_bits(layer))
        return "Q6_K" if wide else kind

    return of


MIXES: dict[str, KindOf] = {
    "Q4_0": lambda name, layer: "Q6_K" if name == "token_embd" else "Q4_0",
    "Q4_K_M": _medium("Q4_K"),
    "Q5_K_M": _medium("Q5_K"),
    "Q6_K": lambda name, layer: "Q6_K",
}


def write_random_gguf(path: Path, mix: str) -> None:
    """A Llama of 1B in one of :data:`MIXES`, whose tokens are bytes and nothing else."""
    writer, rng = gguf.GGUFWriter(path, "llama"), np.random.default_rng(0)
    writer.add_context_length(8192)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500000.0)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_vocab_size(VOCABULARY)
    _add_tokenizer(writer)
    for name, layer, shape in _tensors():
        stored = f"{name}.weight" if layer < 0 else f"blk.{layer}.{name}.weight"
        if len(shape) == 1:
            writer.add_tensor(stored, np.ones(shape, np.float32))
        else:
            kind = MIXES[mix](name, layer)
            writer.add_tensor(stored, random_blocks(rng, kind, *shape, SIZE), raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors() -> Iterator[tuple[str, int, tuple[int, ...]]]:
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    yield "token_embd", -1, (VOCABULARY, HIDDEN)
    yield "output_norm", -1, (HIDDEN,)
    for layer in range(LAYERS):
        yield "attn_norm", layer, (HIDDEN,)
        yield "ffn_norm", layer, (HIDDEN,)
        yield "attn_q", layer, (q, HIDDEN)
        yield "attn_k", layer, (kv, HIDDEN)
        yield "attn_v", layer, (kv, HIDDEN)
        yield "attn_output", layer, (HIDDEN, q)
        yield "ffn_gate", layer, (INNER, HIDDEN)
        yield "ffn_up", layer, (INNER, HIDDEN)
        yield "ffn_down", layer, (HIDDEN, INNER)


def random_blocks(
    rng: np.random.Generator, kind: str, rows: int, columns: int, deviation: float
) -> npt.NDArray[np.uint8]:
    """Rows of blocks [rows, bytes] of weights of about this size."""
    weights, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    blocks = rng.integers(0, 256, (rows, columns // weights, size), dtype=np.uint8)
    for at, factor in FACTORS[kind].items():
        blocks[..., at : at + 2] = np.array([factor * deviation], "<f2").view(np.uint8)
    return blocks.reshape(rows, -1)


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    bytes_ = [chr(code if 33 <= code < 127 else 256 + code) for code in range(256)]
    tokens = ["<|endoftext|>", *bytes_, "ab"]
    tokens += [f"<unused{i}>" for i in range(VOCABULARY - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] + [1] * (VOCABULARY - 1))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
