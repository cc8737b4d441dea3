"""Figures and tables of made-up records."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from spec_sdk.accuracy.accuracy_directory import as_markdown, remarks
from spec_sdk.accuracy.figures import SamplerFigures, figures_of, over_seeds
from spec_sdk.accuracy.records import AccuracyRun, read_accuracy
from spec_sdk.accuracy.tables import own_tables, paper_tables
from spec_sdk.bench.figures import all_figures
from spec_sdk.bench.reading import read_bench
from tests.bench.answers import answer
from tests.support.run_records import MACHINE, write_lines

SAMPLERS: list[dict[str, Any]] = [
    {"candidate": "reference", "sampler": "reference", "baseline": "reference"},
    {"candidate": "exact", "sampler": "exact", "baseline": "reference"},
    {"candidate": "sigmoid ±1000", "sampler": "sigmoid", "baseline": "reference", "alpha": -1e3, "beta": 1e3},
    {"candidate": "sigmoid ±10", "sampler": "sigmoid", "baseline": "reference", "alpha": -10.0, "beta": 10.0},
]
SCORES = {"reference": (0.4, 0.6), "exact": (0.4, 0.6), "sigmoid ±1000": (0.3, 0.2), "sigmoid ±10": (0.1, 0.1)}
"""Candidate → what its answers score under the first seed, and under the second."""
SECONDS = {"reference": 4.0, "exact": 3.0, "sigmoid ±1000": 1.0, "sigmoid ±10": 5.0}


def head(samplers: list[dict[str, Any]], compare: bool = False, **more: Any) -> dict[str, Any]:
    names = [*(["vanilla"] if compare else []), *(each["candidate"] for each in samplers)]
    return {
        "record": "run",
        "schema_version": 1,
        "spec_sdk": "0.1.0",
        "machine": MACHINE,
        "target": "T",
        "dtype": "float32",
        "weights": "auto",
        "prompts": {"file": "mine.jsonl", "count": 2, "sha256": ""},
        "new_tokens": 4,
        "rounds": 2,
        "temperatures": [1.0],
        "batch_sizes": [1],
        "sampling": {"top_k": 40, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0, "seed": 0},
        "candidates": dict.fromkeys(names, "pipeline"),
        "pipeline": ["sd_chain"],
        "cue": "Summary:",
        "samplers": samplers,
        "metrics": ["rouge1", "wer"],
        **more,
    }


def scored(name: str, prompt: str, seed: int, **more: Any) -> dict[str, Any]:
    """An answer of 4 tokens in 2 steps: half of a sampler's seconds are in the first, which takes thrice the second."""
    seconds = SECONDS.get(name, 2.0) / 4
    about = {
        "temperature": 1.0,
        "round": seed,
        "steps": 2,
        "drafted": 4,
        "accepted": 2,
        "decode_s": 10.0 * seconds,
        "verdict_s": seconds,
        "verdict_s2": (0.75 * seconds) ** 2 + (0.25 * seconds) ** 2,
    }
    record = answer(name, prompt, 4, 1.0, **about)
    score = SCORES.get(name, (0.5, 0.5))[seed]
    # of four words of the first prompt, and of twelve of the second
    words = 4.0 if prompt == "a" else 12.0
    return record | {"text": "…", "scores": {"rouge1": [score, 1.0], "wer": [2.0, words]}} | more


def write_run(
    place: Path, samplers: list[dict[str, Any]] | None = None, answers: list[dict[str, Any]] | None = None, **more: Any
) -> AccuracyRun:
    first = head(SAMPLERS if samplers is None else samplers, **more)
    names = list(first["candidates"])
    candidates = [
        {"record": "candidate", "candidate": name, "kind": "pipeline", "draft": None if name == "vanilla" else "D"}
        for name in names
    ]
    if answers is None:
        answers = [scored(name, prompt, seed) for seed in (0, 1) for prompt in ("a", "b") for name in names]
    write_lines(place / "bench.jsonl", [first, *candidates, *answers])
    return read_accuracy(place)


def by_name(run: AccuracyRun) -> dict[str, SamplerFigures]:
    return {each.choice.candidate: each for each in figures_of(run)}


