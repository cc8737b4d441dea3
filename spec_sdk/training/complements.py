"""Draft models that complement each other: each learns most from what those before it fail to predict.

SpecInfer (Miao et al. 2024, arXiv:2305.09781, §3) calls such models boost-tuned: a pool of small models whose guesses,
merged into one tree, cover more of the target's tokens than the same number of models that all learned the same.

Legend: A labelled positions, M model dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spec_sdk.errors import UserError
from spec_sdk.model.model_source import ModelSource
from spec_sdk.training.distillation import CHUNK
from spec_sdk.training.draft_shape import DraftShape
from spec_sdk.training.learner import Batch
from spec_sdk.training.target_fingerprint import fingerprint
from spec_sdk.training.trainable import TrainableDraft
from spec_sdk.training.trained_draft import open_trained_draft


def open_complements(
    references: Sequence[str], target: ModelSource
) -> list[tuple[ModelSource, DraftShape, torch.Tensor | None]]:
    """Each with all of its layers, and the tokens that it can draft; no weights are read.

    Raises UserError, naming ``task.complements``, for one that is no dense draft model with the target's vocabulary.
    """
    opened = []
    for reference in references:
        try:
            _, source, token_R = open_trained_draft(reference, target)
            shape = DraftShape(range(source.config.num_layers))
            shape.config(source.config)
        except UserError as error:
            raise UserError(f"task.complements: {error}") from error
        opened.append((source, shape, token_R))
    return opened


class Complements:
    """Draft models that are there already, which another one shall complement.

    ``references``: their directories. ``target``: whose embedding and output head they use. Raises UserError as
    :func:`open_complements` does.
    """

    def __init__(
        self, references: Sequence[str], target: ModelSource, device: torch.device, precision: torch.dtype
    ) -> None:
        self.names: list[str] = []
        self.fingerprints: list[str] = []
        self.models: list[TrainableDraft] = []
        for reference, (source, shape, token_R) in zip(references, open_complements(references, target), strict=True):
            model = TrainableDraft(source, shape, device, precision, token_R)
            self.models.append(model.requires_grad_(False))
            self.names.append(reference)
            self.fingerprints.append(fingerprint(source))

    @torch.no_grad()
    def right(self, batch: Batch) -> torch.Tensor:
        """Whether one of them has the token that follows as its first choice: bool [A], of the labelled positions."""
        right_A = torch.zeros(batch.labels, dtype=torch.bool, device=batch.next_A.device)
        for model in self.models:
            state_AM, next_A = model(batch), model.places(batch.next_A)
            for first in range(0, batch.labels, CHUNK):
                part = slice(first, first + CHUNK)
                right_A[part] |= model.logits(state_AM[part]).argmax(-1) == next_A[part]
        return right_A
