"""A decoder that attends to latents, beside one that makes K and V of every token (transformers'), and its cache."""

from __future__ import annotations

import pytest
import torch
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from spec_sdk.errors import UserError
from spec_sdk.model.architectures import read_config
from spec_sdk.model.kv_cache import KVCache
from spec_sdk.model.latent_attention import LatentDecoder
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.predictable import check_predictable
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_backends.cpu import CpuBackend, CpuConfig
from spec_sdk_backends.native.latent_decoder import NativeLatentDecoder
from tests.support.tiny_checkpoints import VOCABULARY, random_model
from tests.support.tiny_decoder import ModelTensors

FAMILIES = ["deepseek_v2", "deepseek_v3", "glm4_moe_lite", "mistral4", "youtu"]
CPU = torch.device("cpu")
TOKENS = torch.randint(3, VOCABULARY, (120,), generator=torch.Generator().manual_seed(8)).tolist()
AS_PUBLISHED = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
"""Of which attention has 576 dims."""


def decoder_of(family: str, **sizes: int) -> LatentDecoder:
    made = load_decoder(ModelTensors(family, 0, **sizes), CPU, torch.float32)
    assert isinstance(made, LatentDecoder)
    return made


@pytest.mark.parametrize("family", FAMILIES)
def test_decoding_is_that_of_keys_and_values_of_every_token(family: str) -> None:
    """In steps, and in a tree behind them."""
    session = Session(TorchExecutor(decoder_of(family), Ops()))
    with torch.inference_mode():
        expected_NV = random_model(family)(torch.tensor([TOKENS])).logits[0]
    session.prefill(0, TOKENS[:60])
    for at in range(60, 80):
        (scored,) = session.score([0], [TokenTree.root_only(TOKENS[at])])
        assert (scored.logits_NV[0] - expected_NV[at]).abs().max() < 1e-5 * expected_NV.abs().max()
        session.commit([0], [[0]])
    builder = TreeBuilder(TOKENS[80])
    wrong = builder.add(0, (TOKENS[81] + 1) % VOCABULARY, "chosen")
    right = builder.add(0, TOKENS[81], "chosen")
    builder.add(wrong, TOKENS[82], "chosen")
    last = builder.add(right, TOKENS[82], "chosen")
    built = builder.build()
    (scored,) = session.score([0], [built.tree])
    for node, at in ((0, 80), (right, 81), (last, 82)):
        assert (scored.logits_NV[built.preorder[node]] - expected_NV[at]).abs().max() < 1e-5 * expected_NV.abs().max()


@pytest.mark.parametrize("form", ["exact", "bfloat16"])
def test_the_cache_has_one_vector_of_a_token(form: str) -> None:
    decoder = decoder_of("youtu")
    session = Session(TorchExecutor(decoder, Ops()))
    cache = decoder.new_cache(form)
    cache.reserve(2, 64)
    width, size = 32 + 16, 4 if form == "exact" else 2
    assert cache.v_LSGCD is cache.k_LSGCD and cache.k_LSGCD.shape == (5, 2, 1, 64, width)
    assert cache.nbytes == 5 * 2 * 64 * width * size
    cache.k_LSGCD.copy_(torch.randn(cache.k_LSGCD.shape))
    before = cache.k_LSGCD.clone()
    cache.commit([1], [10], [[0, 2, 5]])
    assert torch.equal(cache.v_LSGCD[:, 1, :, [10, 11, 12]], before[:, 1, :, [10, 12, 15]])
    cache.reserve(3, 200)
    assert cache.v_LSGCD is cache.k_LSGCD and torch.equal(cache.k_LSGCD[:, :2, :, 13:64], before[:, :, :, 13:])
    assert session.context == 512


def test_layers_of_it_are_a_model() -> None:
    whole = decoder_of("deepseek_v3")
    some = whole.subset([0, 3])
    assert isinstance(some, LatentDecoder) and some.layers == 2
    own, others = set(map(id, some.projections)), set(map(id, whole.projections))
    # the projections of single heads are made anew from one tensor
    assert some.nbytes < whole.nbytes and own & others


