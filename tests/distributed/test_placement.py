"""Which ranks hold what: ``backend.groups``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from spec_sdk.errors import UserError
from spec_sdk.model.context_vocabulary import with_lowest_tokens
from spec_sdk.model.tensor_parallel import load_shard
from spec_sdk.parallel.placement import Placement, placement
from spec_sdk.pipeline import build_pipeline
from spec_sdk.registry import Registry
from spec_sdk_backends.cpu import CpuBackend, CpuConfig
from tests.conftest import FULL
from tests.distributed.cases import NEW, PROMPT, SAMPLED, SMALL
from tests.distributed.support import work
from tests.support.real_pipelines import settings_of, tokens_of
from tests.support.tiny_checkpoints import write_checkpoint
from tests.support.tiny_decoder import ModelTensors
from tests.support.tiny_ranks import ranks_at


@pytest.mark.parametrize(
    ("groups", "two", "message"),
    [
        ({"drafts": [0]}, False, "backend.groups: has no 'drafts', did you mean 'draft'?"),
        ({"draft": []}, False, r"backend.groups.draft: \[\] is without rank 0, which leads"),
        ({"draft": [1, 2]}, False, r"backend.groups.draft: \[1, 2\] is without rank 0, which leads"),
        ({"draft": [0, 4]}, False, "backend.groups.draft: there is no rank 4 among 4 launched; the last is 3"),
        ({"draft": [0, -1]}, False, "there is no rank -1"),
        ({"draft": [0, 1, 1]}, False, "has rank 1 twice"),
        ({"draft": 2}, False, "2 is not a list of ranks"),
        ({"draft": [0, True]}, False, "is not a list of ranks"),
        ({"target": [0, 1, 2]}, False, "backend.groups.target: rank 3 is not in it, and 4 processes were launched"),
        ({"target": [[0, 1], [2, 3]]}, False, "is not a list of ranks"),
        ({"target": [0, 1, 2, 3]}, True, "is not two lists of ranks, since speculation on attention"),
        ({"target": [[0], [1], [2]]}, True, "has 3 groups"),
        ({"target": [[1, 2], [0, 3]]}, True, "is without rank 0, which leads"),
        ({"target": [[0, 1], [1, 3]]}, True, "has a rank in both groups"),
        ({"target": [[0, 1, 2], [3]]}, True, "groups of 3 and 1 ranks; they must be of one size"),
        ({"target": [[0, 1, 2, 3], []]}, True, "a group is empty"),
    ],
)
def test_bad_groups_are_refused_in_one_line(groups: dict[str, Any], two: bool, message: str) -> None:
    with pytest.raises(UserError, match=message):
        placement(groups, 4, two)


def test_groups_that_are_right() -> None:
    assert placement({}, 4, False) == placement({"target": [0, 1, 2, 3]}, 4, False) == Placement()
    assert placement({"draft": [2, 0]}, 4, False) == Placement(None, (0, 2))
    assert placement({"target": [[3, 0], [1, 2]], "draft": [0]}, 4, True) == Placement((0, 3), (0,))


CHAIN, TREE = ["pipeline=sd_chain", "drafter.draft=DRAFT"], ["pipeline=easyspec_paper", "drafter.size=3"]
ALSPEC = [*SMALL, "attention_verifier.threshold=0.9"]
TWO = {
    "divided chain": ([*CHAIN, "backend.groups.draft=[0,1]"], [1, 1]),
    "divided cut": (
        ["pipeline=sd_chain", "verifier=multi_step", "drafter.width=2", "backend.groups={target: [0,1], draft: [0,1]}"],
        [2, 1],
    ),
    "layers on one": ([*TREE, "backend.groups.draft=[0]"], [3, 0]),
    "layers on two": ([*TREE, "backend.groups.draft=[0,1]"], [3, 3]),
}
"""Name → options, and the KV heads of every rank's draft model: 0 where it has none."""
FOUR = {
    "divided by two of four": ([*CHAIN, "backend.groups.draft=[0,2]"], [1, 0, 1, 0]),
    "layers on three of four": ([*TREE, "backend.groups.draft=[0,1,3]"], [3, 3, 0, 3]),
    "device groups by turns": (
        [
            "pipeline=alspec_easyspec_tree",
            *ALSPEC,
            "drafter.size=3",
            "backend.groups={target: [[0,2],[1,3]], draft: [0,3]}",
        ],
        [3, 0, 0, 3],
    ),
    "device groups, divided draft": (
        ["pipeline=alspec", "drafter=draft_model", *ALSPEC, "backend.groups={target: [[0,3],[1,2]], draft: [0,1,2]}"],
        [1, 1, 1, 0],
    ),
}
REFUSED = {
    "one drafter": (["pipeline=suffix", "backend.groups.draft=[0,1]"], "drafter 'suffix' drafts on rank 0 alone"),
    "no such rank": (["pipeline=sd_chain", "backend.groups.draft=[0,5]"], "there is no rank 5"),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    write_checkpoint(root / "target", "smollm", 3, num_attention_heads=6, num_key_value_heads=3)
    write_checkpoint(root / "draft", "llama3", 4, num_hidden_layers=2)
    return root


def options(case: list[str], models: Path) -> list[str]:
    named = [option.replace("DRAFT", str(models / "draft")) for option in case]
    return [*named, f"model.target={models / 'target'}"]


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.full)])
def test_a_pipeline_on_groups_gives_the_tokens_of_one_process(size: int, models: Path, tmp_path: Path) -> None:
    cases = TWO if size == 2 else FOUR
    # outside the full tier one divided draft model and one on several ranks draw
    runs = [(name, sampled) for i, name in enumerate(cases) for sampled in (False, True)[: 1 + (FULL or i % 2)]]
    jobs = [["placed", [*options(cases[name][0], models), *(SAMPLED if sampled else [])]] for name, sampled in runs]
    refusals = [["refusal", options(REFUSED[name][0], models)] for name in REFUSED] if size == 2 else []
    done = work(size, [*jobs, *refusals], tmp_path)
    for (name, sampled), (answers, heads) in zip(runs, done, strict=False):
        alone = [option for option in options(cases[name][0], models) if not option.startswith("backend.groups")]
        pipeline = build_pipeline(settings_of(*alone, *(SAMPLED if sampled else [])), Registry.discover())
        expected = [tokens_of(pipeline, PROMPT[i:], NEW, ignore_eos=True, request_id=i) for i in range(2)]
        assert answers == expected, name
        assert heads == cases[name][1], name
    for (_, message), said in zip(REFUSED.values(), done[len(runs) :], strict=size == 2):
        assert message in said


def test_a_divided_draft_model_drafts_all_tokens() -> None:
    place = ranks_at(0, 2)
    shard = load_shard(ModelTensors("smollm", 0), place, place, CpuBackend(CpuConfig()).load, torch.float32)
    with pytest.raises(UserError, match="drafter.vocabulary: a draft model that ranks divide drafts all tokens"):
        with_lowest_tokens(shard, 10, "drafter.vocabulary")
