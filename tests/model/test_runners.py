"""Block runners against their definitions.

Legend: N tokens, M model dim.
"""

from __future__ import annotations

import pytest
import torch

from spec_sdk.model.layer_groups import easyspec_groups
from spec_sdk.model.runners.attention_speculative import AttentionSpeculativeRunner
from spec_sdk.model.runners.layer_parallel import LayerParallelRunner
from spec_sdk.model.session import Session
from spec_sdk.ops import PLAIN, Ops
from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_predictors.attention_sink import AttentionSink, AttentionSinkConfig
from spec_sdk_verifiers.l2_threshold import L2Threshold, L2ThresholdConfig
from tests.support.tiny_checkpoints import VOCABULARY, random_model
from tests.support.tiny_decoder import tiny_executor

TOKENS = torch.randint(3, VOCABULARY, (60,), generator=torch.Generator().manual_seed(3)).tolist()
BRANCHING = TreeBuilder(8)
for _parent, _token in [(0, 9), (0, 10), (1, 11), (2, 12), (1, 13), (3, 14)]:
    BRANCHING.add(_parent, _token, "chosen")
TREE = BRANCHING.build().tree


@pytest.mark.parametrize("fused", [True, False])
def test_layer_parallel_is_algorithm_2(fused: bool) -> None:
    """Against Alg. 2 written with the modules of transformers' own model."""
    reference = random_model("smollm")
    groups = [[0], [1, 2, 3], [4]]
    inner, states = reference.model, torch.tensor([TOKENS])
    with torch.inference_mode():
        h = inner.embed_tokens(states)
        rotation = inner.rotary_emb(h, torch.arange(len(TOKENS))[None])
        causal = torch.full((len(TOKENS), len(TOKENS)), float("-inf")).triu(1)[None, None]
        for group in groups:
            blocks = [inner.layers[i] for i in group]
            attention = [
                block.self_attn(block.input_layernorm(h), position_embeddings=rotation, attention_mask=causal)[0]
                for block in blocks
            ]
            for block, output in zip(blocks, attention, strict=True):
                h = h + output
                h = h + block.mlp(block.post_attention_layernorm(h))
        expected_NV = reference.lm_head(inner.norm(h))[0]
    chain = TokenTree.chain(TOKENS[0], TOKENS[1:])
    session = Session(tiny_executor("smollm"), LayerParallelRunner.of(groups, fused))
    logits_NV = session.score([0], [chain])[0].logits_NV
    assert (logits_NV - expected_NV).abs().max() < 1e-4
    plain_NV = Session(tiny_executor("smollm")).score([0], [chain])[0].logits_NV
    assert (plain_NV - expected_NV).abs().max() > 1e-2


def test_groups_of_one_are_the_plain_pass() -> None:
    executor = tiny_executor()
    plain = Session(executor).score([0], [TREE])[0].logits_NV
    grouped = Session(executor, LayerParallelRunner.of(easyspec_groups(5, 1))).score([0], [TREE])[0].logits_NV
    assert torch.equal(plain, grouped)


def speculative(size: int, threshold: float) -> AttentionSpeculativeRunner:
    return AttentionSpeculativeRunner(
        lambda: AttentionSink(AttentionSinkConfig(size)), L2Threshold(L2ThresholdConfig(threshold))
    )


@pytest.mark.parametrize("tree", [TokenTree.root_only(8), TREE])
def test_attention_speculation_at_its_extremes(tree: TokenTree) -> None:
    """λ = 0 never hits and changes nothing but the order of a sum; λ = ∞ computes with the prediction only."""
    executor = tiny_executor()
    plain, never, always = (
        Session(executor, runner) for runner in (None, speculative(4, 0.0), speculative(4, float("inf")))
    )
    for session in (plain, never, always):
        session.prefill(0, TOKENS)
    expected, missed, hit = (session.score([0], [tree])[0] for session in (plain, never, always))
    assert torch.allclose(expected.logits_NV, missed.logits_NV, atol=1e-5)
    assert missed.attention is not None and missed.attention.hit == (False,) * executor.layers
    assert hit.attention is not None and hit.attention.hit == (True,) * executor.layers
    assert (hit.logits_NV - expected.logits_NV).abs().max() > 1e-3
    assert all(error is not None and error > 0 for error in hit.attention.error)
    assert all(errors is not None and len(errors) == tree.size for errors in hit.attention.row_error)


def test_attention_speculation_hits_are_mixed_between_the_extremes() -> None:
    executor = tiny_executor()
    measured = Session(executor, speculative(4, 0.0))
    measured.prefill(0, TOKENS)
    report = measured.score([0], [TREE])[0].attention
    assert report is not None
    errors = sorted(error for error in report.error if error is not None)
    middle = Session(executor, speculative(4, (errors[0] + errors[-1]) / 2))
    middle.prefill(0, TOKENS)
    mixed = middle.score([0], [TREE])[0].attention
    assert mixed is not None and set(mixed.hit) == {True, False}


def test_short_contexts_are_left_out_of_the_hit_rate() -> None:
    executor = tiny_executor()
    session = Session(executor, speculative(30, 0.1))
    session.prefill(0, TOKENS)
    report = session.score([0], [TREE])[0].attention
    assert report is not None and report.hit == (None,) * executor.layers
    session.prefill(0, [7])
    report = session.score([0], [TREE])[0].attention
    assert report is not None and None not in report.hit


def test_sink_prediction_sees_both_ends_and_the_ancestors() -> None:
    """Against dense attention with every other key masked."""
    size = 6
    seen: dict[int, torch.Tensor] = {}

    class Spy(Ops):
        def tree_attention(self, q_BNHD, k_BGSD, v_BGSD, mask, spec=PLAIN):  # type: ignore[no-untyped-def]
            visible_NS = torch.zeros(mask.queries, mask.keys, dtype=torch.bool)
            visible_NS[:, mask.prefix :] = mask.visible_NT()
            visible_NS[:, :size] = visible_NS[:, mask.prefix - size : mask.prefix] = True
            k, v = (x.repeat_interleave(3, dim=1) for x in (k_BGSD, v_BGSD))
            expected = torch.nn.functional.scaled_dot_product_attention(
                q_BNHD.transpose(1, 2), k, v, attn_mask=visible_NS
            ).transpose(1, 2)
            predictor = AttentionSink(AttentionSinkConfig(size))
            predicted = predictor.predict(0, q_BNHD, k_BGSD, v_BGSD, mask, self)
            seen[len(seen)] = (predicted.o_BNHD - expected).abs().max()
            return super().tree_attention(q_BNHD, k_BGSD, v_BGSD, mask, spec)

    executor = tiny_executor()
    session = Session(executor)
    session.prefill(0, TOKENS)
    executor.ops = Spy()
    session.score([0], [TREE])
    session.score([0], [TokenTree.root_only(8)])
    assert len(seen) == 2 * executor.layers and max(seen.values()) < 1e-5
