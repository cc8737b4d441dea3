"""Which runs are recorded: every pipeline, and the options that change what it draws, grows, accepts or predicts."""

from __future__ import annotations

GREEDY: tuple[str, ...] = ()
SAMPLED = ("sampling.temperature=0.8", "sampling.seed=11")
FILTERED = (*SAMPLED, "sampling.top_p=0.9", "sampling.top_k=40", "sampling.min_p=0.01")
PENALISED = "sampling.repetition_penalty=1.4"
SMALL = "predictor.size=4"
"""Contexts beyond twice this are predicted: the prompts here are short."""
LOOSE = "attention_verifier.threshold=0.3"

LOSSLESS = ("vanilla", "sd_chain", "prompt_lookup", "specinfer_tree", "easyspec_chain", "easyspec_paper")
RELAXED = ("alspec", "alspec_easyspec_tree")
DRAFT_TREE = ("pipeline=sd_chain",)


def _every_pipeline() -> dict[str, tuple[str, ...]]:
    cases = {}
    for name in (*LOSSLESS, *RELAXED):
        attention = (SMALL, LOOSE) if name in RELAXED else ()
        for mode, sampling in (("greedy", GREEDY), ("sampled", SAMPLED)):
            cases[f"{name}, {mode}"] = (f"pipeline={name}", *attention, *sampling)
    return cases


def _growth(growth: str, *options: str) -> tuple[str, ...]:
    return (*DRAFT_TREE, f"drafter.growth={growth}", *options)


CASES: dict[str, tuple[str, ...]] = {
    **_every_pipeline(),
    "prompt_lookup, little temperature": ("pipeline=prompt_lookup", "sampling.temperature=0.2"),
    "sd_chain, exact sampler": ("pipeline=sd_chain", "sampler=exact", *SAMPLED),
    "specinfer_tree, exact sampler": ("pipeline=specinfer_tree", "sampler=exact", *SAMPLED),
    "easyspec_paper, exact sampler, filters": ("pipeline=easyspec_paper", "sampler=exact", *FILTERED),
    "easyspec_paper, filters": ("pipeline=easyspec_paper", *FILTERED),
    "easyspec_paper, fuzzy cache": ("pipeline=easyspec_paper", "drafter.calibrate=false"),
    "easyspec_paper, penalty": ("pipeline=easyspec_paper", PENALISED),
    "easyspec_paper, sampled, penalty": ("pipeline=easyspec_paper", PENALISED, *SAMPLED),
    "dynamic": _growth("dynamic", "drafter.width=3", "drafter.max_nodes=9"),
    "dynamic, sampled": _growth("dynamic", "drafter.width=3", "drafter.max_nodes=9", *SAMPLED),
    "static": _growth("static", "drafter.widths=[3,2,1]", "policy.depth=4"),
    "static, drawn with replacement": _growth("static", "drafter.children=with_replacement", *SAMPLED),
    "static, drawn without replacement": _growth("static", "drafter.children=without_replacement", *SAMPLED),
    "beam, tight node budget": _growth("beam", "drafter.width=4", "policy.max_nodes=7"),
    "drawn, tight node budget": _growth("auto", "drafter.width=4", "policy.max_nodes=4", *SAMPLED),
    "merged, tight node budget": ("pipeline=specinfer_tree", "policy.max_nodes=6", *SAMPLED),
    "chain_rejection": ("pipeline=sd_chain", "verifier=chain_rejection", *SAMPLED),
    "block_verification": ("pipeline=sd_chain", "verifier=block_verification", *SAMPLED),
    "block_verification, prompt lookup": (
        "pipeline=prompt_lookup",
        "verifier=block_verification",
        "sampling.temperature=0.2",
    ),
    "naive_tree": ("pipeline=easyspec_paper", "verifier=naive_tree", *SAMPLED),
    "typical": ("pipeline=easyspec_paper", "verifier=typical", *SAMPLED),
    "greedy verifier": ("pipeline=specinfer_tree", "verifier=greedy"),
    "sigmoid": ("pipeline=sd_chain", "sampler=sigmoid", "sampler.alpha=-100", "sampler.beta=100", *SAMPLED),
    "heuristic policy": ("pipeline=easyspec_chain", "policy=heuristic", "policy.start=2"),
    "alspec, h2o": ("pipeline=alspec", "predictor=h2o", "predictor.chunk=2", SMALL, LOOSE),
    "alspec, quest": ("pipeline=alspec", "predictor=quest", "predictor.page=2", SMALL, LOOSE),
    "alspec, residual, layers": (
        "pipeline=alspec",
        SMALL,
        "attention_verifier.space=residual",
        "attention_verifier.never=[0]",
        "attention_verifier.layer_thresholds={1: 0.6}",
        LOOSE,
    ),
    "alspec, static verifier": (
        "pipeline=alspec",
        SMALL,
        "attention_verifier=static",
        "attention_verifier.layers=[2,5]",
    ),
    "alspec_easyspec_tree, h2o": ("pipeline=alspec_easyspec_tree", "predictor=h2o", SMALL, LOOSE, *SAMPLED),
    "alspec_easyspec_tree, quest": (
        "pipeline=alspec_easyspec_tree",
        "predictor=quest",
        "predictor.page=2",
        SMALL,
        LOOSE,
    ),
}
"""Name → overrides of the command line."""

CONTEXT = 96
PROMPTS: tuple[list[int], ...] = (
    [5, 9, 17, 30, 5, 9, 17, 31, 44, 5, 9],
    [41],
    [7 + 11 * i % 83 for i in range(37)] + [18, 29, 40],
    # ends at the context, not at max_new_tokens
    [4 + (i * i) % 29 for i in range(CONTEXT - 9)],
)
NEW_TOKENS = 24
