"""Drafting from a suffix automaton: what followed the longest runs of tokens before, counted."""

from __future__ import annotations

from dataclasses import dataclass

from spec_sdk.contracts import option
from spec_sdk_drafters.guess_source import Sources
from spec_sdk_drafters.retrieval import RetrievalConfig, RetrievalDrafter
from spec_sdk_drafters.suffix_source import SuffixSources


@dataclass
class SuffixConfig(RetrievalConfig):
    """Options of ``drafter=suffix``."""

    max_kept_tokens: int = option(
        32768, "keep_across_prompts: most tokens of past answers that are kept, about 1 KB each", minimum=2
    )


class SuffixDrafter(RetrievalDrafter):
    """Drafts the tree of what followed the last tokens, in prompt and output, before.

    As SuffixDecoding (Oliaro et al. 2024) does with a suffix tree, with counts as confidence.
    """

    name = "suffix"
    Config = SuffixConfig
    config: SuffixConfig

    def make_sources(self) -> list[Sources]:
        return [SuffixSources(self.config.keep_across_prompts, self.config.max_kept_tokens)]
