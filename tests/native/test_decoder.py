"""Blocks that run natively compute what torch's do; a row gets the same bits alone, in a tree, and stage by stage."""

from __future__ import annotations

import types
from pathlib import Path

import pytest
import torch

from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk.model.chosen_weights import ChosenWeights
from spec_sdk.model.decoder import Decoder, Rotations
from spec_sdk.model.executor import PassPlan
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.runners.layer_parallel import LayerParallelConfig, LayerParallelRunner
from spec_sdk.model.runners.sequential import SequentialRunner
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.ops.feed_forward import GatedMLP
from spec_sdk.ops.pass_inputs import PassInputs, RequestRows
from spec_sdk.ops.quantizing import quantize
from spec_sdk.testing import check_executor
from spec_sdk.testing.random_weights import RandomWeights
from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_backends.cpu import CpuBackend, CpuConfig, CpuOps
from spec_sdk_backends.native.decoder import NativeDecoder, leave_rows_exact, unknown_block
from spec_sdk_backends.native.latent_decoder import native_decoder
from spec_sdk_backends.native.ops import NativeOps
from spec_sdk_backends.native.quantized import NativeQuantizedProjection
from spec_sdk_drafters.skipped_layers import LayerSkipConfig, LayerSkipRunner
from tests.support.threads import threads
from tests.support.tiny_checkpoints import VOCABULARY, write_checkpoint
from tests.support.tiny_decoder import ModelTensors

CPU = torch.device("cpu")
TOKENS = torch.randint(3, VOCABULARY, (64,), generator=torch.Generator().manual_seed(5)).tolist()
KNOWN = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 4}
"""Heads of 16, which the kernels take."""
MIXTURES = [
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "granitemoe",
    "ernie4_5_moe",
    "glm4_moe",
    "dots1",
    "olmoe",
    "gpt_oss",
    "deepseek_v2",
    "deepseek_v3",
    "glm4_moe_lite",
    "mistral4",
    "sparse_steps",
]
"""The last one has MLPs of another size in some layers."""
DTYPES = [torch.float32, torch.bfloat16]


def known(name: str) -> dict[str, int]:
    """Sizes that the kernels take."""
    of_experts = {"head_dim": 16, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48}
    of_heads = {"head_dim": 28} if name == "mistral4" else {}
    return KNOWN | (of_experts if name in MIXTURES else {}) | of_heads


def native(name: str, dtype: torch.dtype) -> NativeDecoder:
    decoder = load_decoder(ModelTensors(name, 0, **known(name)), CPU, dtype, NativeOps(CpuOps()))
    assert unknown_block(decoder) is None
    return native_decoder(decoder)


FORMS = [(torch.float32, "exact"), (torch.bfloat16, "exact"), (torch.float32, "bfloat16")]
"""Of rows, and of their cache."""


def executor_of(decoder: Decoder, cache_form: str) -> TorchExecutor:
    made = TorchExecutor(decoder, NativeOps(CpuOps()))
    made.keep_cache_in(cache_form)
    return made


def test_rotations_that_lie_in_no_table() -> None:
    """Such as a runner of another package makes."""
    decoder, h_BNM = native("smollm", torch.float32), torch.randn(2, 3, KNOWN["hidden_size"])
    position_BN = torch.tensor([[4, 5, 6], [11, 12, 12]], dtype=torch.int32)
    work = Rotations(decoder.rotations_at(position_BN, 64))
    looked_up = Rotations(list(work.rotations))
    for one, other in zip(
        decoder.pre_attention(1, h_BNM, work), decoder.pre_attention(1, h_BNM, looked_up), strict=True
    ):
        assert torch.equal(one, other)


def test_rows_are_left_exact_in_a_draft_model_alone() -> None:
    """Its output head may be the target's very own."""
    matrices = [quantize(torch.randn(64, 64), 8) for _ in range(2)]
    head, own = (NativeQuantizedProjection(matrix, rounds=True) for matrix in matrices)
    x = torch.randn(3, 64)
    rounded, of_own = head(x), own(x)
    decoder = types.SimpleNamespace(output_head=head, projections=[own], dtype=torch.float32)
    leave_rows_exact(decoder)  # type: ignore[arg-type]
    assert decoder.output_head is not head and head.rounds and torch.equal(head(x), rounded)
    assert torch.equal(own(x), NativeQuantizedProjection(matrices[1])(x)) and not torch.equal(own(x), of_own)


