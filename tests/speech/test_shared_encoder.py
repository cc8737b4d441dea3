"""A draft model with the target's encoder shares it; one with another keeps its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from spec_sdk.model.shared_encoder import whisper_of
from spec_sdk.model.whisper_encoder import WhisperEncoder
from tests.speech.test_whisper_pipelines import pipeline_of, transcription
from tests.support.tiny_whisper import write_distilled, write_whisper


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    directory = tmp_path_factory.mktemp("models") / "whisper"
    return directory, write_whisper(directory, lively=True)


def encoders_of(place: Path, draft: Path) -> tuple[WhisperEncoder, WhisperEncoder, str]:
    models = pipeline_of("sd_chain", place, f"model.draft={draft}").models
    target, student = whisper_of(models.target.executor), whisper_of(models.draft().executor)
    assert target is not None and student is not None
    return target.encoder, student.encoder, models.draft().name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_student_in_any_rounding_shares_it(dtype: torch.dtype, checkpoint: tuple[Path, Any], tmp_path: Path) -> None:
    place, model = checkpoint
    write_distilled(tmp_path / "student", model, [0, 5], dtype)
    ours, theirs, name = encoders_of(place, tmp_path / "student")
    assert theirs is ours and name == "student, the target's encoder"


def test_one_encoder_pass_serves_both(checkpoint: tuple[Path, Any], tmp_path: Path) -> None:
    place, model = checkpoint
    write_distilled(tmp_path / "student", model, [0, 5])
    pipeline, runs = pipeline_of("sd_chain", place, f"model.draft={tmp_path / 'student'}"), list[WhisperEncoder]()
    forward = WhisperEncoder.__call__

    def counted(encoder: WhisperEncoder, features_XT: torch.Tensor) -> torch.Tensor:
        runs.append(encoder)
        return forward(encoder, features_XT)

    events: list[dict[str, Any]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WhisperEncoder, "__call__", counted)
        found = transcription(pipeline, 3, emit=events.append)
    assert len(runs) == 1
    assert found == transcription(pipeline_of("vanilla", place), 3)
    assert sum(event.get("drafted", 0) for event in events) > 0
    [prefill] = [event for event in events if event["event"] == "prefill"]
    assert 0 < prefill["encoder_s"] <= prefill["seconds"]


@pytest.mark.parametrize("part", ["conv2.bias", "layers.1.fc1.weight", "embed_positions.weight"])
def test_another_encoder_is_kept(part: str, checkpoint: tuple[Path, Any], tmp_path: Path) -> None:
    place, model = checkpoint
    other = write_distilled(tmp_path / "other", model, [0, 5])
    with torch.no_grad():
        other.get_parameter(f"model.encoder.{part}").view(-1)[0] += 0.1
    other.save_pretrained(tmp_path / "other")
    ours, theirs, name = encoders_of(place, tmp_path / "other")
    assert theirs is not ours and name == "other"
    drafted = pipeline_of("sd_chain", place, f"model.draft={tmp_path / 'other'}")
    assert transcription(drafted, 1) == transcription(pipeline_of("vanilla", place), 1)


def test_an_encoder_of_another_size(checkpoint: tuple[Path, Any], tmp_path: Path) -> None:
    write_whisper(tmp_path / "small", seed=2, encoder_layers=1, decoder_layers=2)
    ours, theirs, name = encoders_of(checkpoint[0], tmp_path / "small")
    assert theirs is not ours and name == "small"
