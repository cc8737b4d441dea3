"""A draft model that was trained before, with what it lacks of its target's weights."""

from __future__ import annotations

import torch

from spec_sdk.errors import UserError
from spec_sdk.model.borrowed_weights import BorrowingModel
from spec_sdk.model.checkpoint import Checkpoint, open_checkpoint
from spec_sdk.model.model_source import ModelSource


def open_trained_draft(reference: str, target: ModelSource) -> tuple[Checkpoint, ModelSource, torch.Tensor | None]:
    """Its files, its weights with those of the ``target`` that it lacks among them, and the tokens that it can draft.

    Raises UserError for what is no model with the target's vocabulary.
    """
    checkpoint = open_checkpoint(reference)
    if checkpoint.tokenizer.vocabulary != target.tokenizer.vocabulary:
        raise UserError(f"{checkpoint.name} has another vocabulary than {target.name}")
    if not checkpoint.borrowed:
        return checkpoint, checkpoint, None
    return checkpoint, BorrowingModel(checkpoint, checkpoint.borrowed, target), checkpoint.draft_vocabulary


def without_option(message: str) -> str:
    """A message without the option of a run that it begins with: here another one named what is wrong."""
    option, _, said = message.partition(": ")
    return said if said and option.startswith(("model.", "drafter.", "task.")) else message
