"""What several processes and one are both asked for."""

from __future__ import annotations

from typing import Any

import torch

from spec_sdk.model.session import Session
from spec_sdk.tree import TreeBuilder

PROMPT = [5, 17, 44, 8, 23, 61, 9, 30, 12]
NEW = 14
"""Tokens to generate."""
GROUPS = [[0], [1, 2, 3], [4]]
DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "biases": ("biased_llama", {}),
    "qkv_bias_tied": ("qwen2", {}),
    "qk_norm_untied": ("qwen3", {}),
    "uneven_heads": ("smollm", {"num_key_value_heads": 3, "num_attention_heads": 6}),
    "uneven_rest": ("llama2", {"vocab_size": 97, "intermediate_size": 81}),
    "one_kv_head": ("smollm", {"num_key_value_heads": 1, "num_attention_heads": 3, "hidden_size": 48}),
}
"""Name → tiny architecture and what differs from it."""

SAMPLED = ["sampling.temperature=0.9", "sampling.top_k=40", "sampling.seed=3"]
MEMBERS = "[{name: prompt_lookup}, {name: easyspec, size: 3, width: 2}, {name: draft_model, width: 2}]"
PIPELINES = {
    "vanilla": ["pipeline=vanilla"],
    "sd_chain": ["pipeline=sd_chain"],
    # a member that drafts on every rank between two that do not, on a budget that what they gave decides
    "merged": ["drafter=merged", f"drafter.members={MEMBERS}", "policy.depth=4", "policy.max_nodes=7"],
    # begins with plain steps, so that the drafter is started later, when the leader's clock says so
    "adaptive": ["pipeline=easyspec_tree", "drafter.size=3", "policy=adaptive", "policy.loss=0.99", "policy.retry=1"],
    "easyspec_chain": ["pipeline=easyspec_chain", "drafter.size=3"],
    "easyspec_tree": ["pipeline=easyspec_tree", "drafter.size=3"],
    "easyspec_kept": ["pipeline=easyspec_tree", "drafter.size=3", "drafter.calibrate=false"],
    "specinfer_tree": ["pipeline=specinfer_tree"],
}


def decoder_logits(session: Session) -> list[list[float]]:
    """Logits of a tree after a prompt, and of a chain after a path of it was kept."""
    session.prefill(PROMPT)
    tree = TreeBuilder(3)
    for parent, token in ((0, 7), (0, 9), (1, 11), (2, 4), (4, 90)):
        tree.add(parent, token, "chosen")
    first = session.score(tree.build().tree).logits_NV
    session.commit([0, 1])
    chain = TreeBuilder(50)
    chain.add(chain.add(0, 51, "chosen"), 52, "chosen")
    return torch.cat((first, session.score(chain.build().tree).logits_NV)).tolist()
