"""First-party drafters, and what makes the files that they read."""

from __future__ import annotations

from spec_sdk.contracts import Plugin
from spec_sdk.hookspecs import hookimpl


@hookimpl
def spec_sdk_plugins() -> list[type[Plugin]]:
    from spec_sdk_drafters.assistant import AssistantDrafter
    from spec_sdk_drafters.block import BlockDrafter
    from spec_sdk_drafters.build_datastore import BuildDatastore
    from spec_sdk_drafters.draft_model import DraftModelDrafter
    from spec_sdk_drafters.eagle import EagleDrafter
    from spec_sdk_drafters.easyspec import EasySpecDrafter
    from spec_sdk_drafters.hydra import HydraDrafter
    from spec_sdk_drafters.layer_skip import LayerSkipDrafter
    from spec_sdk_drafters.lookahead import LookaheadDrafter
    from spec_sdk_drafters.medusa import MedusaDrafter
    from spec_sdk_drafters.merged import MergedDrafter
    from spec_sdk_drafters.mixed import MixedDrafter
    from spec_sdk_drafters.mtp import MtpDrafter
    from spec_sdk_drafters.no_draft import NoDraft
    from spec_sdk_drafters.peagle import PEagleDrafter
    from spec_sdk_drafters.prompt_lookup import PromptLookup
    from spec_sdk_drafters.skipped_layers import LayerSkipRunner
    from spec_sdk_drafters.suffix import SuffixDrafter
    from spec_sdk_drafters.token_recycling import TokenRecyclingDrafter

    return [
        NoDraft,
        DraftModelDrafter,
        EasySpecDrafter,
        EagleDrafter,
        PEagleDrafter,
        BlockDrafter,
        MedusaDrafter,
        HydraDrafter,
        MtpDrafter,
        AssistantDrafter,
        LayerSkipDrafter,
        PromptLookup,
        SuffixDrafter,
        TokenRecyclingDrafter,
        LookaheadDrafter,
        MixedDrafter,
        MergedDrafter,
        LayerSkipRunner,
        BuildDatastore,
    ]
