"""Which draft is meant: the one that is named, or the one that the run's drafter has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spec_sdk.errors import UserError
from spec_sdk.files import expanded
from spec_sdk.model.checkpoint import HUB_ID, Checkpoint, open_checkpoint
from spec_sdk.model.config_fields import read_json_object
from spec_sdk.model.draft_heads.head_choices import HeadChoices
from spec_sdk.model.draft_heads.head_files import HeadFiles
from spec_sdk.model.draft_heads.layouts import LAYOUTS
from spec_sdk.model.draft_heads.layouts.layout import PublishedHead
from spec_sdk.model.draft_heads.layouts.mtp import MtpLayout
from spec_sdk.model.draft_heads.opening import head_directory, open_draft_head
from spec_sdk.model.models import AUTO_DRAFT, CUT_DRAFT
from spec_sdk.model.source_directory import weights_are_complete
from spec_sdk.model.trained_drafts import trained_draft

HEAD_METHODS = ("eagle3", "eagle", "peagle", "dflash", "dspark", "medusa", "hydra")


@dataclass(frozen=True)
class DraftSource:
    """A draft head or a draft model, one of the two. ``choices``: what the drafter's options say of a head."""

    directory: Path
    head: PublishedHead | None = None
    model: Checkpoint | None = None
    choices: HeadChoices = HeadChoices()


def draft_source(named: str | None, drafter: Mapping[str, Any], target: str, draft: str) -> DraftSource:
    """The draft of this name or, without one, that of the run: ``drafter`` are its options, ``target`` and ``draft``
    its models.

    Raises UserError where there is none, or none with files of its own.
    """
    choices = _choices(drafter)
    if named is not None:
        return _named(named, choices)
    if "checkpoint" in drafter:
        reference = drafter["checkpoint"]
        if reference is None:
            found = trained_draft(open_checkpoint(target), HEAD_METHODS)
            if found is None:
                raise UserError(
                    f"drafter.checkpoint: no installed package has a head for {target}; name one: a directory, or a "
                    "Hugging Face hub id"
                )
            reference = str(found)
        return _head(str(reference), choices)
    if "draft" in drafter:
        return _model(str(drafter["draft"] or draft), target)
    raise UserError(
        f"drafter: '{drafter.get('name')}' has no files to export; choose pipeline=eagle_tree or pipeline=sd_chain, or "
        "name a draft with task.input"
    )


def _choices(drafter: Mapping[str, Any]) -> HeadChoices:
    layers = drafter.get("target_layers")
    return HeadChoices(target_layers=tuple(map(int, layers)) if isinstance(layers, list) else None)


def _named(reference: str, choices: HeadChoices) -> DraftSource:
    if not reference.strip():
        raise UserError("task.input: is empty; name a directory or a Hugging Face hub id")
    path = expanded(reference, "task.input")
    if path.suffix == ".gguf" or (not path.is_dir() and not HUB_ID.fullmatch(reference)):
        return _model(reference, reference)
    directory = head_directory(reference, "task.input", pickled=False)
    if _is_head(directory):
        return _head(reference, choices)
    return _model(reference, reference)


def _is_head(directory: Path) -> bool:
    """Whether the files are those of a head; a model that has a prediction module is none."""
    if not weights_are_complete(directory, ("config.json",)):
        # what is missing is told where heads are opened
        return "num_hidden_layers" not in read_json_object(directory / "config.json")
    files = HeadFiles.open(directory)
    return any(layout.recognises(files) for layout in LAYOUTS if not isinstance(layout, MtpLayout))


def _head(reference: str, choices: HeadChoices) -> DraftSource:
    published = open_draft_head(reference)
    return DraftSource(Path(published.where), head=published, choices=choices)


def _model(reference: str, target: str) -> DraftSource:
    if reference == AUTO_DRAFT:
        found = trained_draft(open_checkpoint(target), ("model",))
        if found is None:
            raise UserError(
                f"model.draft: no installed package has a draft model for {target}; name one with model.draft or "
                "task.input"
            )
        reference = str(found)
    if reference == CUT_DRAFT or reference.startswith(f"{CUT_DRAFT}:"):
        raise UserError(
            "model.draft: a cut has no files of its own; task=train_draft makes a draft model of such layers, which "
            "can be exported"
        )
    checkpoint = open_checkpoint(reference)
    return DraftSource(checkpoint.directory, model=checkpoint)
