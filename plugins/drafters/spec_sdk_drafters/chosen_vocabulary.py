"""What a draft model can draft, chosen by options: shared by drafters with a draft model or a head of one layer."""

from __future__ import annotations

from typing import Any, Protocol

from spec_sdk.contracts import option
from spec_sdk.errors import UserError
from spec_sdk.model.compilation import choice_of
from spec_sdk.model.context_vocabulary import ContextVocabulary, why_no_context, with_all_tokens, with_lowest_tokens
from spec_sdk.model.draft_heads.head import DraftHeadExecutor
from spec_sdk.model.draft_heads.session import DraftHeadSession
from spec_sdk.model.executor import Executor
from spec_sdk.model.torch_executor import TorchExecutor


class VocabularyOptions(Protocol):
    """Options of what can be drafted."""

    vocabulary: int | None
    context_vocabulary: Any


def vocabulary_option() -> int | None:
    """The option ``vocabulary``."""
    return option(
        None,
        "tokens that can be drafted, those of the lowest ids: a tokenizer gives them to frequent ones",
        minimum=1,
        means={None: "all that the draft model has"},
    )


def context_vocabulary_option() -> Any:
    """The option ``context_vocabulary``."""
    return option(
        "auto",
        "whether the tokens of the request's own text can be drafted besides",
        choices={
            True: "",
            False: "",
            "auto": "where the draft model can draft some tokens only, and rows of others are at hand; on a GPU a "
            "draft model drafts all tokens instead, by the target's head, where that is a plain matrix of up to "
            "256 MiB",
        },
    )


MOST_HEAD_BYTES = 2**28
"""Of an output head over all tokens: read in less time than a level takes to be launched and waited for."""


def reduced_to(executor: Executor, options: VocabularyOptions, at_once: bool = False) -> Executor:
    """The executor with the output head that the options ask for. Raises UserError where it cannot have it.

    ``at_once``: whether the levels of a tree may be one launch. Then ``context_vocabulary=auto`` has all tokens
    drafted, because with what a text adds each level would be a launch and a wait.
    """
    if options.vocabulary is None:
        adds_text = choice_of(options.context_vocabulary, "drafter.context_vocabulary") == "auto"
        whole = with_all_tokens(executor, MOST_HEAD_BYTES) if adds_text and at_once and executor.one_launch else None
        return whole or executor
    if not isinstance(executor, TorchExecutor) or executor.config.encoder is not None:
        raise UserError("drafter.vocabulary: is for decoders that run in torch; leave it at null")
    return with_lowest_tokens(executor, options.vocabulary, "drafter.vocabulary")


def head_session(executor: DraftHeadExecutor, options: VocabularyOptions) -> DraftHeadSession:
    """The head at work, drafting what the options say. Raises UserError where it cannot."""
    reduced = reduced_to(executor, options)
    assert isinstance(reduced, DraftHeadExecutor)
    session = DraftHeadSession(reduced)
    session.context_vocabulary = context_vocabulary_of(reduced, options)
    return session


def context_vocabulary_of(executor: Executor, options: VocabularyOptions) -> ContextVocabulary | None:
    """What adds the tokens of requests' texts; None without. Raises UserError where they are asked for in vain."""
    choice = choice_of(options.context_vocabulary, "drafter.context_vocabulary")
    why = why_no_context(executor)
    if choice == "true" and why is not None:
        raise UserError(
            f"drafter.context_vocabulary=true: the tokens of a text cannot be added to what the draft model can draft: "
            f"{why}; use auto, or choose fewer tokens with drafter.vocabulary"
        )
    if choice == "false" or why is not None:
        return None
    assert isinstance(executor, TorchExecutor)
    return ContextVocabulary(executor)
