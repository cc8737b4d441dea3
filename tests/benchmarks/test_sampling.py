"""The sampling benchmarks measure steps that are what they say, and say what they have not measured."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from benchmarks.sampling import FILTERED, SAMPLED, aims, make_step, measure, rivals, rows
from benchmarks.sampling_tables import STEP_COLUMNS, replay, run_entry, show_steps
from benchmarks.support.live_table import LiveTable
from benchmarks.support.published_sampling import BETA, decider, sigmoid_matrices, softmax_matrices
from benchmarks.support.sampling_rivals import OURS, RIVALS, Step, functions

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def known() -> dict[str, object]:
    return functions(None)  # type: ignore[return-value]


def test_a_case_has_every_rival_and_a_ratio(known) -> None:  # type: ignore[no-untyped-def]
    case = measure(2, 500, torch.float32, CPU, SAMPLED, 0.05, known)
    assert tuple(case["rivals"]) == RIVALS
    assert all(one["seconds"] > 0 and one["peak_bytes"] > 0 for one in case["rivals"].values())
    assert case["steps_in_which_exact_and_reference_differ"] == 0
    assert [row[1] for row in rows(case)] == list(RIVALS)
    assert rows(case)[0][:2] == ["1.00", "transformers"] and rows(case)[0][-1] == "γ=2 V=500 float32"
    results = {aim["aim"]: aim["result"] for aim in aims({"cases": [case], "device": "cpu"})}
    assert {result for aim, result in results.items() if aim.startswith("GPU")} == {"not measured here"}
    assert results["cpu: exact is faster than reference"] in ("met", "missed")
    assert results["cpu: exact is faster than published sigmoid"] in ("met", "missed")


def test_filtered_cases_leave_functions_of_logits_out(known) -> None:  # type: ignore[no-untyped-def]
    """They take logits that a processor has filtered already."""
    steps = [make_step(2, 500, torch.float32, CPU, FILTERED, 0)]
    assert list(rivals(steps, FILTERED, known)) == ["reference", "exact", "exact, in torch", "sigmoid"]


def test_transformers_of_either_signature_takes_part(known, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    """Versions around 5.17 require one more argument."""
    from transformers.generation import utils

    step, plain, asked = make_step(2, 50, torch.float32, CPU, SAMPLED, 0), utils._speculative_sampling, []

    def older(ids, draft, length, target, is_done_candidate):  # type: ignore[no-untyped-def]
        asked.append(is_done_candidate)
        return plain(ids, draft, length, target)

    monkeypatch.setattr(utils, "_speculative_sampling", older)
    decided = []
    for function in (known["transformers"], functions(None)["transformers"]):
        torch.manual_seed(0)
        decided.append(function(torch.tensor([step.tokens]), step.draft_GV, step.target_GV1))
    assert decided[0] == decided[1] and set(asked) == {False}


def test_a_rival_that_fails_is_left_out_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The step goes on, and what is compared with it is not measured."""
    from transformers.generation import utils

    monkeypatch.setattr(utils, "_speculative_sampling", lambda ids: ids)
    left = functions(None)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("left out: transformers: TypeError: ") and "transformers" not in left
    case = measure(5, 128_256, torch.float32, CPU, SAMPLED, 0.01, left)
    assert [row[1] for row in rows(case)] == [name for name in RIVALS if name != "transformers"]
    results = {aim["aim"]: aim["result"] for aim in aims({"cases": [case], "device": "cuda"})}
    assert {result for aim, result in results.items() if aim.startswith("GPU")} == {"not measured here"}
    steps = [make_step(2, 50, torch.float32, CPU, SAMPLED, 0)]
    replayed = replay(steps, [name for name in RIVALS if name in OURS or name in left], left, 0.0, 2)
    show_steps(replayed, LiveTable(STEP_COLUMNS))
    assert "reference" in capsys.readouterr().out


