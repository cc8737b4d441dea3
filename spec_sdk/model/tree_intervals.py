"""Pre-order intervals of a tree whose parents are known where its logits are, and not on the host.

Legend: S nodes.
"""

from __future__ import annotations

import torch


def intervals(parent_S: torch.Tensor, ancestor_SS: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Pre-order starts and ends of a tree's nodes in the order of creation, as
    :meth:`~spec_sdk.tree.TreeBuilder.intervals` gives them, on the device.

    ``ancestor_SS`` [i, j]: 1.0 where node j is an ancestor of node i, or i itself.
    """
    size_S = ancestor_SS.sum(0)
    # the subtrees of earlier children of the same parent come before, and so does the parent
    siblings_SS = (parent_S[:, None] == parent_S).tril(-1)
    before_S = (siblings_SS * size_S).sum(1) + (parent_S >= 0)
    start_S = (ancestor_SS * before_S).sum(1)
    return start_S, start_S + size_S