def test_weights_are_counted() -> None:
    """As many numbers as the checkpoint has, but for norms, biases and corrections."""
    tensors = ModelTensors("deepseek_v3", 0)
    decoder = load_decoder(tensors, CPU, torch.float32)
    matrices = sum(tensors.tensor(name).numel() for name in tensors.names() if tensors.tensor(name).dim() > 1)
    routers = sum(tensors.tensor(name).numel() for name in tensors.names() if name.endswith(".mlp.gate.weight"))
    assert decoder.nbytes == 4 * (matrices - routers)
    config, of_layer = tensors.config, decoder.config.layer_parameters
    first = [name for name in tensors.names() if ".layers.0." in name and tensors.tensor(name).dim() > 1]
    assert of_layer[0] == sum(tensors.tensor(name).numel() for name in first) and len(of_layer) == config.num_layers


@pytest.mark.parametrize(
    ("heads", "dtype", "limit"), [(4, torch.float32, 1e-5), (4, torch.bfloat16, 0.05), (128, torch.float32, 1e-5)]
)
def test_native_attention_of_576_dims(heads: int, dtype: torch.dtype, limit: float) -> None:
    """As many as published models have; 128 heads share a key, which the kernels take 64 at a time."""
    sizes = {**AS_PUBLISHED, "num_attention_heads": heads, "num_key_value_heads": heads, "hidden_size": 64}
    source = ModelTensors("youtu", 0, num_hidden_layers=2, **sizes)
    logits = []
    for executor in (
        CpuBackend(CpuConfig(native=True)).load(source, dtype),
        TorchExecutor(load_decoder(source, CPU, torch.float64), Ops()),
    ):
        session = Session(executor)
        session.prefill(0, TOKENS[:50])
        builder = TreeBuilder(TOKENS[50])
        children = [builder.add(0, token, "chosen") for token in TOKENS[51:54]]
        for token, child in zip(TOKENS[54:57], children, strict=True):
            builder.add(child, token, "chosen")
        logits.append(session.score([0], [builder.build().tree])[0].logits_NV.double())
        native = isinstance(executor, TorchExecutor) and isinstance(executor.decoder, NativeLatentDecoder)
        assert native == (len(logits) == 1)
    assert (logits[0] - logits[1]).abs().max() <= limit * logits[1].abs().max()


def test_padding_is_not_cached() -> None:
    """Beside a wide tree, a request's padding reaches beyond its slot, where another's first keys are."""
    executor = CpuBackend(CpuConfig(native=True)).load(ModelTensors("youtu", 0), torch.float32)
    session, alone = Session(executor), Session(executor)
    tree, beside = TokenTree.chain(TOKENS[70], TOKENS[71:78]), TokenTree.chain(TOKENS[58], TOKENS[59:63])
    session.prefill(0, TOKENS[:58])
    session.prefill(1, TOKENS[64:70])
    (_, found) = session.score([0, 1], [beside, tree])
    assert isinstance(session.cache, KVCache) and session.cache.capacity == 64
    alone.prefill(0, TOKENS[64:70])
    (expected,) = alone.score([0], [tree])
    assert torch.equal(found.logits_NV, expected.logits_NV)


def test_what_is_refused() -> None:
    config = ModelTensors("youtu", 0).config
    with pytest.raises(UserError, match="model.kv_cache: a cache of latents is not in int8; use bfloat16 or auto"):
        decoder_of("youtu").new_cache("int8")
    with pytest.raises(UserError, match="has attention to latents, which is not predicted; use predictor=none"):
        check_predictable(config, config.num_layers, [1], "attention_sink")


SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
PLAIN = {"vocab_size": 100, "max_position_embeddings": 512, "num_experts_per_tok": 2, **SIZES}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "youtu", "qk_rope_head_dim": 7}, "qk_rope_head_dim is 7, rotary positions need an even one"),
        (
            {"model_type": "deepseek_v2", "topk_method": "group_limited_greedy"},
            "topk_method=group_limited_greedy is not supported, only greedy",
        ),
        ({"model_type": "deepseek_v2", "norm_topk_prob": True}, "norm_topk_prob=True is not supported, only False"),
        ({"model_type": "deepseek_v3", "scoring_func": "softmax"}, "scoring_func=softmax is not supported, only sigm"),
        ({"model_type": "deepseek_v3", "moe_layer_freq": 2}, "moe_layer_freq is 2, and only 1 is supported"),
        (
            {"model_type": "glm4_moe_lite", "mlp_layer_types": ["dense"]},
            "mlp_layer_types does not say of each of 2 layers dense or sparse",
        ),
        (
            {"model_type": "glm4_moe_lite", "mlp_layer_types": ["dense", "thin"]},
            "mlp_layer_types does not say of each of 2 layers dense or sparse",
        ),
    ],
)
def test_configurations_that_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_config({**PLAIN, **changes}, "config.json")


@pytest.mark.parametrize("family", FAMILIES)
def test_missing_keys_mean_what_they_mean_to_transformers(family: str) -> None:
    # what transformers has no default of
    said = PLAIN if family == "deepseek_v2" else {key: of for key, of in PLAIN.items() if key != "num_experts_per_tok"}
    theirs = CONFIG_MAPPING[family](**{**said, "num_hidden_layers": 5})
    ours = read_config({**said, "num_hidden_layers": 5, "model_type": family}, "config.json")
    latent = ours.latent
    assert latent is not None and not latent.biased
    assert (latent.kv_lora_rank, latent.q_lora_rank) == (theirs.kv_lora_rank, theirs.q_lora_rank)
    assert (latent.qk_nope_head_dim, latent.qk_rope_head_dim) == (theirs.qk_nope_head_dim, theirs.qk_rope_head_dim)
    assert (latent.v_head_dim, ours.tie_embeddings) == (theirs.v_head_dim, theirs.tie_word_embeddings)
    assert (ours.rms_norm_eps, ours.rope_theta) == (theirs.rms_norm_eps, theirs.rope_parameters["rope_theta"])
    if family == "youtu":
        assert ours.experts is None
        return
    experts, by_sigmoid = ours.experts, family not in ("deepseek_v2", "mistral4")
    grouped = family != "deepseek_v2"
    assert experts is not None and experts.count == theirs.n_routed_experts
    assert experts.intermediate_size == theirs.moe_intermediate_size
    assert experts.shared_intermediate_size == theirs.n_shared_experts * theirs.moe_intermediate_size
    routing = experts.routing
    assert (routing.per_token, routing.scale) == (theirs.num_experts_per_tok, theirs.routed_scaling_factor)
    assert (routing.groups, routing.groups_of_token) == ((theirs.n_group, theirs.topk_group) if grouped else (1, 1))
    assert routing.normalized == theirs.norm_topk_prob and experts.corrected == by_sigmoid
    first = 1 if family == "glm4_moe_lite" else theirs.first_k_dense_replace
    assert experts.layers == tuple(range(first, 5))


def test_kimi_k2_is_a_deepseek_v3() -> None:
    small = {"n_routed_experts": 16, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
    kimi, deepseek = (
        read_config({**PLAIN, **small, "model_type": kind}, "config.json") for kind in ("kimi_k2", "deepseek_v3")
    )
    assert kimi.latent == deepseek.latent and kimi.experts == deepseek.experts
    assert kimi.experts is not None and kimi.experts.layers == (1,)


def test_yarn_scales_scores_too() -> None:
    """By the square of its temperature, beside cosines and sines (DeepSeek-V2's own code)."""
    rope = {"rope_type": "yarn", "factor": 40, "original_max_position_embeddings": 64, "rope_theta": 1e4}
    plain, scaled = (
        read_config({**PLAIN, "model_type": "youtu", "rope_scaling": {**rope, **more}}, "config.json")
        for more in ({}, {"mscale": 1.0, "mscale_all_dim": 1.0})
    )
    temperature = 0.1 * torch.tensor(40.0).log().item() + 1
    assert plain.attention_scale == pytest.approx(192**-0.5)
    assert scaled.attention_scale == pytest.approx(192**-0.5 * temperature**2)
    assert scaled.rope_scaling is not None and scaled.rope_scaling.attention_factor == 1.0
