"""What a comparison of candidates begins with: what is asked, in its first record, and the target that they share."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from spec_sdk.bench.bench_directory import BenchDirectory
from spec_sdk.bench.conversations import PromptSet
from spec_sdk.bench.interleaved import Plan
from spec_sdk.bench.machine import run_facts
from spec_sdk.compiled_constraints import NOTHING
from spec_sdk.errors import UserError
from spec_sdk.pipeline import Pipeline, build_pipeline, joined_backend
from spec_sdk.prompts import check_length
from spec_sdk.registry import Registry
from spec_sdk.settings import Settings


def what_is_asked(
    app: Settings,
    target: Settings,
    prompts: PromptSet,
    candidates: Mapping[str, str],
    rounds: int,
    temperatures: Sequence[float],
    batch_sizes: Sequence[int],
) -> dict[str, Any]:
    """What the record of a run says of what is asked: another run goes on with it if it asks the same.

    ``target``: the settings that all candidates share. ``candidates``: name → kind, in their order.
    """
    model, sampling = target.model, app.sampling
    return {
        "model": model.target,
        "backend": dict(target.backend),
        "dtype": model.dtype,
        "weights": model.weights,
        "kv_cache": model.kv_cache,
        "deterministic": app.deterministic,
        "constraint": _constraint(app),
        "prompts": {"file": prompts.file, "sha256": prompts.sha256, "count": len(prompts.conversations)},
        "new_tokens": app.max_new_tokens,
        "ignore_eos": app.ignore_eos,
        "chat": app.chat,
        "rounds": rounds,
        "temperatures": list(temperatures),
        "batch_sizes": list(batch_sizes),
        "sampling": {
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "seed": sampling.seed,
            "repetition_penalty": sampling.repetition_penalty,
        },
        "candidates": dict(candidates),
    }


def _constraint(app: Settings) -> dict[str, Any] | None:
    """What all answers are held to; None where nothing is ruled out."""
    return None if app.constraint == NOTHING else {**app.constraint, "forced_tokens": app.forced_tokens}


def load_target(
    app: Settings,
    target: Settings,
    registry: Registry,
    answers: int,
    directory: BenchDirectory,
    candidates: Iterable[Settings] = (),
) -> Pipeline:
    """Plain decoding of the target, beside which ``candidates`` are built; the record of the run is written.

    ``answers``: about how many each candidate gives. Raises UserError.
    """
    backend = joined_backend(target, registry, candidates)
    backend.expect(answers * app.max_new_tokens)
    base = build_pipeline(target, registry, backend)
    # refused before there is a record
    base.constraints.of(target.constraint)
    directory.begin(
        {
            "machine": {**run_facts(backend), "load_average": list(os.getloadavg())},
            "target": base.target_name,
            "dtype": base.dtype,
            "context": base.context,
        },
        app.overrides,
    )
    return base


def plan_of(
    app: Settings,
    base: Pipeline,
    prompts: PromptSet,
    rounds: int,
    temperatures: Sequence[float],
    batch_sizes: Sequence[int],
) -> Plan:
    """What all candidates are asked, of the target that ``base`` loaded. Raises UserError if no prompt fits."""
    plan = Plan(
        prompts.conversations,
        base.tokenizer,
        app.chat,
        base.context,
        app.max_new_tokens,
        temperatures,
        batch_sizes,
        rounds,
        app.sampling,
        frozenset() if app.ignore_eos else base.tokenizer.stop_ids,
    )
    check_some_fit(plan)
    return plan


def check_some_fit(plan: Plan) -> None:
    """Raise UserError if no prompt's first turn fits the context together with its answer."""
    refused = None
    for conversation in plan.conversations:
        try:
            tokens = conversation.tokens(plan.tokenizer, plan.chat, [])
            check_length(len(tokens), plan.new_tokens, plan.context)
            return
        except UserError as error:
            refused = error
    raise refused or UserError("prompt_file: there are no prompts")
