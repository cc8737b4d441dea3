"""What a request gives to the encoder of an encoder–decoder model.

Legend: X height of the features (speech: mel bins), T their frames, F states of the encoder, M model dim.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from spec_sdk.errors import UserError
from spec_sdk.model.config import EncoderConfig

Encode = Callable[[torch.Tensor], torch.Tensor]
"""Features [X, T] → states [F, M]."""


class EncoderInput:
    """A request's features [X, T], and the states that encoders made of them.

    A target and a draft model cut out of it have one encoder, which runs once.
    """

    def __init__(self, features_XT: torch.Tensor) -> None:
        # a copy: what a slot was given is compared with what the next request gives
        self.features_XT = torch.as_tensor(features_XT).detach().to("cpu", torch.float32, copy=True)
        self._states: dict[Encode, torch.Tensor] = {}

    def states(self, encode: Encode) -> torch.Tensor:
        """The states [F, M] that ``encode`` makes, kept as long as the request."""
        if encode not in self._states:
            self._states[encode] = encode(self.features_XT)
        return self._states[encode]

    def same_as(self, features_XT: torch.Tensor | None) -> bool:
        """Whether the features are these, number by number."""
        return features_XT is not None and torch.equal(features_XT, self.features_XT)


def check_features(features_XT: torch.Tensor | None, encoder: EncoderConfig | None) -> None:
    """Raise UserError unless a request has features exactly if the model has an encoder, and in the encoder's shape."""
    if encoder is None:
        if features_XT is not None:
            raise UserError("input_features: the target is a text model without an encoder, so it takes no audio")
        return
    wanted = (encoder.features, encoder.input_frames)
    if features_XT is None:
        raise UserError("audio: the model is an encoder-decoder, and answers nothing but audio; give audio=FILE.wav")
    if tuple(features_XT.shape) != wanted:
        raise UserError(f"input_features: their shape is {list(features_XT.shape)}, the encoder takes {list(wanted)}")
    if not bool(torch.isfinite(features_XT).all()):
        raise UserError("input_features: some are NaN or infinite")
