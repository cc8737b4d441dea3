"""An EAGLE-3 head that was trained before, as the beginning of a training.

Legend: V target vocabulary, W tokens that can be drafted, M model dim.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import replace

import torch

from spec_sdk.errors import UserError
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.draft_heads.draft_vocabulary import draft_tokens
from spec_sdk.model.draft_heads.eagle3 import Eagle3Variant
from spec_sdk.model.draft_heads.eagle3_spec import Eagle3Spec
from spec_sdk.model.draft_heads.head_weights import LAYER
from spec_sdk.model.draft_heads.opening import head_directory, open_draft_head
from spec_sdk.training.draft_shape import DraftShape
from spec_sdk.training.head_start import HeadStart
from spec_sdk.training.trained_draft import without_option

_PARTS: Mapping[str, tuple[str, ...]] = {
    "fc": ("fc",),
    "qkv": tuple(f"{LAYER}.self_attn.{part}_proj" for part in "qkv"),
    "output": (f"{LAYER}.self_attn.o_proj",),
    "gate_up": (f"{LAYER}.mlp.gate_proj", f"{LAYER}.mlp.up_proj"),
    "down": (f"{LAYER}.mlp.down_proj",),
    "embedding_norm": (f"{LAYER}.input_layernorm",),
    "feature_norm": (f"{LAYER}.hidden_norm",),
    "post_norm": (f"{LAYER}.post_attention_layernorm",),
    "final_norm": ("norm",),
}
"""Of a trained weight the tensors, one below the other."""
_SAME = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "rope_theta",
    "rope_scaling",
    "qkv_bias",
    "o_bias",
    "mlp_bias",
    "qk_norm",
)
"""Fields of the layer's config in which it must be the one that a training makes."""
_ROUNDING = 0.01
"""Relative: of bfloat16."""


class TrainedHead:
    """The head that ``reference`` names: a directory, or a Hugging Face hub id. ``taps``: the layers that it reads, of
    a target of so many.

    Raises UserError, naming ``task.init_from``, for what is no EAGLE-3 head of the form that is trained here.
    """

    def __init__(self, reference: str, target_layers: int) -> None:
        directory = head_directory(reference, "task.init_from")
        try:
            published = open_draft_head(str(directory))
            spec, self._where = published.spec, published.where
            if not isinstance(spec, Eagle3Spec) or spec.method != "eagle3":
                raise UserError(f"{self._where}: is a head of {spec.method}, and one of eagle3 is trained")
            if spec.fc_norm != "none" or spec.variant != Eagle3Variant():
                raise UserError(f"{self._where}: has norms or scales that task=train_draft does not train")
            self.taps = spec.taps(target_layers)
            published.tensors.check(*spec.shapes(len(self.taps)), spec.ignored)
        except UserError as error:
            raise UserError(f"task.init_from: {without_option(str(error))}") from error
        self._config, self._tensors = spec.config, published.tensors

    @property
    def fingerprint(self) -> str:
        """Of its weights, in a few digits."""
        digest = hashlib.sha256()
        for name, tensor in self._weights().items():
            digest.update(name.encode() + tensor.numpy().tobytes())
        return digest.hexdigest()[:16]

    def shape(self, target: ModelConfig) -> DraftShape:
        """What is kept of the target's last layer by a head of these sizes."""
        own, layer = self._config, target.num_layers - 1
        fewer = own.num_kv_heads < target.num_kv_heads
        smaller = own.intermediate_size < target.intermediate_size
        return DraftShape([layer], own.intermediate_size if smaller else None, own.num_kv_heads if fewer else None)

    def start(self, of_target: HeadStart) -> HeadStart:
        """The training's beginning, in the place of that which is made ``of_target``, for the same layers.

        Raises UserError where they are heads of different shapes, or this one's embedding or output rows are not the
        target's, which stay as they are.
        """
        self._check_form(of_target.config)
        self._check_ends(of_target)
        return replace(of_target, weights=self._weights())

    def _weights(self) -> dict[str, torch.Tensor]:
        tensors = self._tensors
        return {
            role: torch.cat([tensors.tensor(f"{name}.weight").to(torch.float32) for name in names])
            for role, names in _PARTS.items()
        }

    def _check_form(self, wanted: ModelConfig) -> None:
        if not math.isclose(self._config.rms_norm_eps, wanted.rms_norm_eps, rel_tol=_ROUNDING):
            raise UserError(
                f"task.init_from: {self._where}: has rms_norm_eps {self._config.rms_norm_eps:g}, and the target has "
                f"{wanted.rms_norm_eps:g}"
            )
        for name in _SAME:
            has, needs = getattr(self._config, name), getattr(wanted, name)
            if has != needs:
                raise UserError(
                    f"task.init_from: {self._where}: has {name} {has}, and a head of this target has {needs}"
                )

    def _check_ends(self, start: HeadStart) -> None:
        tensors, rows_WM = self._tensors, start.head_VM
        if (d2t_W := tensors.tensor_if_any("d2t")) is not None:
            rows_WM = rows_WM[draft_tokens(d2t_W, tensors.tensor_if_any("t2d"), len(rows_WM), self._where)]
        for name, theirs in (("lm_head", rows_WM), ("embed_tokens", start.embedding_VM)):
            own = tensors.tensor_if_any(f"{name}.weight")
            if own is not None and not _alike(own, theirs):
                raise UserError(
                    f"task.init_from: {self._where}: its {name} is not the target's, and task=train_draft does not "
                    "train it"
                )


def _alike(own: torch.Tensor, theirs: torch.Tensor) -> bool:
    same_shape = own.shape == theirs.shape
    return same_shape and bool((own.float() - theirs).abs().max() <= _ROUNDING * theirs.abs().max())
