"""Drafting from a suffix automaton: what followed the longest runs of tokens before, counted."""

from __future__ import annotations

from dataclasses import dataclass

from spec_sdk.contracts import option
from spec_sdk.model.models import Models
from spec_sdk_drafters.datastore_source import DatastoreSources
from spec_sdk_drafters.guess_source import Sources
from spec_sdk_drafters.retrieval import RetrievalConfig, RetrievalDrafter
from spec_sdk_drafters.suffix_source import SuffixSources


@dataclass
class SuffixConfig(RetrievalConfig):
    """Options of ``drafter=suffix``."""

    max_kept_tokens: int = option(
        32768, "keep_across_prompts: most tokens of past answers that are kept, about 1 KB each", minimum=2
    )
    datastore: str | None = option(
        None, "a file of texts that are looked up too, by task=build_datastore", means={None: "none"}
    )


class SuffixDrafter(RetrievalDrafter):
    """Drafts the tree of what followed the last tokens, in prompt and output, before.

    As SuffixDecoding (Oliaro et al. 2024) does with a suffix tree, with counts as confidence. With a ``datastore`` also
    what followed them in texts of the past, as REST does (He et al. 2024).
    """

    name = "suffix"
    Config = SuffixConfig
    config: SuffixConfig

    def make_sources(self) -> list[Sources]:
        return text_sources(self.config, self.models)


def text_sources(config: SuffixConfig, models: Models) -> list[Sources]:
    """What was written before: in the datastore, if there is one, and in the request's own text.

    The datastore comes first: it is silent where it knows nothing, and weight is lost by the further ones alone.
    """
    keep = config.keep_across_prompts
    found: list[Sources] = [SuffixSources(keep, config.max_kept_tokens)]
    return found if config.datastore is None else [DatastoreSources.of_file(config.datastore, models, keep), *found]