def test_scores_and_changes_over_seeds(tmp_path: Path) -> None:
    found = by_name(write_run(tmp_path))
    assert list(found) == [each["candidate"] for each in SAMPLERS]
    rouge = found["sigmoid ±1000"].scores["rouge1"]
    assert rouge.mean == pytest.approx(0.25) and rouge.deviation == statistics.stdev([0.3, 0.2]) and rouge.count == 2
    change = found["sigmoid ±1000"].changes["rouge1"]
    # under the same seeds: the mean of -0.1 and -0.4, which lie further apart than the scores do
    assert change.mean == pytest.approx(-0.25) and change.deviation == pytest.approx(statistics.stdev([-0.1, -0.4]))
    assert found["exact"].changes["rouge1"].mean == 0 == found["exact"].changes["rouge1"].deviation
    # all errors by all words of a seed
    assert found["exact"].scores["wer"].mean == pytest.approx(4 / 16)


def test_time_in_sampling(tmp_path: Path) -> None:
    found = by_name(write_run(tmp_path))
    assert found["sigmoid ±1000"].sampling_s == pytest.approx(1.0)
    saved = {name: each.sampling_saved.mean for name, each in found.items() if each.sampling_saved is not None}
    assert saved == {"reference": 0, "exact": 0.25, "sigmoid ±1000": 0.75, "sigmoid ±10": -0.25}
    decode = found["sigmoid ±1000"].decode_saved
    assert decode is not None and decode.mean == 0.75 and decode.deviation == 0
    # four answers of two steps each: 0.75 and 0.25 of an answer's seconds
    assert found["reference"].step_s is not None
    assert list(found["reference"].step_s) == pytest.approx([0.5, 0.25])


def test_time_saved_is_of_each_seed(tmp_path: Path) -> None:
    answers = [
        scored(name, "a", seed, verdict_s=seconds)
        for name, both in {"reference": (1.0, 4.0), "exact": (0.5, 1.0)}.items()
        for seed, seconds in enumerate(both)
    ]
    saved = by_name(write_run(tmp_path, SAMPLERS[:2], answers))["exact"].sampling_saved
    assert saved is not None
    assert saved.mean == pytest.approx((0.5 + 0.75) / 2) and saved.deviation == pytest.approx(
        statistics.stdev([0.5, 0.75])
    )


def test_what_one_sampler_did_not_answer_counts_for_none(tmp_path: Path) -> None:
    answers = [scored(name, prompt, seed) for seed in (0, 1) for prompt in ("a", "b") for name in SCORES]
    kept = [a for a in answers if (a["candidate"], a["prompt"], a["round"]) != ("sigmoid ±10", "b", 1)]
    found = by_name(write_run(tmp_path, answers=kept))
    assert {each.answers for each in found.values()} == {3}
    assert found["exact"].scores["wer"].mean == pytest.approx((4 / 16 + 2 / 4) / 2)


def test_one_seed_has_no_deviation(tmp_path: Path) -> None:
    answers = [scored(name, "a", 0) for name in ("reference", "exact")]
    found = by_name(write_run(tmp_path, SAMPLERS[:2], answers, rounds=1))
    assert found["exact"].scores["rouge1"].deviation is None
    table = own_tables(read_accuracy(tmp_path))[0]
    assert table.rows == [["reference", "0.400", "0.500"], ["exact", "0.400", "0.500"]] and "seeds" not in table.title
    assert over_seeds([None]) is None


def test_equal_answers_are_counted_token_by_token(tmp_path: Path) -> None:
    answers = [
        scored(name, prompt, seed) for seed in (0, 1) for prompt in ("a", "b") for name in ("reference", "exact")
    ]
    answers[1] |= {"tokens": [0, 1, 9, 3]}
    found = by_name(write_run(tmp_path, SAMPLERS[:2], answers))["exact"]
    assert (found.equal, found.compared) == (3, 4)
    assert found.common_tokens == (2 + 4 + 4 + 4) / 4 and found.mean_tokens == 4
    [row] = [row for row in own_tables(read_accuracy(tmp_path))[-1].rows if row[0] == "exact"]
    assert row[-1] == "3 of 4"


def test_plain_decoding_is_scored_and_nothing_else(tmp_path: Path) -> None:
    run = write_run(tmp_path, SAMPLERS[:2], compare=True)
    found = by_name(run)
    assert list(found) == ["vanilla", "reference", "exact"]
    assert found["vanilla"].changes["rouge1"].mean == pytest.approx(0)
    assert found["vanilla"].compared == 0 and found["vanilla"].sampling_saved is None
    accuracy, _, sampling = own_tables(run)
    assert [row[0] for row in accuracy.rows] == list(found)
    assert [row[0] for row in sampling.rows] == ["reference", "exact"]
    assert not any("vanilla" in cell for table in paper_tables(run) for line in table.rows for cell in line)


