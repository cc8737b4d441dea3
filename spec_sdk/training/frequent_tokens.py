"""Which tokens a draft model shall be able to draft.

Legend: V vocabulary, R tokens that can be drafted.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from spec_sdk.training.samples import Sample


def frequent_tokens(samples: Iterable[Sample], count: int | None, vocabulary: int) -> torch.Tensor | None:
    """The ``count`` tokens [R] that the target held most probable over all answers to train on, by increasing id.

    None for all tokens. Fewer where fewer were ever among its most probable ones.
    """
    if count is None or count >= vocabulary:
        return None
    mass_V = torch.zeros(vocabulary, dtype=torch.float64)
    for sample in samples:
        if not sample.held_out:
            mass_V.index_add_(0, sample.top_id_AK.flatten().long(), sample.top_logprob_AK.flatten().double().exp())
    seen = int((mass_V > 0).sum())
    return mass_V.topk(min(count, seen)).indices.sort().values
