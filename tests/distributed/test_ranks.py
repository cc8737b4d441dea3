"""Several processes compute what one computes: decoders, fuzzy passes, whole pipelines, the command line."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from spec_sdk.model.models import Models
from spec_sdk.pipeline import build_pipeline
from spec_sdk.registry import Registry
from spec_sdk.run_report.generate_runs import read_generate
from spec_sdk.run_report.groups import grouped
from spec_sdk.run_report.timeline import timelines, trace_of
from spec_sdk_backends.cpu import CpuBackend, CpuConfig
from tests.conftest import FULL
from tests.distributed.cases import (
    DECODERS,
    HEADS,
    LATER,
    PIPELINES,
    SAMPLED,
    SPECULATION,
    WITHOUT_A_HIT,
    answers_of,
    decoder_logits,
    speculated,
    states_after_trees,
)
from tests.distributed.support import work
from tests.support.real_pipelines import settings_of
from tests.support.tiny_blocks import BlockSizes, write_dflash
from tests.support.tiny_checkpoints import write_checkpoint
from tests.support.tiny_heads import HeadSizes, write_eagle1
from tests.support.tiny_hydra import write_hydra
from tests.support.tiny_medusa import write_medusa
from tests.support.tiny_mtp import SIZES as MODULE_SIZES
from tests.support.tiny_mtp import mtp_tensors, write_module
from tests.support.tiny_peagle import write_peagle

TREE_STATES = ("mixed", "all_hit", "never")
SMALL_HEADS = {"num_attention_heads": 6, "num_key_value_heads": 3}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tiny checkpoints by the name of their case, and the pipelines' target and draft model."""
    root = tmp_path_factory.mktemp("checkpoints")
    for name, (architecture, differences) in DECODERS.items():
        write_checkpoint(root / name, architecture, **differences)
    write_checkpoint(root / "target", "smollm", 3, **SMALL_HEADS)
    write_eagle1(root / "eagle", HeadSizes())
    write_medusa(root / "medusa", HeadSizes())
    write_hydra(root / "hydra", HeadSizes())
    write_dflash(root / "block", BlockSizes(), leaving=(0, 2, 4))
    write_peagle(root / "peagle", HeadSizes())
    sizes = dataclasses.replace(MODULE_SIZES, heads=6, kv_heads=3)
    write_module(root / "mtp", "speculators", sizes.config(), mtp_tensors("speculators", sizes))
    return {path.name: path for path in root.iterdir()}


def fits(name: str, size: int) -> bool:
    """Whether the decoder has an attention head for each of ``size`` processes; otherwise it is refused."""
    return size <= 3 or name != "one_kv_head"


