"""``audio=FILE.wav`` on the command line: a transcription, and a line for what cannot be one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from spec_sdk.model.models import Models
from spec_sdk.ops import Ops
from spec_sdk.speech.sound import resampled
from tests.cli.conftest import Result, cli, own_directory  # noqa: F401
from tests.support.tiny_checkpoints import write_checkpoint
from tests.support.tiny_ranks import ranks_at
from tests.support.tiny_whisper import RATE, sound, write_wav, write_whisper

Cli = Callable[..., Result]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    directory = tmp_path_factory.mktemp("models") / "whisper"
    return directory, write_whisper(directory, lively=True)


def generated(model: Any, samples_T: torch.Tensor, new_tokens: int, **options: Any) -> list[int]:
    from spec_sdk.speech.log_mel import log_mel
    from tests.support.tiny_whisper import FRAMES, MELS

    with torch.no_grad():
        tokens: list[int] = model.generate(
            log_mel(samples_T, MELS, FRAMES)[None],
            **{"task": "transcribe", "return_timestamps": False, "max_new_tokens": new_tokens, **options},
        )[0].tolist()
    return [token for token in tokens if token < 480]


def records(directory: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((Path(directory) / "metrics.json").read_text())["prompts"]
    return found


def test_a_transcription(cli: Cli, checkpoint: tuple[Path, Any]) -> None:  # noqa: F811
    directory, model = checkpoint
    # one tone in stereo at another rate, as recordings are
    samples_T = sound(3, rate=24_000)
    write_wav(Path("a.wav"), samples_T, 24_000)
    heard = resampled((samples_T * 32767).round() / 32768, 24_000, RATE)
    expected = generated(model, heard, 12, language="de")
    for pipeline in ("vanilla", "easyspec_paper"):
        result = cli(
            *(f"pipeline={pipeline}", f"model.target={directory}", "audio=a.wav", "language=de"),
            *("max_new_tokens=12", f"output_dir={pipeline}", "compare=true", "ignore_eos=true"),
        )
        assert result.status == 0, result.err
        [record] = records(pipeline)
        assert [token for token in record["token_ids"] if token < 480] == expected
        assert result.out == record["text"] + "\n" and record["prompt_tokens"] == 4
        written = json.loads((Path(pipeline) / "metrics.json").read_text())
        assert written["comparison"]["prompts"][0]["token_ids"] == record["token_ids"]


def test_a_language_is_found_out(cli: Cli, checkpoint: tuple[Path, Any]) -> None:  # noqa: F811
    directory, model = checkpoint
    write_wav(Path("a.wav"), sound(2))
    result = cli("pipeline=vanilla", f"model.target={directory}", "audio=a.wav", "max_new_tokens=8", "output_dir=out")
    assert result.status == 0, result.err
    heard = (sound(2) * 32767).round() / 32768
    assert [t for t in records("out")[0]["token_ids"] if t < 480] == generated(model, heard, 8)


def test_a_long_sound_is_taken_by_windows_and_several_files_in_turn(
    cli: Cli,  # noqa: F811
    checkpoint: tuple[Path, Any],
) -> None:
    directory, _ = checkpoint
    options = ("pipeline=prompt_lookup", f"model.target={directory}", "language=en", "max_new_tokens=8")
    # windows of this tiny model are a second long
    samples_T = sound(4, 2.4)
    write_wav(Path("long.wav"), samples_T)
    for i in range(3):
        write_wav(Path(f"part{i}.wav"), samples_T[i * RATE : (i + 1) * RATE])
    assert cli(*options, "audio=long.wav", "output_dir=long").status == 0
    result = cli(*options, "audio=[part0.wav,part1.wav,part2.wav]", "output_dir=parts", "prompt_limit=3")
    assert result.status == 0
    ids = [record["token_ids"] for record in records("long")]
    assert len(ids) == 3 and ids == [record["token_ids"] for record in records("parts")]
    assert result.out.count("\n\n") == 2


def test_what_was_said_before_is_part_of_the_prompt(cli: Cli, checkpoint: tuple[Path, Any]) -> None:  # noqa: F811
    write_wav(Path("a.wav"), sound(2))
    options = ("pipeline=vanilla", f"model.target={checkpoint[0]}", "language=en", "max_new_tokens=8")
    result = cli(*options, "audio=a.wav", "prompt=we spoke of water", "output_dir=out")
    assert result.status == 0
    assert records("out")[0]["prompt_tokens"] > 8


def test_show_tree_takes_audio(cli: Cli, checkpoint: tuple[Path, Any]) -> None:  # noqa: F811
    write_wav(Path("a.wav"), sound(2))
    options = ("pipeline=easyspec_paper", f"model.target={checkpoint[0]}", "language=en", "max_new_tokens=8")
    result = cli("task=show_tree", *options, "audio=a.wav", "output_dir=out", "task.cycles=1")
    assert result.status == 0 and "cycle 1:" in result.out


def test_no_audio_or_no_model_that_hears(cli: Cli, checkpoint: tuple[Path, Any], tmp_path: Path) -> None:  # noqa: F811
    write_wav(Path("a.wav"), sound(2))
    write_checkpoint(tmp_path / "text")
    whisper, text = f"model.target={checkpoint[0]}", f"model.target={tmp_path / 'text'}"
    for arguments, message in (
        ((whisper, "prompt=hello"), "audio: whisper transcribes audio; give audio=FILE.wav"),
        ((text, "audio=a.wav"), "audio: text is a text model; give model.target=DIR of a Whisper model"),
        ((whisper, "audio=b.wav"), "audio: b.wav does not exist"),
        ((whisper, "audio=[]"), "audio: [] must be a sound file or a list of them"),
        ((whisper, "audio=7"), "audio: 7 must be a sound file or a list of them"),
        ((whisper, "audio=a.wav", "language=xx"), "language: the model knows no 'xx'"),
        ((text, "language=en"), "language: it says how audio is transcribed, and there is none"),
        ((text, "translate=true"), "translate: it says how audio is transcribed, and there is none"),
        ((whisper, "audio=a.wav", "prompt_file=x.txt"), "prompt_file: audio is given too"),
        ((whisper, "audio=a.wav", "max_new_tokens=100"), "exceed the context of 96"),
    ):
        result = cli("pipeline=vanilla", *arguments, "output_dir=out")
        assert result.status == 2
        assert message in result.error


def test_several_processes_are_refused(checkpoint: tuple[Path, Any]) -> None:
    from spec_sdk.errors import UserError

    ranks: Any = ranks_at(0, 2)
    ranks.leader_first = lambda what, do: do()
    with pytest.raises(UserError, match="whisper is an encoder-decoder model, which runs in one process; 2 were"):
        Models(
            *(str(checkpoint[0]), "cut", "auto", lambda *_: pytest.fail("it is loaded"), Ops()),
            *(torch.device("cpu"), torch.float32, ranks),
        )


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("activation_function", "relu", "unsupported activation_function 'relu', only 'gelu' is supported"),
        ("decoder_attention_heads", 5, "d_model 48 does not divide into 5 decoder_attention_heads"),
        ("max_source_positions", 49, "asks for [49, 48]"),
        ("encoder_layers", 3, "model.encoder.layers.2."),
        ("num_mel_bins", 0, "num_mel_bins is 0, not a positive number"),
    ],
)
def test_a_checkpoint_that_is_wrong(
    field: str,
    value: Any,
    message: str,
    cli: Cli,  # noqa: F811
    checkpoint: tuple[Path, Any],
    tmp_path: Path,
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for path in checkpoint[0].iterdir():
        (broken / path.name).write_bytes(path.read_bytes())
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({**config, field: value}))
    write_wav(Path("a.wav"), sound(2))
    result = cli("pipeline=vanilla", f"model.target={broken}", "audio=a.wav", "output_dir=out")
    assert result.status == 2 and message in result.error
