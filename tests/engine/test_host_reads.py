"""How often a step waits for values of the device is counted, and is one where nothing is decided on the host."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from spec_sdk.contracts import Request, Verdict
from spec_sdk.engine.token_engine import TokenRequest
from spec_sdk.metrics import summarise
from spec_sdk.pipeline import build_pipeline
from spec_sdk.registry import Registry
from spec_sdk.tree import TokenTree
from spec_sdk_verifiers.greedy import Greedy
from tests.support.real_pipelines import settings_of, tokens_of
from tests.support.tiny_checkpoints import write_checkpoint

PROMPT = [5, 17, 44, 5, 17, 44, 5, 17]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "target"
    write_checkpoint(directory, "smollm", 3)
    return directory


def cycles(checkpoint: Path, *overrides: str) -> list[dict[str, Any]]:
    pipeline = build_pipeline(settings_of(f"model.target={checkpoint}", *overrides), Registry.discover())
    events: list[dict[str, Any]] = []
    tokens_of(pipeline, PROMPT, 9, ignore_eos=True, emit=events.append)
    found = [event for event in events if event["event"] == "cycle"]
    assert summarise(events)["host_reads_per_step"] == sum(event["host_reads"] for event in found) / len(found)
    return found


def of_a_batch(checkpoint: Path, requests: int, *overrides: str) -> set[int]:
    """The reads of all steps of so many requests that are answered together."""
    pipeline = build_pipeline(settings_of(f"model.target={checkpoint}", *overrides), Registry.discover())
    engine, events = pipeline.new_engine(requests), list[dict[str, Any]]()
    for number in range(requests):
        prompt = [*PROMPT[number % 3 :], number]
        engine.add(TokenRequest(prompt, max_new_tokens=4 + number, ignore_eos=True, emit=events.append))
    while engine.busy:
        assert all(progress.error is None for progress in engine.step())
    found = [event for event in events if event["event"] == "cycle"]
    assert sum(len(event["tokens"]) for event in found) == sum(4 + number for number in range(requests))
    return {event["host_reads"] for event in found}


@pytest.mark.parametrize("sampling", [(), ("sampling.temperature=0.8",), ("sampling.temperature=1", "sampler=exact")])
@pytest.mark.parametrize("requests", [1, 4, 8])
@pytest.mark.parametrize("name", ["vanilla", "prompt_lookup"])
def test_one_read_for_the_verdicts_of_all_requests(
    name: str, requests: int, sampling: tuple[str, ...], checkpoint: Path
) -> None:
    assert of_a_batch(checkpoint, requests, f"pipeline={name}", *sampling) == {1}


@pytest.mark.parametrize("verifier", ["naive_tree", "block_verification", "chain_rejection", "typical"])
def test_every_rule_in_torch_is_followed_with_one_read(verifier: str, checkpoint: Path) -> None:
    sampled = ("sampling.temperature=0.8", "sampling.top_p=0.9")
    assert of_a_batch(checkpoint, 4, "pipeline=prompt_lookup", f"verifier={verifier}", *sampled) == {1}


def test_a_verifier_with_verdicts_of_its_own_reads_once_for_each_request(checkpoint: Path) -> None:
    class OneByOne(Greedy):
        def verify_one(self, tree: TokenTree, logits_NV: torch.Tensor, request: Request) -> Verdict:
            return super().verify_one(tree, logits_NV, request)

    pipeline = build_pipeline(settings_of(f"model.target={checkpoint}", "pipeline=vanilla"), Registry.discover())
    pipeline = replace(pipeline, verifier=OneByOne(None))
    engine, events = pipeline.new_engine(3), list[dict[str, Any]]()
    for _ in range(3):
        engine.add(TokenRequest(PROMPT, max_new_tokens=5, ignore_eos=True, emit=events.append))
    while engine.busy:
        engine.step()
    assert max(event["host_reads"] for event in events if event["event"] == "cycle") == 3


def test_a_drafter_that_grows_on_the_host_adds_one_per_level(checkpoint: Path) -> None:
    found = cycles(checkpoint, "pipeline=easyspec_paper", "policy.depth=3")
    assert all(event["host_reads"] == 1 + event["drafted"] for event in found)
    assert {event["drafted"] for event in found} >= {3}


def test_a_drafter_that_wants_the_targets_top_tokens_adds_one(checkpoint: Path) -> None:
    """For all requests of a step together."""
    fixed = ("policy=fixed", "policy.depth=3", "policy.max_nodes=6")
    for requests in (1, 4):
        assert of_a_batch(checkpoint, requests, "pipeline=token_recycling", *fixed) == {2}
        assert of_a_batch(checkpoint, requests, "pipeline=suffix", *fixed) == {1}


def test_measuring_attention_adds_one_per_pass(checkpoint: Path) -> None:
    found = cycles(checkpoint, "pipeline=alspec", "predictor.size=2")
    assert {event["host_reads"] for event in found} == {2}
    assert of_a_batch(checkpoint, 4, "pipeline=alspec", "predictor.size=2") == {2}
