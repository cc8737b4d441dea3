"""The linear layers of a head in few bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from spec_sdk.model.draft_heads.head_choices import HeadChoices
from spec_sdk.model.draft_heads.session import DraftHeadSession
from spec_sdk.ops import Ops
from tests.support.draft_logits import roots_of
from tests.support.tiny_heads import HeadSizes, load_head, random_ends, write_eagle3

SIZES = HeadSizes(M=64, S=64, head_dim=16)


def root_logits(place: Path, weights: str) -> torch.Tensor:
    session = DraftHeadSession(
        load_head(place, random_ends(SIZES, dtype=torch.float32), torch.float32, weights=weights)
    )
    bits = {"int8": 8, "int4": 4}.get(weights)
    found = [layer.quantized and layer.quantized.bits for layer in session.head.projections]
    assert found == [bits] * 6
    hidden = {layer: torch.randn(5, SIZES.S, generator=torch.Generator().manual_seed(1)) for layer in session.head.taps}
    (logits_V,) = roots_of(session.feed_pairs([0], [[3, 4, 5, 6, 7]], [session.head.features(hidden)]))
    return logits_V[logits_V > -torch.inf]


def test_few_bits_round_the_logits(tmp_path: Path) -> None:
    write_eagle3(tmp_path, SIZES)
    dense = root_logits(tmp_path, "dense")
    errors = [float((root_logits(tmp_path, bits) - dense).norm() / dense.norm()) for bits in ("int8", "int4")]
    assert 0 < errors[0] < 0.03 and errors[0] < errors[1] < 0.5


@pytest.mark.parametrize("fast", [(4, 8), (8,), ()])
def test_auto_goes_by_the_backend(fast: tuple[int, ...]) -> None:
    class Backend(Ops):
        def fast_in_bits(self, bits: int, dtype: torch.dtype) -> bool:
            return bits in fast

    assert HeadChoices(weights="auto").bits(Backend(), torch.bfloat16) == min(fast, default=None)
    # what files have in few bits stays so as a draft model's does
    for stored, kept in (("auto", fast), ("dense", ()), ("int8", (4, 8))):
        found = [bits for bits in (4, 8) if HeadChoices(stored=stored).keeps(bits, Backend(), torch.bfloat16)]
        assert found == [*kept]
