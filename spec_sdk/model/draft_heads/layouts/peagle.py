"""P-EAGLE heads as their trainers and the speculators library write them: EAGLE-3's tensors, and a few more."""

from __future__ import annotations

import re

from spec_sdk.errors import UserError
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.draft_heads.head_files import HeadFiles, HeadTensors
from spec_sdk.model.draft_heads.head_spec import read_layers
from spec_sdk.model.draft_heads.layouts.eagle3 import Eagle3Layout, eagle3_tensors, read_eagle3
from spec_sdk.model.draft_heads.layouts.layout import PublishedHead
from spec_sdk.model.draft_heads.layouts.mask_token import mask_token
from spec_sdk.model.draft_heads.peagle_spec import MASK_HIDDEN, PEagleSpec

_MASK_TOKEN = ("mask_token_id", "pard_token", "ptd_token_id")


class PEagleLayout(Eagle3Layout):
    title = "P-EAGLE"

    def recognises(self, files: HeadFiles) -> bool:
        named = any("peagle" in name.lower() for name in files.architectures)
        parallel = MASK_HIDDEN in files.names or named or files.config.flag("parallel_drafting", False)
        return parallel and super().recognises(files)

    def read(self, files: HeadFiles) -> PublishedHead:
        tensors = eagle3_tensors(files)
        spec = read_peagle(files.config, files.config, tensors)
        return PublishedHead(self.title, spec, tensors, str(files.directory), files.directory.resolve().name)


def read_peagle(body: Fields, options: Fields, tensors: HeadTensors) -> PEagleSpec:
    """A head whose layers ``body`` describes, and everything else ``options``.

    Raises UserError for options that exclude each other, and for a config.json that says another thing than the
    tensors.
    """
    said = body.size("num_hidden_layers", 1)
    stored = {int(found[1]) for name in tensors.names if (found := re.match(r"layers\.(\d+)\.", name))}
    if stored != set(range(said)):
        raise UserError(f"{body.where}: num_hidden_layers is {said}, and there are tensors of {len(stored)} layers")
    layers = read_layers(body, tensors.names)
    return PEagleSpec(
        **vars(read_eagle3(layers, options, norm_before_residual=False)),
        mask_token=mask_token(options, _MASK_TOKEN, layers.vocab_size),
        mask_axes=len(tensors.shape(MASK_HIDDEN)) if MASK_HIDDEN in tensors else 1,
        drafts=_drafts(options),
    )


def _drafts(options: Fields) -> int | None:
    """How many tokens the head was trained to draft, if the files say it."""
    if options.get("num_depths") is not None:
        return options.size("num_depths")
    library = options.get("speculators_config")
    proposals = library.get("proposal_methods") if isinstance(library, dict) else None
    if not isinstance(proposals, list) or not proposals or not isinstance(proposals[0], dict):
        return None
    proposal = Fields(proposals[0], f"{options.where}, proposal_methods")
    return None if proposal.get("speculative_tokens") is None else proposal.size("speculative_tokens")
