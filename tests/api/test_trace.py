"""``trace=True``: steps whose accepted paths, put together, are the answer."""

from __future__ import annotations

import math
from typing import Any

import pytest

from spec_sdk import Engine, UserError
from spec_sdk.api.answer import Answer
from spec_sdk.step_drawing import in_words
from tests.api.conftest import PROMPTS

PIPELINES: dict[str, list[str]] = {
    "easyspec_paper": [],
    "specinfer_tree": ["policy=fixed", "policy.depth=4"],
    "suffix": ["policy=fixed"],
    "vanilla": [],
}
SAMPLING: dict[str, dict[str, Any]] = {"greedy": {}, "sampled": {"temperature": 1.1, "seed": 4}}


def check(answer: Answer) -> None:
    """Valid trees, tokens and texts that add up, counts that are the metrics'."""
    tokens = [token for step in answer.steps for token in step.tokens]
    assert [token.token for token in tokens] == answer.tokens
    assert [step.number for step in answer.steps] == list(range(1, len(answer.steps) + 1))
    drafted = accepted = 0
    for step in answer.steps:
        depths: list[int] = []
        for place, node in enumerate(step.nodes):
            assert (node.parent is None) == (place == 0)
            assert node.parent is None or 0 <= node.parent < place
            depths.append(0 if node.parent is None else depths[node.parent] + (not node.forced))
            assert bool(node.drafters) == (place > 0)
            assert node.target_probability is None if place == 0 else 0 <= (node.target_probability or 0) <= 1
            assert node.draft_probability is None or 0 <= node.draft_probability <= 1
        assert step.path[0] == 0
        for above, below in zip(step.path, step.path[1:], strict=False):
            assert step.nodes[below].parent == above
        from_tree = [token for token in step.tokens if token.node is not None]
        assert all((token.source == "forced") == step.nodes[token.node or 0].forced for token in from_tree)
        assert [token.node for token in from_tree] == step.path[1:]
        assert [token.token for token in from_tree] == [step.nodes[node].token for node in step.path[1:]]
        for own in step.tokens[len(from_tree) :]:
            children = [node for node in step.nodes if node.parent == step.path[-1]]
            nothing = all(node.forced for node in step.nodes[1:])
            expected = "plain" if nothing else "correction" if children else "bonus"
            assert (own.source, own.node) == (expected, None)
        assert len(step.tokens) - len(from_tree) <= 1
        drafted += max(depths)
        accepted += sum(token.source == "drafted" for token in from_tree)
    assert len(answer.steps) == answer.metrics["steps"]
    assert (drafted, accepted) == (answer.metrics["drafted"], answer.metrics["accepted"])
    for stage, seconds in answer.metrics["stage_s"].items():
        told = sum(getattr(step, f"{stage}_s") for step in answer.steps)
        assert math.isclose(told, seconds, rel_tol=1e-6, abs_tol=1e-9)


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_steps_add_up_to_the_answer(pipeline: str, sampling: str, engine: Engine) -> None:
    options: Any = {"max_new_tokens": 24, **SAMPLING[sampling]}
    traced = engine.with_pipeline(pipeline, overrides=PIPELINES[pipeline])
    sources = set()
    for prompt in PROMPTS[:2]:
        [answer] = traced.generate(prompt, trace=True, logprobs=0, **options)
        check(answer)
        told_text = "".join(token.text for step in answer.steps for token in step.tokens)
        # half a character at the end comes out only when there is nothing more to come
        assert answer.text.startswith(told_text) and len(answer.text) - len(told_text) < 8
        told = [token for step in answer.steps for token in step.tokens]
        for token, logprob in zip(told, answer.logprobs, strict=True):
            assert token.probability == pytest.approx(math.exp(logprob.logprob), rel=1e-3, abs=1e-6)
        sources |= {token.source for token in told}
        if pipeline != "suffix":  # it learns from what it answered
            [unasked] = traced.generate(prompt, **options)
            assert unasked.tokens == answer.tokens and unasked.steps == []
    if pipeline == "easyspec_paper":
        assert "drafted" in sources and sources & {"bonus", "correction"}
    if pipeline == "vanilla":
        assert sources == {"plain"}


@pytest.mark.parametrize("pipeline", ["vanilla", "suffix", "specinfer_tree"])
def test_forced_tokens_have_a_source_of_their_own(pipeline: str, engine: Engine) -> None:
    """In trees, in counts, and in what is told of a step; the last token of an answer too."""
    traced = engine.with_pipeline(pipeline, overrides=PIPELINES[pipeline])
    constraint = {"name": "tokens", "begin": [40, 41, 42, 40, 41, 43]}
    [answer] = traced.generate(PROMPTS[0], constraint=constraint, trace=True, logprobs=0, max_new_tokens=16)
    check(answer)
    tokens = [token for step in answer.steps for token in step.tokens]
    assert [token.token for token in tokens[:6]] == constraint["begin"]
    assert {token.source for token in tokens[:6]} == {"forced"} and tokens[6].source != "forced"
    assert in_words(answer.steps[0]).startswith("step 1: 6 forced, ")
    [cut] = traced.generate(PROMPTS[0], constraint=constraint, trace=True, max_new_tokens=3)
    check(cut)
    assert cut.tokens == [40, 41, 42] and [step.tokens[-1].source for step in cut.steps] == ["plain"]


def test_draft_probabilities_are_told(engine: Engine) -> None:
    [answer] = engine.generate(PROMPTS[0], trace=True, temperature=1.0, seed=1)
    told = [node.draft_probability for step in answer.steps for node in step.nodes[1:]]
    assert told and all(probability is not None for probability in told)


def test_parts_of_a_stream_have_them(engine: Engine) -> None:
    parts = list(engine.stream(PROMPTS[2], trace=True, n=2, temperature=0.9, seed=2))
    for sample in range(2):
        own = [part for part in parts if part.sample == sample]
        assert all([t.token for s in part.steps for t in s.tokens] == part.tokens for part in own)
        answer = own[-1].answer
        assert answer is not None and answer.steps == [step for part in own for step in part.steps]
        check(answer)


def test_a_stop_string_cuts_them_off_with_the_tokens(engine: Engine) -> None:
    [whole] = engine.generate(PROMPTS[2])
    stop = whole.text[len(whole.text) // 2 :][:2]
    [cut] = engine.generate(PROMPTS[2], trace=True, stop=stop)
    check(cut)
    assert "".join(token.text for step in cut.steps for token in step.tokens).startswith(cut.text + stop)


def test_logs_are_not_filled_with_trees(engine: Engine) -> None:
    """Observers of plugin packages get the event that they would get without it."""
    seen: list[dict[str, Any]] = []
    serving = engine._serving
    mailbox = serving.begin(serving.planned_one(PROMPTS[0], {"trace": True}))
    [answering] = mailbox.open.values()
    emit = answering._log.emit

    def watched(event: Any) -> None:
        seen.append(dict(event))
        emit(event)

    answering._log.emit = watched  # type: ignore[method-assign]
    while mailbox.open:
        serving.step()
    assert any(event["event"] == "cycle" for event in seen) and not any("trace" in event for event in seen)


@pytest.mark.parametrize("value", ["yes", 1, None])
def test_what_is_refused(value: Any, engine: Engine) -> None:
    with pytest.raises(UserError, match="^trace"):
        engine.generate(PROMPTS[0], trace=value)
