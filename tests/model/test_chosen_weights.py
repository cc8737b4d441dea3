"""``model.weights``: which matrices of a model are in few bits, and that everything runs on them.

Legend: V vocabulary.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from spec_sdk import Engine, InMemoryModel, UserError
from spec_sdk.model.architectures import weights_of
from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk.model.chosen_weights import ChosenWeights, kept_in_bits
from spec_sdk.model.decoder import Decoder
from spec_sdk.model.layers_of import LayersOf
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.session import Session
from spec_sdk.model.shards import ShardedSource
from spec_sdk.model.tensor_parallel import TensorParallelDecoder
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.ops.embedding import Embedding, QuantizedEmbedding
from spec_sdk.ops.linear import Projection
from spec_sdk.ops.quantizing import quantize
from spec_sdk.tree import TokenTree
from tests.support.text_checkpoints import write_text_checkpoint
from tests.support.tiny_checkpoints import write_checkpoint
from tests.support.tiny_ranks import ranks_at
from tests.support.tiny_whisper import write_whisper

CPU = torch.device("cpu")
SHAPE: dict[str, Any] = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96}
EXPERTS = {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 64}
TOKENS = [5, 9, 17, 30, 5, 9, 17, 31, 44, 5, 9]


class Dequantized(ChosenWeights):
    """The same weights, all of them in floating point."""

    def tensor(self, name: str) -> torch.Tensor:
        row = weights_of(self.config).entry(name).row
        matrix = super().quantized(name) if len(row.shape) == 2 and "router" not in row.role else None
        return super().tensor(name) if matrix is None else matrix.dequantized(torch.float32)

    def quantized(self, name: str) -> None:
        return None


def decoder(directory: Path, choice: str, kind: type[ChosenWeights] = ChosenWeights) -> Decoder:
    return load_decoder(kind(open_checkpoint(str(directory)), choice, slow), CPU, torch.float32)


def slow(bits: int) -> bool:
    """Of a backend without kernels."""
    return False


def logits(of: Decoder) -> torch.Tensor:
    session = Session(TorchExecutor(of, Ops()))
    return session.score([0], [TokenTree.chain(TOKENS[0], TOKENS[1:])])[0].logits_NV


def bits(projection: Projection) -> int | None:
    return None if projection.quantized is None else projection.quantized.bits


def test_the_bits_of_a_matrix() -> None:
    for role in ("q", "down", "embedding", "head"):
        for stored in (None, 4, 8):
            least = 8 if role in ("embedding", "head") else 4
            for fast in (lambda bits: bits == 4, slow):
                assert kept_in_bits("dense", role, stored, fast) is None
                assert kept_in_bits("int8", role, stored, fast) == (stored or 8)
                assert kept_in_bits("int4", role, stored, fast) == (stored or least)
                assert kept_in_bits("auto", role, stored, fast) == (4 if stored == 4 and fast(4) else None)


@pytest.mark.parametrize("choice", ["int8", "int4"])
@pytest.mark.parametrize("name", ["smollm", "biased_llama", "qwen3", "gemma2", "qwen2_moe", "mixtral"])
def test_logits_are_those_of_the_dequantized_weights(name: str, choice: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, name, **SHAPE, **(EXPERTS if name == "qwen2_moe" else {}))
    ours, plain = decoder(tmp_path, choice), decoder(tmp_path, choice, Dequantized)
    assert all(bits(p) == (8 if choice == "int8" else 4) for p in ours.projections[:-1])
    assert bits(ours.output_head) == 8 and isinstance(ours.embedding, QuantizedEmbedding)
    assert all(bits(p) is None for p in plain.projections) and type(plain.embedding) is Embedding
    expected_NV = logits(plain)
    assert (logits(ours) - expected_NV).abs().max() < 1e-5 * expected_NV.abs().max()
    # and not those of the model before
    assert (logits(decoder(tmp_path, "dense")) - expected_NV).abs().max() > 1e-3 * expected_NV.abs().max()


def test_memory_of_a_decoder(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "smollm", **SHAPE)
    dense, eight, four = (decoder(tmp_path, choice) for choice in ("auto", "int8", "int4"))
    blocks, vocabulary = 5 * (128 * 64 + 64 * 64 + 192 * 64 + 64 * 96), 96 * 64
    # a tied head is the embedding's memory
    assert dense.nbytes == 4 * (blocks + vocabulary)
    assert eight.nbytes == (blocks + vocabulary) * 34 // 32
    assert four.nbytes == blocks * 20 // 32 + vocabulary * 34 // 32
    assert isinstance(four.embedding, QuantizedEmbedding) and four.embedding.shared_by(four.output_head)
    write_checkpoint(tmp_path / "untied", "llama3", **SHAPE)
    untied = decoder(tmp_path / "untied", "int8")
    assert not untied.embedding.shared_by(untied.output_head)
    assert untied.nbytes == (blocks + 2 * vocabulary) * 34 // 32


def test_rows_that_are_not_whole_groups_stay_dense(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "smollm", **{**SHAPE, "intermediate_size": 80})
    block = decoder(tmp_path, "int4").blocks[0]
    assert [bits(p) for p in block.projections] == [4, 4, 4, None]
    write_checkpoint(tmp_path / "odd", "smollm", hidden_size=48)
    odd = decoder(tmp_path / "odd", "int4")
    assert [bits(p) for p in odd.projections] == [None] * len(odd.projections) and type(odd.embedding) is Embedding


@pytest.mark.parametrize(
    ("q", "v", "fused"),
    [(4, 8, 8), (4, 6, 6), (6, 4, 6), (5, 6, 6), (4, 5, 5), (8, 5, 8), (6, 8, None), (4, None, None), (None, 4, None)],
)
def test_a_fused_matrix_of_different_parts_has_the_most_bits_of_them(
    q: int | None, v: int | None, fused: int | None, tmp_path: Path
) -> None:
    """Of the first layer's; it is dense where no form holds both exactly. Other layers keep theirs."""
    write_checkpoint(tmp_path, "smollm", **SHAPE)
    source = open_checkpoint(str(tmp_path))

    class Mixed(ChosenWeights):
        def quantized(self, name: str) -> Any:
            if not name.startswith("model.layers.0."):
                return quantize(self.tensor(name), 4)
            own = v if "v_proj" in name else q
            return None if own is None else quantize(self.tensor(name), own)

    weights = Mixed(source, "auto", slow)
    mixed = load_decoder(weights, CPU, torch.float32)
    assert [bits(block.qkv) for block in mixed.blocks] == [fused, 4, 4, 4, 4]
    names = [f"model.layers.0.self_attn.{part}_proj.weight" for part in "qkv"]
    parts = [weights.quantized(name) for name in names]
    if fused is not None:
        # exactly, whatever the parts had
        whole = torch.cat([part.dequantized(torch.float32) for part in parts])
        assert torch.equal(mixed.blocks[0].qkv.weight_OI, whole)
    else:
        assert torch.equal(mixed.blocks[0].qkv.weight_OI, decoder(tmp_path, "dense").blocks[0].qkv.weight_OI)
    # layers that run at once may be of any kind
    x_KM = torch.randn(3, 64)
    [stack] = mixed.stacks(0, 2)
    gains = [block.input_norm_M for block in mixed.blocks[:2]]
    alone = [
        block.qkv(x_KM * gain_M) for block, gain_M in zip(mixed.blocks[:2], gains, strict=True) if gain_M is not None
    ]
    torch.testing.assert_close(stack.qkv(x_KM, torch.float32), torch.stack(alone))


