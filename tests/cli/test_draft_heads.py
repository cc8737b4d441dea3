"""Draft heads from the command line: converting one, drafting with it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spec_sdk.model.source_cache import cache_root
from tests.checkpoints.gguf_modules import write_with_module
from tests.draft_heads.test_conversion import SIZES, pickled
from tests.support.tiny_blocks import BlockSizes, write_dspark
from tests.support.tiny_checkpoints import write_checkpoint
from tests.support.tiny_heads import eagle3_tensors, write_eagle3
from tests.support.tiny_hydra import hydra_config, hydra_tensors
from tests.support.tiny_medusa import write_medusa
from tests.support.tiny_mtp import add_module, model_config, mtp_tensors, write_module
from tests.support.tiny_peagle import write_peagle


@pytest.fixture(autouse=True)
def model(own_directory: Path) -> None:
    (own_directory / "model").mkdir()
    write_checkpoint(own_directory / "model")


def test_a_pickle_is_converted(cli: Callable[..., Any], own_directory: Path) -> None:
    pickled(own_directory / "head", eagle3_tensors(SIZES))
    # what refuses the pickle names the command
    refused = cli("pipeline=eagle_tree", "model.target=model", "drafter.checkpoint=head", "prompt=a")
    assert refused.status == 2 and "task=convert_draft_head task.input=head task.output=head-saf" in refused.error
    done = cli("task=convert_draft_head", "task.input=head", "task.output=converted")
    assert done.status == 0, done.err
    assert done.out == "converted: EAGLE-3 head, for a target of hidden size 48 and vocabulary 96\n"
    again = cli("task=convert_draft_head", "task.input=head", "task.output=converted")
    assert again.status == 2 and again.error == "task.output: converted is there already; name a directory that is not"
    assert cli("task=convert_draft_head").error.startswith("task.input: is not given")


def test_a_head_drafts(cli: Callable[..., Any], own_directory: Path) -> None:
    write_eagle3(own_directory / "head", SIZES)
    options = ["model.target=model", "prompt=a b c d", "max_new_tokens=12", "ignore_eos=true"]
    plain = cli("pipeline=vanilla", *options)
    assert plain.status == 0, plain.err
    # five layers are too few for EAGLE-3's own choice of three
    eagle = ["pipeline=eagle_tree", "policy=fixed", "drafter.checkpoint=head"]
    shallow = cli(*eagle, *options)
    assert shallow.status == 2 and "reads layers 2, 2, 2 of its target, and model has 5" in shallow.error
    drafted = cli(*eagle, "drafter.target_layers=[1,3,5]", "output_dir=results", *options)
    assert drafted.status == 0 and drafted.out == plain.out
    assert '"head, EAGLE-3 head"' in (own_directory / "results" / "metrics.json").read_text()
    shown = cli(*eagle, "drafter.target_layers=[1,3,5]", "task=show_tree", "drafter.method=eagle3", *options)
    assert shown.status == 0, shown.err
    wrong = cli(*eagle, "drafter.target_layers=[1,3,5]", "drafter.method=eagle", *options)
    assert wrong.status == 2 and wrong.error.startswith(
        "drafter.method: eagle is asked for, and head is a head of eagle3"
    )
    unnamed = cli("pipeline=eagle_tree", *options)
    assert unnamed.status == 2 and unnamed.error.startswith(
        "drafter.checkpoint: no installed package has a head of eagle or eagle3 for model; name one"
    )


def test_medusa_heads_draft(cli: Callable[..., Any], own_directory: Path) -> None:
    write_medusa(own_directory / "heads", SIZES, base_model_name_or_path="org/model")
    options = ["model.target=model", "prompt=a b c d", "max_new_tokens=12", "ignore_eos=true"]
    plain = cli("pipeline=vanilla", *options)
    assert plain.status == 0, plain.err
    medusa = ["pipeline=medusa_tree", "drafter.checkpoint=heads", *options]
    drafted = cli(*medusa, "output_dir=results")
    assert drafted.status == 0 and drafted.out == plain.out, drafted.err
    assert '"heads, Medusa heads"' in (own_directory / "results" / "metrics.json").read_text()
    shown = cli(*medusa, "task=show_tree", "drafter.max_nodes=4", "drafter.candidates=2")
    assert shown.status == 0, shown.err
    eagle = cli("pipeline=eagle_tree", "drafter.checkpoint=heads", *options)
    assert eagle.status == 2 and "heads is a head of medusa (Medusa layout), and this drafter needs" in eagle.error
    unnamed = cli("pipeline=medusa_tree", *options)
    assert unnamed.status == 2 and unnamed.error.startswith(
        "drafter.checkpoint: no installed package has a head of medusa for model; name one"
    )


def test_hydra_heads_draft(cli: Callable[..., Any], own_directory: Path) -> None:
    pickled(own_directory / "heads", hydra_tensors(prefix=True), "hydra_lm_head.pt")
    (own_directory / "heads" / "config.json").write_text(json.dumps(hydra_config(prefix=True)))
    hydra = ["pipeline=hydra_tree", "model.target=model", "prompt=a b c d", "max_new_tokens=12", "ignore_eos=true"]
    refused = cli(*hydra, "drafter.checkpoint=heads")
    assert refused.status == 2 and "task=convert_draft_head task.input=heads task.output=heads-saf" in refused.error
    done = cli("task=convert_draft_head", "task.input=heads", "task.output=converted")
    assert done.out == "converted: Hydra++ head, for a target of hidden size 48 and vocabulary 96\n", done.err
    plain = cli("pipeline=vanilla", *hydra[1:])
    drafted = cli(*hydra, "drafter.checkpoint=converted", "output_dir=results")
    assert drafted.status == 0 and drafted.out == plain.out, drafted.err
    assert '"converted, Hydra++ heads"' in (own_directory / "results" / "metrics.json").read_text()
    shown = cli(*hydra, "drafter.checkpoint=converted", "task=show_tree", "drafter.growth=beam")
    assert shown.status == 0, shown.err
    unnamed = cli(*hydra)
    assert unnamed.status == 2 and unnamed.error.startswith(
        "drafter.checkpoint: no installed package has a head of hydra for model; name one"
    )


def test_a_prediction_module_drafts(cli: Callable[..., Any], own_directory: Path) -> None:
    mtp = ["pipeline=mtp_chain", "model.target=model", "prompt=a b c d", "max_new_tokens=12", "ignore_eos=true"]
    without = cli(*mtp)
    assert without.status == 2
    assert without.error.startswith("drafter.checkpoint: is not given, and model has no prediction module (MTP)")
    plain = cli("pipeline=vanilla", *mtp[1:])
    # from a directory of its own, and from among the target's tensors
    write_module(own_directory / "module", "deepseek", model_config(), mtp_tensors("deepseek"))
    drafted = cli(*mtp, "drafter.checkpoint=module", "policy=adaptive")
    assert drafted.status == 0 and drafted.out == plain.out, drafted.err
    add_module(own_directory / "model", "deepseek")
    own = cli(*mtp, "output_dir=results", "drafter.growth=dynamic", "drafter.width=3")
    assert own.status == 0 and own.out == plain.out, own.err
    assert '"model, DeepSeek MTP head"' in (own_directory / "results" / "metrics.json").read_text()
    eagle = cli("pipeline=eagle_tree", "drafter.checkpoint=module", *mtp[1:])
    assert eagle.status == 2 and "module is a head of mtp (DeepSeek MTP layout), and this drafter needs" in eagle.error


def test_a_gguf_file_drafts_with_its_module(
    cli: Callable[..., Any], own_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # native kernels are compiled once on a machine, and not for this
    (own_directory / "cache").mkdir()
    (cache_root() / "native").mkdir(parents=True, exist_ok=True)
    (own_directory / "cache" / "native").symlink_to(cache_root() / "native")
    monkeypatch.setenv("SPEC_SDK_CACHE", str(own_directory / "cache"))
    write_with_module(own_directory / "m.gguf", "qwen35")
    write_with_module(own_directory / "mtp-m.gguf", "qwen35", alone=True)
    mtp = ["pipeline=mtp_chain", "model.target=m.gguf", "prompt=a b c d", "max_new_tokens=12", "ignore_eos=true"]
    plain = cli("pipeline=vanilla", *mtp[1:])
    own = cli(*mtp, "output_dir=results")
    assert own.status == 0 and own.out == plain.out, own.err
    assert '"m, Qwen MTP head"' in (own_directory / "results" / "metrics.json").read_text()
    beside = cli(*mtp, "drafter.checkpoint=mtp-m.gguf")
    assert beside.status == 0 and beside.out == plain.out, beside.err
    (own_directory / "torn.gguf").write_bytes((own_directory / "m.gguf").read_bytes()[:5000])
    for file, said in (("torn", "torn.gguf: is truncated"), ("none", "none.gguf: no such directory or file")):
        refused = cli(*mtp, f"drafter.checkpoint={file}.gguf")
        assert refused.status == 2 and said in refused.error and "Traceback" not in refused.err
    eagle = cli("pipeline=eagle_tree", "drafter.checkpoint=m.gguf", *mtp[1:])
    assert eagle.status == 2 and "m.gguf is a head of mtp (Qwen MTP layout), and this drafter needs" in eagle.error


def test_a_block_is_drafted(cli: Callable[..., Any], own_directory: Path) -> None:
    write_dspark(own_directory / "head", replace(BlockSizes(), rank=4, confidence=True), leaving=(0, 2, 4))
    options = ["model.target=model", "prompt=a b c d", "max_new_tokens=12", "ignore_eos=true"]
    plain = cli("pipeline=vanilla", *options)
    block = ["pipeline=block_tree", "drafter.checkpoint=head", *options]
    drafted = cli(*block, "output_dir=results")
    assert drafted.status == 0 and drafted.out == plain.out, drafted.err
    assert '"head, DSpark head"' in (own_directory / "results" / "metrics.json").read_text()
    shown = cli(*block, "task=show_tree", "drafter.max_nodes=4", "drafter.width=2", "drafter.min_probability=0")
    assert shown.status == 0, shown.err
    eagle = cli("pipeline=eagle_tree", "drafter.checkpoint=head", *options)
    assert eagle.status == 2 and "head is a head of dspark (DSpark layout), and this drafter needs" in eagle.error
    wrong = cli(*block, "drafter.target_layers=[1,3,6]")
    assert wrong.status == 2 and "reads layers 1, 3, 6 of its target, and model has 5" in wrong.error


def test_several_tokens_are_drafted_in_one_pass(cli: Callable[..., Any], own_directory: Path) -> None:
    write_peagle(own_directory / "head", SIZES, eagle_aux_hidden_state_layer_ids=[1, 3, 5])
    options = ["model.target=model", "prompt=a b c d", "max_new_tokens=12", "ignore_eos=true"]
    plain = cli("pipeline=vanilla", *options)
    peagle = ["pipeline=peagle_tree", "drafter.checkpoint=head", *options]
    drafted = cli(*peagle, "output_dir=results")
    assert drafted.status == 0 and drafted.out == plain.out, drafted.err
    assert '"head, P-EAGLE head"' in (own_directory / "results" / "metrics.json").read_text()
    shown = cli(*peagle, "task=show_tree", "drafter.max_nodes=4", "drafter.min_probability=0")
    assert shown.status == 0, shown.err
    eagle = cli("pipeline=eagle_tree", "drafter.checkpoint=head", *options)
    assert eagle.status == 2 and "head is a head of peagle (P-EAGLE layout), and this drafter needs" in eagle.error
    listed = cli("task=plugins")
    assert re.search(r"^\W*peagle\b", listed.out, re.MULTILINE)