def test_recorded_steps_are_replayed_to_every_method(known) -> None:  # type: ignore[no-untyped-def]
    steps = [make_step(3, 600, torch.float32, CPU, SAMPLED, seed) for seed in range(3)]
    case = replay(steps, RIVALS, known, seconds=0.0, least_rounds=20)
    methods = case["methods"]
    assert case["verdicts_in_which_exact_and_reference_differ"] == 0
    assert methods["exact"]["acceptance_rate"] == methods["reference"]["acceptance_rate"]
    assert methods["sigmoid"]["acceptance_rate"] > 0.95 > methods["exact"]["acceptance_rate"] > 0.2
    assert abs(methods["transformers"]["acceptance_rate"] - methods["exact"]["acceptance_rate"]) < 0.25
    # what drawing left behind for the reference counts: a distribution for each drafted token
    assert methods["reference"]["peak_bytes"] >= 3 * 600 * 4 > 0 < methods["exact"]["peak_bytes"]


def test_needed_bytes_count_every_needed_row_once() -> None:
    step = Step(torch.zeros(2, 10), torch.zeros(3, 10), [1, 2], [0.1, 0.1])
    # rejected at once: a target row and a draft row; all accepted: three target rows
    assert [step.needed_bytes(accepted) for accepted in (0, 1, 2)] == [80, 120, 120]


def distribution_of_two_tokens(target_GV1: torch.Tensor, draft_V: torch.Tensor, kernel) -> torch.Tensor:  # type: ignore[no-untyped-def]
    """The distribution of the first emitted token, with the drafted one drawn from the draft's softmax: many steps."""
    torch.manual_seed(0)
    decide, counts = decider(kernel), Counter[int]()
    drawn = torch.multinomial(draft_V.softmax(-1), 6000, replacement=True)
    for token in drawn.tolist():
        counts[decide(torch.tensor([[token]]), draft_V[None], target_GV1)[0]] += 1
    return torch.tensor([counts[i] / 6000 for i in range(len(draft_V))])


def test_the_published_exact_method_keeps_the_distribution_and_the_sigmoid_one_does_not() -> None:
    target_GV1, draft_V = (
        torch.tensor([[2.0, 0.0, 0.0, -1.0], [0.0, 0.0, 0.0, 0.0]]),
        torch.tensor([0.0, 2.0, 0.0, 0.0]),
    )
    p_V = target_GV1[0].softmax(-1)
    assert (distribution_of_two_tokens(target_GV1, draft_V, softmax_matrices) - p_V).abs().max() < 0.03
    # nearly every drafted token is accepted, so that the distribution is the draft's
    sigmoid_V = distribution_of_two_tokens(target_GV1, draft_V, sigmoid_matrices)
    assert (sigmoid_V - draft_V.softmax(-1)).abs().max() < 0.03 < (sigmoid_V - p_V).abs().max()


def test_the_published_sigmoid_is_the_papers_formula() -> None:
    draft_GV, target_GV1 = 4e3 * torch.randn(2, 5), 4e3 * torch.randn(3, 5)
    tau_GV, a_GV, b_G, last_V = sigmoid_matrices(draft_GV, target_GV1)
    p_GV1, q_GV = (torch.sigmoid((logits + BETA) / (2 * BETA)) for logits in (target_GV1, draft_GV))
    torch.testing.assert_close(tau_GV, torch.minimum(torch.ones(2, 5), p_GV1[:2] / q_GV))
    torch.testing.assert_close(a_GV, (p_GV1[:2] - q_GV).relu())
    torch.testing.assert_close(b_G, (p_GV1[:2] - q_GV).relu().sum(-1))
    torch.testing.assert_close(last_V, p_GV1[2])


def test_stages_of_a_run_are_shares_of_its_cycles() -> None:
    """The verdict is told apart from the target's pass, and the first cycle, which warms up, is not timed."""
    from spec_sdk.bench.answers import Answer, Prompt

    cycle = {"event": "cycle", "draft_s": 1.0, "verify_s": 2.0, "verdict_s": 0.5, "recover_s": 0.5}
    cycle |= {"host_reads": 1, "attention": None}
    cycles = [{**cycle, "step": i, "drafted": 4, "accepted": 1, "tokens": [1, 2]} for i in (1, 2, 3)]
    cycles[0]["draft_s"] = 100.0
    start = {"event": "request_start", "prompt_tokens": 3}
    entry = run_entry([Answer(Prompt("", ""), [1, 2] * 3, [start, *cycles])])
    assert entry["acceptance_rate"] == 0.25 and entry["mean_accepted_tokens"] == 2.0 and entry["cycles"] == 2
    assert entry["share"] == pytest.approx({"draft": 2 / 7, "pass": 3 / 7, "verdict": 1 / 7, "recover": 1 / 7})
