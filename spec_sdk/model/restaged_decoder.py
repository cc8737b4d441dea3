"""What decoders share that compute another one's stages their own way."""

from __future__ import annotations

from spec_sdk.model.decoder import Decoder


class RestagedDecoder(Decoder):
    """The weights of ``decoder``, for a subclass with stages of its own."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__(
            decoder.config,
            decoder.blocks,
            decoder.embedding,
            decoder.final_norm_M,
            decoder.output_head,
            stack=decoder.stack,
            sources=decoder.sources,
        )
