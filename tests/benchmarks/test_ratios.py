"""Ratios, their noise, and what counts as a change: by hand."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.support.kept_ratios import MOST_KEPT, KeptRatios, MachineClass, other_classes
from benchmarks.support.ratios import BLOCKS, LEAST_CHANGE, Compared, KeptRatio, Ratio, compare, last_kept
from spec_sdk.bench.machine import machine_facts
from spec_sdk.errors import UserError

HERE = MachineClass("EPYC, 2 threads", 2, "2.13.0", "bfloat16")


def kept(*runs: tuple[float, float, str]) -> list[KeptRatio]:
    """From value, noise and commit."""
    return [KeptRatio(Ratio(value, noise, 8), commit, "2026-11-22T00:00:00") for value, noise, commit in runs]


def verdict(now: Ratio, runs: list[KeptRatio]) -> Compared:
    (found,) = compare({"a: b": now}, {"a: b": runs})
    return found


def test_prompts_may_differ_from_one_another_and_repeats_are_noise() -> None:
    steady = Ratio.of([[2.0, 2.0], [0.5, 0.5]])
    assert steady.value == pytest.approx(1.0) and (steady.noise, steady.samples) == (0.0, 4)
    d = math.log(1.1)
    noisy = Ratio.of([[2.2, 2 / 1.1], [0.55, 0.5 / 1.1]])
    # variance of a sample 4 d² / 2; of a group's mean half of it; of the mean of two groups' means half of that
    assert noisy.value == pytest.approx(1.0) and noisy.noise == pytest.approx(math.sqrt(2 * d * d / 2 / 2))


def test_noise_is_the_scatter_of_the_mean() -> None:
    generator = random.Random(0)
    found = [Ratio.of([[2 * math.exp(generator.gauss(0, 0.1)) for _ in range(8)]]) for _ in range(400)]
    spread = math.sqrt(sum((math.log(one.value / 2)) ** 2 for one in found) / len(found))
    claimed = math.sqrt(sum(one.noise**2 for one in found) / len(found))
    assert claimed == pytest.approx(0.1 / math.sqrt(8), rel=0.1) and spread == pytest.approx(claimed, rel=0.15)


@pytest.mark.parametrize("groups", [[], [[1.0]], [[1.0], [2.0]], [[1.0, 0.0]], [[1.0, math.inf]]])
def test_what_says_nothing_of_noise_is_refused(groups: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="repeats|above 0"):
        Ratio.of(groups)


def test_times_count_by_blocks_of_rounds() -> None:
    """One slow call moves no median, and a machine that turns slow in the middle slows both sides."""
    slower = [2.0] * 30 + [4.0] * 30
    faster = [1.0] * 30 + [2.0] * 30
    slower[3] = 100.0
    assert Ratio.of_times(slower, faster) == Ratio(2.0, 0.0, BLOCKS)
    with pytest.raises(ValueError):
        Ratio.of_times([1.0], [1.0])


def test_within_noise_and_beyond_it() -> None:
    runs = kept((2.0, 0.03, "a"))
    # three standard errors of the difference: 3 * 0.05
    noise = math.expm1(0.15)
    found = verdict(Ratio(2.0 * 1.14, 0.04, 8), runs)
    assert found.verdict == "within noise" and found.change == pytest.approx(0.14)
    assert found.noise == pytest.approx(noise) and found.kept == runs[0].ratio
    assert verdict(Ratio(2.0 * 1.17, 0.04, 8), runs).verdict == "faster"
    assert verdict(Ratio(2.0 / 1.17, 0.04, 8), runs).verdict == "slower"
    assert verdict(Ratio(2.0 / 1.14, 0.04, 8), runs).verdict == "within noise"


def test_a_small_change_is_none_however_steady() -> None:
    runs = kept((1.0, 0.0, "a"))
    assert verdict(Ratio(1 + LEAST_CHANGE - 0.001, 0.0, 8), runs).verdict == "within noise"
    assert verdict(Ratio(1 + LEAST_CHANGE + 0.001, 0.0, 8), runs).verdict == "faster"


def test_runs_that_differ_from_one_another_are_noise() -> None:
    """Runs of one commit tell more than the repeats within a run do."""
    once, again = kept((1.0, 0.001, "a")), kept((1.0, 0.001, "a"), (1.2, 0.001, "a"))
    now = Ratio(1.3, 0.001, 8)
    assert verdict(now, once).verdict == "faster"
    found = verdict(now, again)
    assert found.verdict == "within noise" and found.kept is not None
    assert found.kept.value == pytest.approx(math.sqrt(1.2))
    deviation = math.log(1.2) / math.sqrt(2)
    assert found.noise == pytest.approx(math.expm1(3 * deviation * math.sqrt(1.5)))


def test_only_the_last_commit_counts() -> None:
    runs = kept((5.0, 0.2, "old"), (9.0, 0.2, "old"), (1.0, 0.01, "new"))
    assert last_kept(runs) == (runs[-1].ratio, 0.0)
    assert verdict(Ratio(1.01, 0.01, 8), runs).verdict == "within noise"


def test_new_and_gone() -> None:
    now = {"a: new": Ratio(1.0, 0.0, 4), "a: same": Ratio(1.0, 0.0, 4)}
    found = compare(now, {"a: same": kept((1.0, 0.0, "x")), "a: gone": kept((2.0, 0.0, "x"))})
    assert [(one.name, one.verdict) for one in found] == [
        ("a: new", "new"),
        ("a: same", "within noise"),
        ("a: gone", "gone"),
    ]
    assert found[0].change is None and found[2].now is None and found[2].kept == Ratio(2.0, 0.0, 8)


def test_what_is_kept_comes_back(tmp_path: Path) -> None:
    ratios = KeptRatios.read(tmp_path / "quick", HERE)
    assert ratios.runs == {}
    for run in range(MOST_KEPT + 2):
        ratios.keep({"a: b": Ratio(1.0 + run, 0.01, 8)}, "abc", "2026-11-22T00:00:00")
    ratios.keep({"c: d": Ratio(0.5, 0.0, 2)}, "abc", "2026-11-22T00:00:00")
    path = ratios.write(tmp_path / "quick")
    assert path.name == "epyc-2-threads-2-cores-torch-2-13-0-bfloat16.json"
    back = KeptRatios.read(tmp_path / "quick", HERE)
    assert back == ratios and [run.ratio.value for run in back.runs["a: b"]] == [3.0, 4.0, 5.0, 6.0, 7.0]
    assert list(back.of_parts(["c"])) == ["c: d"]
    back.forget(["a: b"])
    assert list(back.runs) == ["c: d"]


def test_another_machine_has_its_own(tmp_path: Path) -> None:
    ratios = KeptRatios(HERE)
    ratios.keep({"a: b": Ratio(1.0, 0.01, 8)}, "abc", "now")
    ratios.write(tmp_path)
    for other in (
        replace(HERE, machine="EPYC, 1 threads"),
        replace(HERE, cores=4),
        replace(HERE, torch="2.14.0"),
        replace(HERE, dtype="float32"),
    ):
        assert KeptRatios.read(tmp_path, other).runs == {}
        assert other_classes(tmp_path, other) == [HERE.file(tmp_path).stem]
    assert other_classes(tmp_path, HERE) == []


def test_a_machines_class_is_of_its_facts() -> None:
    facts = machine_facts("EPYC, 2 threads")
    assert MachineClass.of(facts, "float32") == MachineClass(
        "EPYC, 2 threads", facts["cores"], facts["torch"], "float32"
    )


@pytest.mark.parametrize(
    "text",
    [
        "[",
        "{}",
        '{"schema_version": 2, "machine": {}, "ratios": {}}',
        '{"schema_version": 1, "machine": MACHINE, "ratios": {"a: b": [{"ratio": 1}]}}',
        '{"schema_version": 1, "machine": MACHINE, "ratios": {"a: b": [{"ratio": -1, "noise": 0, "samples": 1,'
        ' "commit": "", "measured": ""}]}}',
    ],
)
def test_a_broken_file_is_refused_in_a_line(tmp_path: Path, text: str) -> None:
    machine = json.dumps({"machine": HERE.machine, "cores": 2, "torch": "2.13.0", "dtype": "bfloat16"})
    HERE.file(tmp_path).write_text(text.replace("MACHINE", machine))
    with pytest.raises(UserError, match=r"epyc-2-threads.*\.json: ") as refused:
        KeptRatios.read(tmp_path, HERE)
    assert "\n" not in str(refused.value)
