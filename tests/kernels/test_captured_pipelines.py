"""What pipelines do inside captured passes, beside the same pipelines without a capture: in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

from spec_sdk.engine.pass_ahead import PassAhead
from spec_sdk.engine.token_engine import TokenRequest
from spec_sdk.model.graph_executor import GraphExecutor
from spec_sdk.model.runners.attention_speculative import AttentionSpeculativeRunner
from spec_sdk.model.session import Session
from spec_sdk.ops.in_pass import greedy_in_pass
from spec_sdk.pipeline import Pipeline, build_pipeline
from spec_sdk.registry import Registry
from spec_sdk_backends.few_rows import in_bits
from spec_sdk_backends.overlapped_speculation import OverlappedSpeculationRunner
from spec_sdk_backends.verdicts_in_pass import TablesInUse
from tests.support.real_pipelines import settings_of
from tests.support.skips import interpreted
from tests.support.text_checkpoints import write_text_checkpoint

pytestmark = interpreted

SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_hidden_layers": 3,
    "intermediate_size": 64,
}
"""Interpreting takes a time per program."""
PROMPTS = [[3 + i % 7 for i in range(19)], [5, 6, 9, 5, 6], [3 + i % 7 for i in range(12)]]
FIXED = ("policy=fixed", "policy.depth=3", "policy.max_nodes=8")
DRAFTING = ("model.draft=cut", "model.draft_layers=[0,2]", *FIXED)
FILTERS = ("sampling.top_k=40", "sampling.top_p=0.9")
SAMPLED = ("sampling.temperature=1", "sampling.seed=3", "sampler=exact", "sampler.kernels=auto")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    write_text_checkpoint(directory, **SHAPE)
    return directory


def pipeline(checkpoint: Path, name: str, *overrides: str) -> Pipeline:
    shared = (f"model.target={checkpoint}", "backend=cuda", "model.dtype=float32")
    plain = ("backend.fuse=false", "backend.compile=false")
    return build_pipeline(settings_of(f"pipeline={name}", *shared, *plain, *overrides), Registry.discover())


def answers(
    made: Pipeline, prompts: Sequence[Sequence[int]], together: int, new_tokens: int
) -> tuple[list[list[int]], list[dict[str, Any]]]:
    """Tokens of each prompt, and all cycles of all of them in their order."""
    engine, cycles = made.new_engine(together), list[dict[str, Any]]()

    def emit(event: dict[str, Any]) -> None:
        if event["event"] == "cycle":
            cycles.append(event)

    tokens = {
        engine.add(TokenRequest(prompt, new_tokens, request_id=number, ignore_eos=True, emit=emit)): list[int]()
        for number, prompt in enumerate(prompts)
    }
    while engine.busy:
        for progress in engine.step():
            if progress.error is not None:
                raise progress.error
            tokens[progress.request] += progress.tokens
    return list(tokens.values()), cycles


@pytest.mark.parametrize(
    ("name", "overrides", "together"),
    [
        ("alspec", (), 2),
        ("alspec_easyspec_tree", ("drafter.growth=static", "drafter.widths=[2,1]"), 1),
    ],
)
def test_attention_speculation(
    name: str, overrides: tuple[str, ...], together: int, checkpoint: Path, interpreted_gpu: None
) -> None:
    """Tokens and hits are those of the runner that computes both and chooses, which eager passes have."""
    drafting = DRAFTING if name != "alspec" else ()
    level = ("predictor.size=4", "attention_verifier.threshold=0.3", "attention_verifier.never=[1]")
    eager = pipeline(checkpoint, name, *level, *overrides, *drafting)
    captured = pipeline(checkpoint, name, *level, *overrides, *drafting, "backend.compile=true")
    assert isinstance(captured.engine.target.runner, OverlappedSpeculationRunner)
    assert not isinstance(eager.engine.target.runner, OverlappedSpeculationRunner)
    expected, known = answers(eager, PROMPTS[:2], together, 6)
    found, cycles = answers(captured, PROMPTS[:2], together, 6)
    assert found == expected
    hits = [cycle["attention"]["hit"] for cycle in cycles]
    assert hits == [cycle["attention"]["hit"] for cycle in known]
    assert {hit for of_layers in hits for hit in of_layers} == {None, False, True}
    for one, other in zip(cycles, known, strict=True):
        errors = [None if e is None else pytest.approx(e, rel=1e-3) for e in other["attention"]["error"]]
        assert one["attention"]["error"] == errors
        assert one["host_reads"] <= other["host_reads"]


class Counted:
    """Counts passes that had their verdicts inside."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passes = 0
        inner = TablesInUse.multi_step

        def counting(tables: TablesInUse, *arguments: Any) -> Any:
            found = inner(tables, *arguments)
            self.passes += found is not None
            return found

        monkeypatch.setattr(TablesInUse, "multi_step", counting)


