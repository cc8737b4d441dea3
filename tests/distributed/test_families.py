"""Several processes compute what one computes of models with latents, states, and layers of one sub-layer alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from spec_sdk.pipeline import build_pipeline
from spec_sdk.registry import Registry
from tests.distributed.cases import PIPELINES, SAMPLED, SMALL, answers_of, speculated, states_after_trees
from tests.distributed.support import work
from tests.draft_heads.test_mtp import own_module
from tests.support.real_pipelines import settings_of
from tests.support.tiny_checkpoints import write_checkpoint

FAMILIES = ("deepseek_v3", "youtu", "qwen3_5_moe", "lfm2", "falcon_h1", "nemotron_h_moe")
RUNS = [(family, name, name == "sd_chain") for family in FAMILIES for name in ("easyspec_tree", "sd_chain")]
RUNS += [(family, name, False) for family in ("youtu", "qwen3_5_moe") for name in ("layer_skip_tree", "easyspec_paper")]
RUNS += [("with_module", "mtp_chain", False)]
NATIVE = {"moe_intermediate_size": 64}
"""Whole panels of the kernels on each of two processes."""
# the others of lfm2 are convolutions
PREDICTED = ["pipeline=alspec", *SMALL, "attention_verifier.threshold=1", "attention_verifier.never=[0,1,3]"]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("families")
    for family in FAMILIES:
        write_checkpoint(root / family, family, 3, **(NATIVE if "moe" in family or "deepseek" in family else {}))
    own_module(root / "with_module", "latents")
    return root


def options(family: str, name: str, sampled: bool, checkpoints: Path) -> list[str]:
    of_pipeline = [option for option in PIPELINES[name] if not option.startswith("drafter.checkpoint")]
    return [*of_pipeline, f"model.target={checkpoints / family}", *(SAMPLED if sampled else [])]


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.full)])
def done(request: pytest.FixtureRequest, checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Any]:
    size, jobs = request.param, dict[Any, list[Any]]()
    for run in RUNS:
        jobs[run] = ["tokens", options(*run, checkpoints)]
    of_groups = [*PREDICTED, f"model.target={checkpoints / 'lfm2'}"]
    jobs["predicted"] = ["speculation", of_groups]
    if size == 2:
        # whose groups' ranks are the whole of them
        jobs["states"] = ["states", of_groups]
    found = work(size, list(jobs.values()), tmp_path_factory.mktemp("ranks"))
    return {**dict(zip(jobs, found, strict=True)), "size": size}


@pytest.mark.parametrize("run", RUNS, ids=lambda run: "-".join(map(str, run)))
def test_a_pipeline_gives_the_tokens_of_one_process(
    run: tuple[str, str, bool], done: dict[Any, Any], checkpoints: Path
) -> None:
    settings, events = settings_of(*options(*run, checkpoints)), list[dict[str, Any]]()
    assert done[run] == answers_of(build_pipeline(settings, Registry.discover()), settings, events.append)
    assert sum(event.get("accepted", 0) for event in events) > 0 or run[1] == "mtp_chain"


def test_attention_between_convolutions_is_predicted_by_two_device_groups(
    done: dict[Any, Any], checkpoints: Path
) -> None:
    answers, reports, groups = done["predicted"]
    pipeline = build_pipeline(settings_of(*PREDICTED, f"model.target={checkpoints / 'lfm2'}"), Registry.discover())
    alone, expected = speculated(pipeline)
    assert (answers, groups) == (alone, [done["size"] // 2] * 2)
    if done["size"] == 2:
        same_bits, states = done["states"]
        of_one = build_pipeline(settings_of(*PREDICTED, f"model.target={checkpoints / 'lfm2'}"), Registry.discover())
        assert same_bits and torch.allclose(torch.tensor(states), states_after_trees(of_one), atol=1e-4, rtol=1e-4)
    hits = [hit for report in reports for hit in report["hit"]]
    assert hits == [hit for report in expected for hit in report["hit"]] and {True, False, None} <= set(hits)
