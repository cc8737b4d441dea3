"""``task=convert_draft_head``: a draft head's pickle as safetensors."""

from __future__ import annotations

from dataclasses import dataclass

from spec_sdk.contracts import Task, option
from spec_sdk.errors import UserError
from spec_sdk.files import expanded
from spec_sdk.settings import Settings


@dataclass
class ConvertDraftHeadConfig:
    """Options of ``task=convert_draft_head``."""

    input: str | None = option(None, "the head: a directory with config.json and a .bin, or a Hugging Face hub id")
    output: str | None = option(None, "the directory to write; it must not be there yet")


class ConvertDraftHead(Task):
    """Converts a draft head's pickle to safetensors: only tensors are read, no code from the file runs."""

    name = "convert_draft_head"
    computes = False
    Config = ConvertDraftHeadConfig
    config: ConvertDraftHeadConfig

    def run(self, app: Settings) -> int:
        """What was written goes to stdout; returns 0. Raises UserError for what cannot be converted."""
        from spec_sdk.model.draft_heads.conversion import convert_draft_head
        from spec_sdk.model.draft_heads.opening import head_directory

        for name in ("input", "output"):
            if not getattr(self.config, name):
                raise UserError(f"task.{name}: is not given; task=convert_draft_head task.input=HEAD task.output=DIR")
        assert self.config.input is not None and self.config.output is not None
        source = head_directory(self.config.input, "task.input", pickled=True)
        output = expanded(self.config.output, "task.output")
        spec = (head := convert_draft_head(source, output)).spec
        print(
            f"{output}: {head.layout} head, for a target of hidden size {spec.target_hidden_size} and vocabulary "
            f"{spec.target_vocabulary}"
        )
        return 0
