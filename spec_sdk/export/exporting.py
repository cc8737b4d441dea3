"""Finds the draft that a run would use, and writes it: config.json, weights, tokenizer, README, training.json."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from spec_sdk.counted import counted
from spec_sdk.errors import UserError
from spec_sdk.export.card import export_card
from spec_sdk.export.draft_model import draft_model_files, tokenizer_files
from spec_sdk.export.draft_source import DraftSource
from spec_sdk.export.exported_head import ExportTarget, export_target, exported_head, model_parameters
from spec_sdk.export.formats import HF, format_for
from spec_sdk.export.recommended_depth import RecommendedDepth, recommended
from spec_sdk.export.serving import Serving, serving_of, serving_of_model
from spec_sdk.export.training_record import recorded_rates, training_record
from spec_sdk.files import scratch_directory, write_atomically, write_json
from spec_sdk.model.checkpoint import Checkpoint, open_checkpoint
from spec_sdk.model.config_fields import read_json_object
from spec_sdk.model.draft_heads.block_spec import BlockSpec
from spec_sdk.model.draft_heads.layouts.layout import PublishedHead
from spec_sdk.model.draft_heads.medusa_spec import MedusaSpec
from spec_sdk.model.draft_heads.peagle_spec import PEagleSpec
from spec_sdk.model.load_decoder import load_target_ends
from spec_sdk.model.safetensors_reader import SINGLE_NAME
from spec_sdk.model.safetensors_writer import save_tensors
from spec_sdk.model.trained_drafts import FACTS
from spec_sdk.ops import Ops

USUAL_DEPTH = 3
"""Where neither a measurement nor the files say how deep to draft: speculators' own default of EAGLE-3."""
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Asked:
    """What a user asks for beside the draft: see :class:`spec_sdk.tasks.export.ExportConfig`. ``rates``: acceptance by
    place in a chain, measured just now; empty to take what training measured.
    """

    target: str
    format: str = "auto"
    target_name: str | None = None
    dtype: torch.dtype | None = None
    depth: int | None = None
    rates: Sequence[float] = ()
    prompts: int = 0


@dataclass
class Written:
    """The directory, and what there is to know of it."""

    directory: Path
    format: str
    depth: int
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Files:
    """``tensors`` and ``config`` of a draft, with what its card tells. ``copied``: files that go beside them."""

    format: str
    config: Mapping[str, Any]
    tensors: Mapping[str, torch.Tensor]
    facts: Mapping[str, str]
    depth: RecommendedDepth
    at_once: bool
    servings: Sequence[Serving]
    ours: str
    method: str
    copied: Sequence[Path] = ()


def export(source: DraftSource, asked: Asked, output: Path) -> Written:
    """Write the draft into the new directory ``output``.

    Raises UserError, and leaves nothing behind, for a draft that cannot be written so.
    """
    target = open_checkpoint(asked.target)
    said = export_target(target, asked.target_name)
    record = training_record(source.directory)
    if source.head is not None:
        files = _head_files(source.head, source, target, said, record, asked)
    else:
        assert source.model is not None
        files = _model_files(source.model, target, said, record, asked)
    _check_record(record, said, source.directory)
    kept = dict(record) or {"method": files.method, "target": target.name}
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with scratch_directory(output.parent, f".{output.name}.partial-") as staged:
            save_tensors(staged / SINGLE_NAME, files.tensors, {"format": "pt"})
            write_json(staged / "config.json", files.config)
            for path in files.copied:
                shutil.copyfile(path, staged / path.name)
            write_json(staged / FACTS, {**kept, "target_identity": said.identity})
            card = export_card(output.name, files.facts, files.depth, files.at_once, files.servings, files.ours)
            write_atomically(staged / "README.md", card)
            staged.chmod(0o755)
            os.replace(staged, output)
    except OSError as error:
        raise UserError(f"task.output: {output}: {error.strerror or error}") from error
    notes = [
        f"{files.format}: {files.method}, {counted(files.depth.depth, 'token')} at a time; README.md has the commands"
    ]
    notes += [f"{each.program} does not serve it: {each.why}" for each in files.servings if not each.command]
    if asked.target_name is None and Path(said.called).expanduser().exists():
        notes.append(f"the files name the target {said.called}; task.target_name=org/name says what servers call it")
    return Written(output, files.format, files.depth.depth, notes)


def _head_files(
    published: PublishedHead,
    source: DraftSource,
    target: Checkpoint,
    said: ExportTarget,
    record: Mapping[str, Any],
    asked: Asked,
) -> _Files:
    written_as = format_for(published.spec.method, asked.format)
    lent = asked.dtype or _stored_dtype(published)
    lender = load_target_ends(target, target.name, _CPU, lent, Ops())
    head = exported_head(published, source.choices, lender, said, 1, asked.dtype, written_as.whole)
    spec = head.spec
    at_once = isinstance(spec, BlockSpec | MedusaSpec | PEagleSpec)
    most = _most(head.spec)
    depth = _depth(asked, record, head.parameters / said.parameters, at_once, most, _said_depth(published))
    fixed = spec.form.drafts if isinstance(spec, BlockSpec) else None
    # what a block holds is no choice: programs refuse another number in the file
    head = replace(head, depth=fixed if fixed is not None and asked.depth is None else depth.depth)
    config, tensors = written_as.files(head)
    few = getattr(spec, "draft_vocabulary", None)
    facts = {
        "method": _METHODS.get(spec.method, spec.method),
        "format": written_as.name,
        **_target_facts(said),
        "layers of the target that it reads": f"{', '.join(map(str, head.taps))} (0 is the embedding)",
        "tokens that it can draft": "all" if few in (None, spec.target_vocabulary) else f"{few}",
        "weights": f"{head.dtype}, {_size(tensors)}",
    }
    pipeline = _PIPELINES[spec.method]
    ours = f"pipeline={pipeline} model.target={said.called} drafter.checkpoint=DIRECTORY"
    servings = serving_of(written_as.name, head)
    return _Files(written_as.name, config, tensors, facts, depth, at_once, servings, ours, spec.method)


