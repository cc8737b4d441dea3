"""A benchmark's generation options: which tokens, where an answer ends, and how much room prompt and answer have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lm_eval.models.utils import maybe_truncate, normalize_gen_kwargs

from spec_sdk.errors import UserError, message_of

LONGEST_ANSWER = 256
"""Tokens of an answer where a task does not say, as with the harness's other models."""
SAMPLED_BY = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
UNDERSTOOD = {"do_sample", "until", "max_gen_toks", *SAMPLED_BY}


@dataclass(frozen=True)
class GenerationOptions:
    """What a task says: ``sampled_by`` are the options ``sampling.*`` that it sets."""

    limit: int
    stop: Sequence[str]
    sampled_by: Mapping[str, Any]

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> GenerationOptions:
        """Raises UserError for an option that is not offered, and for what is no number where one should stand."""
        try:
            given = normalize_gen_kwargs(dict(said), default_max_gen_toks=LONGEST_ANSWER)
        except (TypeError, ValueError) as error:
            raise UserError(f"generation_kwargs: {message_of(error)}") from error
        unknown = sorted(set(given) - UNDERSTOOD)
        if unknown:
            raise UserError(f"the task sets the generation option '{unknown[0]}', which is not offered here")
        sampled_by = {name: given[name] for name in SAMPLED_BY if given.get(name) is not None}
        if said.get("do_sample") and "temperature" not in said:
            # as with transformers
            sampled_by["temperature"] = 1.0
        return cls(given["max_gen_toks"], [text for text in given["until"] if text], sampled_by)


@dataclass(frozen=True)
class Fitted:
    """A prompt and the longest answer to it, which have room in the context together."""

    prompt: Sequence[int]
    limit: int
    prompt_cut: bool
    answer_shortened: bool

    @classmethod
    def of(cls, prompt: list[int], limit: int, context: int) -> Fitted:
        """A limit of up to half the context stands, as with the harness's other models: a prompt beside which it has no
        room loses its beginning. A longer limit is shortened to what the prompt leaves; a prompt that leaves less than
        the usual answer, or half of a small context, loses its beginning.
        """
        half = max(1, context // 2)
        least = limit if limit <= half else min(half, LONGEST_ANSWER)
        kept, room = maybe_truncate(
            prompt, limit, context, min_gen_toks=least, shrink_gen_toks=limit > half, verbose=False
        )
        return cls(kept, room, len(kept) < len(prompt), room < limit)
