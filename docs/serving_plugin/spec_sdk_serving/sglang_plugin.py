"""An algorithm for SGLang: ``--speculative-algorithm SPEC_SDK`` drafts token trees with a drafter of spec-sdk.

SGLang 0.5.23 has an algorithm without a draft model, NGRAM. Its worker asks a corpus for trees, has the target score
them, samples, and moves K and V. All of that is taken as it is: what is put in is where the trees come from. So the
algorithm says of itself that it is of that kind, and asks for the same preparations.

Legend: R requests of the batch, N nodes of a tree, the root included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spec_sdk.tree import TokenTree
from spec_sdk_serving.hosted_drafter import HostedDrafter, drafter_options

NAME = "SPEC_SDK"


def register() -> None:
    """Make the algorithm known; SGLang calls it once in every process."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
    from sglang.srt.speculative.spec_registry import CustomSpecAlgo

    class SpecSdkAlgorithm(CustomSpecAlgo):  # type: ignore[misc, unused-ignore]
        """Of NGRAM's kind, to everybody who asks."""

        def is_ngram(self) -> bool:
            return True

        def has_draft_kv(self) -> bool:
            return False

        def handle_server_args(self, server_args: Any) -> None:
            SpeculativeAlgorithm.NGRAM.handle_server_args(server_args)

    def worker(server_args: Any) -> type:
        from spec_sdk_serving.sglang_worker import worker_class

        return worker_class()

    SpeculativeAlgorithm.register(NAME, supports_overlap=True, spec_class=SpecSdkAlgorithm)(worker)


class DrafterCorpus:
    """What NGRAM's worker asks, answered by a drafter: trees for requests, by their names.

    ``batch_put`` and the rest of a corpus are nothing to it: the drafter reads every request's own text.
    """

    def __init__(self, hosted: HostedDrafter, nodes: int) -> None:
        self.hosted, self.nodes = hosted, nodes

    def batch_get(
        self, req_ids: Sequence[str], batch_tokens: Sequence[Sequence[int]], total_lens: Sequence[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """The nodes' tokens [R · N], int64, and who sees whom [R · N · N], bool. ``batch_tokens``: whole texts."""
        trees = [
            padded(self.hosted.propose(name, tokens, self.nodes - 1, self.nodes), self.nodes)
            for name, tokens in zip(req_ids, batch_tokens, strict=True)
        ]
        tokens_RN, mask_RNN = zip(*trees, strict=True)
        return np.concatenate(tokens_RN), np.concatenate([mask_NN.ravel() for mask_NN in mask_RNN])

    def batch_put(self, batch_tokens: Sequence[Sequence[int]]) -> None:
        """Nothing: what was accepted is part of the next text."""

    def synchronize(self) -> None:
        """Nothing is done beside."""

    def erase_match_state(self, req_ids: Sequence[str]) -> None:
        """These requests have left the batch."""
        self.hosted.forget(req_ids)

    def reset(self) -> None:
        """All requests have ended."""
        self.hosted.forget(self.hosted.keys)


def padded(tree: TokenTree, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """A tree's tokens [N] and mask [N, N], node j being seen by node i where it is an ancestor of it or itself.

    Missing nodes are children of the root with token 0, as SGLang's own corpus fills a tree up: drafts like any other.
    """
    missing = nodes - tree.size
    parent_N = [*tree.parent_N, *[0] * missing]
    mask_NN = np.eye(nodes, dtype=bool)
    for node in range(1, nodes):
        mask_NN[node] |= mask_NN[parent_N[node]]
    return np.array([*tree.token_N, *[0] * missing], dtype=np.int64), mask_NN


def new_corpus(nodes: int) -> DrafterCorpus:
    """That of the drafter of ``SPEC_SDK_DRAFTER``, for trees of so many nodes."""
    return DrafterCorpus(HostedDrafter(drafter_options()), nodes)
