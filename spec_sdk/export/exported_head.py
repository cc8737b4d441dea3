"""A draft head on its way into another layout: all that any layout says of it, in one vocabulary.

Tensor names are those of :mod:`spec_sdk.model.draft_heads`: ``layers.0`` for EAGLE-3's ``midlayer``.

Legend: V target vocabulary, W draft vocabulary, M model dim of the head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from spec_sdk.export.layer_settings import layer_settings
from spec_sdk.model.checkpoint import Checkpoint
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import read_json_object
from spec_sdk.model.draft_heads.block_spec import BlockSpec
from spec_sdk.model.draft_heads.draft_vocabulary import draft_tokens
from spec_sdk.model.draft_heads.eagle3_spec import Eagle3Spec
from spec_sdk.model.draft_heads.head_choices import HeadChoices
from spec_sdk.model.draft_heads.head_files import HeadTensors
from spec_sdk.model.draft_heads.layouts.layout import PublishedHead
from spec_sdk.model.draft_heads.published_spec import PublishedSpec
from spec_sdk.model.target_ends import TargetEnds
from spec_sdk.model.target_identity import target_identity

_NOT_FLOATING = ("d2t", "t2d", "token_map")
_BY_DRAFT_TOKEN = ("lm_head.weight", "markov_head.markov_w2.weight")
"""Matrices with a row for every token that can be drafted."""


@dataclass(frozen=True)
class ExportTarget:
    """The target that a draft is served beside.

    ``called``: how written files name it, a hub id or a directory; ``architectures``: as its config.json has them;
    ``identity``: of :func:`spec_sdk.model.target_identity.target_identity`; ``parameters``: those of its matrices that
    one pass reads.
    """

    called: str
    architectures: tuple[str, ...]
    layers: int
    identity: str
    parameters: int


@dataclass(frozen=True)
class ExportedHead:
    """``taps``: the layers that it reads, as :attr:`Drafter.taps` counts them. ``layers``: config.json of its decoder
    layers, empty if it has none. ``tensors``: all of them, whatever was the target's included; ``depth``: how many
    tokens to draft at a time.
    """

    spec: PublishedSpec
    taps: tuple[int, ...]
    layers: Mapping[str, Any]
    tensors: Mapping[str, torch.Tensor]
    target: ExportTarget
    depth: int

    @property
    def parameters(self) -> int:
        """Numbers of its matrices that a pass multiplies with; the embedding is looked up."""
        return sum(
            tensor.numel()
            for name, tensor in self.tensors.items()
            if tensor.dim() == 2 and name not in ("embed_tokens.weight", "markov_head.markov_w1.weight")
        )

    @property
    def dtype(self) -> str:
        """That of its matrices, in torch's words."""
        return str(next(tensor.dtype for tensor in self.tensors.values() if tensor.dim() == 2)).removeprefix("torch.")


def exported_head(
    published: PublishedHead,
    choices: HeadChoices,
    lender: TargetEnds,
    target: ExportTarget,
    depth: int,
    dtype: torch.dtype | None,
    whole: bool = False,
) -> ExportedHead:
    """The head of these files, checked as it is where it is loaded to draft.

    ``lender``: the target, some of whose output rows may be the head's; ``dtype``: of the written tensors, None for
    what is stored; ``whole``: with the target's embedding and output rows where the head has none. Raises UserError for
    a head that does not fit the target.
    """
    spec = published.spec.as_chosen(choices).beside(lender, published.where)
    taps = spec.fitting_taps(lender, published.where)
    required, optional = spec.shapes(len(taps))
    published.tensors.check(required, optional, spec.ignored)
    tensors = {
        name: _stored(published.tensors, name, dtype) for name in {**required, **optional} if name in published.tensors
    }
    _complete(spec, tensors, lender, published.where, whole)
    config = getattr(spec, "config", None)
    layers = {}
    if isinstance(config, ModelConfig):
        values = read_json_object(Path(published.where) / "config.json")
        body = values.get("transformer_layer_config", values)
        layers = layer_settings(config, body if isinstance(body, dict) else values)
    return ExportedHead(spec, taps, layers, tensors, target, depth)


def export_target(checkpoint: Checkpoint, called: str | None) -> ExportTarget:
    """What is said of the target. ``called``: how; None for what the user called it."""
    theirs = read_json_object(checkpoint.directory / "config.json").get("architectures")
    architectures = tuple(map(str, theirs)) if isinstance(theirs, list) else ()
    return ExportTarget(
        called or checkpoint.reference,
        architectures or ((known,) if (known := ARCHITECTURES.get(checkpoint.config.architecture)) else ()),
        checkpoint.config.num_layers,
        target_identity(checkpoint),
        model_parameters(checkpoint.config),
    )


ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "glm": "GlmForCausalLM",
    "glm4": "Glm4ForCausalLM",
    "ernie4_5": "Ernie4_5ForCausalLM",
    "seed_oss": "SeedOssForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "granite": "GraniteForCausalLM",
    "granitemoehybrid": "GraniteMoeHybridForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
}
"""``model_type`` → what transformers calls the class of a text model, which engines choose theirs by."""


def model_parameters(config: ModelConfig) -> int:
    """Numbers of the matrices that one token multiplies with: of a mixture, the experts that it has."""
    return config.vocab_size * config.hidden_size + sum(config.layer_parameters)


def _stored(tensors: HeadTensors, name: str, dtype: torch.dtype | None) -> torch.Tensor:
    tensor = tensors.tensor(name)
    return (tensor if dtype is None or name in _NOT_FLOATING else tensor.to(dtype)).contiguous()


def _complete(
    spec: PublishedSpec, tensors: dict[str, torch.Tensor], target: TargetEnds, where: str, whole: bool
) -> None:
    """Add what other programs want to find: output rows of an EAGLE-3 head, and both maps of a draft vocabulary.

    Programs that go by ``t2d`` take output rows in the order of the target's tokens, so that is their order here.
    """
    token_W: torch.Tensor | None = None
    for name in ("t2d", "d2t"):
        d2t_W = tensors.pop(name, None)
    if isinstance(spec, Eagle3Spec | BlockSpec) and spec.draft_vocabulary < spec.target_vocabulary:
        assert d2t_W is not None
        token_W, order_W = draft_tokens(d2t_W, None, spec.target_vocabulary, where).sort()
        for name in _BY_DRAFT_TOKEN:
            if name in tensors:
                tensors[name] = tensors[name][order_W].contiguous()
        tensors["d2t"] = token_W - torch.arange(len(token_W))
        tensors["t2d"] = torch.zeros(spec.target_vocabulary, dtype=torch.bool).index_fill_(0, token_W, True)
    if (whole or isinstance(spec, Eagle3Spec)) and "lm_head.weight" not in tensors:
        rows_VM = target.output_head.weight_OI.cpu()
        rows_WM = rows_VM if token_W is None else rows_VM[token_W]
        tensors["lm_head.weight"] = rows_WM.to(tensors["fc.weight"].dtype).contiguous()
    if whole and "embed_tokens.weight" not in tensors:
        rows_VM = target.embedding(torch.arange(target.vocabulary)[None])[0].cpu()
        tensors["embed_tokens.weight"] = rows_VM.to(tensors["fc.weight"].dtype, copy=True).contiguous()
