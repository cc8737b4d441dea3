"""Every seed and every request of it has random numbers of its own."""

from __future__ import annotations

import torch

from spec_sdk.engine.random_streams import random_stream


def numbers(seed: int, stream: int = 0) -> tuple[float, ...]:
    return tuple(torch.rand(4, generator=random_stream(seed, stream), dtype=torch.float64).tolist())


def test_a_seed_counts_in_full() -> None:
    """torch's own generator takes 32 bits of it."""
    assert torch.equal(*(torch.rand(4, generator=torch.Generator().manual_seed(seed)) for seed in (5, 5 + 2**32)))
    seeds = [5, 5 + 2**32, 5 + 2**33, 5 + 2**62, 2**63 - 1, 2**32 - 1]
    assert len({numbers(seed) for seed in seeds}) == len(seeds)


def test_no_request_of_one_seed_is_a_request_of_another() -> None:
    pairs = [(seed, stream) for seed in (0, 1, 2, 1_000_003, 2_000_006) for stream in (0, 1, 2, 3, 2**40)]
    assert len({numbers(*pair) for pair in pairs}) == len(pairs)


def test_a_stream_is_the_same_every_time() -> None:
    assert numbers(7, 3) == numbers(7, 3)
    # seeds that torch can tell apart are torch's
    assert torch.equal(
        torch.rand(4, generator=random_stream(7, 0)), torch.rand(4, generator=torch.Generator().manual_seed(7))
    )
