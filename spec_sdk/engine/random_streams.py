"""The random numbers of a request: a stream of their own for every seed and every request."""

from __future__ import annotations

import hashlib

import torch

_TORCH_SEEDS = 2**32
"""torch's generator on the CPU takes no more of a seed."""


def random_stream(seed: int, stream: int) -> torch.Generator:
    """The generator of stream number ``stream`` of a ``seed``; both count in full.

    Streams 0 of seeds that torch can tell apart are torch's own. Others are spread over torch's seeds by a hash, so
    that neighbouring seeds and streams do not meet.
    """
    if stream == 0 and 0 <= seed < _TORCH_SEEDS:
        return torch.Generator().manual_seed(seed)
    digest = hashlib.sha256(f"{seed}:{stream}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:4]))
