"""From an assistant's files to the draft model, beside the target that it was trained with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from spec_sdk.errors import UserError
from spec_sdk.model.architectures import weights_of
from spec_sdk.model.assistant.model import Assistant, ClusteredHead
from spec_sdk.model.assistant.settings import AssistantSettings, Clusters, read_settings
from spec_sdk.model.checkpoint_shapes import check_shapes
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.decoder import TensorSource
from spec_sdk.model.draft_heads.head_files import INTEGERS, HeadFiles
from spec_sdk.model.load_decoder import load_blocks, load_target_ends
from spec_sdk.model.target_ends import TargetEnds
from spec_sdk.model.weight_table import Shape
from spec_sdk.ops import Ops
from spec_sdk.ops.linear import Projection
from spec_sdk.ops.quantized import GROUP, QuantizedMatrix
from spec_sdk.ops.quantizing import quantize

_ENTERING, _LEAVING = "pre_projection.weight", "post_projection.weight"
_CENTROIDS, _ORDER = "masked_embedding.centroids.weight", "masked_embedding.token_ordering"


class _AssistantTensors(TensorSource):
    """A directory's tensors under the names of the family's table; matrices in ``bits``, None for floating point."""

    def __init__(self, files: HeadFiles, config: ModelConfig, bits: int | None) -> None:
        self.config = config
        self._files, self._bits = files, bits
        self._names = frozenset(weights_of(config).shapes)

    def names(self) -> frozenset[str]:
        return self._names

    def tensor(self, name: str) -> torch.Tensor:
        return self._files.store.tensor(name)

    def quantized(self, name: str) -> QuantizedMatrix | None:
        return in_bits(self._files, name, self._bits)


def load_assistant(
    directory: Path,
    target: TargetEnds,
    device: torch.device,
    dtype: torch.dtype,
    ops: Ops,
    bits: int | None = None,
) -> Assistant:
    """``bits``: of its matrices; None for ``dtype``. Raises UserError for files that are none of an assistant, are
    damaged, or are of another target.
    """
    files = HeadFiles.open(directory)
    settings = read_settings(files.config)
    config = settings.config
    sources = _beside(settings, target, files.config.where)
    check_shapes(_shapes(settings), files.store.shapes, files.store.where)
    floating = [name for name in _shapes(settings) if name != _ORDER]
    files.store.check_floating(floating)
    source = _AssistantTensors(files, config, bits)

    def linear(name: str) -> Projection:
        matrix = in_bits(files, name, bits)
        if matrix is None:
            return ops.projection(files.store.tensor(name).to(device=device, dtype=dtype))
        return ops.quantized_projection(matrix.to(device))

    clusters = None
    if settings.clusters is not None:
        token_CX = _clusters(files, settings.clusters, config.vocab_size).to(device)
        clusters = ClusteredHead(linear(_CENTROIDS), token_CX, settings.clusters.chosen)
    return Assistant(
        config,
        load_blocks(source, device, dtype, ops),
        load_target_ends(source, files.directory.name, device, dtype, ops),
        linear(_ENTERING),
        linear(_LEAVING),
        clusters,
        target,
        sources,
        ops,
    )


def in_bits(files: HeadFiles, name: str, bits: int | None) -> QuantizedMatrix | None:
    """A matrix as it is stored, if that is in few bits, or in ``bits``. None for a tensor that is no matrix of whole
    groups, or shall be in floating point.
    """
    shape = files.store.shapes[name]
    if bits is None or len(shape) != 2 or shape[1] % GROUP:
        return None
    return files.store.quantized(name) or quantize(files.store.tensor(name), bits)


def _shapes(settings: AssistantSettings) -> Mapping[str, Shape]:
    config, width = settings.config, settings.target_width
    own: dict[str, Shape] = {_ENTERING: (config.hidden_size, 2 * width), _LEAVING: (width, config.hidden_size)}
    if settings.clusters is not None:
        own |= {_CENTROIDS: (settings.clusters.count, config.hidden_size), _ORDER: (config.vocab_size,)}
    return {**weights_of(config).shapes, **own}


def _clusters(files: HeadFiles, clusters: Clusters, vocabulary: int) -> torch.Tensor:
    """The tokens of each cluster [C, X]."""
    if (dtype := files.store.dtype(_ORDER)) not in INTEGERS:
        raise UserError(f"{files.store.where}: tensor '{_ORDER}' is stored as {dtype}, not as {INTEGERS[0]}")
    token_V = files.store.tensor(_ORDER).long()
    if not torch.equal(token_V.sort().values, torch.arange(vocabulary)):
        raise UserError(f"{files.store.where}: tensor '{_ORDER}' does not name each of {vocabulary} tokens once")
    return token_V.view(clusters.count, -1)


def _beside(settings: AssistantSettings, target: TargetEnds, where: str) -> dict[bool, int]:
    """By whether layers have no window, the target's last layer of that kind that makes K and V. Raises UserError for
    a target that is none of this assistant's.
    """
    ours, theirs = settings.config, target.config
    if theirs.global_heads is None:
        raise UserError(
            f"{where}: is an assistant of a Gemma 4, and the target {target.name} is a {theirs.architecture}"
        )
    if settings.target_width != theirs.hidden_size:
        raise UserError(
            f"{where}: backbone_hidden_size is {settings.target_width}, and the target {target.name} has a model dim "
            f"of {theirs.hidden_size}: it is the assistant of another one"
        )
    if ours.vocab_size != target.vocabulary:
        raise UserError(f"{where}: has {ours.vocab_size} tokens, and the target {target.name} {target.vocabulary}")
    found: dict[bool, int] = {}
    for layer in range(ours.num_layers):
        is_global, head_dim = ours.is_global(layer), ours.heads_of(layer)[1]
        makers = [i for i in range(theirs.num_layers) if theirs.kv_layer(i) == i and theirs.is_global(i) == is_global]
        kind = "without a window" if is_global else "with a window"
        if not makers:
            raise UserError(f"{where}: layer {layer} is one {kind}, and the target {target.name} has none such")
        kv_heads, dim = theirs.heads_of(makers[-1])
        if head_dim != dim or ours.num_heads % kv_heads:
            raise UserError(
                f"{where}: {ours.num_heads} heads of {head_dim} in layers {kind} cannot attend to the {kv_heads} KV "
                f"heads of {dim} that the target {target.name} has there"
            )
        found[is_global] = makers[-1]
    return found
