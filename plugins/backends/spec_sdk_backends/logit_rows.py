"""What the kernels of sampling read of a row of logits: those that filters keep, and their weights."""

# triton's compiler reads annotations and knows only its own
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

# the offset of a row that nobody needs: further than any memory reaches
NOWHERE = tl.constexpr(-(1 << 62))


@triton.jit
def scores(row_ptr, offset, token, inside, least, last, FILTERED: tl.constexpr, ALIGNED: tl.constexpr):
    """Logits in float32; -inf for what lies outside or is filtered out."""
    if ALIGNED:
        # the same number, of which the compiler now sees that a thread may load several logits at once
        offset = offset // 16 * 16
    logit = tl.load(row_ptr + offset + token, mask=inside, other=float("-inf")).to(tl.float32)
    if FILTERED:
        kept = (logit > least) | ((logit == least) & (token <= last))
        # NaN compares false, and must not vanish
        logit = tl.where(kept | (logit != logit), logit, float("-inf"))
    return logit


@triton.jit
def weights(score, largest, temperature):
    """exp of the score's distance from the largest over the temperature: the distance is divided, not the logits,
    whose quotients may be so large that float32 rounds away what tells them apart, or end as infinities.
    """
    return tl.exp(tl.div_rn(score - largest, temperature))
