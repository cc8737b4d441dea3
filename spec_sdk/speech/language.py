"""Which language a Whisper model hears.

Legend: X mel bins, F frames of features.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from spec_sdk.contracts import OnlyTokens, SamplingParams
from spec_sdk.engine.token_engine import TokenRequest
from spec_sdk.speech.transcription import TranscriptionTokens

if TYPE_CHECKING:
    from spec_sdk.pipeline import Pipeline


def spoken_language(pipeline: Pipeline, tokens: TranscriptionTokens, features_XF: torch.Tensor) -> str:
    """The code of the language that the model hears: its likeliest language token after the first token of all.

    In an engine of its own, so that nothing of it is left for the transcription to begin with.
    """
    engine = pipeline.vanilla().new_engine()
    answer = engine.stream(
        TokenRequest(
            [tokens.start],
            max_new_tokens=1,
            sampling=SamplingParams(),
            input_features=features_XF,
            constraint=OnlyTokens(tokens.languages.values()),
        )
    )
    token = next(token for new in answer for token in new)
    return next(code for code, known in tokens.languages.items() if known == token)
