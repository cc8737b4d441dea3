"""Drafting from what the target thought likely before: see :mod:`spec_sdk_drafters.recycling_table`."""

from __future__ import annotations

from dataclasses import dataclass

from spec_sdk.contracts import option
from spec_sdk_drafters.guess_source import Sources
from spec_sdk_drafters.recycling_table import RecyclingSources
from spec_sdk_drafters.retrieval import RetrievalConfig, RetrievalDrafter


@dataclass
class TokenRecyclingConfig(RetrievalConfig):
    """Options of ``drafter=token_recycling``."""

    successors: int = option(8, "the target's most probable tokens that are kept after every token", minimum=1)


class TokenRecyclingDrafter(RetrievalDrafter):
    """Drafts the tree of what the target last thought likely after each token, rejected nodes included."""

    name = "token_recycling"
    Config = TokenRecyclingConfig
    config: TokenRecyclingConfig

    def make_sources(self) -> list[Sources]:
        return [RecyclingSources(self.config.keep_across_prompts, self.config.successors)]
