"""The head that comes for the default target is found by itself, drafts, and changes nothing of the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.support.real_pipelines import bench_prompts, pipeline_of, tokens_of

TOKENS = 24


def test_it_is_found_and_drafts() -> None:
    drafted = pipeline_of("pipeline=eagle_tree", "policy=fixed", "model.dtype=float32")
    plain = drafted.vanilla()
    cycles: list[Mapping[str, Any]] = []
    answered = 0
    for prompt in bench_prompts(drafted, 3, longest=400):
        events: list[Mapping[str, Any]] = []
        tokens = tokens_of(drafted, prompt, TOKENS, emit=events.append)
        assert tokens == tokens_of(plain, prompt, TOKENS)
        cycles += [event for event in events if event["event"] == "cycle"]
        answered += len(tokens)
    assert drafted.draft_name == "eagle3, speculators eagle3 head"
    assert answered > 1.4 * len(cycles)
