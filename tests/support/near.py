"""Numbers of two ways to compute the same thing."""

from __future__ import annotations

import torch


def check_near(found: torch.Tensor, expected: torch.Tensor, part: float = 2e-4) -> None:
    """Off by at most this part of the largest value, since rounding grows from level to level of a tree; what is
    infinite must be so in both.
    """
    assert found.shape == expected.shape and torch.equal(found.isinf(), expected.isinf())
    found, expected = (x.masked_fill(x.isinf(), 0.0) for x in (found, expected))
    assert (found - expected).abs().max() <= part * expected.abs().max()
