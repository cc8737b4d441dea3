"""``task=estimate`` on shipped tables, and measuring a tiny model."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from spec_sdk.latency import measuring
from spec_sdk.latency.estimate import Question, estimate
from spec_sdk.latency.table import load_table
from spec_sdk.model.quantized_kv_cache import QuantizedKVCache
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.tasks import estimate as task
from tests.support.tiny_checkpoints import write_checkpoint


def test_table_3_is_printed_as_in_the_paper(cli: Callable[..., Any], own_directory: Path) -> None:
    result = cli("task=estimate", "output_dir=out")
    assert result.status == 0
    lines = [line.split("  ") for line in result.out.splitlines()]
    first = {line[0]: [cell.strip() for cell in line[1:] if cell.strip()][0] for line in lines if len(line) > 2}
    assert [*first.values()] == ["1K", "13", "95", "244.6", "249.3", "1.9 %", "261.9", "7.1 %", "0.0 %", "18.5 %"]
    assert [label for label in first if label.startswith("beats")] == ["beats TP 4 above", "beats TP 8 above"]
    assert max(map(len, result.out.splitlines())) <= 80
    assert "note: SFD_R: not in the table, taken as 0" in result.err
    rows = json.loads((own_directory / "out" / "estimate.json").read_text())["estimates"]
    assert [round(row["tokens_per_second"]["alspec"][0]["value"]) for row in rows] == [262, 246, 238, 225, 218]


def test_options_choose_rates_contexts_devices_and_rounding(cli: Callable[..., Any], own_directory: Path) -> None:
    arguments = ["task=estimate", "task.latencies=n150", "task.devices=[4,8]", "task.contexts=1K", "output_dir=out"]
    assert cli(*arguments, "task.hit_rate=[0.5,1]", "task.rounding=paper", "task.layers=16").status == 0
    written = json.loads((own_directory / "out" / "estimate.json").read_text())
    assert (written["layers"], written["rounding"]) == (16, "paper")
    [four, eight] = written["estimates"]
    assert four["break_even"] == {"tensor_parallel_one_group": {"above": 1 / 16}, "tensor_parallel_all": "never"}
    assert eight["break_even"]["tensor_parallel_all"] == "always"
    assert [speed["hit_rate"] for speed in eight["tokens_per_second"]["alspec"]] == [0.5, 1.0]


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("task.latencies=h10", "unknown table 'h10', did you mean 'h100'?"),
        ("task.latencies=none.yaml", "task.latencies: none.yaml does not exist"),
        ("task.hit_rate=65", "task.hit_rate: 65 must be between 0 and 1"),
        ("task.hit_rate=[]", "task.hit_rate: the list is empty"),
        ("task.contexts=256K", "256K lies outside what table 'h100' knows of 4 devices: 1K to 128K"),
        ("task.contexts=long", "task.contexts: 'long' is not a context length"),
        ("task.devices=6", "table 'h100' has no times for 6; there are: 4, 8"),
        ("task.devices=0", "task.devices: 0 must be 1 or more"),
        ("task.rounding=papr", "unknown value 'papr', did you mean 'paper'?"),
        ("task.layers=0", "task.layers: 0 must be 1 or more"),
        ("task.repets=3", "did you mean 'repeats'?"),
    ],
)
def test_bad_options_are_one_line(cli: Callable[..., Any], argument: str, message: str) -> None:
    result = cli("task=estimate", argument)
    assert result.status == 2 and message in result.error


def test_tensor_parallelism_alone(cli: Callable[..., Any]) -> None:
    result = cli("task=estimate", "task.devices=4", "task.contexts=48K", "output_dir=out")
    assert result.status == 0 and "TP 4 tok/s" in result.out and "ALSpec @" not in result.out


def test_a_measured_table_can_be_fed_back(cli: Callable[..., Any], own_directory: Path) -> None:
    (own_directory / "model").mkdir()
    write_checkpoint(own_directory / "model")
    arguments = ["task=estimate", "task.latencies=measure", "model.target=model", "task.repeats=2", "output_dir=out"]
    result = cli(*arguments, "task.contexts=[64,300]", "task.speculation_size=64")
    assert result.status == 0, result.err
    path = own_directory / "out" / "latencies.yaml"
    times = yaml.safe_load(path.read_text())["tensor_parallel"][1]
    for context in (64, 300):
        assert 0 < times["speculative_receiver"][str(context)] < times["speculative_sender"][str(context)]
    assert "link, the time that a prediction takes to the other group, is not measured" in result.err
    measured = json.loads((own_directory / "out" / "estimate.json").read_text())
    assert {row["devices"] for row in measured["estimates"]} == {2}

    again = cli("task=estimate", f"task.latencies={path}", "output_dir=again")
    assert again.out == result.out
    [row] = estimate(load_table(str(path)), Question([0.65], contexts=[300]))
    by_hand = times["fixed"] + 5 * (times["pre_attention"] + times["post_attention"] + times["flash_decode"]["300"])
    assert row.group_speed == pytest.approx(1e6 / by_hand)


@pytest.mark.parametrize("given", [(), ("model.weights=int4", "model.kv_cache=int8")])
def test_the_model_is_measured_in_the_form_that_was_asked_for(
    cli: Callable[..., Any], own_directory: Path, given: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (own_directory / "model").mkdir()
    write_checkpoint(own_directory / "model", hidden_size=192, intermediate_size=96)
    measured: list[TorchExecutor] = []

    def noted(executor: TorchExecutor, *others: Any) -> measuring.Samples:
        measured.append(executor)
        return measure(executor, *others)

    measure = measuring.measure
    monkeypatch.setattr(measuring, "measure", noted)
    arguments = ["task.latencies=measure", "model.target=model", "task.repeats=1", "task.contexts=64"]
    assert cli("task=estimate", *arguments, *given, "output_dir=out").status == 0
    [executor] = measured
    assert (executor.decoder.output_head.quantized is not None) == bool(given)
    assert isinstance(executor.new_cache(), QuantizedKVCache) == bool(given)
    title = json.loads((own_directory / "out" / "estimate.json").read_text())["latencies"]["title"]
    assert ("weights int4, KV cache int8" if given else "weights auto, on") in title


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("task.contexts=513", "task.contexts: 513 exceeds the model's context of 512 tokens"),
        ("task.repeats=0", "task.repeats: 0 must be 1 or more"),
        ("task.speculation_size=0", "task.speculation_size: 0 must be 1 or more"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    cli: Callable[..., Any], own_directory: Path, argument: str, message: str
) -> None:
    (own_directory / "model").mkdir()
    write_checkpoint(own_directory / "model")
    result = cli("task=estimate", "task.latencies=measure", "model.target=model", argument)
    assert result.status == 2 and result.error == message


def test_without_matplotlib_only_the_plot_is_missing(
    cli: Callable[..., Any], own_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task, "can_plot", lambda: False)
    result = cli("task=estimate", "output_dir=out")
    assert result.status == 0 and "no plot: matplotlib is not installed" in result.err
    assert [path.name for path in (own_directory / "out").iterdir()] == ["estimate.json"]


@pytest.mark.parametrize("table", ["h100", "n150"])
def test_the_plot_names_every_line(cli: Callable[..., Any], own_directory: Path, table: str) -> None:
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        result = cli("task=estimate", f"task.latencies={table}", "task.hit_rate=[0.5,0.875]", "output_dir=out")
    assert result.status == 0
    drawing = (own_directory / "out" / "estimate.svg").read_text()
    for label in ("TP 4", "TP 8", "ALSpec @50% + TP 4", "ALSpec @87.5% + TP 4", "than TP 8", "1K"):
        assert f">{label}<" in drawing
