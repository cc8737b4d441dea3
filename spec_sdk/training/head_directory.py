"""A trained EAGLE-3 head as a directory, in the layout of speculators: ``drafter.checkpoint=DIR`` and vLLM read it.

Legend: V target vocabulary, W tokens that can be drafted.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from spec_sdk.files import write_json
from spec_sdk.model.borrowed_weights import KEY
from spec_sdk.model.checkpoint import Checkpoint
from spec_sdk.model.config_fields import read_json_object
from spec_sdk.model.draft_heads.tapped_layers import ENTERING
from spec_sdk.model.safetensors_reader import SINGLE_NAME
from spec_sdk.training.draft_directory import STORED
from spec_sdk.training.head_start import HeadStart
from spec_sdk.training.sample_shards import save_whole
from spec_sdk.training.trainable_head import TrainableHead

_FORMAT = "0.9.0"
"""The version of speculators whose format this is."""


def head_settings(target: Checkpoint, start: HeadStart, tokens: int, depth: int, whole: bool) -> dict[str, Any]:
    """The config.json of a head that drafts ``tokens`` different tokens, ``depth`` at a time where nobody says else.

    Unless it is ``whole`` its output rows are the target's, which only spec-sdk reads.
    """
    theirs = read_json_object(target.directory / "config.json").get("architectures")
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": _FORMAT,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": depth,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "verifier": {
                "name_or_path": target.reference,
                "architectures": theirs if isinstance(theirs, list) else [],
            },
        },
        "transformer_layer_config": dict(start.body),
        "draft_vocab_size": tokens,
        "target_hidden_size": None,
        ENTERING: list(start.taps),
        "norm_before_residual": False,
        "norm_before_fc": False,
        "fc_norm": False,
        "norm_output": False,
        "embed_requires_grad": False,
        "tie_word_embeddings": False,
        **({} if whole else {KEY: ["head"]}),
    }


def write_head(directory: Path, model: TrainableHead, settings: Mapping[str, Any], stored: str) -> int:
    """Write config and weights; return the bytes of the weights. Raises OSError. ``stored``: bfloat16 or float32."""
    directory.mkdir(parents=True, exist_ok=True)
    dtype = STORED[stored]
    tensors = {name: tensor.cpu().to(dtype).contiguous() for name, tensor in model.tensors()}
    if KEY not in settings:
        tensors["lm_head.weight"] = model.head_WM.cpu().to(dtype).contiguous()
    token_W = model.token_R
    if token_W is not None:
        ids_W = token_W.cpu().long()
        tensors["d2t"] = ids_W - torch.arange(len(ids_W))
        tensors["t2d"] = torch.zeros(model.config.vocab_size, dtype=torch.bool).index_fill_(0, ids_W, True)
    save_whole(directory / SINGLE_NAME, tensors, {"format": "pt"})
    write_json(directory / "config.json", {**settings, "dtype": stored, "torch_dtype": stored})
    return (directory / SINGLE_NAME).stat().st_size
