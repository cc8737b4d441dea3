"""The order of a head's dimensions: as checkpoints have it, and as the decoder rotates them.

The decoder rotates dimensions half a head apart (:func:`spec_sdk.model.rope.rotate`), all of a head. A checkpoint may
have the two of a pair side by side (GLM, ERNIE), or pairs within the first dimensions alone (Phi). There the rows of Q
and K are put into the decoder's order when they are read, those that stand still behind the others in each half. A
score does not hang on the order in which its query and its key have their dimensions, so that kernels need not know.

Legend: X rows (heads·D, or D of a norm's gain), D head dim.
"""

from __future__ import annotations

import torch

from spec_sdk.model.config import LatentAttention, ModelConfig
from spec_sdk.ops.quantized import QuantizedMatrix

_ROLES = ("q", "k", "q_bias", "k_bias", "q_norm", "k_norm")
"""Weights whose rows are dimensions of heads that are rotated."""
_OF_LATENTS = ("query_up", "latent", "latent_bias")
"""The same of attention to latents, beside ``q``: only the last dimensions of a head are rotated there."""


def as_rotated(role: str, stored_X: torch.Tensor, config: ModelConfig) -> torch.Tensor:
    """A checkpoint's weight with the rows of its heads in the decoder's order; itself if they are."""
    row_X = _rows(role, len(stored_X), config)
    return stored_X if row_X is None else stored_X[row_X.to(stored_X.device)]


def as_stored(role: str, rotated_X: torch.Tensor, config: ModelConfig) -> torch.Tensor:
    """The inverse of :func:`as_rotated`."""
    row_X = _rows(role, len(rotated_X), config)
    return rotated_X if row_X is None else rotated_X[row_X.argsort().to(rotated_X.device)]


def matrix_as_rotated(role: str, stored: QuantizedMatrix, config: ModelConfig) -> QuantizedMatrix:
    """:func:`as_rotated` of a matrix in few bits."""
    row_X = _rows(role, stored.outputs, config)
    return stored if row_X is None else stored.rows(row_X)


def _rows(role: str, rows: int, config: ModelConfig) -> torch.Tensor | None:
    """For every row in the decoder's order, which of the checkpoint's it is; None if both are the same."""
    if config.latent is not None:
        return _last_rows(role, rows, config, config.latent)
    if role not in _ROLES or (config.rotary_dims is None and not config.rotary_neighbours):
        return None
    D = config.head_dim
    rotated = D if config.rotary_dims is None else config.rotary_dims
    pairs = torch.arange(rotated).view(-1, 2).T if config.rotary_neighbours else torch.arange(rotated).view(2, -1)
    still = torch.arange(rotated, D).view(2, -1)
    dim_D = torch.cat((pairs, still), dim=1).flatten()
    return (torch.arange(0, rows, D)[:, None] + dim_D).flatten()


def _last_rows(role: str, rows: int, config: ModelConfig, latent: LatentAttention) -> torch.Tensor | None:
    """The same of attention to latents."""
    if role not in ("q", *_OF_LATENTS) or not config.rotary_neighbours:
        return None
    D = latent.width if role in ("latent", "latent_bias") else latent.qk_head_dim
    still = torch.arange(D - latent.qk_rope_head_dim)
    dim_D = torch.cat((still, torch.arange(len(still), D).view(-1, 2).T.flatten()))
    return (torch.arange(0, rows, D)[:, None] + dim_D).flatten()
