"""Speed-ups are over the same questions, other settings are not compared, and the figures' numbers are right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spec_sdk.bench.records import AnswerRecord
from spec_sdk.bench.totals import tokens_per_second
from spec_sdk.run_report.bench_runs import read_bench_run
from spec_sdk.run_report.finding import read_runs
from spec_sdk.run_report.groups import Group, Series, grouped
from spec_sdk.run_report.inside_figures import (
    acceptance_by_depth,
    hit_rates,
    pass_buckets,
    pass_costs,
    stage_times,
    stages_per_token,
)
from spec_sdk.run_report.speed import compared, divergence
from spec_sdk.run_report.speed_figures import at_a_glance, by_task, overall
from spec_sdk.run_report.tradeoff_figures import against_divergence, batch_speeds, by_batch, pareto
from tests.support.run_records import (
    MACHINE,
    answer_record,
    bench_records,
    candidate_record,
    run_record,
    write_bench,
    write_generate,
)


def answer(prompt: str = "1", new_tokens: int = 10, seconds: float = 1.0, **more: Any) -> AnswerRecord:
    values: dict[str, Any] = {
        "candidate": "a",
        "temperature": 0.0,
        "batch_size": 1,
        "round": 0,
        "task": "qa",
        "turn": 0,
        "seed": 0,
        "prompt_tokens": 5,
        "tokens": [],
        "finish_reason": "length",
    }
    return AnswerRecord(**values | {"prompt": prompt, "new_tokens": new_tokens, "seconds": seconds} | more)


def beside(ours: list[int], theirs: list[int]) -> tuple[AnswerRecord, AnswerRecord]:
    """Two answers with these tokens."""
    return answer(new_tokens=len(ours), tokens=ours), answer(new_tokens=len(theirs), tokens=theirs)


def bench_group(directory: Path, *records: dict[str, Any]) -> Group:
    [group] = grouped([read_bench_run(write_bench(directory, [run_record(), *records]))], "vanilla")
    return group


def named(group: Group, name: str) -> Series:
    return next(series for series in group.series if series.candidate.name == name)


def test_a_speedup_is_over_questions_that_both_answered(tmp_path: Path) -> None:
    group = bench_group(
        tmp_path,
        candidate_record("vanilla"),
        answer_record("vanilla", 0, seconds=4.0),
        answer_record("vanilla", 1, seconds=2.0),
        candidate_record("suffix"),
        answer_record("suffix", 0, seconds=1.0),
        # neither of these has one beside it
        answer_record("suffix", 2, seconds=0.001),
        answer_record("suffix", 1, temperature=1.0, seconds=0.001),
    )
    comparison = compared(group, named(group, "suffix"), 0.0)
    assert comparison is not None and len(comparison.pairs) == 1
    assert comparison.speedup == pytest.approx(4.0)
    assert compared(group, named(group, "vanilla"), 0.0) is None


def test_all_answers_count_by_their_seconds_not_each_the_same(tmp_path: Path) -> None:
    group = bench_group(
        tmp_path,
        candidate_record("vanilla"),
        *(answer_record("vanilla", i, seconds=s) for i, s in enumerate((8.0, 2.0))),
        candidate_record("suffix"),
        *(answer_record("suffix", i, seconds=s) for i, s in enumerate((2.0, 2.0))),
    )
    comparison = compared(group, named(group, "suffix"), 0.0)
    assert comparison is not None
    assert comparison.speedup == pytest.approx(2.5)
    assert comparison.each == pytest.approx([1.0, 4.0])
    [figure] = overall(group, 0.0)
    assert figure.table.rows == [["suffix", "2.50×", "1.00×", "4.00×", "2", "vanilla"]]


@pytest.mark.parametrize(
    "other",
    [
        {"dtype": "float32"},
        {"target": "another"},
        {"weights": "int8"},
        {"machine": {**MACHINE, "threads": 1}},
        {"machine": {**MACHINE, "torch": "2.14"}},
        {"spec_sdk": "0.2.0"},
    ],
)
def test_other_settings_are_another_group(tmp_path: Path, other: dict[str, Any]) -> None:
    ours = write_bench(tmp_path / "a", bench_records(["suffix"]))
    theirs = write_bench(tmp_path / "b", bench_records(["vanilla"], **other))
    runs, _ = read_runs([str(ours), str(theirs)])
    groups = grouped(runs, "vanilla")
    assert len(groups) == 2
    assert groups[0].baseline_of(groups[0].series[0]) is None
    assert overall(groups[0], 0.0) == []


def test_a_baseline_of_another_run_counts_where_the_same_was_asked(tmp_path: Path) -> None:
    write_bench(tmp_path / "a", bench_records(["suffix"]))
    write_bench(tmp_path / "b", bench_records(["vanilla"]))
    write_bench(tmp_path / "c", bench_records(["vanilla"], new_tokens=512))

    def baseline(*names: str) -> Series | None:
        [group] = grouped(read_runs([str(tmp_path / name) for name in names])[0], "vanilla")
        return group.baseline_of(named(group, "suffix"))

    found = baseline("a", "c", "b")
    assert found is not None and found.number == 3
    assert baseline("a", "c") is None


def test_two_candidates_of_one_name_are_told_apart(tmp_path: Path) -> None:
    write_bench(tmp_path / "a", bench_records(["vanilla"]))
    write_bench(tmp_path / "b", bench_records(["vanilla"]))
    [group] = grouped(read_runs([str(tmp_path / "a"), str(tmp_path / "b")])[0], "vanilla")
    assert [series.label for series in group.series] == ["vanilla (run 1)", "vanilla (run 2)"]


def test_a_generate_run_is_named_with_what_was_changed(tmp_path: Path) -> None:
    write_generate(tmp_path, "pipeline=suffix", "drafter.min_probability=0.2")
    [group] = grouped(read_runs([str(tmp_path)])[0], "vanilla")
    assert [series.label for series in group.series] == ["suffix, drafter.min_probability=0.2", "vanilla"]


def test_what_all_runs_of_a_pipeline_have_changed_is_not_in_their_names(tmp_path: Path) -> None:
    names = []
    for value in ("0.1", "0.2"):
        changed = ("pipeline=alspec", "predictor.size=16", f"attention_verifier.threshold={value}")
        names.append(str(write_generate(tmp_path / value, *changed, compare=False)))
    [group] = grouped(read_runs(names)[0], "vanilla")
    assert [series.label for series in group.series] == ["alspec", "alspec, attention_verifier.threshold=0.2"]


def test_stages_are_milliseconds_by_token() -> None:
    one = answer(new_tokens=10, seconds=1.0, prefill_s=0.1, stage_s={"draft": 0.2, "verify": 0.5, "recover": 0.1})
    stages = stages_per_token([one, one])
    assert stages == pytest.approx({"prefill": 10.0, "draft": 20.0, "verify": 50.0, "recover": 10.0, "other": 10.0})
    assert stages_per_token([one, answer()]) is None
    assert stages_per_token([]) is None


def test_depths_are_summed(tmp_path: Path) -> None:
    group = bench_group(
        tmp_path,
        candidate_record("suffix"),
        answer_record("suffix", 0, depths=[[10, 6], [10, 2]]),
        answer_record("suffix", 1, depths=[[10, 2]]),
        answer_record("suffix", 0, depths=[[100, 90]], batch_size=2),
    )
    [figure] = acceptance_by_depth(group, 0.0)
    assert figure.table.rows == [["suffix", "1", "20", "8", "40.0 %"], ["suffix", "2", "10", "2", "20.0 %"]]


def test_passes_fall_into_buckets_of_powers_of_two() -> None:
    passes = {1: (2, 0.2), 3: (1, 0.1), 4: (3, 0.5), 9: (1, 1.0)}
    found = [(low, high, cycles, nodes) for low, high, cycles, _, nodes in pass_buckets([answer(passes=passes)])]
    assert found == [(1, 1, 2, 2), (3, 4, 4, 15), (9, 16, 1, 9)]


def test_hit_rates_by_layer_and_threshold(tmp_path: Path) -> None:
    def hits(threshold: float, *pairs: list[int]) -> dict[str, Any]:
        return {"attention": {"hits": list(pairs), "threshold": threshold, "mean_error": None}}

    group = bench_group(
        tmp_path,
        candidate_record("alspec λ=0.1"),
        answer_record("alspec λ=0.1", 0, **hits(0.1, [0, 0], [1, 4])),
        answer_record("alspec λ=0.1", 1, **hits(0.1, [0, 0], [3, 4])),
        candidate_record("alspec λ=0.05"),
        answer_record("alspec λ=0.05", 0, **hits(0.05, [0, 0], [1, 4])),
    )
    [figure] = hit_rates(group, 0.0)
    assert figure.table.columns == ["layer", "λ 0.05", "λ 0.1"]
    assert figure.table.rows == [["all", "25.0 %", "50.0 %"], ["0", "–", "–"], ["1", "25.0 %", "50.0 %"]]


def test_throughput_by_batch(tmp_path: Path) -> None:
    [group] = grouped([read_bench_run(write_bench(tmp_path))], "vanilla")
    series = named(group, "suffix")
    speeds = batch_speeds(series, 0.0)
    assert [*speeds] == [1, 2, 4, 8]
    assert speeds[1] == tokens_per_second(series.answers(0.0, 1))
    assert speeds[8] == pytest.approx(40 * 1.35 * 8**0.6)
    [figure] = by_batch(group, 0.0)
    assert ["suffix", "8", "188.0", "1.35×"] in figure.table.rows
    assert by_batch(group, 1.0) == []


def test_divergence_is_the_share_after_the_first_difference() -> None:
    assert divergence([beside([1, 2, 3, 4], [1, 2, 9, 4])]) == (0.5, 1, 1)
    assert divergence([beside([1, 2], [1, 2, 3, 4]), beside([1, 2], [1, 2])]) == (0.25, 1, 2)
    assert divergence([(answer(), beside([1], [1])[1])]) is None


def test_the_pareto_front() -> None:
    assert pareto([(0, 1.5), (10, 2.0), (10, 1.9), (20, 2.0), (30, 2.5), (0, 1.0)]) == [(0, 1.5), (10, 2.0), (30, 2.5)]


def test_divergence_is_shown_of_relaxed_pipelines_alone(tmp_path: Path) -> None:
    [group] = grouped([read_bench_run(write_bench(tmp_path / "a"))], "vanilla")
    [figure] = against_divergence(group, 0.0)
    assert {row[0] for row in figure.table.rows if row[1] == "relaxed"} == {f"alspec λ={x}" for x in (0.05, 0.1, 0.2)}
    # what is slower than plain decoding and diverges is on no front
    assert figure.table.rows[0][:4] == ["vanilla", "–", "1.00×", "0.0 %"]
    for _, _, speedup, _, _, on_front in figure.table.rows[1:]:
        assert on_front == "no" or float(speedup.rstrip("×")) >= 1
    assert against_divergence(group, 1.0) == []
    [exact] = grouped([read_bench_run(write_bench(tmp_path / "b", bench_records(["vanilla", "suffix"])))], "vanilla")
    assert against_divergence(exact, 0.0) == []


def test_every_number_comes_with_its_machine_dtype_run_and_baseline(tmp_path: Path) -> None:
    [group] = grouped([read_bench_run(write_bench(tmp_path))], "vanilla")
    against_baseline = (at_a_glance, overall, by_task, by_batch, against_divergence)
    for make in (*against_baseline, stage_times, acceptance_by_depth, pass_costs, hit_rates):
        [figure] = make(group, 0.0)
        assert "run 1: SmolLM2-135M-Instruct, bfloat16, on AMD EPYC, 2 threads, native kernels" in figure.basis
        assert ("baseline: vanilla of run 1" in figure.basis) == (make in against_baseline)


def test_ties_are_told(tmp_path: Path) -> None:
    [group] = grouped([read_bench_run(write_bench(tmp_path))], "vanilla")
    [figure] = at_a_glance(group, 0.0)
    cells = {row[0]: dict(zip(figure.table.columns, row, strict=True)) for row in figure.table.rows}
    assert cells["alspec λ=0.1"]["differ"] == "1 of 1 (1 tie)"
    assert cells["suffix"]["differ"] == "0 of 12"
    assert cells["vanilla"]["speed-up"] == "1 (baseline)"
    assert cells["llama.cpp"]["MAT"] == "–"
