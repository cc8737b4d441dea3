"""The format of the speculators library 0.9, which vLLM serves by naming the directory alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from spec_sdk.errors import UserError
from spec_sdk.export.exported_head import ExportedHead
from spec_sdk.model.draft_heads.block_spec import MASK_EMBEDDING, BlockSpec, DSparkSpec
from spec_sdk.model.draft_heads.eagle3_spec import Eagle3Spec
from spec_sdk.model.draft_heads.peagle_spec import MASK_HIDDEN, PEagleSpec
from spec_sdk.model.draft_heads.tapped_layers import BLOCK_ENTERING, ENTERING

_VERSION = "0.9.0"
_ARCHITECTURES = {
    "eagle3": "Eagle3DraftModel",
    "peagle": "PEagleDraftModel",
    "dflash": "DFlashDraftModel",
    "dspark": "DSparkDraftModel",
}


def speculators_files(head: ExportedHead) -> tuple[Mapping[str, Any], Mapping[str, torch.Tensor]]:
    """config.json and tensors. Raises UserError for what the format has no word for."""
    spec, target = head.spec, head.target
    assert isinstance(spec, Eagle3Spec | BlockSpec)
    own = _block(head, spec) if isinstance(spec, BlockSpec) else _eagle3(head, spec)
    wider = spec.target_hidden_size != spec.config.hidden_size
    config = {
        "architectures": [_ARCHITECTURES[spec.method]],
        "speculators_model_type": spec.method,
        "speculators_version": _VERSION,
        "speculators_config": {
            "algorithm": spec.method,
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": head.depth,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "verifier": {"name_or_path": target.called, "architectures": list(target.architectures)},
        },
        "transformer_layer_config": dict(head.layers),
        "draft_vocab_size": spec.draft_vocabulary,
        "target_hidden_size": spec.target_hidden_size if wider else None,
        **own,
        "tie_word_embeddings": False,
        "dtype": head.dtype,
        "torch_dtype": head.dtype,
    }
    tensors = dict(head.tensors)
    if isinstance(spec, PEagleSpec):
        # the library takes these three axes and no other number of them
        tensors[MASK_HIDDEN] = tensors[MASK_HIDDEN].reshape(1, 1, -1)
    return config, tensors


def _eagle3(head: ExportedHead, spec: Eagle3Spec) -> dict[str, Any]:
    if spec.variant.logit_scale != 1.0:
        raise UserError(f"task.format: speculators has no word for logit_scale={spec.variant.logit_scale:g}")
    own = {
        ENTERING: list(head.taps),
        "norm_before_residual": spec.variant.norm_before_residual,
        "norm_before_fc": spec.fc_norm == "together",
        "fc_norm": spec.fc_norm == "each",
        "norm_output": spec.variant.norm_output,
        "embed_requires_grad": False,
    }
    if isinstance(spec, PEagleSpec):
        if spec.fc_norm == "each" or spec.variant.norm_output:
            raise UserError("task.format: speculators has no word for fc_norm and norm_output of a P-EAGLE head")
        own["mask_token_id"] = spec.mask_token
    return own


def _block(head: ExportedHead, spec: BlockSpec) -> dict[str, Any]:
    refuse_unsaid(head, spec)
    if spec.logit_scale != 1.0 or spec.config.logit_softcap is not None or spec.config.embedding_scale != 1.0:
        raise UserError("task.format: speculators has no word for scaled logits or embeddings; use task.format=zlab")
    windows = spec.config.windows or (None,) * spec.config.num_layers
    sliding = [causal for causal, window in zip(spec.form.causal, windows, strict=True) if window is not None]
    if any(causal for causal, window in zip(spec.form.causal, windows, strict=True) if window is None):
        raise UserError("task.format: speculators has no word for blocks that see no later rows; use task.format=zlab")
    # the library reads false as: layers with a window are causal; vLLM reads it as: all layers are
    if any(sliding) and not (all(sliding) and len(sliding) == len(windows)):
        raise UserError(
            "task.format: vLLM reads one word of speculators for all layers, and here layers with a window see no "
            "later rows while others do; use task.format=zlab"
        )
    own = {
        "block_size": spec.form.size,
        BLOCK_ENTERING: list(head.taps),
        "mask_token_id": spec.form.mask_token,
        "sliding_window_non_causal": not any(sliding),
        "sample_from_anchor": spec.form.from_anchor,
    }
    if isinstance(spec, DSparkSpec):
        own |= dspark_keys(spec)
    return own


def dspark_keys(spec: DSparkSpec) -> dict[str, Any]:
    """What a DSpark head says beside a DFlash head, in the words of DeepSpec and speculators alike."""
    return {
        "markov_rank": spec.markov_rank,
        "markov_head_type": spec.markov_kind,
        "enable_confidence_head": spec.confidence,
        "confidence_head_with_markov": spec.confidence_reads_token,
    }


def refuse_unsaid(head: ExportedHead, spec: BlockSpec) -> None:
    """Raise UserError for parts of a head that drafts a block which no program but spec-sdk reads."""
    if MASK_EMBEDDING in head.tensors:
        raise UserError("task=export: the head has a mask embedding beside the embedding, which no format holds")
    if not spec.config.qk_norm:
        raise UserError("task=export: the head has no norms of Q and K, and those that vLLM and SGLang serve have them")