def test_the_papers_tables(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    one, five, six, two = paper_tables(run)
    assert [t.title.partition("layout of the paper's ")[2] for t in (one, five, six, two)] == [
        "Table 1)",
        "Table 5)",
        "Table 6)",
        "Tables 2 and 7)",
    ]
    assert one.columns[:7] == ["Dataset", "Target", "Draft", "Metric", "reference", "exact", "sigmoid ±1000"]
    assert one.rows[0] == [
        *("mine.jsonl", "T", "D", "ROUGE-1 (↑)"),
        *("0.500 ± 0.141", "0.500 ± 0.141", "0.250 ± 0.071"),
        *("25.0 % ± 0.0", "75.0 % ± 0.0"),
    ]
    assert one.rows[1][3] == "WER (↓)"
    assert six.rows == [
        ["mine.jsonl", "T", "D", "500.000 ± 250.000", "375.000 ± 187.500", "125.000 ± 62.500", "25.0 %", "75.0 %"]
    ]
    # by the scale, whatever the order in which scales were asked for
    assert [(row[1], row[-1]) for row in two.rows] == [
        ("Baseline", "–"),
        ("-10 10", "-25.0 % ± 0.0"),
        ("-1000 1000", "75.0 % ± 0.0"),
    ]
    assert five.rows == [["mine.jsonl", "T", "D", "25.0 % ± 0.0", "75.0 % ± 0.0"]]


def test_the_papers_table_of_depths(tmp_path: Path) -> None:
    samplers: list[dict[str, Any]] = [
        {"candidate": f"{name} γ={depth}", "sampler": name, "baseline": f"reference γ={depth}", "depth": depth}
        for depth in (3, 15)
        for name in ("reference", "exact")
    ]
    answers = [
        scored(each["candidate"], "a", 0, drafted=4 * each["depth"], accepted=6, verdict_s=0.002, verdict_s2=2e-6)
        for each in samplers
    ]
    run = write_run(tmp_path, samplers, answers, rounds=1)
    assert by_name(run)["exact γ=15"].choice.baseline == "reference γ=15"
    tables = paper_tables(run)
    assert [t.title.rpartition(", ")[2] for t in tables[:-1]] == ["γ = 3"] * 3 + ["γ = 15"] * 3
    eight = tables[-1]
    assert eight.columns == [
        "Method",
        "accepted, γ = 3",
        "accepted, γ = 15",
        "ms per step, γ = 3",
        "ms per step, γ = 15",
    ]
    assert eight.rows == [
        [name, "50.0 %", "10.0 %", "1.000 ± 0.000", "1.000 ± 0.000"] for name in ("reference", "exact")
    ]


def test_markdown_has_all_tables_and_what_they_are_of(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    text = as_markdown(run)
    for table in [*own_tables(run), *paper_tables(run)]:
        assert f"### {table.title}\n" in text
        widths = {line.count("|") for line in table.as_markdown().splitlines() if line.startswith("|")}
        assert len(widths) == 1
    assert "'Summary:' below each" in text and "temperature 1, top_k 40, 2 seeds" in text


def test_a_sigmoid_that_changes_nothing_is_remarked(tmp_path: Path) -> None:
    lines = remarks(write_run(tmp_path / "all equal"))
    assert len(lines) == 2 and lines[0].startswith("sigmoid ±1000: every answer is reference's.")
    answers = [scored(name, "a", 0) for name in SCORES]
    answers[2] |= {"tokens": [9]}
    [line] = remarks(write_run(tmp_path / "one differs", answers=answers))
    assert line.startswith("sigmoid ±10:")


def test_the_records_are_a_benchmarks(tmp_path: Path) -> None:
    """What reads those of task=bench, such as task=report, reads them too."""
    write_run(tmp_path)
    figures = {each.candidate: each for each in all_figures(read_bench(tmp_path))}
    assert figures["exact"].acceptance_rate == 0.5 and figures["exact"].speedup is None
    first = json.loads((tmp_path / "bench.jsonl").read_text().splitlines()[0])
    assert first["samplers"] == SAMPLERS
