"""Answers that are one of a list."""

from __future__ import annotations

import json
from dataclasses import dataclass

from spec_sdk.contracts import Constraint, Matcher, option
from spec_sdk.errors import UserError
from spec_sdk.model.tokenizer import Tokenizer
from spec_sdk_constraints.llguidance_grammars import check_installed, check_size, matcher_of


@dataclass
class ChoiceConfig:
    """Options of ``constraint=choice``."""

    choices: list[str] = option([], "the answers there are: [yes,no]")


class ChoiceConstraint(Constraint):
    """One of a list of texts, and nothing else."""

    name = "choice"
    Config = ChoiceConfig
    config: ChoiceConfig

    def compile(self, tokenizer: Tokenizer, vocabulary: int) -> Matcher:
        choices = self.config.choices
        if not choices or not all(choices):
            raise UserError(f"constraint.choices: {choices} must list one answer or more, none of them empty")
        check_installed(self.name)
        from llguidance import LLMatcher

        grammar = "start: " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
        check_size(grammar, "constraint.choices")
        return matcher_of(
            lambda: LLMatcher.grammar_from_lark(grammar),
            tokenizer,
            vocabulary,
            "constraint.choices",
            "the list of choices",
        )
