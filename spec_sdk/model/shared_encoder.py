"""A draft model whose encoder is the target's, as Distil-Whisper's is: it runs once for both, and is held once.

Distillation keeps the teacher's encoder as it is (Gandhi et al. 2023, §3); a checkpoint may round it to 16 bits.
"""

from __future__ import annotations

import torch

from spec_sdk.model.architectures import weights_of
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.decoder import TensorSource
from spec_sdk.model.executor import Executor
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.model.whisper_decoder import WhisperDecoder

ROUNDING = 2**-8
"""Of a number in bfloat16, twice the largest relative error: what two checkpoints of one encoder may differ by."""
TINY = 1e-6


def share_encoder(target: Executor, target_source: TensorSource, draft: Executor, draft_source: TensorSource) -> bool:
    """Give a draft model the target's encoder if its own has the same weights, but for rounding; whether it was done.

    Sharing can make no output wrong: a draft model only guesses.
    """
    ours, theirs = whisper_of(target), whisper_of(draft)
    if ours is None or theirs is None or ours.config.encoder != theirs.config.encoder:
        return False
    if not same_encoder(target_source, draft_source):
        return False
    theirs.encoder = ours.encoder
    return True


def same_encoder(one: TensorSource, other: TensorSource) -> bool:
    """Whether the encoders of two checkpoints, of one configuration, have the same weights but for rounding."""
    pairs = zip(_encoder_names(one.config), _encoder_names(other.config), strict=True)
    return all(_alike(one.tensor(ours), other.tensor(theirs)) for ours, theirs in pairs)


def whisper_of(executor: Executor) -> WhisperDecoder | None:
    """The decoder that an executor runs, if it is a Whisper in torch."""
    decoder = executor.decoder if isinstance(executor, TorchExecutor) else None
    return decoder if isinstance(decoder, WhisperDecoder) else None


def _encoder_names(config: ModelConfig) -> list[str]:
    table = weights_of(config)
    return [name for name in table.shapes if table.entry(name).row.role.startswith("encoder_")]


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one.float(), other.float(), rtol=ROUNDING, atol=TINY)
