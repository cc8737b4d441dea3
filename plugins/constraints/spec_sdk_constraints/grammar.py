"""Answers that a context-free grammar derives."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from spec_sdk.contracts import Constraint, Matcher, option
from spec_sdk.errors import UserError
from spec_sdk.files import expanded, read_text
from spec_sdk.model.tokenizer import Tokenizer
from spec_sdk_constraints.llguidance_grammars import check_installed, check_one_given, check_size, matcher_of


@dataclass
class GrammarConfig:
    """Options of ``constraint=grammar``."""

    file: str | None = option(None, "a file with a grammar in llguidance's variant of Lark's syntax; its rule is start")
    text: str | None = option(None, "the grammar itself, in place of a file")


class GrammarConstraint(Constraint):
    """Texts that a context-free grammar derives."""

    name = "grammar"
    Config = GrammarConfig
    config: GrammarConfig

    def __init__(self, config: GrammarConfig) -> None:
        super().__init__(config)
        check_one_given("file", config.file, config.text)
        self._option, self._grammar = "constraint.text", config.text or ""
        if config.file is not None:
            path = expanded(config.file, "constraint.file")
            self._option, self._grammar = "constraint.file", read_text(path, f"constraint.file: {path}:")

    @property
    def key(self) -> Hashable:
        return self._grammar

    def compile(self, tokenizer: Tokenizer, vocabulary: int) -> Matcher:
        if not self._grammar.strip():
            raise UserError("constraint.file: give a file with the grammar of the answers, such as answers.lark")
        check_installed(self.name)
        from llguidance import LLMatcher

        check_size(self._grammar, self._option)
        grammar = self._grammar

        def make() -> str:
            return LLMatcher.grammar_from_lark(grammar)

        return matcher_of(make, tokenizer, vocabulary, self._option, "the grammar")
