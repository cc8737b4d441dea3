"""The decoder whose blocks attend to latents and run natively."""

from __future__ import annotations

from collections.abc import Sequence

from spec_sdk.model.decoder import Decoder
from spec_sdk.model.latent_attention import LatentDecoder
from spec_sdk_backends.native.decoder import NativeDecoder


class NativeLatentDecoder(LatentDecoder, NativeDecoder):
    """A native decoder whose blocks attend to latents; of single stages the products run natively."""

    def subset(self, layers: Sequence[int]) -> Decoder:
        return NativeLatentDecoder(LatentDecoder.subset(self, layers), self.in_parts)


def native_decoder(decoder: Decoder, in_parts: bool = False) -> NativeDecoder:
    """The decoder that the kernels run of one that they have nothing against."""
    kind = NativeLatentDecoder if isinstance(decoder, LatentDecoder) else NativeDecoder
    return kind(decoder, in_parts)


RUN_AT_ONCE = NativeDecoder, NativeLatentDecoder
"""The decoders of which a pass, or a draft tree, is one native call."""
