"""Which model a data set's answers are of, in a few digits."""

from __future__ import annotations

import hashlib
import json

from spec_sdk.model.architectures import weights_of
from spec_sdk.model.model_source import ModelSource

ROWS = 64
"""Rows of each matrix that count."""


def fingerprint(source: ModelSource) -> str:
    """Of configuration and weights: the first rows of the embedding and of every layer's first and last matrices, where
    it has them: a layer with experts has no MLP, and one that attends to latents may have no matrix of Q.
    """
    digest = hashlib.sha256(repr(source.config).encode())
    table, there = weights_of(source.config), source.names()
    places = [(role, layer) for role in ("input_norm", "q", "down") for layer in range(source.config.num_layers)]
    for role, layer in (("embedding", 0), ("final_norm", 0), *places):
        if role in table and (name := table.name(role, layer)) in there:
            digest.update(source.tensor(name)[:ROWS].float().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def vocabulary_fingerprint(source: ModelSource) -> str:
    """Of the tokens and their ids."""
    vocabulary = sorted(source.tokenizer.vocabulary.items(), key=lambda item: (item[1], item[0]))
    return hashlib.sha256(json.dumps(vocabulary).encode()).hexdigest()[:16]
