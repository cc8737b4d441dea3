"""Tiny random Whisper checkpoints, written by transformers, that hear one second; and sounds for them."""

from __future__ import annotations

import json
import math
import re
import wave
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import GenerationConfig, WhisperConfig, WhisperForConditionalGeneration

from tests.support.text_checkpoints import text_tokenizer

MELS, FRAMES, RATE = 16, 100, 16_000
LANGUAGES = ("en", "de", "fr")
SPECIAL = (
    "<|endoftext|>",
    "<|startoftranscript|>",
    *(f"<|{code}|>" for code in LANGUAGES),
    "<|translate|>",
    "<|transcribe|>",
    "<|startofprev|>",
    "<|nospeech|>",
    "<|notimestamps|>",
)
SHAPE: dict[str, Any] = {
    "num_mel_bins": MELS,
    "d_model": 48,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 80,
    "decoder_layers": 6,
    "decoder_attention_heads": 6,
    "decoder_ffn_dim": 96,
    "max_source_positions": FRAMES // 2,
    "max_target_positions": 96,
}
LOUDER = {"encoder.layers": 3.0, "encoder_attn": 4.5, "decoder.embed_positions": 15.0, "decoder.layers": 4.5}
"""How strong the random weights of a lively model are: its answers hang on the sound, the place and the tokens before,
where those of a calm one repeat a token. Rounding hardly shows in the logits of a calm one."""
SUPPRESSED, SUPPRESSED_AT_BEGIN = (50, 51, 52, 100), (60, 61)


def whisper_tokenizer() -> Tokenizer:
    """Byte-level BPE and the special tokens of a multilingual Whisper, behind it as in OpenAI's."""
    tokenizer = text_tokenizer()
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


def generation_config(tokenizer: Tokenizer, multilingual: bool = True, **more: Any) -> GenerationConfig:
    """What generation_config.json of a Whisper says."""
    ids = {token: tokenizer.token_to_id(token) for token in SPECIAL}
    several: dict[str, Any] = {
        "lang_to_id": {f"<|{code}|>": ids[f"<|{code}|>"] for code in LANGUAGES},
        "task_to_id": {task: ids[f"<|{task}|>"] for task in ("transcribe", "translate")},
    }
    return GenerationConfig(
        **{
            "decoder_start_token_id": ids["<|startoftranscript|>"],
            "eos_token_id": ids["<|endoftext|>"],
            "pad_token_id": ids["<|endoftext|>"],
            "bos_token_id": ids["<|endoftext|>"],
            "no_timestamps_token_id": ids["<|notimestamps|>"],
            "prev_sot_token_id": ids["<|startofprev|>"],
            "suppress_tokens": list(SUPPRESSED),
            "begin_suppress_tokens": list(SUPPRESSED_AT_BEGIN),
            "max_initial_timestamp_index": 50,
            "max_length": 90,
            "return_timestamps": False,
            "is_multilingual": multilingual,
            **(several if multilingual else {}),
            **more,
        }
    )


def random_whisper(
    seed: int = 1, multilingual: bool = True, lively: bool = False, **overrides: Any
) -> WhisperForConditionalGeneration:
    """A random model in float32, biases and gains of norms random too."""
    tokenizer = whisper_tokenizer()
    generation = generation_config(tokenizer, multilingual)
    vocabulary = tokenizer.get_vocab_size()
    end, start = generation.eos_token_id, generation.decoder_start_token_id
    config = WhisperConfig(
        **{**SHAPE, **overrides},
        vocab_size=vocabulary,
        decoder_start_token_id=start,
        **dict.fromkeys(("eos_token_id", "bos_token_id", "pad_token_id"), end),
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    torch.manual_seed(seed)
    model = WhisperForConditionalGeneration(config).float().eval()
    model.generation_config = generation
    bias = 0.02 if lively else 0.2
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(bias * torch.randn_like(parameter))
            else:
                share = next((share for part, share in LOUDER.items() if lively and part in name), 1.0)
                parameter.copy_(torch.randn_like(parameter) * share * parameter[0].numel() ** -0.5)
    return model


def write_whisper(directory: Path, seed: int = 1, **overrides: Any) -> WhisperForConditionalGeneration:
    """Save a random model with tokenizer and generation_config.json into ``directory``; return the model."""
    model = random_whisper(seed, **overrides)
    model.save_pretrained(directory)
    whisper_tokenizer().save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
    return model


def write_distilled(
    directory: Path, teacher: WhisperForConditionalGeneration, layers: Sequence[int], dtype: torch.dtype | None = None
) -> WhisperForConditionalGeneration:
    """Save a student of ``teacher``, begun as Distil-Whisper begins: its encoder, and ``layers`` of its decoder.

    ``dtype``: of the file's weights; that of the teacher if left out. Returns the student.
    """
    config = WhisperConfig(**{**teacher.config.to_dict(), "decoder_layers": len(layers)})
    student = WhisperForConditionalGeneration(config).float().eval()
    weights = teacher.state_dict()
    for name in student.state_dict():
        if match := re.match(r"model\.decoder\.layers\.(\d+)\.(.*)", name):
            weights[name] = teacher.state_dict()[f"model.decoder.layers.{layers[int(match[1])]}.{match[2]}"]
    student.load_state_dict({name: weights[name] for name in student.state_dict()})
    student.generation_config = teacher.generation_config
    (student if dtype is None else student.to(dtype)).save_pretrained(directory)
    whisper_tokenizer().save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
    return student.float()


def sound(seed: int, seconds: float = 1.0, rate: int = RATE) -> torch.Tensor:
    """Tones that change, and noise: float32 in [-1, 1]."""
    rng = torch.Generator().manual_seed(seed)
    count = int(seconds * rate)
    time = torch.arange(count) / rate
    parts = [0.03 * torch.randn(count, generator=rng)]
    for hertz, begin in torch.rand((5, 2), generator=rng).tolist():
        parts.append(0.15 * torch.sin(2 * math.pi * 3000 * hertz * time) * (time > begin * seconds))
    return torch.stack(parts).sum(0)


def write_wav(path: Path, samples_T: torch.Tensor, rate: int = RATE) -> None:
    """16-bit PCM, one channel."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples_T * 32767).round().to(torch.int16).numpy().tobytes())
