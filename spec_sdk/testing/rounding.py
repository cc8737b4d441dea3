"""Telling rounding from a fault in a greedy run in low precision, where it need not give plain decoding's tokens.

Legend: M model dim, N new tokens, V vocabulary, W widths of a pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spec_sdk.model.executor import Executor, PassPlan
from spec_sdk.model.runners.sequential import SequentialRunner
from spec_sdk.ops.pass_inputs import PassInputs, RequestRows

WIDTHS = (1, 8, 64)
"""Rows of the plain passes that rounding is measured between: plain decoding, a small tree, a large one."""
MARGIN = 2.0
"""A pass may be off by so many times the largest difference between plain ones: they are only a sample of roundings."""


def step_beyond_rounding(
    tokens_N: Sequence[int], own_logits_NV: torch.Tensor, plain_logits_WNV: torch.Tensor
) -> int | None:
    """The first step of a greedy run that rounding does not explain; None if it explains all.

    ``own_logits_NV`` [N, V]: what the run chose ``tokens_N`` by, in its own passes. ``plain_logits_WNV`` [W, N, V]:
    logits after the same prefixes, in plain passes of W ≥ 2 widths (:func:`plain_logits`). A product over six rows
    rounds differently from one over a single row. How much, only the plain passes say: the noise is the largest
    difference between two of them anywhere in the run. A fault of the run under test cannot enlarge it.

    A step is explained if its own logits are within ``MARGIN`` times the noise of the first plain pass, all V of them,
    and its token has the largest of its own. The tokens alone would not do: a faulty pass first changes those choices
    that are near ties anyway.

    Raises ValueError for fewer than two widths or unlike shapes.
    """
    widths, *shape = plain_logits_WNV.shape
    if widths < 2 or own_logits_NV.shape != (len(tokens_N), *shape[1:]) or shape[0] != len(tokens_N):
        raise ValueError(
            f"{len(tokens_N)} tokens take logits of two widths at least, [W, N, V] and [N, V]; given are "
            f"{list(plain_logits_WNV.shape)} and {list(own_logits_NV.shape)}"
        )
    own_NV, plain_WNV = own_logits_NV.float(), plain_logits_WNV.float()
    noise = (plain_WNV.amax(0) - plain_WNV.amin(0)).max()
    for step, token in enumerate(tokens_N):
        off = (own_NV[step] - plain_WNV[0, step]).abs().max()
        # written so that a NaN is beyond it
        if not (off <= MARGIN * noise and own_NV[step, token] >= own_NV[step].max()):
            return step
    return None


def plain_logits(
    executor: Executor, prompt: Sequence[int], tokens_N: Sequence[int], widths: Sequence[int] = WIDTHS
) -> torch.Tensor:
    """Logits [W, N, V] that ``tokens_N`` are chosen by after ``prompt``, in causal passes of each of ``widths`` rows.

    Wide passes begin inside the prompt; a shorter text is fed several times beside itself, so that the last pass is as
    wide. No tree, no mask of one and no path that is committed is involved.
    """
    fed, plan = [*prompt, *tokens_N[:-1]], PassPlan(SequentialRunner())
    logits_WNV = []
    for width in widths:
        copies = -(-width // len(fed))
        cache = executor.new_cache()
        cache.reserve(copies, len(fed))
        begin = max(0, len(fed) - width * -(-len(tokens_N) // width))
        ends = [*([begin] if begin else []), *range(begin + width, len(fed), width), len(fed)]
        parts = []
        for first, end in zip([0, *ends], ends, strict=False):
            rows = [RequestRows.chain(slot, first, fed[first:end]) for slot in range(copies)]
            inputs = PassInputs.of("chain", rows, executor.device)
            parts.append(executor.forward(inputs, cache, plan).logits_BNV[0])
        logits_WNV.append(torch.cat(parts)[-len(tokens_N) :])
    return torch.stack(logits_WNV)
