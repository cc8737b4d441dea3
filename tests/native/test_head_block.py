"""A draft head's block that runs natively computes what its stages do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from spec_sdk.model.draft_heads.eagle3 import Eagle3Head
from spec_sdk.model.draft_heads.head import DraftHead
from spec_sdk.model.draft_heads.head_choices import HeadChoices
from spec_sdk.model.draft_heads.loading import EAGLE_HEADS, PARALLEL_EAGLE_HEADS, load_head
from spec_sdk.model.draft_heads.opening import open_draft_head
from spec_sdk.model.draft_heads.peagle_session import PEagleSession
from spec_sdk.model.draft_heads.session import DraftHeadSession
from spec_sdk.ops import Ops
from spec_sdk.tree import TreeBuilder
from spec_sdk_backends.cpu import CpuOps
from spec_sdk_backends.native.head_block import NativeHeadBlock, native_head_block
from spec_sdk_backends.native.ops import NativeOps
from tests.support.draft_logits import roots_of, rows_of
from tests.support.tiny_heads import HeadSizes, random_ends, write_eagle1, write_eagle3
from tests.support.tiny_peagle import write_peagle

CPU = torch.device("cpu")
SIZES = HeadSizes(M=64, S=64, head_dim=16)
HEADS = ["eagle3", "eagle3, normed residual", "eagle3, two KV heads of three", "eagle", "eagle without bias"]


def written(place: Path, name: str) -> Path:
    if name.startswith("eagle3"):
        sizes = HeadSizes(M=64, S=64, head_dim=16, heads=6) if name.endswith("three") else SIZES
        return write_eagle3(place, sizes, norm_before_residual=name.endswith("residual"))
    return write_eagle1(place, SIZES, bias=not name.endswith("bias"))


def session_of(place: Path, dtype: torch.dtype, ops: Ops) -> DraftHeadSession:
    ends = random_ends(SIZES, dtype=dtype)
    return DraftHeadSession(load_head(open_draft_head(str(place)), EAGLE_HEADS, ends, HeadChoices(), CPU, dtype, ops))


def logits_of(session: DraftHeadSession) -> list[torch.Tensor]:
    """[V] of every pair and node in two rounds of three requests: a few pairs each, then trees of three levels."""
    random = torch.Generator().manual_seed(3)

    def tokens(count: int) -> list[int]:
        return [int(token) for token in torch.randint(0, SIZES.V, (count,), generator=random)]

    found = []
    for _ in range(2):
        fed = [tokens(count) for count in (7, 1, 3)]
        states = [
            {layer: torch.randn(len(own), SIZES.S, generator=random) for layer in session.head.taps} for own in fed
        ]
        found += roots_of(session.feed_pairs(range(3), fed, [session.head.features(hidden) for hidden in states]))
        trees = [TreeBuilder(own[-1]) for own in fed]
        for new in ((1, 2, 3), (2, 3, 1), (3, 1, 2)):
            for tree, count in zip(trees, new, strict=True):
                above = [node for node in range(tree.size) if tree.depth[node] == max(tree.depth)]
                for i, token in enumerate(tokens(count)):
                    tree.add(above[i % len(above)], token, "chosen")
            found += [logits_V for level in rows_of(session.grow(range(3), trees, new)) for logits_V in level]
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", HEADS)
def test_a_head_is_that_of_torch(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    native = session_of(written(tmp_path, name), dtype, NativeOps(CpuOps()))
    assert isinstance(native.head.at_once, NativeHeadBlock)
    in_torch = session_of(tmp_path, dtype, Ops())
    assert in_torch.head.at_once is None
    # what 16 bits round away grows from level to level: both are compared with float32
    exact = session_of(tmp_path, torch.float32, Ops())
    found, plain, expected = (torch.stack(logits_of(each)).float() for each in (native, in_torch, exact))
    known = expected > -torch.inf
    assert torch.equal(known, found > -torch.inf)
    error, usual = ((logits - expected)[known].norm() / expected[known].norm() for logits in (found, plain))
    assert error <= (1e-4 if dtype == torch.float32 else 1.5 * usual)


def test_a_wide_pass_runs_in_stages(tmp_path: Path) -> None:
    session = session_of(written(tmp_path, "eagle3"), torch.float32, NativeOps(CpuOps()))
    calls: list[bool] = []
    block = session.head.at_once
    assert block is not None

    def counted(h_BNM: torch.Tensor, work: object) -> torch.Tensor | None:
        calls.append((done := block(h_BNM, work)) is not None)  # type: ignore[arg-type]
        return done

    session.head.at_once = counted
    for width in (200, 3):
        features_NM = torch.zeros(width, SIZES.M)
        session.feed_features([0], [[1] * width], [features_NM])
    assert calls == [False, True]


def test_stages_of_its_own_are_left_to_torch(tmp_path: Path) -> None:
    head: DraftHead = session_of(written(tmp_path, "eagle3"), torch.float32, NativeOps(CpuOps())).head
    assert native_head_block(head) is not None

    class Another(Eagle3Head):
        def project(self, layer: int, o_BNHD: torch.Tensor) -> torch.Tensor:
            return 2 * super().project(layer, o_BNHD)

    head.__class__ = Another
    assert native_head_block(head) is None


@pytest.mark.parametrize("layers", [1, 2])
def test_a_head_of_several_layers_is_run_layer_by_layer(layers: int, tmp_path: Path) -> None:
    """Of a P-EAGLE head; one of a single layer runs at once, mask rows and all."""
    directory, ends = write_peagle(tmp_path, SIZES, layers), random_ends(SIZES, dtype=torch.float32)
    hidden = {layer: torch.randn(3, SIZES.S, generator=torch.Generator().manual_seed(layer)) for layer in range(11)}
    found = []
    for ops in (Ops(), NativeOps(CpuOps())):
        published = open_draft_head(str(directory))
        session = PEagleSession(
            load_head(published, PARALLEL_EAGLE_HEADS, ends, HeadChoices(), CPU, torch.float32, ops)
        )
        assert (session.head.at_once is not None) == (layers == 1 and isinstance(ops, NativeOps))
        rows_1PM = session.ahead([0], [[7, 8, 9]], [session.head.features(hidden)], 5)
        found.append(session.head.block_logits(rows_1PM))
    torch.testing.assert_close(found[1], found[0], atol=1e-4, rtol=1e-4)
