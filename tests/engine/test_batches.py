"""What a request is answered does not depend on the requests beside it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from spec_sdk.engine.token_engine import TokenEngine, TokenRequest
from spec_sdk.pipeline import Pipeline, build_pipeline
from spec_sdk.registry import Registry
from tests.conftest import FULL
from tests.support.real_pipelines import settings_of
from tests.support.tiny_checkpoints import VOCABULARY, write_checkpoint

FIXED = ("policy=fixed", "policy.depth=4", "policy.max_nodes=9", "drafter.min_probability=0.01")
SMALL = ("predictor.size=3", "attention_verifier.threshold=0.35")
PIPELINES: dict[str, tuple[str, ...]] = {
    "vanilla": (),
    "sd_chain": (),
    "prompt_lookup": (),
    "easyspec_chain": (),
    "easyspec_paper": (),
    "specinfer_tree": ("policy.max_nodes=9",),
    "suffix": FIXED,
    "token_recycling": FIXED,
    "lookahead": ("drafter.window=3", "drafter.ngram=3"),
    "mixed": (*FIXED, "drafter.model={name: draft_model}"),
    "layer_skip_chain": (),
    "layer_skip_tree": ("drafter.layers=5",),
    "alspec": SMALL,
    "alspec_easyspec_tree": SMALL,
}
SAMPLED = ("sampling.temperature=0.8", "sampling.top_p=0.95", "sampling.repetition_penalty=1.1")
COUNT = 16 if FULL else 6
LENGTHS = (1, 40, 7, 19, 2, 64, 11, 30, 5, 23, 3, 50, 9, 14, 28, 6)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "target"
    write_checkpoint(directory, "smollm", 3, num_hidden_layers=6)
    return directory


def prompts(count: int) -> list[list[int]]:
    """Of very different lengths; some repeat themselves, so that a look-up finds something."""
    choose = random.Random(0)
    found = []
    for i in range(count):
        text = [choose.randrange(VOCABULARY) for _ in range(LENGTHS[i])]
        found.append(text if i % 2 else (text[: 1 + len(text) // 3] * 4)[: LENGTHS[i]])
    return found


def answers(engine: TokenEngine, asked: Sequence[tuple[int, list[int]]], joins: Sequence[int]) -> dict[int, list[int]]:
    """The new tokens of requests, (number, prompt), which join before the steps ``joins``."""
    found: dict[int, list[int]] = {number: [] for number, _ in asked}
    waiting = sorted(zip(joins, asked, strict=True), key=lambda join: join[0])
    step = 0
    while waiting or engine.busy:
        while waiting and waiting[0][0] <= step:
            _, (number, prompt) = waiting.pop(0)
            engine.add(TokenRequest(prompt, request_id=number, max_new_tokens=8 + number % 5, ignore_eos=True))
        for progress in engine.step():
            assert progress.error is None
            found[progress.request] += progress.tokens
        step += 1
    return found


def pipeline_of(name: str, checkpoint: Path, *overrides: str) -> Pipeline:
    settings = settings_of(f"pipeline={name}", f"model.target={checkpoint}", *PIPELINES[name], *overrides)
    return build_pipeline(settings, Registry.discover())


ALSO_GREEDY = ("vanilla", "easyspec_paper", "mixed")
"""Nothing drafted, a model's tree, both in one. What a request gets of a batch is the same in both modes."""


@pytest.mark.parametrize(
    ("name", "sampling"),
    [
        *(pytest.param(name, SAMPLED, id=f"{name}-sampled") for name in PIPELINES),
        *(
            pytest.param(name, (), id=f"{name}-greedy", marks=[pytest.mark.full] * (name not in ALSO_GREEDY))
            for name in PIPELINES
        ),
    ],
)
def test_tokens_are_the_same_alone_and_among_others(name: str, sampling: tuple[str, ...], checkpoint: Path) -> None:
    pipeline = pipeline_of(name, checkpoint, *sampling)
    asked = list(enumerate(prompts(COUNT)))
    alone = {number: answers(pipeline.new_engine(), [(number, prompt)], [0])[number] for number, prompt in asked}
    assert all(len(tokens) == 8 + number % 5 for number, tokens in alone.items())
    # all at once; a few at a time, in slots that others had before; joining in the middle of others' answers
    for slots, joins in ((COUNT, [0] * COUNT), (2, [0] * COUNT), (COUNT // 2, [3 * i % 7 for i in range(COUNT)])):
        assert answers(pipeline.new_engine(slots), asked, joins) == alone


def test_requests_have_sampling_parameters_of_their_own(checkpoint: Path) -> None:
    from spec_sdk.contracts import SamplingParams

    pipeline = pipeline_of("easyspec_paper", checkpoint)
    params = [SamplingParams(), SamplingParams(temperature=1.0, seed=3), SamplingParams(temperature=0.5, top_k=5)]
    prompt = prompts(2)[1]

    def run(engine: TokenEngine, chosen: Sequence[int]) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {i: [] for i in chosen}
        for i in chosen:
            engine.add(TokenRequest(prompt, request_id=i, max_new_tokens=12, sampling=params[i], ignore_eos=True))
        while engine.busy:
            for progress in engine.step():
                found[progress.request] += progress.tokens
        return found

    together = run(pipeline.new_engine(3), range(3))
    assert together == {i: run(pipeline.new_engine(), [i])[i] for i in range(3)}
    assert len({tuple(tokens) for tokens in together.values()}) == 3