def session(decoder: Decoder, runner: SequentialRunner | None = None) -> Session:
    return Session(TorchExecutor(decoder, NativeOps(CpuOps())), runner)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "name",
    [
        *("smollm", "llama2", "biased_llama", "qwen2", "qwen3", "mistral", "phi3", "glm", "ernie4_5", "smollm3"),
        *("granite", "glm4", "gemma", "gemma2", "gemma3", "olmo2", "exaone4", "youtu", *MIXTURES),
    ],
)
def test_blocks_are_those_of_torch(name: str, dtype: torch.dtype) -> None:
    """Prefill and a tree pass; the reference takes the same weights in float64 where rounding decides."""
    found, expected = native(name, dtype), load_decoder(ModelTensors(name, 0, **known(name)), CPU, dtype, Ops())
    logits = []
    for decoder, ops in ((found, NativeOps(CpuOps())), (expected, Ops())):
        running = Session(TorchExecutor(decoder, ops))
        running.prefill(0, TOKENS[:20])
        logits.append(running.score([0], [TokenTree.chain(TOKENS[20], TOKENS[21:30])])[0].logits_NV.float())
    # in bfloat16 the experts of a row may be others
    limit = 1e-5 if dtype == torch.float32 else 0.1 if name.startswith("deepseek") else 0.04
    assert (logits[0] - logits[1]).abs().max() <= limit * logits[1].abs().max()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["smollm", "qwen3", "mistral", "gemma2", "olmo3", *MIXTURES])
def test_a_tree_and_plain_decoding_agree_to_the_bit(name: str, dtype: torch.dtype) -> None:
    """Every node of a wide tree has the logits that feeding its path token by token gives."""
    decoder = native(name, dtype)
    plain, tree = session(decoder), session(decoder)
    for running in (plain, tree):
        running.prefill(0, TOKENS[:20])
    built = TokenTree.chain(TOKENS[20], TOKENS[21:33])
    scored = tree.score([0], [built])[0].logits_NV
    for node in range(13):
        found = plain.score([0], [TokenTree.chain(TOKENS[20 + node], [])])[0].logits_NV[0]
        assert torch.equal(found, scored[node]), node
        plain.feed([0], [[TOKENS[20 + node]]])


@pytest.mark.parametrize("size", [96, 40])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_blocks_in_few_bits(dtype: torch.dtype, bits: int, size: int, tmp_path: Path) -> None:
    """Prefill and a tree are those of the dequantised weights; tree and plain decoding agree to the bit.

    A gate of 40 outputs ends, and the rows of ``up`` begin, amid 16 that lie side by side.
    """
    write_checkpoint(tmp_path, "qwen3", **KNOWN, head_dim=16, intermediate_size=size)
    chosen = ChosenWeights(open_checkpoint(str(tmp_path)), f"int{bits}", lambda bits: True)
    decoder = NativeDecoder(load_decoder(chosen, CPU, dtype, NativeOps(CpuOps())))
    mlp = decoder.blocks[0].mlp
    assert isinstance(mlp, GatedMLP) and mlp.gate_up.quantized is not None
    assert (mlp.down.quantized is None) == (size == 40)
    plain, tree = session(decoder), session(decoder)
    for running in (plain, tree):
        running.prefill(0, TOKENS[:20])
    scored = tree.score([0], [TokenTree.chain(TOKENS[20], TOKENS[21:30])])[0].logits_NV
    for node in range(10):
        found = plain.score([0], [TokenTree.chain(TOKENS[20 + node], [])])[0].logits_NV[0]
        assert torch.equal(found, scored[node]), node
        plain.feed([0], [[TOKENS[20 + node]]])
    expected = Session(TorchExecutor(load_decoder(chosen, CPU, dtype, Ops()), Ops()))
    expected.prefill(0, TOKENS[:20])
    logits_NV = expected.score([0], [TokenTree.chain(TOKENS[20], TOKENS[21:30])])[0].logits_NV
    limit = 1e-5 if dtype == torch.float32 else 0.04
    assert (scored.float() - logits_NV.float()).abs().max() <= limit * logits_NV.float().abs().max()