def _model_files(
    draft: Checkpoint, target: Checkpoint, said: ExportTarget, record: Mapping[str, Any], asked: Asked
) -> _Files:
    if asked.format not in ("auto", HF):
        raise UserError(f"task.format: {asked.format} does not hold draft models; use {HF}")
    dtype = asked.dtype or _model_dtype(draft)
    config, tensors = draft_model_files(draft, target, dtype)
    depth = _depth(asked, record, model_parameters(draft.config) / said.parameters, False, None, None)
    facts = {
        "method": "draft model",
        "format": HF,
        **_target_facts(said),
        "layers": str(draft.config.num_layers),
        "weights": f"{str(dtype).removeprefix('torch.')}, {_size(tensors)}",
    }
    if draft.draft_vocabulary is not None:
        facts["tokens that it can draft"] = (
            f"all; acceptance was measured while it drafted {len(draft.draft_vocabulary)} of them"
        )
    servings = serving_of_model(said.called, depth.depth)
    ours = f"pipeline=sd_chain model.target={said.called} model.draft=DIRECTORY"
    copied = tokenizer_files(draft, target)
    return _Files(HF, config, tensors, facts, depth, False, servings, ours, "model", copied)


def _depth(
    asked: Asked, record: Mapping[str, Any], cost: float, at_once: bool, most: int | None, said: int | None
) -> RecommendedDepth:
    """The depth to serve with. ``most``: that can be drafted at a time; ``said``: by the files."""
    if asked.depth is not None and most is not None and asked.depth > most:
        raise UserError(f"task.depth: {asked.depth} is more than the {most} tokens that the head drafts")
    if asked.rates:
        rates, origin = tuple(asked.rates), f"on {counted(asked.prompts, 'prompt')}, when it was exported"
    elif recorded := recorded_rates(record):
        rates, origin = recorded, "on answers held out from training"
    else:
        rates, origin = (), "as its files say" if said else "a usual number"
    found = recommended(rates, origin, cost, at_once=at_once, most=most, otherwise=said or USUAL_DEPTH)
    return found if asked.depth is None else replace(found, depth=asked.depth)


def _most(spec: object) -> int | None:
    """Tokens that a head drafts at a time; None for any number."""
    if isinstance(spec, BlockSpec):
        return spec.form.drafts
    if isinstance(spec, MedusaSpec):
        return spec.heads
    return spec.drafts if isinstance(spec, PEagleSpec) else None


def _said_depth(published: PublishedHead) -> int | None:
    """How many tokens at a time a head's own files name."""
    most = _most(published.spec)
    values = read_json_object(Path(published.where) / "config.json").get("speculators_config")
    methods = values.get("proposal_methods") if isinstance(values, dict) else None
    first = methods[0] if isinstance(methods, list) and methods else None
    said = first.get("speculative_tokens") if isinstance(first, dict) else None
    whole = isinstance(said, int) and not isinstance(said, bool) and said > 0
    return said if whole else most


def _check_record(record: Mapping[str, Any], said: ExportTarget, where: Path) -> None:
    trained_for = record.get("target_identity")
    if trained_for not in (None, said.identity):
        raise UserError(
            f"{where}: was trained for {record.get('target', 'another target')} ({trained_for}), and model.target is "
            f"{said.called} ({said.identity}); name the target that it was trained for"
        )


def _stored_dtype(published: PublishedHead) -> torch.dtype:
    """That of its first matrix of floating point."""
    for name in published.tensors.names:
        if len(published.tensors.shape(name)) == 2 and published.tensors.tensor(name).is_floating_point():
            return published.tensors.tensor(name).dtype
    return torch.float32


def _model_dtype(draft: Checkpoint) -> torch.dtype:
    """As stored; bfloat16 of matrices in few bits."""
    names = [name for name in sorted(draft.names()) if name.endswith("_proj.weight")]
    if not names or draft.quantized(names[0]) is not None:
        return torch.bfloat16
    return draft.tensor(names[0]).dtype


def _target_facts(said: ExportTarget) -> dict[str, str]:
    return {"target": f"`{said.called}`", "identity of the target": f"`{said.identity}` (sizes and norm gains)"}


def _size(tensors: Mapping[str, torch.Tensor]) -> str:
    return f"{sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()) / 1e6:.1f} MB"


_METHODS = {
    "eagle": "EAGLE-1 or EAGLE-2",
    "eagle3": "EAGLE-3",
    "peagle": "P-EAGLE",
    "dflash": "DFlash",
    "dspark": "DSpark",
    "medusa": "Medusa",
}
_PIPELINES = {
    "eagle": "eagle_tree",
    "eagle3": "eagle_tree",
    "peagle": "peagle_tree",
    "dflash": "block_tree",
    "dspark": "block_tree",
    "medusa": "medusa_tree",
}
