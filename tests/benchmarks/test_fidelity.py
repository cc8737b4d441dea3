"""What the quality benchmarks compute, against figures known beforehand."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.alspec_quality import picks
from benchmarks.levels import row_hit_rate, served
from benchmarks.support.fidelity import Fidelity, Passage, hit_rates, kl, nll
from benchmarks.support.kernel_counts import counted_kernels
from spec_sdk.bench.answers import spread_prompts
from spec_sdk.errors import UserError
from spec_sdk.model.runners.attention_speculative import AttentionSpeculativeRunner
from spec_sdk.model.runners.sequential import SequentialRunner
from spec_sdk.model.session import Session
from spec_sdk_predictors.attention_sink import AttentionSink, AttentionSinkConfig
from spec_sdk_verifiers.l2_threshold import L2Threshold, L2ThresholdConfig
from tests.support.draft_logits import roots_of
from tests.support.tiny_decoder import tiny_executor

BEFORE, AFTER = [5, 9, 17, 30, 5, 9, 17, 31, 44, 5, 9], [7, 3, 12, 60, 60, 1]


def runner(threshold: float, size: int = 2) -> AttentionSpeculativeRunner:
    return AttentionSpeculativeRunner(
        lambda: AttentionSink(AttentionSinkConfig(size)), L2Threshold(L2ThresholdConfig(threshold))
    )


def passage() -> Passage:
    return Passage(Session(tiny_executor()), BEFORE, AFTER)


def test_kl_and_nll_of_known_distributions() -> None:
    p, q = torch.tensor([[0.5, 0.25, 0.25]]), torch.tensor([[0.25, 0.25, 0.5]])
    # logits are probabilities' logarithms up to a constant
    assert kl(p.log() + 3, q.log() - 1) == [pytest.approx(0.25 * math.log(2), rel=1e-6)]
    assert nll(q.log() + 2, [2]) == [pytest.approx(math.log(2), rel=1e-6)]
    fidelity = Fidelity()
    fidelity.add(p.log(), q.log(), [0])
    found = fidelity.summary()
    assert found["top1_agreement"] == 0 and found["perplexity"] == pytest.approx(4)
    assert found["nll_change"] == pytest.approx(math.log(2)) and found["nll_change_standard_error"] is None


def test_a_passage_is_scored_as_one_plain_pass_over_it() -> None:
    logits_NV, reports = passage().score(SequentialRunner())
    whole = Session(tiny_executor())
    expected = []
    for token in [*BEFORE, *AFTER[:-1]]:
        expected += roots_of(whole.feed([0], [[token]]))
    torch.testing.assert_close(logits_NV, torch.stack(expected[len(BEFORE) - 1 :]), atol=1e-4, rtol=1e-4)
    assert reports == []
    assert passage().nll(SequentialRunner(), AFTER) == pytest.approx(nll(logits_NV, AFTER), abs=1e-4)


def test_nothing_accepted_is_the_exact_model_and_everything_accepted_is_not() -> None:
    here = passage()
    exact_NV, _ = here.score(SequentialRunner())
    none_NV, reports = here.score(runner(0))
    assert max(kl(exact_NV, none_NV)) < 1e-8
    assert hit_rates(reports)["approximated"] == 0
    every_NV, reports = here.score(runner(math.inf))
    assert hit_rates(reports) == {"hit_rate": 1, "approximated": 1, "approximated_per_layer": [1.0] * 5}
    assert max(kl(exact_NV, every_NV)) > 1e-3
    # what one setting left behind is gone with the next
    torch.testing.assert_close(here.score(SequentialRunner())[0], exact_NV, atol=0, rtol=0)


def test_greedy_stops_after_a_stop_token() -> None:
    free = passage().greedy(SequentialRunner(), 6, frozenset())
    assert len(free) == 6
    assert passage().greedy(SequentialRunner(), 6, frozenset({free[2]})) == free[: free.index(free[2]) + 1]
    assert passage().greedy(runner(0), 6, frozenset()) == free


def test_static_layers_are_picked_by_their_rule() -> None:
    errors = [[0.09, 0.5], [0.2, 0.2], [0.01, 0.05], [0.09, 0.9]]
    assert picks(errors, 0.1, 2) == {"most accepted": [0, 2], "least error": [1, 2], "evenly spread": [1, 3]}


def test_prompts_that_are_not_there_are_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="prompt_file: .*nowhere.jsonl does not exist"):
        spread_prompts(tmp_path / "nowhere.jsonl", 3)


def test_rows_hit_on_their_own() -> None:
    tree: dict[str, Any] = {"error": [0.3, None], "row_error": [[0.05, 0.3], None]}
    step: dict[str, Any] = {"error": [0.05, 0.2], "row_error": None}
    cycles: list[dict[str, Any]] = [{"attention": tree}, {"attention": step}, {"attention": None}]
    assert row_hit_rate(cycles, 0.1) == pytest.approx(2 / 4)


def test_fused_calls_are_counted_by_their_rows() -> None:
    session = Session(tiny_executor(), runner(0.1))
    session.prefill(0, BEFORE)
    with counted_kernels() as counts:
        from spec_sdk.tree import TokenTree

        session.score([0], [TokenTree.chain(9, [7, 3])])
        session.score([0], [TokenTree.root_only(9)])
    session.score([0], [TokenTree.root_only(9)])
    assert counts["torch, one pass (CPU)"] == Counter({3: 5, 1: 5})
    [entry] = served(counts, 20)
    assert entry["calls_with_several_rows"] == 5 and entry["share_of_predictions"] == 0.5
