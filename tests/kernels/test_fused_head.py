"""Draft heads whose small operations are launches of the backend's own return what their stages do.

Legend: N pairs, S model dim of the target.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from spec_sdk.model.decoder import Decoder
from spec_sdk.model.draft_heads.eagle3 import Eagle3Head
from spec_sdk.model.draft_heads.head_choices import HeadChoices
from spec_sdk.model.draft_heads.loading import EAGLE_HEADS, PREDICTION_MODULES, load_head
from spec_sdk.model.draft_heads.opening import open_draft_head
from spec_sdk.model.draft_heads.session import DraftHeadSession
from spec_sdk.ops import Ops
from spec_sdk.tree import TreeBuilder
from spec_sdk_backends import fused_head
from spec_sdk_backends.fused_decoder import FusedDecoder
from spec_sdk_backends.fused_head import FusedHeadBlock
from spec_sdk_backends.triton_ops import TritonOps
from tests.support.near import check_near
from tests.support.skips import interpreted
from tests.support.tiny_heads import HeadSizes, random_ends, write_eagle1, write_eagle3
from tests.support.tiny_mtp import LAYERS, model_config, mtp_tensors, write_module
from tests.support.tiny_mtp import SIZES as MTP_SIZES

pytestmark = interpreted

CPU = torch.device("cpu")
SIZES = HeadSizes(M=32, S=32, heads=2, kv_heads=1, head_dim=16)
OPTIONS: dict[str, dict[str, Any]] = {
    "eagle3": {},
    "normed residual": {"norm_before_residual": True},
    "normed output": {"norm_output": True},
}


def session_of(kind: str, directory: Path, ops: Ops) -> DraftHeadSession:
    kinds: Any = PREDICTION_MODULES if kind == "mimo" else EAGLE_HEADS
    sizes, layers = (MTP_SIZES, LAYERS) if kind == "mimo" else (SIZES, 10)
    ends = random_ends(sizes, layers, dtype=torch.float32)
    choices = HeadChoices(weights="dense")
    return DraftHeadSession(load_head(open_draft_head(str(directory)), kinds, ends, choices, CPU, torch.float32, ops))


def write(kind: str, directory: Path) -> Path:
    if kind == "eagle":
        return write_eagle1(directory, SIZES)
    if kind == "mimo":
        return write_module(directory, "mimo", model_config("mimo"), mtp_tensors("mimo", bias=True))
    return write_eagle3(directory, SIZES, **OPTIONS[kind])


@torch.no_grad()
@pytest.mark.parametrize("kind", [*OPTIONS, "eagle", "mimo"])
def test_passes_over_one_row_over_few_and_over_more(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ways: list[str] = []
    for name in ("rest_of_one_row", "rest_of_few_rows", "project"):
        monkeypatch.setattr(FusedDecoder, name, noted(ways, name, getattr(FusedDecoder, name)))
    write(kind, tmp_path)
    fused, plain = session_of(kind, tmp_path, TritonOps()), session_of(kind, tmp_path, Ops())
    assert isinstance(fused.head.at_once, FusedHeadBlock) and plain.head.at_once is None
    assert session_of(kind, tmp_path, TritonOps(fuses_heads=False)).head.at_once is None
    generator = torch.Generator().manual_seed(1)
    width, vocabulary = fused.head.config.hidden_size, 90
    for count in (70, 1, 5):
        states = {layer: torch.randn(count, width, generator=generator) for layer in fused.head.taps}
        tokens = torch.randint(3, vocabulary, (count,), generator=generator).tolist()
        roots = [each.feed_pairs([0], [tokens], [each.head.features(states)])[0] for each in (fused, plain)]
        one, other = roots
        check_near(one.full_KV, other.full_KV)
        tree = TreeBuilder(tokens[-1])
        for level, parents in enumerate(([0], [1], [1], [2, 3])):
            new = [tree.add(parent, 3 + 10 * level + i, "chosen") for i, parent in enumerate(parents)]
            one, other = (each.grow([0], [tree], [len(new)])[0] for each in (fused, plain))
            check_near(one.full_KV, other.full_KV)
        check_near(fused._states_TM[0], plain._states_TM[0])
    assert set(ways) == {"rest_of_one_row", "rest_of_few_rows", "project"}


def noted(ways: list[str], name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        ways.append(name)
        return plain(*arguments)

    return call


@torch.no_grad()
def test_what_the_kernels_lack_is_left_to_the_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write("eagle3", tmp_path)
    head = session_of("eagle3", tmp_path, TritonOps()).head

    class Another(Eagle3Head):
        def attend(self, *arguments: Any) -> torch.Tensor:
            return Decoder.attend(self, *arguments)

    head.__class__ = Another
    assert fused_head.fused_head_block(head) is None
    head.__class__ = Eagle3Head
    assert fused_head.fused_head_block(head) is not None
    monkeypatch.setattr(fused_head, "unknown_rest", lambda decoder: "something")
    assert fused_head.fused_head_block(head) is None


def test_derivatives_are_taken_through_the_stages(tmp_path: Path) -> None:
    write("eagle3", tmp_path)
    session = session_of("eagle3", tmp_path, TritonOps())
    work: Any = None
    assert isinstance(session.head.at_once, FusedHeadBlock)
    with torch.enable_grad():
        assert session.head.at_once(torch.zeros(1, 1, SIZES.M), work) is None
        x, gain = torch.randn(2, 8, requires_grad=True), torch.ones(8)
        TritonOps().rms_norm(x, gain, 1e-5).sum().backward()
    assert x.grad is not None
