"""The attention level's verifiers, in both spaces, and the estimates behind the error bounds.

Legend: N tokens, M model dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from spec_sdk.error_bounds import error_bounds
from spec_sdk.errors import UserError
from spec_sdk.model.lipschitz import EstimateOfRun, stretch
from spec_sdk.model.runners.attention_speculative import AttentionSpeculativeRunner
from spec_sdk.model.session import Scores, Session
from spec_sdk.ops.attention_mask import AttentionMask
from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_predictors.attention_sink import AttentionSink, AttentionSinkConfig
from spec_sdk_predictors.h2o import H2O, H2OConfig
from spec_sdk_verifiers.l2_threshold import L2Threshold, L2ThresholdConfig
from spec_sdk_verifiers.static import Static, StaticConfig
from tests.support.configured import config_of, plugin_of
from tests.support.tiny_checkpoints import VOCABULARY
from tests.support.tiny_decoder import tiny_decoder, tiny_executor

TOKENS = torch.randint(3, VOCABULARY, (60,), generator=torch.Generator().manual_seed(3)).tolist()
BRANCHING = TreeBuilder(8)
for _parent, _token in [(0, 9), (0, 10), (1, 11)]:
    BRANCHING.add(_parent, _token, "chosen")
TREE = BRANCHING.build().tree
LAYERS = tiny_decoder().layers


def scored(verifier: Any, tree: TokenTree = TREE, **options: Any) -> Scores:
    runner = AttentionSpeculativeRunner(lambda: AttentionSink(AttentionSinkConfig(4)), verifier, **options)
    session = Session(tiny_executor(), runner)
    session.prefill(0, TOKENS)
    return session.score([0], [tree])[0]


def l2(threshold: float = 0.1, **options: Any) -> L2Threshold:
    return L2Threshold(L2ThresholdConfig(threshold, **options))


def test_every_row_must_hit() -> None:
    squares = torch.tensor([[0.01, 0.04]]), torch.tensor([[1.0, 1.0]])
    assert bool(l2(0.21).verify(0, *squares).hit_B) and not bool(l2(0.19).verify(0, *squares).hit_B)
    assert l2().verify(0, *squares).error_BN.tolist() == [pytest.approx([0.1, 0.2])]
    # no error at all is not below a threshold of 0, and NaN is below none
    assert not bool(l2(0.0).verify(0, torch.zeros(1, 1), torch.ones(1, 1)).hit_B)
    assert not bool(l2(float("inf")).verify(0, torch.full((1, 1), float("nan")), torch.ones(1, 1)).hit_B)


def test_padding_rows_do_not_count() -> None:
    mask = AttentionMask.tree(5, (2, 2, 3, 4), torch.device("cpu"))
    assert (mask.queries, mask.live_queries) == (4, 2)


@pytest.mark.parametrize("given", [{1: float("inf"), 3: float("inf")}, [0.0, float("inf"), 0.0, float("inf"), 0.0]])
def test_thresholds_per_layer_and_layers_that_never_speculate(given: Any) -> None:
    verifier = l2(0.0, layer_thresholds=given, never=[0])
    verifier.check(LAYERS)
    report = scored(verifier).attention
    assert report is not None and report.hit == (None, True, False, True, False)
    assert report.error[0] is None and report.row_error[0] is None and report.difference[0] is None
    assert all(errors is not None and len(errors) == TREE.size for errors in report.row_error[1:])


def test_static_layers_take_the_prediction_and_no_others_do() -> None:
    verifier = Static(StaticConfig([1, 4]))
    verifier.check(LAYERS)
    fixed = scored(verifier)
    same = scored(l2(0.0, layer_thresholds={1: float("inf"), 4: float("inf")}))
    assert fixed.attention is not None and fixed.attention.hit == (None, True, None, None, True)
    assert fixed.attention.error[1] is not None and fixed.attention.error[1] > 0
    assert torch.allclose(fixed.logits_NV, same.logits_NV, atol=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: plugin_of("attention_verifier", "l2_threshold", threshold=-0.1),
            r"attention_verifier.threshold: -0.1 must be 0 \(nothing is accepted\) or more",
        ),
        (lambda: l2(layer_thresholds={2: -1}), "attention_verifier.layer_thresholds.2: -1 must be 0 or more"),
        (lambda: l2(layer_thresholds="high"), "layer_thresholds: 'high' must be {layer: threshold} or a list"),
        (lambda: l2(layer_thresholds={"a": 0.1}), "layer_thresholds: 'a': 0.1 is not a layer's number"),
        (
            lambda: plugin_of("attention_verifier", "static", layers=[1], space="head"),
            "attention_verifier.space: unknown value 'head', did you mean 'heads'",
        ),
        (lambda: config_of("attention_verifier", "l2_threshold", never=[-1]), "attention_verifier.never: -1 must be 0"),
        (lambda: Static(StaticConfig()), "attention_verifier.layers: name the layers"),
        (lambda: l2(never=[30]).check(30), "attention_verifier.never: there is no layer 30; the target has 30 layers"),
        (lambda: l2(layer_thresholds={-1: 0.1}).check(30), "layer_thresholds: there is no layer -1; .* 0 to 29"),
        (lambda: l2(layer_thresholds=[0.1]).check(30), "layer_thresholds: 1 threshold, but the target has 30 layers"),
        (lambda: Static(StaticConfig([3, 31])).check(30), "attention_verifier.layers: there is no layer 31"),
    ],
)
def test_bad_options(make: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()


def test_the_residual_space_is_after_the_output_projection() -> None:
    """Against both norms computed from the attentions themselves, at the first layer, where no hit came before."""
    decoder, seen = tiny_decoder(), {}

    class Spy(AttentionSink):
        def speculate(self, layer, *rest):  # type: ignore[no-untyped-def]
            seen[layer] = super().speculate(layer, *rest)
            return seen[layer]

    for space in ("heads", "residual"):
        runner = AttentionSpeculativeRunner(lambda: Spy(AttentionSinkConfig(4)), l2(0.0, space=space))
        session = Session(tiny_executor(), runner)
        session.prefill(0, TOKENS)
        report = session.score([0], [TREE])[0].attention
        predicted, exact = seen[0].predicted_BNHD, seen[0].exact_BNHD
        if space == "residual":
            predicted, exact = decoder.project(0, predicted), decoder.project(0, exact)
        error_N = ((predicted - exact)[0].flatten(1).norm(dim=1) / exact[0].flatten(1).norm(dim=1)).tolist()
        assert report is not None and report.row_error[0] == pytest.approx(error_N, rel=1e-4)
        assert report.space == space


def test_squares_are_summed_over_the_ranks_that_share_the_heads() -> None:
    """Ranks with other heads add as much again to both norms: the same error; to one of them: another."""
    plain, same, larger = (
        scored(l2(0.0), TokenTree.root_only(8), sum_over_heads=total).attention
        for total in (
            lambda squares: squares,
            lambda squares: 2 * squares,
            lambda squares: squares * torch.tensor([4.0, 1.0])[:, None, None],
        )
    )
    assert plain is not None and same is not None and larger is not None
    assert same.error == pytest.approx(plain.error, rel=1e-5)
    assert larger.error == pytest.approx([2 * (error or 0) for error in plain.error], rel=1e-5)


def test_a_predictor_serves_its_session() -> None:
    """H2O hears of commits, and is forgotten with its request: the same tokens again give the same errors."""
    runner = AttentionSpeculativeRunner(lambda: H2O(H2OConfig(4)), l2(0.0))
    session = Session(tiny_executor(), runner)

    def errors() -> list[Any]:
        session.prefill(0, TOKENS[session.open(0, TOKENS) :])
        made = []
        for path in ((0, 1, 2), (0,)):
            report = session.score([0], [TREE])[0].attention
            assert report is not None
            made.append(report.error)
            session.commit([0], [path])
        return made

    once = errors()
    assert once == errors() and once[0] != once[1]


class Hearing(H2O):
    """Notes what it is told of the cache."""

    def __init__(self) -> None:
        super().__init__(H2OConfig(4))
        self.heard: list[tuple[str, Any]] = []

    def commit(self, path: Sequence[int]) -> None:
        self.heard.append(("commit", tuple(path)))
        super().commit(path)

    def truncate(self, length: int) -> None:
        self.heard.append(("truncate", length))
        super().truncate(length)


def test_a_predictor_hears_what_is_kept_and_dropped_of_its_own_request() -> None:
    made: list[Hearing] = []

    def make() -> Hearing:
        made.append(Hearing())
        return made[-1]

    session = Session(tiny_executor(), AttentionSpeculativeRunner(make, l2(0.0)))
    for slot in (1, 2):
        session.prefill(slot, TOKENS)
    session.score([1, 2], [TREE, TREE])
    session.commit([1, 2], [(0, 1, 2), (0,)])
    session.truncate(1, 5)
    session.truncate(2, len(TOKENS))
    assert [predictor.heard for predictor in made] == [
        [("commit", (0, 1, 2)), ("truncate", 5)],
        [("commit", (0,)), ("truncate", len(TOKENS))],
    ]
    session.open(2, TOKENS)
    session.score([1, 2], [TREE, TREE])
    assert len(made) == 3 and made[2].heard == []


def test_stretch_is_the_largest_singular_value() -> None:
    rng = torch.Generator().manual_seed(0)
    matrix = torch.randn((9, 7), generator=rng)
    found = stretch(lambda x: x @ matrix.T, torch.zeros(1, 1, 7), steps=60)
    assert found == pytest.approx(float(torch.linalg.matrix_norm(matrix, 2)), rel=1e-4)
    # of a curved function, that of its Jacobian at the point
    at = torch.randn((1, 1, 7), generator=rng)
    jacobian = torch.autograd.functional.jacobian(lambda x: torch.tanh(x @ matrix.T), at).reshape(9, 7)
    curved = stretch(lambda x: torch.tanh(x @ matrix.T), at, steps=200)
    assert curved == pytest.approx(float(torch.linalg.matrix_norm(jacobian, 2)), rel=1e-3)


def test_the_estimates_are_of_the_sub_layers_at_the_run_s_states() -> None:
    """A small change of the residual stream grows by no more than they say, and the output norm is W_O's."""
    decoder = tiny_decoder()
    report = scored(l2(0.0), TokenTree.root_only(8), estimate=EstimateOfRun()).attention
    assert report is not None and report.estimate is not None
    made = report.estimate()
    for layer in range(LAYERS):
        exact = float(torch.linalg.matrix_norm(decoder.blocks[layer].output.weight_OI, 2))
        assert 0.8 * exact <= made.output[layer] <= exact * 1.001
    assert all(value > 0 for value in (*made.mlp, *made.attention))
    # the event tells them, once
    assert report.event()["constants"]["mlp"] == made.mlp
    assert report.event()["row_error"] is None


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3"])
def test_architectures_with_biases_and_query_norms_can_be_estimated(architecture: str) -> None:
    runner = AttentionSpeculativeRunner(
        lambda: AttentionSink(AttentionSinkConfig(4)), l2(0.0), estimate=EstimateOfRun()
    )
    session = Session(tiny_executor(architecture), runner)
    session.prefill(0, TOKENS)
    report = session.score([0], [TREE])[0].attention
    assert report is not None and report.estimate is not None
    made = report.estimate()
    assert all(value > 0 for value in (*made.mlp, *made.attention, *made.output))


