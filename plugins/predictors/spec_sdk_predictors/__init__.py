"""First-party predictors of the attention level."""

from __future__ import annotations

from spec_sdk.contracts import Plugin
from spec_sdk.hookspecs import hookimpl


@hookimpl
def spec_sdk_plugins() -> list[type[Plugin]]:
    from spec_sdk_predictors.attention_sink import AttentionSink
    from spec_sdk_predictors.h2o import H2O
    from spec_sdk_predictors.quest import Quest

    return [AttentionSink, Quest, H2O]
