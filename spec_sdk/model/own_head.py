"""Whether a model whose configuration says that its output head is the embedding has another one in its files.

transformers 5 takes the head of such files as it is; published checkpoints often hold the embedding twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from spec_sdk.model.architectures import weights_of
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.weight_table import Shape

_ROWS = 1024
"""Compared at a time: of two matrices that differ no more is read than the first rows that do."""


def with_own_head(
    config: ModelConfig, found: Mapping[str, Shape], rows: Callable[[str, range], torch.Tensor]
) -> ModelConfig:
    """``config``, its head untied if ``found`` has one that differs from the embedding.

    ``found``: name and shape of every tensor of the model; ``rows``: some rows of one of them. Of another shape than
    the embedding's, a head differs too.
    """
    if not config.tie_embeddings:
        return config
    untied = replace(config, tie_embeddings=False)
    table = weights_of(untied)
    embedding, head, shape = table.name("embedding"), table.name("head"), table.shape("head")
    if head not in found or found.get(embedding) != shape:
        return config

    def equal(part: range) -> bool:
        own = rows(head, part)
        # in memory they may be on two devices, in files of two dtypes
        return bool((own == rows(embedding, part).to(own.device)).all())

    parts = (range(first, min(first + _ROWS, shape[0])) for first in range(0, shape[0], _ROWS))
    return config if found[head] == shape and all(map(equal, parts)) else untied