@pytest.mark.parametrize(("dtype", "cache_form"), FORMS)
def test_branches_agree_to_the_bit(dtype: torch.dtype, cache_form: str) -> None:
    """A node's ancestors lie among other branches in the cache; committed, they lie together."""
    executor, plan = executor_of(native("smollm", dtype), cache_form), PassPlan(SequentialRunner())
    end_N, depth_N, path = [7, 4, 3, 4, 7, 6, 7], [0, 1, 2, 2, 1, 2, 2], [0, 4, 6]
    results = []
    for rows in (
        RequestRows.tree(0, 20, TOKENS[20:27], depth_N, end_N),
        RequestRows.chain(0, 20, [TOKENS[20 + node] for node in path]),
    ):
        cache = executor.new_cache()
        cache.reserve(1, 64)
        executor.forward(PassInputs.of("chain", [RequestRows.chain(0, 0, TOKENS[:20])], CPU), cache, plan)
        kind = "tree" if len(rows.token) == 7 else "chain"
        results.append(executor.forward(PassInputs.of(kind, [rows], CPU), cache, plan).logits_BNV[0])  # type: ignore[arg-type]
    assert torch.equal(results[0][path], results[1])


@pytest.mark.parametrize(("dtype", "cache_form"), FORMS)
@pytest.mark.parametrize("name", ["qwen3", "glm4_moe", "olmo2"])
def test_stages_agree_with_whole_blocks_to_the_bit(name: str, dtype: torch.dtype, cache_form: str) -> None:
    """Runners that call the stages one by one get what one call for all blocks gives; so do hidden states.

    A mixture's stage knows of no padding, and gives it experts.
    """
    whole, staged = native(name, dtype), native(name, dtype)
    staged.blocks_at_once = types.MethodType(Decoder.blocks_at_once, staged)  # type: ignore[method-assign]
    requests = [RequestRows.chain(1, 0, TOKENS[:5]), RequestRows.chain(0, 0, TOKENS[5:12])]
    outputs = []
    for decoder in (whole, staged):
        executor = executor_of(decoder, cache_form)
        cache = executor.new_cache()
        assert cache.k_LSGCD.dtype == (dtype if cache_form == "exact" else torch.bfloat16)
        cache.reserve(2, 64)
        inputs = PassInputs.of("chain", requests, CPU)
        with threads(2 if decoder is whole else 1):
            outputs.append(executor.forward(inputs, cache, PassPlan(SequentialRunner(), taps=(0, 2, 4))))
        outputs[-1].hidden[9] = torch.cat((cache.k_LSGCD, cache.v_LSGCD))  # type: ignore[index]
    assert torch.equal(outputs[0].logits_BNV[0, :5], outputs[1].logits_BNV[0, :5])
    assert torch.equal(outputs[0].logits_BNV[1], outputs[1].logits_BNV[1])
    assert outputs[0].hidden.keys() == outputs[1].hidden.keys() == {0, 2, 4, 9}
    for layer in (0, 2, 4):
        assert torch.equal(outputs[0].hidden[layer][1], outputs[1].hidden[layer][1])
    assert torch.equal(outputs[0].hidden[9], outputs[1].hidden[9])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_runs_of_blocks_agree_with_their_stages_to_the_bit(dtype: torch.dtype) -> None:
    """A runner that leaves blocks out makes a call for every run of those that are left."""
    whole, staged = native("qwen3", dtype), native("qwen3", dtype)
    staged.blocks_at_once = types.MethodType(Decoder.blocks_at_once, staged)  # type: ignore[method-assign]
    runner = LayerSkipRunner(LayerSkipConfig(skip=[1]))
    runner.prepare(4)
    results = []
    for decoder in (whole, staged):
        executor = TorchExecutor(decoder, NativeOps(CpuOps()))
        cache = executor.new_cache()
        cache.reserve(1, 64)
        inputs = PassInputs.of("chain", [RequestRows.chain(0, 0, TOKENS[:7])], CPU)
        output = executor.forward(inputs, cache, PassPlan(runner, taps=(1, 2, 3)))
        results.append([output.logits_BNV, *(output.hidden[layer] for layer in (1, 2, 3)), cache.k_LSGCD])
    for found, expected in zip(*results, strict=True):
        assert torch.equal(found, expected)
    assert torch.equal(results[0][1], results[0][2]) and not torch.equal(results[0][2], results[0][3])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_drafting_in_the_targets_cache_changes_no_bit(dtype: torch.dtype) -> None:
    """Trees scored after drafting passes over the same cache, against the same tokens one by one without any."""
    decoder = native("smollm", dtype)
    plain, drafting = session(decoder), session(decoder)
    runner = LayerSkipRunner(LayerSkipConfig(skip=[1, 2]))
    runner.prepare(4)
    for running in (plain, drafting):
        running.prefill(0, TOKENS[:20])
    done = 20
    while done < 40:
        tree = TreeBuilder(TOKENS[done])
        drafting.draft([0], [tree], [1], runner)
        for i in range(4):
            tree.add(tree.add(0, (TOKENS[done + 1] + i) % VOCABULARY, "chosen"), TOKENS[done + 2], "chosen")
            drafting.draft([0], [tree], [2], runner)
        built = tree.build()
        scored_NV = drafting.score([0], [built.tree])[0].logits_NV
        # creation slots 0, 1 and 2 are the text's own tokens
        path = [built.preorder[slot] for slot in range(3)]
        for node in path:
            found_V = plain.score([0], [TokenTree.root_only(TOKENS[done])])[0].logits_NV[0]
            assert torch.equal(found_V, scored_NV[node])
            plain.feed([0], [[TOKENS[done]]])
            done += 1
        drafting.commit([0], [path])
    assert drafting.tokens() == plain.tokens()


