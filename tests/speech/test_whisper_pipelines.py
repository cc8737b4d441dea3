"""Whisper through the engine: transformers' tokens from plain decoding, and the same from every lossless pipeline."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from spec_sdk.contracts import OnlyTokens, SuppressedTokens
from spec_sdk.engine.token_engine import TokenEngine, TokenRequest
from spec_sdk.errors import UserError
from spec_sdk.model.models import check_encoders
from spec_sdk.pipeline import Pipeline, build_pipeline
from spec_sdk.registry import Registry
from spec_sdk.speech.log_mel import log_mel
from spec_sdk.speech.transcription import TranscriptionTokens
from tests.support.real_pipelines import settings_of, tokens_of
from tests.support.tiny_checkpoints import write_checkpoint
from tests.support.tiny_whisper import FRAMES, MELS, SUPPRESSED, SUPPRESSED_AT_BEGIN, sound, write_whisper

NEW_TOKENS = 40
LOSSLESS = {
    "sd_chain": (),
    "prompt_lookup": (),
    "easyspec_chain": (),
    "easyspec_paper": (),
    "specinfer_tree": ("policy.max_nodes=9",),
    "layer_skip_tree": (),
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    directory = tmp_path_factory.mktemp("models") / "whisper"
    return directory, write_whisper(directory, lively=True)


@functools.cache
def features(seed: int) -> torch.Tensor:
    return log_mel(sound(seed), MELS, FRAMES)


@functools.cache
def pipeline_of(name: str, checkpoint: Path, *overrides: str) -> Pipeline:
    return build_pipeline(
        settings_of(f"pipeline={name}", f"model.target={checkpoint}", *overrides), Registry.discover()
    )


def asked(pipeline: Pipeline, seed: int) -> dict[str, Any]:
    """The request of a transcription."""
    tokens = TranscriptionTokens(pipeline.tokenizer)
    return {
        "prompt": tokens.prompt("en", translate=False),
        "input_features": features(seed),
        "constraint": tokens.suppressed(),
    }


def transcription(pipeline: Pipeline, seed: int, **options: Any) -> list[int]:
    request = asked(pipeline, seed)
    return tokens_of(pipeline, request.pop("prompt"), NEW_TOKENS, **request, **options)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.full) for seed in (2, 3))])
def test_plain_decoding_is_generate(seed: int, checkpoint: tuple[Path, Any]) -> None:
    directory, model = checkpoint
    pipeline = pipeline_of("vanilla", directory)
    with torch.no_grad():
        expected = model.generate(
            features(seed)[None],
            language="en",
            task="transcribe",
            return_timestamps=False,
            max_new_tokens=NEW_TOKENS,
        )[0].tolist()
    prompt = TranscriptionTokens(pipeline.tokenizer).prompt("en", translate=False)
    # generate leaves the prompt out, and the end
    expected = expected[len(prompt) :] if expected[: len(prompt)] == prompt else expected
    ours = transcription(pipeline, seed)
    end = model.generation_config.eos_token_id
    assert [token for token in ours if token != end] == [token for token in expected if token != end]
    assert len(ours) > 10


@pytest.mark.parametrize(
    ("name", "penalty"), [*((name, "1.0") for name in LOSSLESS), ("sd_chain", "1.3"), ("easyspec_paper", "1.3")]
)
def test_greedy_tokens_are_those_of_plain_decoding(name: str, penalty: str, checkpoint: tuple[Path, Any]) -> None:
    directory, _ = checkpoint
    overrides = (*LOSSLESS[name], f"sampling.repetition_penalty={penalty}")
    plain, speculating = pipeline_of("vanilla", directory, *overrides), pipeline_of(name, directory, *overrides)
    assert speculating.guarantee == "exact"
    accepted = 0

    def count(event: dict[str, Any]) -> None:
        nonlocal accepted
        accepted += event.get("accepted", 0)

    for seed in (1, 5):
        expected = transcription(plain, seed, ignore_eos=True)
        assert transcription(speculating, seed, ignore_eos=True, emit=count) == expected
    assert accepted > 0


def answers(engine: TokenEngine, requests: Mapping[int, dict[str, Any]]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {number: [] for number in requests}
    for number, request in requests.items():
        engine.add(TokenRequest(request_id=number, max_new_tokens=12 + number, ignore_eos=True, **request))
    while engine.busy:
        for progress in engine.step():
            assert progress.error is None
            found[progress.request] += progress.tokens
    return found


@pytest.mark.parametrize(
    ("name", "sampling"),
    [
        pytest.param("vanilla", (), marks=pytest.mark.full),
        pytest.param("sd_chain", (), marks=pytest.mark.full),
        ("prompt_lookup", ()),
        pytest.param("easyspec_paper", (), marks=pytest.mark.full),
        ("easyspec_paper", ("sampling.temperature=0.8",)),
        ("layer_skip_tree", ("drafter.layers=5", "sampling.temperature=0.8")),
    ],
)
def test_sounds_in_one_batch_are_answered_as_alone(
    name: str, sampling: tuple[str, ...], checkpoint: tuple[Path, Any]
) -> None:
    pipeline = pipeline_of(name, checkpoint[0], *sampling)
    requests = {number: asked(pipeline, number) for number in range(4)}
    # one more of the first sound: its slot's tokens and encoder states may be used again
    requests[4] = asked(pipeline, 0)
    alone = {number: answers(pipeline.new_engine(), {number: request})[number] for number, request in requests.items()}
    assert len({tuple(tokens[:12]) for tokens in alone.values()}) >= 4
    for slots in (4, 2):
        assert answers(pipeline.new_engine(slots), requests) == alone


def test_a_draft_model_with_an_encoder_of_its_own(checkpoint: tuple[Path, Any], tmp_path: Path) -> None:
    write_whisper(tmp_path / "draft", seed=2, encoder_layers=1, decoder_layers=2)
    plain = pipeline_of("vanilla", checkpoint[0])
    pipeline = pipeline_of("sd_chain", checkpoint[0], f"model.draft={tmp_path / 'draft'}")
    assert transcription(pipeline, 0) == transcription(plain, 0)
    same = pipeline_of("sd_chain", checkpoint[0], f"model.draft={checkpoint[0]}")
    events: list[dict[str, Any]] = []
    assert transcription(same, 0, emit=events.append) == transcription(plain, 0)
    cycles = [event for event in events if event["event"] == "cycle"]
    assert [cycle["accepted"] for cycle in cycles[:-1]] == [cycle["drafted"] for cycle in cycles[:-1]]


def test_draft_models_that_hear_otherwise_are_refused(checkpoint: tuple[Path, Any], tmp_path: Path) -> None:
    write_whisper(tmp_path / "draft", num_mel_bins=20)
    with pytest.raises(UserError, match="takes 20 mel bins in 100 frames, the target whisper 16 in 100"):
        pipeline_of("sd_chain", checkpoint[0], f"model.draft={tmp_path / 'draft'}")
    write_checkpoint(tmp_path / "text")
    text = pipeline_of("vanilla", tmp_path / "text").models.target
    hearing = pipeline_of("vanilla", checkpoint[0]).models.target
    with pytest.raises(UserError, match="has an encoder, and the target text is a text model"):
        check_encoders(text, hearing)
    check_encoders(hearing, text)


@pytest.mark.parametrize(
    ("name", "predictor"),
    [("alspec", "attention_sink"), ("alspec", "quest"), ("alspec", "h2o"), ("alspec_easyspec_tree", "attention_sink")],
)
def test_attention_speculation_on_the_decoder(name: str, predictor: str, checkpoint: tuple[Path, Any]) -> None:
    """On its self-attention: at λ = 0 plain decoding is left, and above it something is guessed right."""
    short = (f"predictor={predictor}", "predictor.size=2", *["predictor.page=1"] * (predictor == "quest"))
    expected = transcription(pipeline_of("vanilla", checkpoint[0]), 0, ignore_eos=True)
    exact = pipeline_of(name, checkpoint[0], *short, "attention_verifier.threshold=0")
    assert transcription(exact, 0, ignore_eos=True) == expected
    events: list[dict[str, Any]] = []
    loose = pipeline_of(name, checkpoint[0], *short, "attention_verifier.threshold=0.6")
    transcription(loose, 0, ignore_eos=True, emit=events.append)
    hits = [hit for event in events if event.get("attention") for hit in event["attention"]["hit"]]
    assert True in hits


def test_error_bounds_are_refused(checkpoint: tuple[Path, Any]) -> None:
    with pytest.raises(UserError, match="error_bounds: they are estimated for decoders without cross-attention"):
        pipeline_of("alspec", checkpoint[0], "error_bounds=true")


def test_what_goes_wrong_with_features_is_a_line(checkpoint: tuple[Path, Any], tmp_path: Path) -> None:
    engine = pipeline_of("vanilla", checkpoint[0]).engine
    with pytest.raises(UserError, match="answers nothing but audio"):
        engine.add(TokenRequest([1], max_new_tokens=4))
    with pytest.raises(UserError, match="the encoder takes"):
        engine.add(TokenRequest([1], max_new_tokens=4, input_features=torch.zeros(MELS, 3000)))
    write_checkpoint(tmp_path)
    text = pipeline_of("vanilla", tmp_path).engine
    with pytest.raises(UserError, match="a text model without an encoder"):
        text.add(TokenRequest([1], max_new_tokens=4, input_features=torch.zeros(MELS, FRAMES)))


class Spy(SuppressedTokens):
    """Notes what it is asked about; no token comes twice in an answer, and none is 7."""

    def __init__(self) -> None:
        super().__init__([7])
        self.asked: list[tuple[list[int], list[list[int]]]] = []

    def apply(self, logits_NV: torch.Tensor, answer: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        self.asked.append((list(answer), [list(path) for path in paths]))
        super().apply(logits_NV, answer, paths)
        for row, path in enumerate(paths):
            logits_NV[row, [*answer, *path]] = float("-inf")


@pytest.mark.parametrize("temperature", ["0", "0.9"])
def test_a_constraint_holds_in_target_and_draft(temperature: str, tmp_path: Path) -> None:
    """For text models too: a draft model that is the target drafts what is kept, under the same constraint."""
    write_checkpoint(tmp_path, num_hidden_layers=3)
    pipeline = pipeline_of(
        "sd_chain", tmp_path, f"model.draft={tmp_path}", f"sampling.temperature={temperature}", "chat=false"
    )
    plain = pipeline_of("vanilla", tmp_path, f"sampling.temperature={temperature}")
    free = tokens_of(plain, [5, 6, 7], 30, ignore_eos=True)
    banned = SuppressedTokens(free[3:6], free[:1])
    events: list[dict[str, Any]] = []
    kept = tokens_of(pipeline, [5, 6, 7], 30, ignore_eos=True, constraint=banned, emit=events.append)
    assert not set(kept) & set(free[3:6]) and kept[0] != free[0]
    cycles = [event for event in events if event["event"] == "cycle"]
    assert sum(cycle["drafted"] for cycle in cycles) > 15
    assert [cycle["accepted"] for cycle in cycles] == [cycle["drafted"] for cycle in cycles]
    if temperature == "0":
        assert kept == tokens_of(plain, [5, 6, 7], 30, ignore_eos=True, constraint=banned)


def test_a_constraint_is_asked_about_every_node_by_its_path(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, num_hidden_layers=3)
    pipeline, spy = pipeline_of("easyspec_paper", tmp_path, f"model.draft={tmp_path}"), Spy()
    tokens = tokens_of(pipeline, [5, 6, 8], 12, ignore_eos=True, constraint=spy)
    assert 7 not in tokens and len(set(tokens)) == 12
    for answer, paths in spy.asked:
        assert answer == tokens[: len(answer)]
        # a path follows its parent's, from the root on: of a tree's target pass all nodes are there
        if [] in paths and len(paths) > 1:
            assert all(path[:-1] in paths for path in paths if path)
    deep = [path for _, paths in spy.asked for path in paths if len(path) > 1]
    assert any(path == tokens[len(answer) : len(answer) + len(path)] for answer, paths in spy.asked for path in paths)
    assert deep


def test_a_draft_model_s_paths_lead_from_the_root(tmp_path: Path) -> None:
    """A chain of a draft model that is the target: every path that is asked about is what comes of it."""
    write_checkpoint(tmp_path, num_hidden_layers=3)
    spy = Spy()
    tokens = tokens_of(
        pipeline_of("sd_chain", tmp_path, f"model.draft={tmp_path}"), [5, 6, 8], 16, ignore_eos=True, constraint=spy
    )
    for answer, paths in spy.asked:
        for path in paths:
            ahead = tokens[len(answer) : len(answer) + len(path)]
            assert path[: len(ahead)] == ahead
    assert any(len(path) > 1 for _, paths in spy.asked for path in paths if len(paths) == 1)
    assert len(set(tokens)) == 16


def test_only_some_tokens(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, num_hidden_layers=3)
    pipeline = pipeline_of("prompt_lookup", tmp_path, "sampling.temperature=1.5")
    tokens = tokens_of(pipeline, [5, 6, 8], 40, ignore_eos=True, constraint=OnlyTokens([9, 10, 11]))
    assert set(tokens) == {9, 10, 11}


def test_only_some_tokens_of_fewer_logits() -> None:
    constraint = OnlyTokens([1, 3, 900])
    for size, kept in ((5, [1, 3]), (3, [1])):
        logits_NV = torch.zeros(2, size)
        constraint.apply(logits_NV, [], [[], [4]])
        assert [(row_V == 0).nonzero()[:, 0].tolist() for row_V in logits_NV] == [kept, kept]


def test_suppressed_tokens_row_by_row() -> None:
    constraint = SuppressedTokens([1, 900], [2])
    for answer, paths, begins in (([], [[], [4]], [True, False]), ([3], [[], [4]], [False, False])):
        logits_NV = torch.zeros(2, 5)
        constraint.apply(logits_NV, answer, paths)
        expected = torch.zeros(2, 5)
        expected[:, 1] = float("-inf")
        for row in itertools.compress(range(2), begins):
            expected[row, 2] = float("-inf")
        assert torch.equal(logits_NV, expected)


def test_suppressed_tokens_are_the_checkpoints(checkpoint: tuple[Path, Any]) -> None:
    tokens = TranscriptionTokens(pipeline_of("vanilla", checkpoint[0]).tokenizer)
    logits_NV = torch.zeros(1, 490)
    tokens.suppressed().apply(logits_NV, [], [[]])
    hidden = (logits_NV[0] == float("-inf")).nonzero()[:, 0].tolist()
    assert hidden == sorted({*SUPPRESSED, *SUPPRESSED_AT_BEGIN})
