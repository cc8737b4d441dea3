"""Launches the kernel that finds which tokens of a row the filters keep.

Legend: B samplings, R rows, V vocabulary.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped]

from spec_sdk_backends.kept_tokens_kernel import kept_tokens_kernel

TILE, WARPS = 4096, 16
ROOM = 4096
"""Tokens of a row that may be kept and are put side by side; where there are more, the row is read again and again."""


def least_kept_of_rows(
    target: torch.Tensor,
    draft: torch.Tensor,
    row_offset_R: torch.Tensor,
    target_rows: int,
    vocabulary: int,
    shaping_B4: torch.Tensor,
    aligned: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What :func:`spec_sdk.ops.kept_tokens.least_kept` returns for rows of logits that lie anywhere: ``row_offset_R``
    elements from the first of ``target``, and the rows after the ``target_rows`` first ones from that of ``draft``.

    Nothing waits for the host. For rows that lie NOWHERE, and for unusable ones, it may be anything. ``aligned``:
    whether all offsets are multiples of 16.
    """
    rows, device = len(row_offset_R), target.device
    near_RX = torch.empty((rows, ROOM), dtype=torch.float32, device=device)
    place_RX = torch.empty((rows, ROOM), dtype=torch.int32, device=device)
    least_R = torch.empty((rows,), dtype=torch.float32, device=device)
    last_R = torch.empty((rows,), dtype=torch.int32, device=device)
    kept_tokens_kernel[(rows,)](
        target,
        draft,
        row_offset_R,
        shaping_B4,
        near_RX,
        place_RX,
        least_R,
        last_R,
        target_rows,
        rows // len(shaping_B4),
        vocabulary,
        ALIGNED=aligned,
        ROOM=ROOM,
        TILE=min(TILE, triton.next_power_of_2(vocabulary)),
        num_warps=WARPS,
    )
    return least_R, last_R


def least_kept(logits_RV: torch.Tensor, shaping_B4: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same for rows of one tensor."""
    logits_RV, (rows, vocabulary) = logits_RV.contiguous(), logits_RV.shape
    offset_R = torch.arange(0, rows * vocabulary, vocabulary, device=logits_RV.device)
    return least_kept_of_rows(logits_RV, logits_RV, offset_R, rows, vocabulary, shaping_B4, vocabulary % 16 == 0)
