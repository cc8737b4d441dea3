"""What is counted along an answer against what the definitions say of it."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from spec_sdk import Engine
from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk.model.config_fields import read_json_object
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.training.draft_directory import draft_settings, write_draft
from spec_sdk.training.draft_shape import DraftShape
from spec_sdk.training.head_directory import head_settings, write_head
from spec_sdk.training.head_start import head_start
from spec_sdk.training.measured_acceptance import Tally, measure, tally_of
from spec_sdk.training.samples import Sample
from spec_sdk.training.trainable import TrainableDraft
from spec_sdk.training.trainable_head import TrainableHead


def of_all_chains(values: Sequence[float], depth: int) -> torch.Tensor:
    """Row i: ``values`` from i on, ``depth`` of them, 0 behind the end."""
    padded = [*values, *[0.0] * depth]
    return torch.tensor([padded[i : i + depth] for i in range(len(values))])


def test_greedy_cycles() -> None:
    def greedy(matches: Sequence[bool], depth: int) -> Tally:
        return tally_of(of_all_chains(matches, depth).bool(), torch.ones(len(matches), depth), True)

    # drafted, drafted, miss | drafted and the end
    tally = greedy([True, True, False, True], 2)
    assert (tally.tokens, tally.matches, tally.chain_tokens, tally.cycles) == (4, 3, 4, 2)
    assert (tally.step_tokens, tally.step_matches) == ({0: 4, 1: 3}, {0: 3, 1: 2})
    # with chains of one: drafted and the bonus | missed | the end
    assert tally.cycles_by_depth == {1: 3, 2: 2} and greedy([True] * 7, 3).cycles_by_depth == {1: 4, 2: 3, 3: 2}
    tally = greedy([True] * 7, 3)
    assert (tally.chain_tokens, tally.cycles) == (7, 2)
    tally = greedy([False] * 5, 3)
    assert (tally.chain_tokens, tally.cycles) == (5, 5)


def test_a_head_s_later_tokens_count_where_their_chain_begins() -> None:
    # the first token is always right; the second is right in the chain from 0, wrong in that from 2
    match_AS = torch.tensor([[True, True], [True, False], [True, False], [True, False]])
    tally = tally_of(match_AS, torch.ones(4, 2), True)
    # two drafted and the bonus | one drafted and the end
    assert (tally.chain_tokens, tally.cycles) == (4, 2)
    assert (tally.step_tokens, tally.step_matches) == ({0: 4, 1: 3}, {0: 4, 1: 1})


def test_sampled_chains_have_the_expected_length() -> None:
    """Σ Π min(p, q) by enumeration, against the mean over texts that p sampled; p and q depend on the token before."""
    p = {0: (0.7, 0.2, 0.1), 1: (0.1, 0.6, 0.3), 2: (0.3, 0.3, 0.4)}
    q = {0: (0.5, 0.1, 0.4), 1: (0.3, 0.3, 0.4), 2: (0.2, 0.7, 0.1)}
    expected = 1.0
    for length in (1, 2, 3):
        for text in itertools.product(range(3), repeat=length):
            pairs = itertools.pairwise((0, *text))
            expected += math.prod(min(p[a][b], q[a][b]) for a, b in pairs)
    chance, total, texts = random.Random(0), 0.0, 40_000
    for _ in range(texts):
        before, ratios = 0, []
        for _ in range(3):
            (token,) = chance.choices(range(3), p[before])
            ratios.append(min(1.0, q[before][token] / p[before][token]))
            before = token
        tally = tally_of(torch.zeros(3, 3, dtype=torch.bool), of_all_chains(ratios, 3), False)
        assert tally.sampled_cycles == 1
        total += tally.sampled_tokens
    assert total / texts == pytest.approx(expected, abs=0.02)


def test_a_greedy_run_counts_what_was_measured(tmp_path: Path, tiny_target: Path) -> None:
    target, shape, cpu = open_checkpoint(str(tiny_target)), DraftShape([0, 2]), torch.device("cpu")
    model = TrainableDraft(target, shape, cpu)
    write_draft(tmp_path / "draft", model, target, draft_settings(target, shape, False), "float32")
    overrides = ["backend.native=false", "policy=fixed", "policy.depth=3"]
    engine = Engine.from_pipeline("sd_chain", target=tiny_target, draft=tmp_path / "draft", overrides=overrides)
    prompts = [engine.tokenizer.encode(text) for text in ("Why is the sky", "A dog and a cat", "What", "Write it")]
    answers = engine.generate(prompts, max_new_tokens=45, ignore_eos=True)
    samples: list[Sample] = []
    for prompt, answer in zip(prompts, answers, strict=True):
        labels = torch.zeros(45, 1, dtype=torch.int32), torch.zeros(45, 1), torch.zeros(45)
        samples.append(Sample(len(samples), "greedy", True, 0.0, prompt, answer.tokens, *labels))
    found = measure(model, [samples[:3], samples[3:]], 200, 3, cpu).total
    assert found.cycles == sum(answer.metrics["steps"] for answer in answers)
    assert found.chain_tokens == 4 * 45 and 0 < found.matches < found.tokens


def test_a_greedy_run_with_a_head_counts_what_was_measured(tmp_path: Path, tiny_target: Path) -> None:
    target, taps, cpu = open_checkpoint(str(tiny_target)), (1, 2, 3), torch.device("cpu")
    executor = TorchExecutor(load_decoder(target, cpu, torch.float32), Ops())

    def features_of(one: Sample) -> torch.Tensor:
        hidden = Session(executor).prefill(0, [*one.prompt, *one.answer][:-2], taps)
        return torch.cat([hidden[tap] for tap in taps], dim=-1)

    start = head_start(target, read_json_object(tiny_target / "config.json"), DraftShape([2]), taps, 0)
    model = TrainableHead(start, features_of, 2, 1.0, cpu)
    settings = head_settings(target, start, target.config.vocab_size, 2, True)
    write_head(tmp_path / "head", model, settings, "float32")
    overrides = [
        "backend.native=false",
        "policy=fixed",
        "policy.depth=3",
        "drafter.growth=beam",
        "drafter.width=1",
        f"drafter.checkpoint={tmp_path / 'head'}",
    ]
    engine = Engine.from_pipeline("eagle_tree", target=tiny_target, overrides=overrides)
    prompts = [engine.tokenizer.encode(text) for text in ("Why is the sky", "A dog and a cat", "What", "Write it")]
    answers = engine.generate(prompts, max_new_tokens=45, ignore_eos=True)
    samples: list[Sample] = []
    for prompt, answer in zip(prompts, answers, strict=True):
        labels = torch.zeros(45, 1, dtype=torch.int32), torch.zeros(45, 1), torch.zeros(45)
        samples.append(Sample(len(samples), "greedy", True, 0.0, prompt, answer.tokens, *labels))
    found = measure(model, [samples[:3], samples[3:]], 200, 3, cpu).total
    assert found.cycles == sum(answer.metrics["steps"] for answer in answers)
    assert found.chain_tokens == 4 * 45 and 0 < found.matches < found.tokens
    assert sum(found.step_matches.values()) > found.matches
