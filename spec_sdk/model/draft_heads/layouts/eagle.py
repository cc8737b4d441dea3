"""EAGLE and EAGLE-2 heads of SafeAILab, and those of HASS, which have the same layout."""

from __future__ import annotations

from spec_sdk.errors import UserError
from spec_sdk.model.draft_heads.eagle1_spec import Eagle1Spec
from spec_sdk.model.draft_heads.head_files import HeadFiles
from spec_sdk.model.draft_heads.head_spec import read_layer
from spec_sdk.model.draft_heads.layouts.layout import DraftHeadLayout, PublishedHead


class EagleLayout(DraftHeadLayout):
    title = "EAGLE-1/2"

    def recognises(self, files: HeadFiles) -> bool:
        names = files.names
        normed = any(name.endswith("hidden_norm.weight") for name in names)
        return "fc.weight" in names and "layers.0.self_attn.q_proj.weight" in names and not normed

    def read(self, files: HeadFiles) -> PublishedHead:
        newer = ("eagle3", "peagle")
        named = next((name for name in files.architectures if any(of in name.lower() for of in newer)), None)
        if named is not None:
            raise UserError(
                f"{files.config.where}: names an EAGLE-3 head ({named}), and the tensors are those of an EAGLE-1 head: "
                "there is no hidden_norm"
            )
        tensors, config = files.tensors(), files.config
        layer = read_layer(config, tensors.names)
        spec = Eagle1Spec(layer, layer.vocab_size, layer.hidden_size, fc_bias=_bias(files))
        return PublishedHead(self.title, spec, tensors, str(files.directory), files.directory.resolve().name)


def _bias(files: HeadFiles) -> bool:
    """Whether ``fc`` has a bias. config.json that does not say means yes, as the original code reads it."""
    says, has = files.config.flag("bias", True), "fc.bias" in files.names
    if says != has:
        said = "does not say bias=false" if says else "says bias=false"
        raise UserError(f"{files.config.where}: {said}, and there is {'a' if has else 'no'} tensor 'fc.bias'")
    return has
