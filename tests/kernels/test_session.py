"""A decoder's passes with the kernel give the logits that the reference operations give.

Legend: N nodes, V vocabulary.
"""

from __future__ import annotations

import pytest
import torch

from spec_sdk.model.runners.base import BlockRunner
from spec_sdk.model.runners.layer_parallel import LayerParallelRunner
from spec_sdk.model.session import Session
from spec_sdk.ops import Ops
from spec_sdk.tree import TreeBuilder
from tests.support.tiny_decoder import tiny_decoder

pytest.importorskip("triton")

from spec_sdk_backends.triton_ops import TritonOps

# the tiny decoder lives on the CPU, where kernels only run interpreted
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="needs Triton's interpreter")


def passes(ops: Ops, runner: BlockRunner | None = None) -> list[torch.Tensor]:
    """Logits of a prompt, of three more tokens, of a tree, of the tree after its commit, and of a growing tree.

    ``runner`` runs the growing tree.
    """
    session = Session(tiny_decoder("smollm"), ops)
    logits = [session.feed([5, 6, 7, 8, 9]), session.feed([10, 11, 12])]
    builder = TreeBuilder(13)
    for parent, token in [(0, 9), (0, 10), (1, 11), (2, 12), (1, 13), (3, 14)]:
        builder.add(parent, token, "chosen")
    tree = builder.build().tree
    logits.append(session.score(tree).logits_NV)
    path = [0, 1, 2]
    assert tree.parent_N[1] == 0 and tree.parent_N[2] == 1
    session.commit(path)
    logits.append(session.score(tree).logits_NV)
    session.commit([0])
    growing = TreeBuilder(13)
    for level in ([(0, 9), (0, 10), (0, 11)], [(2, 12), (1, 13), (3, 14), (1, 15)], [(5, 16), (4, 17)]):
        for parent, token in level:
            growing.add(parent, token, "chosen")
        logits.append(session.grow(growing, len(level), runner))
    return logits


@pytest.mark.parametrize("grouped", [False, True])
def test_every_kind_of_pass(grouped: bool) -> None:
    """Fused groups hand their layers to the kernel as further rows of the batch."""
    groups = [[0], [1, 2, 3], [4]]
    runner = LayerParallelRunner(groups) if grouped else None
    definition = LayerParallelRunner(groups, fused=False) if grouped else None
    for given, expected in zip(passes(TritonOps(), runner), passes(Ops(), definition), strict=True):
        assert expected.std() > 1e-3, "logits that are all alike would hide a wrong mask"
        torch.testing.assert_close(given, expected, atol=1e-5, rtol=1e-4)
