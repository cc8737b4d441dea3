"""Log-mel features are those of transformers; resampling keeps what a rate can hold, and nothing else."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import WhisperFeatureExtractor

from spec_sdk.speech.log_mel import log_mel, mel_filters
from spec_sdk.speech.sound import resampled
from tests.support.tiny_whisper import RATE, sound


@pytest.mark.parametrize("mels", [80, 128])
@pytest.mark.parametrize("seconds", [0.3, 3.0, 30.0, 31.0])
def test_features_are_those_of_transformers(mels: int, seconds: float) -> None:
    samples_T = sound(1, seconds)
    extractor = WhisperFeatureExtractor(feature_size=mels)
    expected = extractor(samples_T.numpy(), sampling_rate=RATE, return_tensors="pt").input_features[0]
    features_XF = log_mel(samples_T, mels, 3000)
    assert features_XF.shape == (mels, 3000)
    torch.testing.assert_close(features_XF, expected, atol=1e-4, rtol=0)
    filters = torch.from_numpy(extractor.mel_filters.T).float()
    torch.testing.assert_close(mel_filters(mels), filters, atol=1e-7, rtol=0)


def test_silence_has_features() -> None:
    assert log_mel(torch.zeros(100), 80, 3000).unique().tolist() == [-1.5]


@pytest.mark.parametrize("rate", [8000, 11025, 15999, 22050, 44100, 48000, 96000])
def test_a_tone_is_the_same_at_another_rate(rate: int) -> None:
    time_T = torch.arange(rate, dtype=torch.float64) / rate
    tone_T = resampled(torch.sin(2 * math.pi * 440 * time_T).float(), rate, RATE)
    assert abs(len(tone_T) - RATE) <= 1
    expected = torch.sin(2 * math.pi * 440 * torch.arange(len(tone_T), dtype=torch.float64) / RATE).float()
    inner = slice(500, -500)
    torch.testing.assert_close(tone_T[inner], expected[inner], atol=1e-4, rtol=0)


@pytest.mark.parametrize("rate", [22050, 48000])
def test_what_the_lower_rate_cannot_hold_is_filtered_out(rate: int) -> None:
    time_T = torch.arange(rate, dtype=torch.float64) / rate
    tone_T = resampled(torch.sin(2 * math.pi * 8600 * time_T).float(), rate, RATE)
    assert float(tone_T[500:-500].abs().max()) < 1e-3


def test_the_same_rate_is_left_alone() -> None:
    samples_T = sound(2, 0.1)
    assert resampled(samples_T, RATE, RATE) is samples_T
