"""The command that a report prints composes to the config that the run had."""

from __future__ import annotations

import shlex

import pytest

from spec_sdk.config.composing import settings_for
from spec_sdk.run_report.commands import command_of


@pytest.mark.parametrize(
    "overrides",
    [
        ["pipeline=vanilla"],
        ["pipeline=alspec", 'prompt=It\'s "a" ${x}, b', "attention_verifier.never=[0,1]", "chat=false"],
        ["pipeline=eagle_tree", "drafter=suffix", "drafter.min_probability=0.1", "max_new_tokens=7"],
        ["pipeline=sd_chain", "prompt_file=/tmp/a b=c.jsonl", "policy=fixed", "policy.depth=3", "verifier=greedy"],
        ["pipeline=easyspec_paper", "drafter.growth=static", "drafter.widths=[3,2]", "sampling.temperature=0.5"],
        ["pipeline=mixed", "prompt=8", "save_prompts=false"],
        ["pipeline=suffix", "prompt=null", "output_dir=elsewhere", "backend.threads=1"],
    ],
)
def test_it_composes_to_the_same(overrides: list[str]) -> None:
    settings = settings_for(overrides)
    command = shlex.split(command_of(settings.pipeline.name, settings.resolved))
    assert command[:3] == ["python", "-m", "spec_sdk"]
    again = settings_for(command[3:])
    # where it wrote, and which keys count as changed, are not what it does
    left_out = ("output_dir", "pipeline")
    assert {k: v for k, v in again.resolved.items() if k not in left_out} == {
        k: v for k, v in settings.resolved.items() if k not in left_out
    }


def test_what_is_of_a_sweep_is_left_out() -> None:
    """A single run is refused that names a sweep's options."""
    job = settings_for(["pipeline=suffix", "sweep.metric=tokens_per_second", "sweep.resume=true", "max_new_tokens=7"])
    assert command_of("suffix", job.resolved) == "python -m spec_sdk pipeline=suffix max_new_tokens=7"


def test_a_pipeline_of_a_user_s_own_yaml_is_told_by_its_options() -> None:
    """So that the command runs where the directory is not at hand."""
    mine = settings_for(["pipeline=sd_chain", "drafter=prompt_lookup", "policy=fixed", "policy.depth=2", "prompt=Hi"])
    config = {**mine.resolved, "pipeline": {"name": "mine"}}
    command = command_of("mine", config)
    assert command.startswith("python -m spec_sdk ") and "pipeline=" not in command and "null" not in command
    again = settings_for(shlex.split(command)[3:])
    assert {**again.resolved, "pipeline": config["pipeline"]} == config
