"""Answers that match a regular expression."""

from __future__ import annotations

from dataclasses import dataclass

from spec_sdk.contracts import Constraint, Matcher, option
from spec_sdk.errors import UserError
from spec_sdk.model.tokenizer import Tokenizer
from spec_sdk_constraints.llguidance_grammars import check_installed, check_size, matcher_of


@dataclass
class RegexConfig:
    """Options of ``constraint=regex``."""

    pattern: str | None = option(
        None, r"the whole answer must match it: \d{3}-\d{4}; Rust's syntax, without look-around and back-references"
    )


class RegexConstraint(Constraint):
    """Answers that a regular expression matches, from begin to end."""

    name = "regex"
    Config = RegexConfig
    config: RegexConfig

    def compile(self, tokenizer: Tokenizer, vocabulary: int) -> Matcher:
        if not self.config.pattern:
            raise UserError("constraint.pattern: give the regular expression that answers must match")
        check_installed(self.name)
        from llguidance import LLMatcher

        pattern = self.config.pattern
        check_size(pattern, "constraint.pattern")
        if (len(pattern) - len(pattern.rstrip("\\"))) % 2:
            raise UserError("constraint.pattern: it ends with a backslash that escapes nothing")

        def make() -> str:
            return LLMatcher.grammar_from_regex(pattern)

        return matcher_of(make, tokenizer, vocabulary, "constraint.pattern", "the regular expression")
