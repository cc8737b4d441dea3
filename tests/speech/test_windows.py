"""Where long sounds are cut: no sample is lost or heard twice, and pauses are found."""

from __future__ import annotations

import pytest
import torch

from spec_sdk.speech.log_mel import RATE
from spec_sdk.speech.windows import windows_of
from tests.support.tiny_whisper import sound

LONGEST = RATE


@pytest.mark.parametrize("cut", ["pause", "length"])
@pytest.mark.parametrize("count", [1, 159, LONGEST - 1, LONGEST, LONGEST + 1, 5 * LONGEST // 2, 3 * LONGEST])
def test_windows_lie_side_by_side(cut: str, count: int) -> None:
    windows = windows_of(sound(1, 4)[:count], LONGEST, cut)
    assert windows[0][0] == 0 and windows[-1][1] == count
    assert all(end == begin for (_, end), (begin, _) in zip(windows, windows[1:], strict=False))
    assert all(0 < end - begin <= LONGEST for begin, end in windows)
    assert all(end - begin >= LONGEST * 4 // 5 for begin, end in windows[:-1])


def test_by_length() -> None:
    assert windows_of(torch.zeros(40_000), LONGEST, "length") == [(0, 16_000), (16_000, 32_000), (32_000, 40_000)]


def test_a_pause_is_found() -> None:
    samples_T = sound(2, 3)
    # 200 ms of silence in the part that is searched, and a longer one before it
    samples_T[14_000:17_200] = 0.0
    samples_T[3_000:9_000] = 0.0
    (_, end), *_ = windows_of(samples_T, 20_000, "pause")
    assert 16_000 <= end <= 17_200 and float(samples_T[end - 200 : end + 200].abs().max()) == 0.0


def test_the_quietest_of_two_pauses() -> None:
    samples_T = torch.ones(40_000)
    samples_T[16_500:18_300], samples_T[18_400:19_900] = 0.01, 0.2
    (_, end), *_ = windows_of(samples_T, 20_000, "pause")
    assert 17_000 < end < 17_900


def test_silence_is_cut_late() -> None:
    (_, end), *_ = windows_of(torch.zeros(40_000), 20_000, "pause")
    assert end > 19_000


def test_windows_too_short_to_search() -> None:
    assert windows_of(torch.zeros(5000), 2000, "pause") == [(0, 2000), (2000, 4000), (4000, 5000)]
