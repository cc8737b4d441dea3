"""Pre-order intervals of trees whose parents are known where their logits are, and not on the host.

Legend: B trees, S nodes.
"""

from __future__ import annotations

import torch


def intervals(parent_BS: torch.Tensor, ancestor_BSS: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Pre-order starts and ends [B, S] of trees' nodes in the order of creation, as
    :meth:`~spec_sdk.tree.TreeBuilder.intervals` gives them, on the device.

    ``ancestor_BSS`` [b, i, j]: 1.0 where node j is an ancestor of node i, or i itself.
    """
    size_BS = ancestor_BSS.sum(1)
    # the subtrees of earlier children of the same parent come before, and so does the parent
    siblings_BSS = (parent_BS[:, :, None] == parent_BS[:, None]).tril(-1)
    before_BS = (siblings_BSS * size_BS[:, None]).sum(2) + (parent_BS >= 0)
    start_BS = (ancestor_BSS * before_BS[:, None]).sum(2)
    return start_BS, start_BS + size_BS
