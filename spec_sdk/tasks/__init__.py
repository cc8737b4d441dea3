"""What ``task=…`` runs."""

from __future__ import annotations

from spec_sdk.contracts import Plugin
from spec_sdk.hookspecs import hookimpl


@hookimpl
def spec_sdk_plugins() -> list[type[Plugin]]:
    from spec_sdk.tasks.convert_draft_head import ConvertDraftHead
    from spec_sdk.tasks.cost_curve import ShowCostCurve
    from spec_sdk.tasks.estimate import EstimateLatency
    from spec_sdk.tasks.generate import Generate
    from spec_sdk.tasks.needle import FindNeedles
    from spec_sdk.tasks.plugins import ListPlugins
    from spec_sdk.tasks.show_tree import ShowTree
    from spec_sdk.tasks.train_draft import TrainDraft
    from spec_sdk.tasks.tune_layers import TuneLayers

    return [
        ConvertDraftHead,
        EstimateLatency,
        FindNeedles,
        Generate,
        ListPlugins,
        ShowCostCurve,
        ShowTree,
        TrainDraft,
        TuneLayers,
    ]
