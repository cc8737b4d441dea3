"""A decoder's passes with the kernels give the logits that the reference operations give.

Legend: N nodes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from spec_sdk.model.block_runner import BlockRunner
from spec_sdk.model.decoder import Decoder
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.runners.layer_parallel import LayerParallelRunner
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.tree import TreeBuilder
from tests.support.tiny_decoder import ModelTensors, tiny_decoder

pytest.importorskip("triton")

from spec_sdk_backends.cuda import attends_in_kernels
from spec_sdk_backends.triton_ops import TritonOps
from tests.support.draft_logits import roots_of, rows_of
from tests.support.skips import interpreted

pytestmark = interpreted
EDGES = [(0, 9), (0, 10), (1, 11), (2, 12), (1, 13), (3, 14)]
LEVELS = [[(0, 9), (0, 10), (0, 11)], [(2, 12), (1, 13), (3, 14), (1, 15)], [(5, 16), (4, 17)]]


def grown(builder: TreeBuilder, edges: list[tuple[int, int]]) -> TreeBuilder:
    for parent, token in edges:
        builder.add(parent, token, "chosen")
    return builder


def alone(ops: Ops, runner: BlockRunner | None) -> list[torch.Tensor]:
    """Logits of a prompt, of three more tokens, of a tree, of the tree after its commit, and of a growing tree.

    ``runner`` runs the growing tree.
    """
    session = Session(TorchExecutor(tiny_decoder("smollm"), ops))
    logits = roots_of(session.feed([0], [[5, 6, 7, 8, 9]])) + roots_of(session.feed([0], [[10, 11, 12]]))
    tree = grown(TreeBuilder(13), EDGES).build().tree
    logits.append(session.score([0], [tree])[0].logits_NV)
    path = [0, 1, 2]
    assert tree.parent_N[1] == 0 and tree.parent_N[2] == 1
    session.commit([0], [path])
    logits.append(session.score([0], [tree])[0].logits_NV)
    session.commit([0], [[0]])
    session.runner = runner or session.runner
    growing = TreeBuilder(13)
    for level in LEVELS:
        logits += rows_of(session.grow([0], [grown(growing, level)], [len(level)]))
    return logits


def together(ops: Ops, runner: BlockRunner | None, decoder: Decoder | None = None) -> list[torch.Tensor]:
    """The same of three requests at once, in slots out of order, with prompts and trees of other lengths."""
    session, slots = Session(TorchExecutor(decoder or tiny_decoder("smollm"), ops)), [2, 0, 3]
    prompts = [[5, 6, 7, 8, 9], [3] * 8, [4, 5, 6, 7, 8, 9]]
    logits = roots_of(session.feed(slots, prompts))
    logits += roots_of(session.feed(slots[:2], [[10, 11, 12], [13, 14, 15, 16]]))
    trees = [grown(TreeBuilder(13), EDGES[:count]).build().tree for count in (6, 4, 5)]
    logits += [scores.logits_NV for scores in session.score(slots, trees)]
    session.commit(slots, [[0, 1, 2], [0], [0, 1]])
    session.runner = runner or session.runner
    growing = [TreeBuilder(13), TreeBuilder(20), TreeBuilder(21)]
    for level in LEVELS:
        new = [level, level[:-1], level]
        for builder, edges in zip(growing, new, strict=True):
            grown(builder, edges)
        logits += rows_of(session.grow(slots, growing, [len(edges) for edges in new]))
    return logits


@pytest.mark.parametrize("passes", [alone, together])
@pytest.mark.parametrize("grouped", [False, True])
def test_every_kind_of_pass(grouped: bool, passes: Callable[[Ops, BlockRunner | None], list[torch.Tensor]]) -> None:
    """Fused groups hand their layers to the kernel at once."""
    groups = [[0], [1, 2, 3], [4]]
    runner = LayerParallelRunner.of(groups) if grouped else None
    definition = LayerParallelRunner.of(groups, fused=False) if grouped else None
    for given, expected in zip(passes(TritonOps(), runner), passes(Ops(), definition), strict=True):
        assert expected.std() > 1e-3, "logits that are all alike would hide a wrong mask"
        torch.testing.assert_close(given, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("rank", [32, 512])
def test_attention_to_latents(rank: int) -> None:
    """Heads of more than 256 dims are left to torch in float32, beside requests of other lengths."""
    sizes = {"kv_lora_rank": rank, "num_hidden_layers": 2}
    decoder = load_decoder(ModelTensors("youtu", 0, **sizes), torch.device("cpu"), torch.float32)
    assert attends_in_kernels(decoder) is False and attends_in_kernels(tiny_decoder("smollm"))
    for given, expected in zip(together(TritonOps(), None, decoder), together(Ops(), None, decoder), strict=True):
        assert expected.std() > 1e-3
        torch.testing.assert_close(given, expected, atol=1e-5, rtol=1e-4)


def test_passes_over_heads_without_a_kernel_are_not_captured() -> None:
    """Those of a published Gemma 4's layers without a window."""
    large = load_decoder(ModelTensors("gemma4", 0, global_head_dim=512), torch.device("cpu"), torch.float32)
    assert attends_in_kernels(large) is False and attends_in_kernels(tiny_decoder("gemma4"))
