"""What several processes and one are both asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from spec_sdk.model.kv_cache import KVCache
from spec_sdk.model.session import Session
from spec_sdk.pipeline import Pipeline
from spec_sdk.settings import Settings
from spec_sdk.tree import TreeBuilder
from tests.support.real_pipelines import tokens_of

PROMPT = [5, 17, 44, 8, 23, 61, 9, 30, 12]
NEW = 14
"""Tokens to generate."""
GROUPS = [[0], [1, 2, 3], [4]]
DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "biases": ("biased_llama", {}),
    "qkv_bias_tied": ("qwen2", {}),
    "qk_norm_untied": ("qwen3", {}),
    "windows_and_output_norms": ("gemma3", {"sliding_window": 6, "final_logit_softcapping": 5.0}),
    "capped_scores": ("gemma2", {"sliding_window": 6}),
    "uneven_heads": ("smollm", {"num_key_value_heads": 3, "num_attention_heads": 6}),
    "uneven_rest": ("llama2", {"vocab_size": 97, "intermediate_size": 81}),
    "partly_rotated_neighbours": ("glm", {}),
    "joined_and_partly_rotated": ("phi4", {}),
    "multipliers": ("granite", {}),
    "experts": ("qwen2_moe", {"moe_intermediate_size": 25}),
    "sinks_and_biased_experts": ("gpt_oss", {"intermediate_size": 25}),
    "norms_of_all_heads": ("olmo2", {"num_attention_heads": 6, "num_key_value_heads": 3}),
    "norms_of_shared_heads": ("olmoe", {"num_attention_heads": 4, "num_key_value_heads": 1}),
    "latents": ("deepseek_v3", {}),
    "latents_of_k_and_v_alone": ("deepseek_v2", {}),
    "delta_nets": ("qwen3_5_moe", {}),
    "convolutions": ("lfm2", {}),
    "state_beside_attention": ("falcon_h1", {}),
    "states_and_mlps_alone": ("nemotron_h_moe", {}),
    "one_kv_head": ("smollm", {"num_key_value_heads": 1, "num_attention_heads": 3, "hidden_size": 48}),
}
"""Name → tiny architecture and what differs from it."""

SAMPLED = ["sampling.temperature=0.9", "sampling.top_k=40", "sampling.seed=3"]
MEMBERS = "[{name: prompt_lookup}, {name: easyspec, size: 3, width: 2}, {name: draft_model, width: 2}]"
DRAFTING = ["policy=fixed", "policy.depth=4", "policy.max_nodes=7"]
"""In the place of a policy that looks at times."""
PIPELINES = {
    "vanilla": ["pipeline=vanilla"],
    "sd_chain": ["pipeline=sd_chain"],
    # a member that drafts on every rank between two that do not, on a budget that what they gave decides
    "merged": [
        *("pipeline=easyspec_paper", "drafter=merged", f"drafter.members={MEMBERS}"),
        *("policy.depth=4", "policy.max_nodes=7"),
    ],
    # begins with plain steps, so that the drafter is started later, when the leader's clock says so
    "adaptive": ["pipeline=easyspec_paper", "drafter.size=3", "policy=adaptive", "policy.loss=0.99", "policy.retry=1"],
    "easyspec_chain": ["pipeline=easyspec_chain", "drafter.size=3"],
    "easyspec_paper": ["pipeline=easyspec_paper", "drafter.size=3"],
    "easyspec_kept": ["pipeline=easyspec_paper", "drafter.size=3", "drafter.calibrate=false"],
    "specinfer_tree": ["pipeline=specinfer_tree"],
    # what the drafter learns of the target's logits, the leader alone has
    "recycling": ["pipeline=token_recycling", *DRAFTING],
    "suffix": ["pipeline=suffix", *DRAFTING, "drafter.min_probability=0.01"],
    "prompt_lookup": ["pipeline=prompt_lookup"],
    "lookahead": ["pipeline=lookahead"],
    "mixed": ["pipeline=mixed", *DRAFTING, "drafter.min_probability=0.01"],
    "easyspec_tree": ["pipeline=easyspec_tree", *DRAFTING, "drafter.min_probability=0.01", "drafter.model.size=3"],
    # the target drafts on every rank, in its own cache, with a runner that all ranks have
    "layer_skip_chain": ["pipeline=layer_skip_chain", "drafter.layers=4"],
    "layer_skip_tree": ["pipeline=layer_skip_tree", "drafter.skip=[2]"],
    "layer_skip_parallel": [
        "pipeline=layer_skip_chain",
        "drafter.runner=layer_parallel",
        "drafter.groups=[[0],[1,2],[3],[4]]",
    ],
    "layer_skip_merged": [
        *("pipeline=specinfer_tree", "policy.depth=4", "policy.max_nodes=7"),
        "drafter.members=[{name: prompt_lookup}, {name: layer_skip, skip: [1]}, {name: easyspec, size: 3, width: 2}]",
    ],
    # heads are on the leader alone, and read states that all ranks have
    # in few bits a head's rows are rounded on one process and not on several, and sampled answers are others
    "eagle_tree": [
        "pipeline=eagle_tree",
        "policy=fixed",
        "drafter.checkpoint=eagle",
        "drafter.method=eagle",
        "drafter.weights=dense",
    ],
    "mixed_eagle": [
        "pipeline=mixed_eagle",
        "drafter.model.checkpoint=eagle",
        "drafter.model.method=eagle",
        "drafter.model.weights=dense",
        *DRAFTING,
    ],
    "medusa_tree": ["pipeline=medusa_tree", "drafter.checkpoint=medusa"],
    "hydra_tree": ["pipeline=hydra_tree", "drafter.checkpoint=hydra"],
    "block_tree": ["pipeline=block_tree", "drafter.checkpoint=block"],
    "peagle_tree": [
        *("pipeline=peagle_tree", "drafter.checkpoint=peagle", "drafter.target_layers=[1,2,4]"),
        "drafter.weights=dense",
    ],
    "mtp_chain": ["pipeline=mtp_chain", "drafter.checkpoint=mtp"],
}
CONSTRAINED = ["pipeline=easyspec_paper", "drafter.size=3", "constraint=tokens", "constraint.begin=[7,11]"]
PIPELINES["constrained"] = [*CONSTRAINED, "constraint.allowed=[5,7,8,9,11,12,17,23]"]
LATER: tuple[str, ...] = ("medusa_tree", "hydra_tree", "peagle_tree", "mtp_chain")
LATER += ("suffix", "prompt_lookup", "lookahead", "mixed", "layer_skip_chain", "layer_skip_merged", "mixed_eagle")
"""Left to the full tier: what ranks do of them, they do of others."""
HEADS = ("eagle_tree", "mixed_eagle", "medusa_tree", "hydra_tree", "block_tree", "peagle_tree", "mtp_chain")
"""Those with random heads, which hardly ever hit the one token of greedy decoding."""
WITHOUT_A_HIT = ("recycling", "suffix", "prompt_lookup", "lookahead", "hydra_tree")
"""Those that guess few tokens, none of which these short sampled answers have."""

SMALL = ["predictor.size=2"]
"""So that these prompts are long enough for a guess."""
SPECULATION = {
    "mixed": ["pipeline=alspec", *SMALL, "attention_verifier.threshold=0.5"],
    "all_hit": ["pipeline=alspec", *SMALL, "attention_verifier.threshold=inf"],
    "all_miss": ["pipeline=alspec", *SMALL, "attention_verifier.threshold=0"],
    "static": ["pipeline=alspec", *SMALL, "attention_verifier=static", "attention_verifier.layers=[1,2,4]"],
    "never": ["pipeline=alspec", *SMALL, "attention_verifier.threshold=0.3", "attention_verifier.never=[0,4]"],
    "residual": ["pipeline=alspec", *SMALL, "attention_verifier.threshold=0.4", "attention_verifier.space=residual"],
    "h2o": ["pipeline=alspec", "predictor=h2o", *SMALL, "predictor.chunk=2", "attention_verifier.threshold=0.4"],
    "tree": ["pipeline=alspec_easyspec_tree", "drafter.size=3", *SMALL, "attention_verifier.threshold=0.9"],
    "target_drafts": ["pipeline=alspec", "drafter=layer_skip", *SMALL, "attention_verifier.threshold=0.8"],
    "leader_drafts": ["pipeline=alspec", "drafter=draft_model", *SMALL, "attention_verifier.threshold=0.8"],
}
"""Attention speculation over two device groups."""


def decoder_logits(session: Session) -> list[list[float]]:
    """Logits of a tree after a prompt, and of a chain after a path of it was kept."""
    session.prefill(0, PROMPT)
    tree = TreeBuilder(3)
    for parent, token in ((0, 7), (0, 9), (1, 11), (2, 4), (4, 90)):
        tree.add(parent, token, "chosen")
    (first,) = session.score([0], [tree.build().tree])
    session.commit([0], [[0, 1]])
    chain = TreeBuilder(50)
    chain.add(chain.add(0, 51, "chosen"), 52, "chosen")
    (second,) = session.score([0], [chain.build().tree])
    return torch.cat((first.logits_NV, second.logits_NV)).tolist()


def answers_of(pipeline: Pipeline, settings: Settings, emit: Callable[[dict[str, Any]], None] | None = None) -> Any:
    """The new tokens of two prompts, held to the constraint of ``settings``."""
    options = {"constraint": pipeline.constraints.of(settings.constraint)} | ({} if emit is None else {"emit": emit})
    # the other ranks follow a prompt that is scored, too
    scored = [{}, {"prompt_logprobs": 1}]
    return [
        tokens_of(pipeline, PROMPT[i:], NEW, ignore_eos=True, request_id=i, **options, **scored[i]) for i in range(2)
    ]


def speculated(pipeline: Pipeline) -> tuple[list[list[int]], list[dict[str, Any]]]:
    """The new tokens of two prompts, and what every pass reports of attention."""
    events: list[dict[str, Any]] = []
    answers = [
        tokens_of(pipeline, PROMPT[i:], NEW, ignore_eos=True, request_id=i, emit=events.append) for i in range(2)
    ]
    return answers, [event["attention"] for event in events if event.get("attention")]


def states_after_trees(pipeline: Pipeline) -> torch.Tensor:
    """K and V after two passes over a tree, of which a path was kept each time; then their hidden states. Flat."""
    states = []
    session = pipeline.models.session(pipeline.models.target, pipeline.make_target_runner())
    session.prefill(0, PROMPT)
    for path in ([0, 2], [0, 1]):
        tree = TreeBuilder(3)
        for parent, token in ((0, 7), (0, 9), (1, 11), (2, 4)):
            tree.add(parent, token, "chosen")
        layers = range(pipeline.models.target.executor.layers + 1)
        (scores,) = session.score([0], [tree.build().tree], layers)
        states += [scores.hidden[layer].flatten() for layer in layers]
        session.commit([0], [path])
    assert isinstance(session.cache, KVCache)
    cache, columns = session.cache, slice(session.length())
    kv = torch.stack((cache.k_LSGCD[..., columns, :], cache.v_LSGCD[..., columns, :]))
    return torch.cat((kv.flatten(), *states))
