"""Levels of the trees of several requests, whose guesses a Markov head corrects by the tokens before them.

Legend: R requests, B rows of a block, P positions ahead, K open nodes of all trees, C candidates, M model dim, V
vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spec_sdk.contracts import Request
from spec_sdk.model.draft_heads.block_head import BlockHead
from spec_sdk.ops.host_reads import read
from spec_sdk.ops.uploads import numbers_on
from spec_sdk_drafters.level_tree import LevelTree


def grow_levels(
    head: BlockHead,
    requests: Sequence[Request],
    trees: Sequence[LevelTree],
    normed_RBM: torch.Tensor,
    rows_RPM: torch.Tensor,
    candidates: int,
) -> None:
    """Open every tree as deep as it asks for, one level of all trees at once.

    ``normed_RBM``: what the blocks returned; ``rows_RPM``: the rows of it that predict a token.
    """
    markov = head.markov
    assert markov is not None
    logits_RPV, device = head.block_logits(rows_RPM), rows_RPM.device
    state_KR = markov.start(len(requests))
    if not head.form.from_anchor:
        # the anchor's slot predicts nothing, and a state begins there all the same
        anchor_R = numbers_on(device, [request.pending_token for request in requests])
        _, state_KR = markov.step(state_KR, anchor_R, normed_RBM[:, 0])
    for position in range(rows_RPM.shape[1]):
        asking = [r for r, tree in enumerate(trees) if tree.open]
        if not asking:
            return
        owner_K = numbers_on(device, [r for r in asking for _ in trees[r].open])
        token_K = numbers_on(device, [token for r in asking for token in trees[r].tokens])
        normed_KM = rows_RPM[owner_K, position]
        bias_KV, state_KR = markov.step(state_KR, token_K, normed_KM)
        counts = [len(trees[r].open) for r in asking]
        parts = torch.split(logits_RPV[owner_K, position] + bias_KV, counts)
        logits_KV = torch.cat(
            [requests[r].process_logits(part, trees[r].paths) for r, part in zip(asking, parts, strict=True)]
        )
        logprob_KC, token_KC = requests[0].ops.top_log_probabilities(logits_KV, candidates)
        probability_KC = logprob_KC.exp()
        if head.confidence is not None:
            previous_KR = markov.previous(token_K) if head.confidence.reads_token else None
            probability_KC = probability_KC * head.confidence(normed_KM, previous_KR)[:, None]
        token_KC, probability_KC = read(token_KC, probability_KC)
        kept, first = list[int](), 0
        for r, count in zip(asking, counts, strict=True):
            own = slice(first, first + count)
            trees[r].offer(token_KC[own].tolist(), probability_KC[own].tolist())
            kept += [first + row for row in trees[r].rows]
            first += count
        state_KR = state_KR[numbers_on(device, kept)]
