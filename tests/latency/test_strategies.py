"""Ways to use devices, from tables that are made up so that every time can be worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spec_sdk.latency.estimate import Question
from spec_sdk.latency.strategies import Comparison, compare
from spec_sdk.latency.strategy_plot import strategies_svg
from spec_sdk.latency.table import load_table, parse_table
from tests.cli.conftest import cli, own_directory

__all__ = ["cli", "own_directory"]

TABLE = """
layers: 10
unit: us
tensor_parallel:
  1:
    fixed: 50
    per_layer: 20
    flash_decode: {1000: 10, 2000: 20, 4000: 40, 8000: 80}
    speculative_receiver: 5
    link: 3
  2:
    fixed: 40
    per_layer: 16
    flash_decode: {1000: 6, 2000: 12, 4000: 24, 8000: 48}
"""


def compared(text: str = TABLE, **asked: Any) -> list[Comparison]:
    return compare(parse_table(text, "made", "made.yaml"), Question(**{"hit_rates": [0.5], **asked}))


def times_of(comparison: Comparison) -> dict[str, list[float | None]]:
    return {each.label: [each.token_us(context) for context in comparison.contexts] for each in comparison.strategies}


def test_every_way_of_two_devices() -> None:
    [two, four] = compared(contexts=[2000, 4000])
    assert (two.devices, four.devices) == (2, 4)
    assert times_of(two) == {
        "tensor parallel, TP 2": [40 + 10 * (16 + 12), 40 + 10 * (16 + 24)],
        "data parallel, 2 x TP 1": [50 + 10 * (20 + 20), 50 + 10 * (20 + 40)],
        # half of the keys on either device, the weights divided over both
        "sequence parallel, 2 x TP 1": [40 + 10 * (16 + 10 + 3), 40 + 10 * (16 + 20 + 3)],
        "attention sink, 2 x TP 1": [50 + 10 * (8 + 20), 50 + 10 * (8 + 20)],
        # a hit takes max(a, p + f), a miss a + f
        "ALSpec @50%, 2 x TP 1": [50 + 5 * 28 + 5 * 40, 50 + 5 * 40 + 5 * 60],
        "ALSpec @50%, pipelined, 2 x TP 1": [pytest.approx(390), two.strategies[-1].token_us(4000)],
    }
    # where attention is the slower part, going on before the verdict gains
    pipelined = two.strategies[-1].token_us(4000)
    assert pipelined is not None and 50 + 5 * 28 + 5 * 60 < pipelined < 50 + 5 * 40 + 5 * 60
    assert [each.streams for each in two.strategies] == [1, 2, 1, 2, 1, 1]
    assert [two.strategies[-1].scenario(context) for context in (2000, 4000)] == [3, 2]  # type: ignore[misc]


def test_more_groups_than_two_have_no_schedule_that_is_built() -> None:
    four = compared(devices=[4], contexts=[8000])[0]
    kinds = [(each.kind, each.groups, each.degree) for each in four.strategies]
    assert ("ALSpec, pipelined", 4, 1) in kinds and ("ALSpec", 4, 1) not in kinds
    assert ("ALSpec", 2, 2) in kinds
    [times] = compared(devices=[2], contexts=[8000])
    of_two = times_of(times)["ALSpec @50%, pipelined, 2 x TP 1"][0]
    of_four = times_of(four)["ALSpec @50%, pipelined, 4 x TP 1"][0]
    assert of_two is not None and of_four is not None and of_four < of_two


def test_crossovers_are_found_to_the_token() -> None:
    """Also two between the same contexts: up to 2,800 tokens the rest of a layer bounds a hit, then attention does."""
    [two] = compared(devices=[2], contexts=[1000, 2000, 4000, 8000], hit_rates=[0.9])
    alspec, plain = "ALSpec @90%, 2 x TP 1", "tensor parallel, TP 2"
    found = [(c.faster, c.context) for c in two.crossovers if {c.faster, c.slower} == {alspec, plain}]
    # 50 + 9·28 + (20 + K/100) = 200 + 6·K/100, and 50 + 9·K/100 + (20 + K/100) = 200 + 6·K/100
    assert [faster for faster, _ in found] == [alspec, plain]
    assert [context for _, context in found] == pytest.approx([2440, 3250], abs=1)
    assert not any("sink" in c.faster + c.slower for c in two.crossovers)


def test_what_a_table_does_not_cover_is_left_open() -> None:
    [two] = compared(devices=[2], contexts=[1000])
    assert times_of(two)["sequence parallel, 2 x TP 1"] == [None]
    assert two.as_json()["strategies"][2]["tokens_per_second"] == [None]
    assert two.crossovers == []


def test_the_paper_s_h100() -> None:
    [eight] = compare(load_table("h100"), Question(hit_rates=[0.65]))
    speeds = {each["label"]: each["tokens_per_second"] for each in eight.as_json()["strategies"]}
    assert speeds["tensor parallel, TP 8"] == pytest.approx([249.3, 231.3, 209.7, 194.2, 184.8])
    assert speeds["data parallel, 2 x TP 4"] == pytest.approx([2 * v for v in (244.6, 214.2, 191.4, 178.2, 169.3)])
    assert speeds["ALSpec @65%, 2 x TP 4"] == pytest.approx([262.0, 246.0, 237.8, 224.9, 217.5], abs=0.1)
    # attention is the faster part at every context: Scenario 3
    assert {number for each in eight.as_json()["strategies"] for number in each["scenario"] or []} == {3}


def test_the_plot_is_the_same_every_time_and_names_all() -> None:
    pytest.importorskip("matplotlib")
    found = compared(devices=[2], hit_rates=[1.0])
    drawn = strategies_svg(found, "made up")
    assert drawn == strategies_svg(found, "made up")
    assert drawn.startswith("<?xml") and "pipelined" in drawn


def test_the_task_prints_and_keeps_them(cli: Callable[..., Any], own_directory: Path) -> None:
    Path("made.yaml").write_text(TABLE)
    asked = ("task=estimate", "task.latencies=made.yaml", "task.devices=2")
    result = cli(*asked, "task.strategies=true", "output_dir=out")
    assert result.status == 0, result.err
    assert "data parallel, 2 x TP 1" in result.out and "scenario with 2 groups of 1: 1000: 3" in result.out
    [found] = json.loads((own_directory / "out" / "estimate.json").read_text())["strategies"]
    assert found["devices"] == 2 and len(found["strategies"]) == 6
    said = [line for line in result.out.splitlines() if line.startswith("from a context of")]
    assert len(said) == len(found["crossovers"])
    plain = cli(*asked, "output_dir=plain")
    assert "data parallel" not in plain.out
    assert "strategies" not in json.loads((own_directory / "plain" / "estimate.json").read_text())