def test_layers_of_a_checkpoint_keep_their_bits(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "smollm", **SHAPE)
    source = ChosenWeights(open_checkpoint(str(tmp_path)), "int4", slow)
    whole, some = load_decoder(source, CPU, torch.float32), load_decoder(LayersOf(source, [1, 3]), CPU, torch.float32)
    assert bits(some.blocks[1].qkv) == 4
    assert torch.equal(some.blocks[1].qkv.weight_OI, whole.blocks[3].qkv.weight_OI)


@pytest.mark.parametrize("size", [2, 3])
def test_shards_have_the_weights_of_the_whole(size: int, tmp_path: Path) -> None:
    """In few bits where a rank's columns are whole groups: of 96 two ranks have 48, three 32."""
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32}
    write_checkpoint(tmp_path, "llama3", **{**SHAPE, **heads})
    source = ChosenWeights(open_checkpoint(str(tmp_path)), "int4", slow)
    whole, down = load_decoder(source, CPU, torch.float32), "model.layers.0.mlp.down_proj.weight"
    for name in source.names():
        if not name.endswith("proj.weight") and name != "lm_head.weight":
            continue
        ranks = [ranks_at(rank, size) for rank in range(size)]
        parts = [ShardedSource(source, rank, rank).quantized(name) for rank in ranks]
        axis = 1 if "o_proj" in name or "down_proj" in name else 0
        weights = [part.dequantized(torch.float32) for part in parts if part is not None]
        if name.endswith("down_proj.weight") and size == 2:
            assert parts == [None, None]
            # the same numbers, though none of the parts is in few bits
            weights = [ShardedSource(source, rank, rank).tensor(name) for rank in ranks]
        expected = source.quantized(name)
        assert expected is not None
        joined = torch.cat(weights, axis)[: expected.outputs]
        assert torch.equal(joined, expected.dequantized(torch.float32)), name
    place = ranks_at(1, size)
    shard = load_decoder(ShardedSource(source, place, place), CPU, torch.float32)
    assert bits(shard.blocks[0].projections[-1]) == (None if size == 2 else 4)
    assert source.quantized(down) is not None
    # the whole model on every rank, whose head alone is spread
    spread = TensorParallelDecoder(whole, whole.config, place, ranks_at(0, 1), Ops())
    W = -(-96 // size)
    assert bits(spread.output_head) == 8
    assert torch.equal(spread.output_head.weight_OI, whole.output_head.weight_OI[W : 2 * W])


def test_whisper_runs_in_few_bits(tmp_path: Path) -> None:
    write_whisper(tmp_path, d_model=64, encoder_ffn_dim=96, decoder_attention_heads=4)
    plain, four = decoder(tmp_path, "dense"), decoder(tmp_path, "int4")
    assert all(bits(p) == 4 for p in four.projections[:-1]) and bits(four.output_head) == 8
    assert len(four.projections) == 2 * 4 + 6 * 7 + 1
    assert four.nbytes < plain.nbytes / 5
    same = decoder(tmp_path, "int4", Dequantized)
    x = torch.randn(3, 64)
    for ours, theirs in zip(four.projections, same.projections, strict=True):
        if ours.inputs == 64:
            torch.testing.assert_close(ours(x), theirs(x))


@pytest.mark.parametrize("pipeline", ["easyspec_paper", "prompt_lookup", "sd_chain"])
@pytest.mark.parametrize("choice", ["int8", "int4"])
def test_answers_are_those_of_plain_decoding_of_the_same_target(choice: str, pipeline: str, tmp_path: Path) -> None:
    write_text_checkpoint(tmp_path, num_hidden_layers=6, **SHAPE)
    state_dict = load_file(tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    target = InMemoryModel(state_dict, config, tmp_path)
    overrides = [f"model.weights={choice}", "max_new_tokens=24", "ignore_eos=true", "sampling.repetition_penalty=1.2"]
    engine = Engine.from_pipeline(pipeline, target=target, overrides=overrides)
    answers = [answer.tokens for answer in engine.generate(["Why is the sky blue?", "Name three colours."])]
    plain = engine.with_pipeline("vanilla")
    assert answers == [a.tokens for a in plain.generate(["Why is the sky blue?", "Name three colours."])]
    assert engine.guarantee == "exact"
    executor = engine.pipeline.models.target.executor
    assert isinstance(executor, TorchExecutor)
    assert bits(executor.decoder.blocks[0].qkv) == (8 if choice == "int8" else 4)
    assert engine.pipeline.memory["target_weights"] == executor.decoder.nbytes
    # the layers that draft are the target's own
    if pipeline != "prompt_lookup":
        cut = engine.pipeline.models.draft().executor
        assert isinstance(cut, TorchExecutor) and cut.decoder.blocks[0].qkv is executor.decoder.blocks[0].qkv
    with pytest.raises(UserError, match=f"model.weights: 'dense' is asked for, and the loaded models have '{choice}'"):
        engine.with_pipeline("vanilla", overrides=["model.weights=dense"])


def test_bits_that_there_are_not(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="model.weights: unknown value 'int3', did you mean 'int8'"):
        Engine.from_pipeline("vanilla", target=tmp_path, overrides=["model.weights=int3"])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({".scale": None}, "'NAME.scale' is missing or does not fit the codes of 'NAME'"),
        ({".scale": torch.ones(4, 2)}, "'NAME.scale' is missing or does not fit"),
        ({".offset": torch.ones(4, 3).half()}, "'NAME.offset' is missing or does not fit"),
        ({".scale": torch.ones(4).half()}, "'NAME.scale' is missing or does not fit"),
        ({".codes": torch.ones(64, 40, dtype=torch.int8)}, "'NAME.codes' holds no whole groups of 32 codes"),
        ({".codes": torch.ones(64, 44, dtype=torch.uint8)}, "'NAME.scale' is missing or does not fit"),
        ({".codes": torch.ones(64, 64)}, "'NAME.codes' holds no codes"),
        ({"": torch.ones(64, 64)}, "'NAME' is stored twice"),
        ({".codes": torch.ones(32, 64, dtype=torch.int8)}, "'NAME.scale' is missing or does not fit"),
    ],
)
def test_stored_parts_that_do_not_fit(change: dict[str, torch.Tensor | None], why: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "smollm", **SHAPE)
    tensors, name = load_file(tmp_path / "model.safetensors"), "model.layers.0.self_attn.o_proj.weight"
    matrix = quantize(tensors.pop(name), 8)
    parts = {".codes": matrix.codes_OC, ".scale": matrix.scale_OG}
    save_file({**tensors, **{name + part: t for part, t in parts.items()}}, tmp_path / "model.safetensors")
    stored = open_checkpoint(str(tmp_path)).quantized(name)
    assert stored is not None and torch.equal(stored.codes_OC, matrix.codes_OC)
    changed = {name + part: t for part, t in {**parts, **change}.items() if t is not None}
    save_file({**tensors, **changed}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=why.replace("NAME", name)):
        open_checkpoint(str(tmp_path))