def test_a_sound_executor() -> None:
    """Chains, trees, growing trees, batches, padding, commits and cuts, with a layer-parallel runner too."""
    check_executor(
        CpuBackend(CpuConfig(native=True)).load,
        runners=(
            SequentialRunner,
            lambda: LayerParallelRunner(LayerParallelConfig()),
            lambda: LayerSkipRunner(LayerSkipConfig()),
        ),
        seeds=(0,),
    )


def test_who_runs_what() -> None:
    """Known blocks run natively unless compilation is asked for; others keep their stages, on native products."""
    backend = CpuBackend(CpuConfig(native=True))
    known = backend.load(ModelTensors("smollm", 0, **KNOWN), torch.float32)
    assert isinstance(known, TorchExecutor) and type(known.decoder) is NativeDecoder
    assert type(known.cut([0, 2]).decoder) is NativeDecoder
    assert backend.compiled["eager_because"] == "the native kernels run whole blocks"
    gemma = backend.load(ModelTensors("gemma2", 0), torch.bfloat16)
    assert isinstance(gemma, TorchExecutor) and type(gemma.decoder) is NativeDecoder
    experts = backend.load(ModelTensors("qwen3_moe", 0), torch.float32)
    assert isinstance(experts, TorchExecutor) and type(experts.decoder) is Decoder
    half = backend.load(ModelTensors("smollm", 0, **KNOWN), torch.float16)
    assert isinstance(half, TorchExecutor) and type(half.decoder) is Decoder


def test_random_weights_are_run_natively() -> None:
    """The conformance kit's model is one that the kernels know, so that its checks check them."""
    from spec_sdk.testing.random_weights import TINY

    executor = CpuBackend(CpuConfig(native=True)).load(RandomWeights(TINY, 0), torch.float32)
    assert isinstance(executor, TorchExecutor) and type(executor.decoder) is NativeDecoder


def test_an_mlp_of_broken_panels_is_not_run_natively() -> None:
    """Gates and what they multiply are computed panel by panel, so both must begin with one."""
    decoder = load_decoder(
        ModelTensors("smollm", 0, **KNOWN, intermediate_size=72), CPU, torch.float32, NativeOps(CpuOps())
    )
    assert unknown_block(decoder) == "layer 0 has an MLP of 72 dims, which are not whole panels of 16"