def overrides(name: str, sampled: bool, checkpoints: dict[str, Path]) -> list[str]:
    options = []
    for option in PIPELINES[name]:
        key, _, value = option.partition("=")
        options.append(f"{key}={checkpoints[value]}" if key.endswith("checkpoint") else option)
    return [*options, f"model.target={checkpoints['target']}", *(SAMPLED if sampled else [])]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The numbers of processes that a test speaks of; only two, and the refusal of three, outside the full tier."""
    sizes = SIZES.get(metafunc.function.__name__, (2, 3, 4))
    if "done" in metafunc.fixturenames:
        params = [pytest.param(size, marks=pytest.mark.full) if size > 2 else size for size in sizes]
        metafunc.parametrize("done", params, indirect=True, scope="module")


SIZES = {
    "test_two_device_groups_speculate_as_one_device_does": (2, 4),
    # the two groups' ranks are compared where each is the whole of its group
    "test_both_device_groups_hold_the_states_of_one_device": (2,),
    "test_an_odd_number_of_processes_is_no_two_device_groups": (3,),
}

RUNS = [(name, False) for name in PIPELINES if FULL or name not in LATER]
# what an adaptive policy draws depends on the clock, so only greedy it gives the same tokens twice
BRIEFLY_SAMPLED = ("easyspec_chain", "easyspec_paper", "specinfer_tree", "merged", "eagle_tree")
RUNS += [(name, True) for name in PIPELINES if name != "adaptive" and (FULL or name in BRIEFLY_SAMPLED)]


@pytest.fixture(scope="module")
def done(
    request: pytest.FixtureRequest, checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """Everything that the tests below ask of one group of processes, by name: starting it takes the time."""
    size, directory = request.param, tmp_path_factory.mktemp("ranks")
    jobs: dict[str, list[Any]] = {"decisions": ["decisions"]}
    for name in DECODERS:
        if fits(name, size):
            jobs[f"logits {name}"] = ["logits", str(checkpoints[name])]
        else:
            jobs[f"logits {name}"] = ["refusal", ["pipeline=vanilla", f"model.target={checkpoints[name]}"]]
    for shares_kv in (False, True):
        jobs[f"layer_parallel {shares_kv}"] = ["layer_parallel", str(checkpoints["target"]), shares_kv]
    for name, sampled in RUNS:
        jobs[f"tokens {name} {sampled}"] = ["tokens", overrides(name, sampled, checkpoints)]
    if size % 2 == 0:
        for name, options in SPECULATION.items():
            target = f"model.target={checkpoints['target']}"
            jobs[f"speculation {name}"] = ["speculation", [*options, target, f"error_bounds={str(size == 2).lower()}"]]
    else:
        jobs["refusal"] = ["refusal", [*SPECULATION["mixed"], f"model.target={checkpoints['target']}"]]
    if size == 2:
        for name in TREE_STATES:
            jobs[f"states {name}"] = ["states", [*SPECULATION[name], f"model.target={checkpoints['target']}"]]
    jobs["early_stop"] = ["early_stop", overrides("easyspec_paper", False, checkpoints)]
    target, output = f"model.target={checkpoints['target']}", directory / "run"
    run = [target, "prompt=a b c", "max_new_tokens=8", "pipeline=easyspec_paper", "drafter.size=3"]
    jobs["command_line"] = ["command_line", [*run, f"output_dir={output}"]]
    results = dict(zip(jobs, work(size, list(jobs.values()), directory), strict=True))
    return {**results, "size": size, "directory": directory}


@pytest.mark.parametrize("name", DECODERS)
def test_a_spread_decoder_computes_what_a_whole_one_does(
    name: str, done: dict[str, Any], checkpoints: dict[str, Path]
) -> None:
    if not fits(name, done["size"]):
        assert "attention heads" in done[f"logits {name}"]
        return
    spread, heads, same_everywhere = done[f"logits {name}"]
    backend = CpuBackend(CpuConfig(pack_weights=False))
    models = Models(str(checkpoints[name]), "cut", "auto", backend.load, backend.ops, backend.device, torch.float32)
    whole = torch.tensor(decoder_logits(models.session(models.target)))
    assert float((torch.tensor(spread) - whole).abs().max() / whole.abs().max()) < 1e-4
    assert same_everywhere
    total = models.target.executor.config.num_kv_heads
    assert sum(heads) == max(total, done["size"])
    assert max(heads) < total or total == 1


@pytest.mark.parametrize("shares_kv", [False, True])
def test_spread_attention_layers_are_the_fuzzy_pass_of_one_device(shares_kv: bool, done: dict[str, Any]) -> None:
    differences = done[f"layer_parallel {shares_kv}"]
    assert len(differences) == 1 + shares_kv
    assert all(difference < 1e-5 for difference in differences)


@pytest.mark.parametrize(("name", "sampled"), RUNS)
def test_a_pipeline_gives_the_tokens_of_one_process(
    name: str, sampled: bool, done: dict[str, Any], checkpoints: dict[str, Path]
) -> None:
    settings, events = settings_of(*overrides(name, sampled, checkpoints)), list[dict[str, Any]]()
    alone = answers_of(build_pipeline(settings, Registry.discover()), settings, events.append)
    assert done[f"tokens {name} {sampled}"] == alone
    # where nothing is accepted, nothing that was drafted counts; an adaptive policy may find that drafting never pays,
    # and some hit nothing
    idle = name in ("vanilla", "adaptive", *(WITHOUT_A_HIT if sampled else HEADS))
    assert idle or sum(event.get("accepted", 0) for event in events) > 0


def test_every_pipeline_is_among_them() -> None:
    asked = {option for options in (*PIPELINES.values(), *SPECULATION.values()) for option in options}
    names = {path.stem for path in (Path(__file__).parents[2] / "conf" / "pipeline").glob("*.yaml")}
    # assistants are of a family that is not divided
    assert len(names) > 20 and {f"pipeline={name}" for name in names - {"assistant_chain"}} <= asked


@pytest.mark.parametrize("name", SPECULATION)
def test_two_device_groups_speculate_as_one_device_does(
    name: str, done: dict[str, Any], checkpoints: dict[str, Path]
) -> None:
    answers, reports, groups = done[f"speculation {name}"]
    target = f"model.target={checkpoints['target']}"
    bounds = done["size"] == 2
    settings = settings_of(*SPECULATION[name], target, f"error_bounds={str(bounds).lower()}")
    alone, expected = speculated(build_pipeline(settings, Registry.discover()))
    assert answers == alone
    assert groups == [done["size"] // 2] * 2
    hits = [hit for report in reports for hit in report["hit"]]
    assert hits == [hit for report in expected for hit in report["hit"]]
    guessed = [hit for hit in hits if hit is not None]
    assert guessed and (True in guessed) == (name != "all_miss")
    assert (False in guessed) == (name not in ("all_hit", "static"))
    assert (None in hits) == (name in ("static", "never"))
    for report, same in zip(reports, expected, strict=True):
        assert (report["state_norm"] is None) == (not bounds)
        for field in ("error", "difference", *["state_norm"] * bounds):
            assert [value is None for value in report[field]] == [value is None for value in same[field]]
            numbers = [value for value in report[field] if value is not None]
            assert numbers == pytest.approx([value for value in same[field] if value is not None], rel=1e-3)
        assert report["space"] == same["space"]
    if name == "all_miss":
        plain = build_pipeline(settings_of("pipeline=vanilla", target), Registry.discover())
        assert answers == speculated(plain)[0]


@pytest.mark.parametrize("name", TREE_STATES)
def test_both_device_groups_hold_the_states_of_one_device(
    name: str, done: dict[str, Any], checkpoints: dict[str, Path]
) -> None:
    same_bits, found = done[f"states {name}"]
    overrides = [*SPECULATION[name], f"model.target={checkpoints['target']}"]
    expected = states_after_trees(build_pipeline(settings_of(*overrides), Registry.discover()))
    assert same_bits
    assert torch.allclose(torch.tensor(found), expected, atol=1e-4, rtol=1e-4)


def test_an_odd_number_of_processes_is_no_two_device_groups(done: dict[str, Any]) -> None:
    assert "launch an even number" in done["refusal"]


def test_a_request_that_the_leader_breaks_off_ends_on_all(done: dict[str, Any]) -> None:
    assert done["early_stop"] == done["tokens easyspec_paper False"][0]


def test_decisions_of_any_length_reach_all(done: dict[str, Any]) -> None:
    assert done["decisions"] == 6


def test_only_the_leader_prints_and_writes(done: dict[str, Any]) -> None:
    status, out, err = done["command_line"]
    assert status == 0
    assert out.strip()
    assert "guarantee" in err and err.count("results in") == 1
    directory: Path = done["directory"]
    for rank in range(1, done["size"]):
        assert json.loads((directory / f"results.{rank}").read_text())[-1] == [0, "", ""]
    metrics = json.loads((directory / "run" / "metrics.json").read_text())
    assert metrics["backend"] == "accelerate"
    assert metrics["machine"]["processes"] == done["size"]
    assert metrics["machine"]["device_groups"] == [done["size"]]


def test_the_leader_keeps_what_the_others_did_and_when(done: dict[str, Any]) -> None:
    lines = (done["directory"] / "run" / "events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    followers = [event for event in events if event["event"] == "follower"]
    assert [event["rank"] for event in followers] == [*range(1, done["size"])]
    cycles = [event for event in events if event["event"] == "cycle"]
    for follower in followers:
        names = [name for name, _, _ in follower["calls"]]
        assert names.count("score") == len(cycles)
        assert "grow" in names and "commit" in names
        begins = [begin for _, begin, _ in follower["calls"]]
        assert begins == sorted(begins) and all(0 <= seconds < 60 for _, _, seconds in follower["calls"])
    # one more makes a page with a line for every process
    run = read_generate(done["directory"] / "run")
    assert [timeline.process for timeline in run.timelines] == [*range(done["size"])]
    [group] = grouped([run], "vanilla")
    [figure] = timelines(group, 24)
    assert [row[0] for row in figure.table.rows] == [f"easyspec_paper, process {i}" for i in range(done["size"])]
    trace = trace_of(run)
    assert trace is not None
    verified = {event["pid"] for event in trace["traceEvents"] if event["name"] == "verify"}
    assert verified == {*range(1, done["size"] + 1)}


@pytest.mark.full
@pytest.mark.parametrize("name", ["alspec", "alspec_easyspec_tree"])
def test_the_default_model_speculates_on_two_device_groups_as_on_one_device(name: str, tmp_path: Path) -> None:
    """SmolLM2 at the default threshold, with so few keys that some predictions are missed."""
    overrides = [f"pipeline={name}", "predictor.size=4", "backend.threads=1", "backend.activations=exact"]
    answers, reports, groups = work(2, [["speculation", overrides]], tmp_path)[0]
    threads = torch.get_num_threads()
    try:
        alone, expected = speculated(build_pipeline(settings_of(*overrides, "backend=cpu"), Registry.discover()))
    finally:
        torch.set_num_threads(threads)
    assert (answers, groups) == (alone, [1, 1])
    hits = [report["hit"] for report in reports]
    assert hits == [report["hit"] for report in expected]
    assert {hit for row in hits for hit in row} >= {True, False}
