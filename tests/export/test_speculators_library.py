"""What is exported in the format of speculators, loaded by that library: the same logits, and all weights.

The library asks for another transformers than ours, and for 200 MB besides, so it is no part of the extra ``test``. In
an environment of your own, what these tests import of it is enough: ``pip install --no-deps speculators==0.9.0
hs-connectors==0.9.0 loguru pydantic-settings python-dotenv openai sniffio datasets multiprocess dill xxhash pandas
pyarrow``.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from spec_sdk.model.draft_heads.session import DraftHeadSession
from spec_sdk.model.target_ends import TargetEnds
from tests.export.exports import TAPPED, exported
from tests.export.test_round_trips import borrowing, normed, qwen_bodied
from tests.support.draft_logits import roots_of
from tests.support.tiny_blocks import BlockSizes, write_dflash, write_dspark
from tests.support.tiny_heads import HeadSizes, load_head, write_eagle3
from tests.support.tiny_peagle import write_peagle

speculators = pytest.importorskip("speculators.model", reason="needs the library speculators")

SIZES = HeadSizes()
TOKENS = [7, 8, 9, 10]
EAGLE3 = {
    "plain": lambda at: write_eagle3(at, SIZES, **TAPPED),
    "all tokens": lambda at: write_eagle3(at, replace(SIZES, W=SIZES.V), **TAPPED),
    "the target's rows": borrowing,
    "normed together": lambda at: normed(at, True),
    "normed each": lambda at: normed(at, False),
}


def loaded(directory: Path) -> Any:
    return speculators.SpeculatorModel.from_pretrained(directory).eval()


@pytest.mark.parametrize("name", EAGLE3)
def test_its_logits_are_ours(name: str, target: Path, ends: TargetEnds, tmp_path: Path) -> None:
    directory = exported(EAGLE3[name](tmp_path / "head"), target, tmp_path / "out", format="speculators").directory
    head = load_head(directory, ends)
    hidden = {layer: torch.randn(4, 48, dtype=torch.float64, generator=_seeded(layer)) for layer in head.head.taps}
    theirs, said = loaded(directory).double(), []
    theirs.lm_head.register_forward_hook(lambda module, inputs, logits: said.append(logits[0]))
    joined = torch.cat([hidden[layer] for layer in head.head.taps], dim=-1)
    with torch.no_grad():
        theirs(joined[None], torch.tensor([TOKENS]), torch.zeros(1, 4, dtype=torch.long), ttt_steps=1)
    tokens_W = torch.arange(len(said[0][0]))
    if theirs.d2t is not None:
        tokens_W = tokens_W + theirs.d2t
    for rows in range(1, 5):
        session = DraftHeadSession(head)
        features = head.head.features({layer: states[:rows] for layer, states in hidden.items()})
        ours_V = roots_of(session.feed_pairs([0], [TOKENS[:rows]], [features]))[0]
        torch.testing.assert_close(said[0][rows - 1], ours_V.flatten()[tokens_W], atol=1e-5, rtol=1e-5)
        assert int(ours_V.isfinite().sum()) == len(tokens_W)


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


BLOCKS = BlockSizes()
OTHERS = {
    "peagle": lambda at: write_peagle(at, SIZES, **TAPPED),
    "dflash": lambda at: write_dflash(at, BLOCKS),
    "dspark": lambda at: write_dspark(at, replace(BLOCKS, W=40, rank=6, confidence=True)),
    "Qwen's layer": qwen_bodied,
}


@pytest.mark.parametrize("name", OTHERS)
def test_it_takes_every_weight(name: str, target: Path, tmp_path: Path) -> None:
    directory = exported(OTHERS[name](tmp_path / "head"), target, tmp_path / "out", format="speculators").directory
    theirs, stored = loaded(directory), load_file(directory / "model.safetensors")
    state = theirs.state_dict()
    assert {name for name in stored if name not in state} == set()
    assert all(torch.equal(state[name], stored[name]) for name in stored)
    unread = {name for name in state if name not in stored and not name.startswith(("verifier_", "rotary_emb"))}
    # where it takes a tensor from the target itself, some versions of transformers leave what was in memory
    assert not unread