@pytest.mark.parametrize(
    ("name", "overrides", "together"),
    [
        ("prompt_lookup", FIXED, 3),
        ("prompt_lookup", (*FIXED, *FILTERS), 1),
        ("sd_chain", (*DRAFTING, "drafter.growth=static", "drafter.widths=[2,1]"), 1),
        pytest.param("sd_chain", DRAFTING, 3, marks=pytest.mark.full),
    ],
)
def test_sampled_verdicts_inside_the_pass(
    name: str,
    overrides: tuple[str, ...],
    together: int,
    checkpoint: Path,
    interpreted_gpu: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same random numbers, so the same tokens, as launches after eager passes give. Trees that went to the target
    before the host had read them are in no table, and decided after the pass.
    """
    counted = Counted(monkeypatch)
    expected, known = answers(pipeline(checkpoint, name, *SAMPLED, *overrides), PROMPTS, together, 8)
    assert not counted.passes
    captured = pipeline(checkpoint, name, *SAMPLED, *overrides, "backend.compile=true", "backend.verdicts=inside")
    found, cycles = answers(captured, PROMPTS, together, 8)
    assert found == expected
    assert (counted.passes >= len(cycles) / 3) == (name == "prompt_lookup")
    assert [cycle["accepted"] for cycle in cycles] == [cycle["accepted"] for cycle in known]
    assert name == "prompt_lookup" or max(cycle["accepted"] for cycle in cycles) > 0
    assert all(one["host_reads"] <= other["host_reads"] for one, other in zip(cycles, known, strict=True))


def test_greedy_verdicts_inside_the_pass(
    checkpoint: Path, interpreted_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three requests at once, one launch a pass, one read a step."""
    passes = []

    def noted(unscored: Any) -> Any:
        passes.append(len(unscored))
        return greedy_in_pass(unscored)

    monkeypatch.setattr("spec_sdk.ops.attention.greedy_in_pass", noted)
    expected, known = answers(pipeline(checkpoint, "prompt_lookup", *FIXED), PROMPTS, 3, 10)
    assert not passes
    found, cycles = answers(pipeline(checkpoint, "prompt_lookup", *FIXED, "backend.compile=true"), PROMPTS, 3, 10)
    assert found == expected and sum(passes) == len(cycles)
    assert {cycle["host_reads"] for cycle in cycles} == {1}
    assert [cycle["accepted"] for cycle in cycles] == [cycle["accepted"] for cycle in known]
    assert max(cycle["accepted"] for cycle in cycles) > 0


def test_plain_steps_are_launched_ahead(
    checkpoint: Path, interpreted_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one request all steps but the first are there when they are asked for; of three over two slots those that come
    neither behind a prompt nor behind an end; with tokens and reads as before.
    """
    handed: list[bool] = []
    hand_out = PassAhead.hand_out

    def noted(launched: PassAhead, *arguments: Any) -> bool:
        handed.append(hand_out(launched, *arguments))
        return handed[-1]

    monkeypatch.setattr(PassAhead, "hand_out", noted)
    expected, known = answers(pipeline(checkpoint, "vanilla"), PROMPTS, 2, 10)
    assert not handed
    found, cycles = answers(pipeline(checkpoint, "vanilla", "backend.compile=true"), PROMPTS, 2, 10)
    assert found == expected and sum(handed) > len(cycles) / 3
    assert [cycle["host_reads"] for cycle in cycles] == [cycle["host_reads"] for cycle in known]
    handed.clear()
    found, _ = answers(pipeline(checkpoint, "vanilla", "backend.compile=true"), PROMPTS[:1], 1, 10)
    assert found == expected[:1] and handed == [True] * 9
    handed.clear()
    found, _ = answers(pipeline(checkpoint, "prompt_lookup", *FIXED, "backend.compile=true"), PROMPTS[:1], 1, 10)
    assert found == expected[:1] and not handed, "what comes next hangs on what is drafted"


LEVELS = (
    ("sd_chain", ()),
    ("easyspec_chain", ("drafter.growth=static", "drafter.widths=[2,1]")),
    ("sd_chain", SAMPLED),
    ("sd_chain", (*SAMPLED, *FILTERS, "verifier=multi_step", "drafter.width=3")),
    ("sd_chain", (*SAMPLED, "verifier=multi_step", "drafter.width=3")),
    ("sd_chain", (*SAMPLED, "drafter.temperature=0.7", "sampling.min_p=0.02")),
    ("easyspec_chain", (*SAMPLED, "verifier=multi_step", "drafter.growth=static", "drafter.widths=[2,2,1]")),
    ("sd_chain", ("drafter.growth=dynamic", "drafter.max_nodes=4")),
)


@pytest.mark.parametrize(
    ("name", "overrides"), [*LEVELS[:4], *(pytest.param(*case, marks=pytest.mark.full) for case in LEVELS[4:])]
)
def test_draft_levels_are_one_launch(
    name: str, overrides: tuple[str, ...], checkpoint: Path, interpreted_gpu: None
) -> None:
    """Trees of one shape: the same as level by level, chosen or drawn by the same random numbers, with one read for all
    levels of all requests.
    """
    options = (*DRAFTING, *overrides)
    expected, known = answers(pipeline(checkpoint, name, *options), PROMPTS[:2], 2, 8)
    found, cycles = answers(pipeline(checkpoint, name, *options, "backend.compile=true"), PROMPTS[:2], 2, 8)
    assert found == expected
    for key in ("tree_nodes", "level_sizes", "accepted"):
        assert [cycle[key] for cycle in cycles] == [cycle[key] for cycle in known]
    deep = [(one, other) for one, other in zip(cycles, known, strict=True) if one["budget"] == 3]
    assert deep and max(cycle["accepted"] for cycle in cycles) > 0
    for one, other in deep:
        assert other["host_reads"] >= 1 + one["budget"] > one["host_reads"]
    assert {2} <= {one["host_reads"] for one, _ in deep} <= {2, 3}, "of requests that are granted the same depth"


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("sd_chain", ("drafter.growth=beam", "drafter.width=2")),
        pytest.param("easyspec_chain", ("drafter.growth=dynamic", "drafter.width=2"), marks=pytest.mark.full),
    ],
)
def test_trees_whose_shape_hangs_on_logits_are_one_launch(
    name: str, overrides: tuple[str, ...], checkpoint: Path, interpreted_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same as level by level, with one read for the draft and one for the verdict; nothing is fed again."""
    again: list[int] = []
    grow = Session.grow

    def noted(session: Session, slots: Sequence[int], *arguments: Any) -> Any:
        again.append(len(slots))
        return grow(session, slots, *arguments)

    monkeypatch.setattr(Session, "grow", noted)
    options = (*DRAFTING, *overrides)
    expected, known = answers(pipeline(checkpoint, name, *options), PROMPTS[:1], 1, 10)
    assert again
    again.clear()
    found, cycles = answers(pipeline(checkpoint, name, *options, "backend.compile=true"), PROMPTS[:1], 1, 10)
    assert found == expected and not again
    for key in ("tree_nodes", "level_sizes", "accepted"):
        assert [cycle[key] for cycle in cycles] == [cycle[key] for cycle in known]
    assert {cycle["host_reads"] for cycle in cycles if cycle["budget"] == 3} == {2}
    assert max(cycle["accepted"] for cycle in cycles) > 0


def test_weights_in_few_bits(checkpoint: Path, interpreted_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same tokens by fused and captured passes as launch by launch, target and draft model in few bits; and no pass
    of up to 64 rows expands a matrix.
    """
    options = (*DRAFTING, "model.weights=int4")
    expected, known = answers(pipeline(checkpoint, "sd_chain", *options), PROMPTS[:1], 1, 6)

    def expands(*arguments: Any) -> Any:
        raise AssertionError("a matrix is expanded")

    monkeypatch.setattr("spec_sdk_backends.interleaved_products.expanded_linear", expands)
    made = pipeline(checkpoint, "sd_chain", *options, "backend.compile=true", "backend.fuse=true")
    found, cycles = answers(made, PROMPTS[:1], 1, 6)
    assert found == expected and max(cycle["accepted"] for cycle in cycles) > 0
    assert [cycle["accepted"] for cycle in cycles] == [cycle["accepted"] for cycle in known]
    assert isinstance(made.engine.target.executor, GraphExecutor)
    assert all(in_bits(block.qkv) is not None for block in made.engine.target.executor.decoder.blocks)


def test_where_tokens_run_out_levels_are_drawn_one_by_one(checkpoint: Path, interpreted_gpu: None) -> None:
    """At so low a temperature that one token has all the mass: by the same random numbers, so with the same tokens."""
    options = (*DRAFTING, *SAMPLED, "sampling.temperature=1e-5", "verifier=multi_step", "drafter.width=3")
    expected, known = answers(pipeline(checkpoint, "sd_chain", *options), PROMPTS[:2], 2, 8)
    found, cycles = answers(pipeline(checkpoint, "sd_chain", *options, "backend.compile=true"), PROMPTS[:2], 2, 8)
    assert found == expected
    assert [cycle["level_sizes"] for cycle in cycles] == [cycle["level_sizes"] for cycle in known]
    assert {size for cycle in cycles for size in cycle["level_sizes"]} < {1, 2, 3}


def test_what_no_table_holds_is_decided_after_the_pass(
    checkpoint: Path, interpreted_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counted(monkeypatch)
    options = (*SAMPLED, *FIXED, "sampling.repetition_penalty=1.2")
    expected, _ = answers(pipeline(checkpoint, "prompt_lookup", *options), PROMPTS[:1], 1, 6)
    inside = pipeline(checkpoint, "prompt_lookup", *options, "backend.compile=true", "backend.verdicts=inside")
    found, _ = answers(inside, PROMPTS[:1], 1, 6)
    assert found == expected and not counted.passes


@pytest.mark.parametrize(
    "options",
    [("predictor=h2o",), ("attention_verifier.space=residual",), ("error_bounds=true",), ("backend.compile=false",)],
)
def test_where_the_general_runner_speculates_on_attention(
    options: tuple[str, ...], checkpoint: Path, interpreted_gpu: None
) -> None:
    compiled = () if "backend.compile=false" in options else ("backend.compile=true",)
    made = pipeline(checkpoint, "alspec", *compiled, *options)
    assert type(made.engine.target.runner) is AttentionSpeculativeRunner
