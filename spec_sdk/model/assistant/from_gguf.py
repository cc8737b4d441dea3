"""An assistant in a GGUF file, as its family publishes it: a directory, made once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spec_sdk.errors import UserError
from spec_sdk.files import write_json
from spec_sdk.model.architectures import weights_of
from spec_sdk.model.assistant.settings import KINDS, read_settings
from spec_sdk.model.checkpoint_shapes import check_shapes
from spec_sdk.model.claimed_counts import check_counts
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.gemma4_gguf import gemma4_config
from spec_sdk.model.gguf_convert import require_room
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.gguf_tensors import GGUFWeights
from spec_sdk.model.safetensors_reader import SINGLE_NAME
from spec_sdk.model.safetensors_writer import write_safetensors
from spec_sdk.model.source_gguf import gguf_entry
from spec_sdk.model.source_progress import byte_progress
from spec_sdk.model.weight_table import MODEL, Dim, Weight, WeightTable

ARCHITECTURE = "gemma4-assistant"
VERSION = 1
"""Part of what a directory was made from: raise it when the same GGUF file would be written differently."""


def assistant_of_gguf(path: Path) -> Path:
    """A directory with the assistant of the GGUF file ``path``, from the cache if the file has not changed.

    llama.cpp's converter leaves clusters out, so that it has logits of all tokens. Raises UserError for another model,
    for a damaged file, and for a full disk.
    """
    entry, place = gguf_entry(path, "assistant-", {"assistant": VERSION})
    return entry.obtain(lambda directory: _write(GGUFFile(place), directory, path.name))


def _write(gguf: GGUFFile, directory: Path, label: str) -> None:
    check_counts(gguf.metadata, gguf.shapes, gguf.where)
    found = gguf.metadata.get("general.architecture")
    if found != ARCHITECTURE:
        raise UserError(f"{gguf.where}: general.architecture is '{found}', and an assistant's is '{ARCHITECTURE}'")
    width = Fields(gguf.metadata, gguf.where).size(f"{ARCHITECTURE}.embedding_length_out")
    values: dict[str, Any] = {
        "model_type": KINDS[0],
        "backbone_hidden_size": width,
        "text_config": gemma4_config(gguf, ARCHITECTURE),
    }
    config = read_settings(Fields(values, gguf.where)).config
    model, backbone = weights_of(config), Dim("target's model", lambda config: width)
    pair = Dim("embedding and state", lambda config: 2 * width)
    rows = [
        *(model.row(role) for role in model.roles),
        Weight("entering", "pre_projection.weight", "nextn.pre_projection.weight", (MODEL, pair)),
        Weight("leaving", "post_projection.weight", "nextn.post_projection.weight", (backbone, MODEL)),
    ]
    table = WeightTable(rows, config)
    check_shapes(table.gguf_shapes, gguf.shapes, gguf.where)
    weights = GGUFWeights(gguf, config, table)
    total = sum(plan.size for plan in weights.plans.values())
    require_room(directory, total)
    write_json(directory / "config.json", values)
    with byte_progress(f"converting the assistant {label}", total) as advance:
        write_safetensors(directory / SINGLE_NAME, weights.plans, weights.chunks, advance)
