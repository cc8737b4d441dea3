"""The layouts of z-lab for DFlash and of DeepSpec for DSpark, which SGLang and vLLM serve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from spec_sdk.errors import UserError
from spec_sdk.export.exported_head import ExportedHead
from spec_sdk.export.speculators_format import dspark_keys, refuse_unsaid
from spec_sdk.model.draft_heads.block_spec import BlockSpec, DSparkSpec
from spec_sdk.model.draft_heads.tapped_layers import LEAVING


def zlab_files(head: ExportedHead) -> tuple[Mapping[str, Any], Mapping[str, torch.Tensor]]:
    """config.json and tensors. Raises UserError for what the layout has no word for."""
    spec = head.spec
    assert isinstance(spec, BlockSpec)
    refuse_unsaid(head, spec)
    taps = [tap - 1 for tap in head.taps]
    if min(taps) < 0:
        raise UserError("task.format: zlab counts the layers that states leave, and the head reads the embedding")
    config: dict[str, Any] = {
        **head.layers,
        "architectures": ["Qwen3DSparkModel" if isinstance(spec, DSparkSpec) else "DFlashDraftModel"],
        "block_size": spec.form.size,
        "num_target_layers": head.target.layers,
        "draft_vocab_size": spec.draft_vocabulary,
        "dtype": head.dtype,
        "torch_dtype": head.dtype,
        "spec_sdk_target": head.target.called,
    }
    if spec.target_hidden_size != spec.config.hidden_size:
        config["target_hidden_size"] = spec.target_hidden_size
    nested: dict[str, Any] = {}
    if isinstance(spec, DSparkSpec):
        config |= {
            LEAVING: taps,
            "mask_token_id": spec.form.mask_token,
            "sample_from_anchor": spec.form.from_anchor,
            "dspark_bonus_anchor": not spec.form.from_anchor,
            **dspark_keys(spec),
        }
    else:
        nested = {
            "mask_token_id": spec.form.mask_token,
            LEAVING: taps,
            "block_size": spec.form.size,
            "sample_from_anchor": spec.form.from_anchor,
        }
    nested |= _scales(spec)
    windows = spec.config.windows or (None,) * spec.config.num_layers
    if spec.form.causal != tuple(window is not None for window in windows):
        # what both programs mean where nothing is said: layers with a window see no later rows, the others do
        if len(set(spec.form.causal)) > 1:
            raise UserError("task.format: zlab says of all layers together whether rows see later ones")
        config["is_causal"] = spec.form.causal[0]
    return ({**config, "dflash_config": nested} if nested else config), head.tensors


def _scales(spec: BlockSpec) -> dict[str, Any]:
    scales = {
        "output_multiplier": (spec.logit_scale, 1.0),
        "final_logit_softcapping": (spec.config.logit_softcap, None),
        "input_embedding_scale": (spec.config.embedding_scale, 1.0),
    }
    return {key: value for key, (value, nothing) in scales.items() if value != nothing}
