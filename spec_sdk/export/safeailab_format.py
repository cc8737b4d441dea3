"""SafeAILab's layout of EAGLE heads, as SpecForge writes it for SGLang; vLLM reads it too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from spec_sdk.export.exported_head import ExportedHead
from spec_sdk.model.draft_heads.eagle1_spec import Eagle1Spec
from spec_sdk.model.draft_heads.eagle3_spec import Eagle3Spec
from spec_sdk.model.draft_heads.head_weights import LAYER
from spec_sdk.model.draft_heads.tapped_layers import ENTERING

_THEIRS = "midlayer"


def safeailab_files(head: ExportedHead) -> tuple[Mapping[str, Any], Mapping[str, torch.Tensor]]:
    """config.json and tensors of an EAGLE-1, EAGLE-2 or EAGLE-3 head."""
    spec = head.spec
    stored = {"dtype": head.dtype, "torch_dtype": head.dtype, "spec_sdk_target": head.target.called}
    if isinstance(spec, Eagle1Spec):
        return {**head.layers, **stored, "bias": spec.fc_bias}, head.tensors
    assert isinstance(spec, Eagle3Spec)
    config = {
        **head.layers,
        **stored,
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": spec.draft_vocabulary,
        # vLLM reads this list, of the blocks that a state enters, and SGLang the one below, of those that it leaves
        ENTERING: list(head.taps),
        "eagle_config": {"use_aux_hidden_state": True, ENTERING: [tap - 1 for tap in head.taps]},
        "num_aux_hidden_states": len(head.taps),
        "norm_before_residual": spec.variant.norm_before_residual,
        "norm_before_fc": spec.fc_norm == "together",
        "fc_norm": spec.fc_norm == "each",
        "norm_output": spec.variant.norm_output,
    }
    if spec.target_hidden_size != spec.config.hidden_size:
        config["target_hidden_size"] = spec.target_hidden_size
    if spec.variant.logit_scale != 1.0:
        config["logit_scale"] = spec.variant.logit_scale
    tensors = {
        f"{_THEIRS}.{name.removeprefix(f'{LAYER}.')}" if name.startswith(f"{LAYER}.") else name: tensor
        for name, tensor in head.tensors.items()
    }
    return config, tensors