def test_the_run_stays_within_its_worst_case_bound() -> None:
    """Every layer takes the prediction: how far the last hidden state is off the plain pass's, against the bound."""
    runner = AttentionSpeculativeRunner(
        lambda: AttentionSink(AttentionSinkConfig(20)), l2(float("inf")), estimate=EstimateOfRun()
    )
    speculating, plain = Session(tiny_executor(), runner), Session(tiny_executor())
    for session in (speculating, plain):
        session.prefill(0, TOKENS)
    tree = TokenTree.root_only(8)
    found, expected = (session.score([0], [tree], [LAYERS])[0] for session in (speculating, plain))
    assert found.attention is not None
    bounds = error_bounds([found.attention.event()])
    off = (found.hidden[LAYERS] - expected.hidden[LAYERS]).norm() / found.hidden[LAYERS].norm()
    assert bounds is not None and 1e-3 < float(off) <= bounds["worst_case"]


def test_only_the_first_guess_of_a_request_carries_constants() -> None:
    runner = AttentionSpeculativeRunner(
        lambda: AttentionSink(AttentionSinkConfig(4)), l2(0.0), estimate=EstimateOfRun()
    )
    session = Session(tiny_executor(), runner)
    session.prefill(0, TOKENS[:7])
    reports = []
    for _ in range(3):
        reports.append(session.score([0], [TREE])[0].attention)
        session.commit([0], [[0, 1, 2]])
    assert [report is not None and report.estimate is not None for report in reports] == [False, True, False]
