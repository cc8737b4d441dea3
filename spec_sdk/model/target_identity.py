"""Which model a draft was trained for: the same for a checkpoint and for its copies in fewer bits."""

from __future__ import annotations

import hashlib

import torch

from spec_sdk.model.architectures import weights_of
from spec_sdk.model.model_source import ModelSource


def target_identity(source: ModelSource) -> str:
    """Of sizes and norm gains, in a few digits.

    Gains are kept in full by files of few bits, which change every matrix, and a fine-tuned model has others.
    """
    config = source.config
    sizes = (config.hidden_size, config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim)
    digest = hashlib.sha256(repr((*sizes, config.vocab_size)).encode())
    table = weights_of(config)
    for role, layer in (("final_norm", 0), *(("input_norm", layer) for layer in range(config.num_layers))):
        if role in table:
            gains = source.tensor(table.name(role, layer)).to(torch.bfloat16)
            digest.update(gains.view(torch.int16).contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
